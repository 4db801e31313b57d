// Products of matrices of 8-bit and 4-bit floats with scales. Each kind of scale has a type in
// which codes times scales are exact, or as good as float:
//
//   whole    of whole rows and columns, applied to the sums; codes are halves
//   float    of blocks of 128; codes times scales are floats
//   e8m0     of blocks of 32 (MX); bfloats
//   e4m3     of blocks of 16 (NVFP4); halves
//
// The left operand, which is the smaller one, is decoded before; the right one on its way to
// threadgroup memory, by a table of what the codes stand for.
#include <metal_stdlib>

#include "matmul.h"
#include "number_formats.h"
#include "scaled_mm.h"
using namespace metal;
using metalops::NarrowFormat;
using metalops::ScaledDecode;
using metalops::ScaledParameters;
using metalops::ScaledResult;
using metalops::ScalePlaces;
namespace formats = metalops::formats;
namespace matmul = metalops::matmul;

inline float decode(uint code, NarrowFormat format) {
  switch (format) {
    case NarrowFormat::kE4m3:
      return formats::e4m3::decode(code);
    case NarrowFormat::kE5m2:
      return formats::e5m2::decode(code);
    case NarrowFormat::kE4m3fnuz:
      return formats::e4m3fnuz::decode(code);
    case NarrowFormat::kE5m2fnuz:
      return formats::e5m2fnuz::decode(code);
    default:
      return formats::e2m1::decode(code & 15);
  }
}

// ---- scales -------------------------------------------------------------------------------------

struct Whole {
  typedef half element;
  typedef uchar stored;
  static inline float value(device const uchar*, int64_t) { return 1.0f; }
  static constant constexpr bool is_of_blocks = false;
};
struct Float {
  typedef float element;
  typedef float stored;
  static inline float value(device const float* scales, int64_t place) { return scales[place]; }
  static constant constexpr bool is_of_blocks = true;
};
struct E8m0 {
  typedef bfloat element;
  typedef uchar stored;
  static inline float value(device const uchar* scales, int64_t place) {
    return formats::e8m0::decode(scales[place]);
  }
  static constant constexpr bool is_of_blocks = true;
};
struct E4m3 {
  typedef half element;
  typedef uchar stored;
  static inline float value(device const uchar* scales, int64_t place) {
    return formats::e4m3::decode(scales[place]);
  }
  static constant constexpr bool is_of_blocks = true;
};

inline int64_t place_of_scale(ScalePlaces places, int line, int block) {
  if (places.is_swizzled) {
    const int64_t tile = static_cast<int64_t>(line / 128) * places.across + block / 4;
    return tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
  }
  return line / places.lines * places.line_stride + block * places.inner_stride;
}

// ---- operands -----------------------------------------------------------------------------------

// Lines of codes that are not transposed. table: of what codes stand for.
template <typename Scales>
struct Coded {
  typedef typename Scales::element element;
  static constant constexpr bool is_decoded = true;
  static constant constexpr bool is_transposed = false;

  struct Run {
    device const uchar* codes;
    threadgroup const half* table;
    device const typename Scales::stored* scales;
    ScalePlaces places;
    int line;
    int first;
    bool has_pairs;

    inline element operator[](int i) const {
      const int k = first + i;
      uint code;
      if (has_pairs) {
        const uint pair = codes[k / 2];
        code = (k % 2 == 0 ? pair : pair >> 4) & 15u;
      } else {
        code = codes[k];
      }
      if (!Scales::is_of_blocks) {
        return static_cast<element>(table[code]);
      }
      const int64_t place = place_of_scale(places, line, k / places.inner);
      return static_cast<element>(static_cast<float>(table[code]) * Scales::value(scales, place));
    }
  };

  device const uchar* codes;
  threadgroup const half* table;
  device const typename Scales::stored* scales;
  ScalePlaces places;
  int64_t stride;
  bool has_pairs;

  inline Run run(int64_t line, int64_t k) const {
    return {codes + line * stride, table,    scales, places, static_cast<int>(line),
            static_cast<int>(k),   has_pairs};
  }
};

template <typename Scales>
inline Coded<Scales> coded(device const uchar* codes, threadgroup half* table,
                           device const typename Scales::stored* scales,
                           constant ScaledParameters& p, uint index, uint threads) {
  for (uint code = index; code < 256; code += threads) {
    table[code] = static_cast<half>(decode(code, p.format));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return {codes, table, scales, p.scales, p.right_stride, p.format == NarrowFormat::kE2m1};
}

// A thread for each element: result[line * inner + k].
template <typename Scales>
kernel void scaled_mm_decode(device typename Scales::element* result [[buffer(0)]],
                             device const uchar* codes [[buffer(1)]],
                             device const typename Scales::stored* scales [[buffer(2)]],
                             constant ScaledDecode& p [[buffer(3)]],
                             uint2 position [[thread_position_in_grid]],
                             uint2 grid [[threads_per_grid]]) {
  const int line = static_cast<int>(position.y);
  const int k = static_cast<int>(position.x);
  uint code;
  if (p.format == NarrowFormat::kE2m1) {
    const uint pair = codes[line * p.line_stride + k / 2 * p.inner_stride];
    code = k % 2 == 0 ? pair : pair >> 4;
  } else {
    code = codes[line * p.line_stride + k * p.inner_stride];
  }
  float value = decode(code, p.format);
  if (Scales::is_of_blocks) {
    value *= Scales::value(scales, place_of_scale(p.scales, line, k / p.scales.inner));
  }
  result[static_cast<int64_t>(line) * grid.x + k] = static_cast<typename Scales::element>(value);
}

// ---- results ------------------------------------------------------------------------------------

struct StoreScaled {
  device void* result;
  device const float* row_scales;
  device const float* column_scales;
  device const float* bias;
  device const float* result_scale;
  int columns;
  int row_step;
  int column_step;
  ScaledResult type;
  bool has_bias;
  bool has_result_scale;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    float value = sums.of[0] * row_scales[row * row_step] * column_scales[column * column_step];
    if (has_bias) {
      value += bias[column];
    }
    if (has_result_scale) {
      value *= 1.0f / result_scale[0];
    }
    const int64_t place = static_cast<int64_t>(row) * columns + column;
    switch (type) {
      case ScaledResult::kFloat:
        reinterpret_cast<device float*>(result)[place] = value;
        break;
      case ScaledResult::kHalf:
        reinterpret_cast<device half*>(result)[place] = static_cast<half>(value);
        break;
      case ScaledResult::kBfloat:
        reinterpret_cast<device bfloat*>(result)[place] = static_cast<bfloat>(value);
        break;
      default:
        reinterpret_cast<device uchar*>(result)[place] = static_cast<uchar>(code_of(value));
    }
  }

  inline uint code_of(float value) const {
    switch (type) {
      case ScaledResult::kE4m3:
        return formats::e4m3::encode(value);
      case ScaledResult::kE5m2:
        return formats::e5m2::encode(saturated(value, 57344.0f));
      case ScaledResult::kE4m3fnuz:
        return formats::e4m3fnuz::encode(saturated(value, 240.0f));
      default:
        return formats::e5m2fnuz::encode(saturated(value, 57344.0f));
    }
  }

  // NaN stays.
  static inline float saturated(float value, float largest) {
    return value > largest ? largest : value < -largest ? -largest : value;
  }
};

inline StoreScaled epilogue_of(device void* result, device const float* row_scales,
                               device const float* column_scales, device const float* bias,
                               device const float* result_scale, constant ScaledParameters& p) {
  return {result,     row_scales,    column_scales, bias,       result_scale,      p.columns,
          p.row_step, p.column_step, p.result,      p.has_bias, p.has_result_scale};
}

// ---- products -----------------------------------------------------------------------------------

// A threadgroup for each tile.
template <typename Scales, typename Tile>
kernel void scaled_mm(
    device void* result [[buffer(0)]], device const typename Scales::element* left [[buffer(1)]],
    device const uchar* right [[buffer(2)]],
    device const typename Scales::stored* scales [[buffer(3)]],
    device const float* row_scales [[buffer(4)]], device const float* column_scales [[buffer(5)]],
    device const float* bias [[buffer(6)]], device const float* result_scale [[buffer(7)]],
    constant ScaledParameters& parameters [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  typedef typename Scales::element T;
  threadgroup half table[256];
  threadgroup T workspace[matmul::workspace<Tile, Coded<Scales>>()];
  const matmul::Dense<T> a{left, parameters.left_stride, false};
  const Coded<Scales> b = coded<Scales>(right, table, scales, parameters, index, Tile::threads);
  const matmul::Sizes sizes{parameters.rows, parameters.columns, parameters.inner};
  const uint across = (static_cast<uint>(parameters.columns) + Tile::columns - 1) / Tile::columns;
  const matmul::Place place{uint2(group % across, group / across), index, simdgroup, lane};
  matmul::multiply_tile<Tile>(
      a, b, sizes, epilogue_of(result, row_scales, column_scales, bias, result_scale, parameters),
      workspace, place);
}

// For a few rows: a threadgroup of four simdgroups, each of which has COLUMNS columns of ROWS rows.
template <typename Scales, int ROWS, int COLUMNS>
kernel void scaled_mm_few_rows(
    device void* result [[buffer(0)]], device const typename Scales::element* left [[buffer(1)]],
    device const uchar* right [[buffer(2)]],
    device const typename Scales::stored* scales [[buffer(3)]],
    device const float* row_scales [[buffer(4)]], device const float* column_scales [[buffer(5)]],
    device const float* bias [[buffer(6)]], device const float* result_scale [[buffer(7)]],
    constant ScaledParameters& parameters [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half table[256];
  const matmul::Dense<typename Scales::element> a{left, parameters.left_stride, false};
  const Coded<Scales> b = coded<Scales>(right, table, scales, parameters, index, 128);
  const matmul::Sizes sizes{parameters.rows, parameters.columns, parameters.inner};
  const uint across = (static_cast<uint>(parameters.columns) + 4 * COLUMNS - 1) / (4 * COLUMNS);
  const int row = static_cast<int>(group / across) * ROWS;
  const int column = static_cast<int>(group % across * 4 + simdgroup) * COLUMNS;
  matmul::multiply_few_rows<ROWS, COLUMNS, 1>(
      a, b, sizes, epilogue_of(result, row_scales, column_scales, bias, result_scale, parameters),
      row, column, lane);
}

#define REGISTER_TILE(NAME, SCALES, SCALE_NAME, ...)                                               \
  template [[host_name("scaled_mm_" #NAME "_" #SCALE_NAME)]] kernel void                           \
  scaled_mm<SCALES, matmul::Tile<__VA_ARGS__>>(                                                    \
      device void*, device const SCALES::element*, device const uchar*,                            \
      device const SCALES::stored*, device const float*, device const float*, device const float*, \
      device const float*, constant ScaledParameters&, uint, uint, uint, uint)

#define REGISTER_TILES(SCALES, NAME)                \
  REGISTER_TILE(large, SCALES, NAME, 64, 64, 2, 2); \
  REGISTER_TILE(small, SCALES, NAME, 16, 64, 1, 4)

REGISTER_TILES(Whole, whole);
REGISTER_TILES(Float, float);
REGISTER_TILES(E8m0, e8m0);
REGISTER_TILES(E4m3, e4m3);

// What has no products of tiles is in the library without tensors.
#if !defined(__HAVE_TENSOR__)

#define REGISTER_OTHERS(SCALES, NAME)                                                              \
  template [[host_name("scaled_mm_few_" #NAME)]] kernel void scaled_mm_few_rows<SCALES, 4, 2>(     \
      device void*, device const SCALES::element*, device const uchar*,                            \
      device const SCALES::stored*, device const float*, device const float*, device const float*, \
      device const float*, constant ScaledParameters&, uint, uint, uint, uint);                    \
  template [[host_name("scaled_mm_decode_" #NAME)]] kernel void scaled_mm_decode<SCALES>(          \
      device SCALES::element*, device const uchar*, device const SCALES::stored*,                  \
      constant ScaledDecode&, uint2, uint2)

REGISTER_OTHERS(Whole, whole);
REGISTER_OTHERS(Float, float);
REGISTER_OTHERS(E8m0, e8m0);
REGISTER_OTHERS(E4m3, e4m3);

#endif

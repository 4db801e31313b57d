// Operands and epilogue of GEMMs of 8-bit and 4-bit floats with scales. Each kind of scale has a
// multiplication type in which code times scale is exact, or as good as float:
//
//   whole    scales of whole rows and columns, applied to the sums; codes are multiplied as half
//   float    scales of blocks of 128; code times scale is float
//   e8m0     scales of blocks of 32 (MX); bfloat
//   e4m3     scales of blocks of 16 (NVFP4); half
//
// The left operand, which is the smaller one, is dequantised by a kernel of its own; the right one
// on its way to threadgroup memory, by a lookup table of the codes' values.
#pragma once
#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/common/number_formats.h>
#include <kernels/matmul/scaled_mm.h>

namespace metalops {
namespace scaled {

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
  int64_t place;
  if (places.is_swizzled) {
    const int64_t tile = static_cast<int64_t>(line / 128) * places.across + block / 4;
    place = tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
  } else {
    place = line / places.lines * places.line_stride + block * places.inner_stride;
  }
  return ::metal::min(places.first + place, places.last);
}

// ---- operands -----------------------------------------------------------------------------------

// A quantised operand that is not transposed. table: the codes' values.
template <typename Scales>
struct Coded {
  typedef typename Scales::element element;
  static constant constexpr bool is_dequantized = true;
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

inline void fill_table(threadgroup half* table, NarrowFormat format, uint index, uint threads) {
  for (uint code = index; code < 256; code += threads) {
    table[code] = static_cast<half>(decode(code, format));
  }
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
}

inline uint code_at(device const uchar* codes, int64_t line, int k, int64_t line_stride,
                    int64_t inner_stride, NarrowFormat format) {
  if (format == NarrowFormat::kE2m1) {
    const uint pair = codes[line * line_stride + k / 2 * inner_stride];
    return k % 2 == 0 ? pair : pair >> 4;
  }
  return codes[line * line_stride + k * inner_stride];
}

// ---- results ------------------------------------------------------------------------------------

struct StoreScaled {
  device void* result;
  device const float* row_scales;
  device const float* column_scales;
  device const float* bias;
  device const float* result_scale;
  int64_t first;  // first element of the result
  int64_t stride;
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
    const int64_t place = first + row * stride + column;
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

  // Clamps a value to [-largest, largest]. NaN stays NaN.
  static inline float saturated(float value, float largest) {
    return value > largest ? largest : value < -largest ? -largest : value;
  }
};

}  // namespace scaled
}  // namespace metalops

// Products with quantised weights, which are decoded where they are multiplied. Sums are in float
// and rounded once. For few rows, what a product takes is bringing the weights from memory: a
// simdgroup reads some lines of them, adjacent lanes adjacent blocks. For many, a threadgroup
// decodes a tile of weights once for all of its rows.
#include <c10/metal/error.h>
#include <metal_stdlib>

#include "matmul.h"
#include "packed_weights.h"
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::PackedLayout;
using metalops::QuantizedProduct;
namespace matmul = metalops::matmul;
namespace packed = metalops::packed;

// The two matrices of a pair. is_there: whether their indices are of matrices.
struct PairPlace {
  int64_t left;
  int64_t right;
  bool is_there;
};

inline PairPlace pair_place(int64_t pair, device const int64_t* left_index,
                            device const int64_t* right_index, constant QuantizedProduct& p) {
  PairPlace place;
  place.left = p.has_left_index ? left_index[pair] : pair;
  place.right = p.has_right_index ? right_index[pair] : pair;
  place.is_there = place.left >= 0 && place.left < p.left_matrices && place.right >= 0 &&
                   place.right < p.right_matrices;
  return place;
}

#define REPORT_PLACE(errors, place, p)                                                    \
  TORCH_REPORT_ERROR(errors, "gather_quantized_matmul: indices ", place.left, " and ",    \
                     place.right, " are not of ", p.left_matrices, " matrices of x and ", \
                     p.right_matrices, " of weights")

#if !defined(__HAVE_TENSOR__)

constant constexpr int kSimdgroups = 4;

// COUNT neighbouring elements, a multiple of four.
template <int COUNT, typename T>
inline void neighbours(thread float* to, device const T* from) {
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i) {
    const vec<T, 4> four = reinterpret_cast<device const vec<T, 4>*>(from)[i];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[4 * i + e] = static_cast<float>(four[e]);
    }
  }
}

// ROWS x COLUMNS elements by each of the simdgroups of a threadgroup, or by p.splits of them
// together. Lines of weights are columns of the result.
template <typename T, typename Format, int ROWS, int COLUMNS>
kernel void quantized_few_rows(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[kSimdgroups][ROWS * COLUMNS];
  const int together = kSimdgroups / p.splits * COLUMNS;  // columns of a threadgroup
  const uint across = (static_cast<uint>(p.columns) + together - 1) / together;
  const uint down = (static_cast<uint>(p.rows) + ROWS - 1) / ROWS;
  const int64_t pair = group / across / down;
  const PairPlace place = pair_place(pair, left_index, right_index, p);
  if (!place.is_there) {
    REPORT_PLACE(errors, place, p);
    return;
  }
  const int row = static_cast<int>(group / across % down) * ROWS;
  const int column = static_cast<int>(group % across) * together +
                     static_cast<int>(simdgroup) / p.splits * COLUMNS;
  const int part = static_cast<int>(simdgroup) % p.splits;
  const auto right =
      packed::matrix_of<T>(codes, scales, biases, global_scale, p.right, place.right);
  // The factor that all scales have in common comes at the end.
  packed::Matrix<T> rest = right;
  rest.global_scale = 1.0f;
  device const T* const x = left + place.left * p.left_matrix;
  float sums[ROWS][COLUMNS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      sums[r][c] = 0.0f;
    }
  }
  const int whole = p.right.is_aligned ? p.inner / 32 * 32 : 0;
  const int lane_of_all = part * 32 + static_cast<int>(lane);
  // First what a turn needs of memory, all of it on its way at once.
#pragma unroll 1
  for (int k = lane_of_all * 32; k < whole; k += p.splits * 1024) {
    typedef packed::Scale<T, Format> Scale;
    packed::Blocks<Format, COLUMNS> blocks;
    typename Scale::type scales_of[2][COLUMNS];
    T biases_of[COLUMNS];
    const int group_of = k >> p.right.group_shift;
    const int next_group = (k + 16) >> p.right.group_shift;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int64_t line = min(column + c, p.columns - 1);
      packed::load(blocks, c, right.codes + line * p.right.line_bytes + k / 8 * Format::bits);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int64_t first = min(column + c, p.columns - 1) * p.right.line_scales;
      device const typename Scale::type* const of_line =
          reinterpret_cast<device const typename Scale::type*>(right.scales) + first;
      scales_of[0][c] = of_line[group_of];
      scales_of[1][c] = Format::has_short_groups ? of_line[next_group] : scales_of[0][c];
      biases_of[c] = Format::has_biases ? right.biases[first + group_of] : T(0);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float inputs[ROWS][16];
      float totals[ROWS];
      float dots[ROWS][COLUMNS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int64_t row_of = min(row + r, p.rows - 1);
        neighbours<16>(inputs[r], x + row_of * p.inner + k + h * 16);
        float4 four = 0.0f;
#pragma unroll
        for (int e = 0; e < 16; e += 4) {
          four += float4(inputs[r][e], inputs[r][e + 1], inputs[r][e + 2], inputs[r][e + 3]);
        }
        totals[r] = Format::has_biases ? (four.x + four.y) + (four.z + four.w) : 0.0f;
        if (Format::has_places) {
#pragma unroll
          for (int e = 0; e < 16; ++e) {
            inputs[r][e] *= packed::place(e);
          }
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          dots[r][c] = 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        packed::EightOfLines<Format, COLUMNS> weights;
        packed::take_apart(weights, blocks, h * 2 + i);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
              dots[r][c] = fma(weights.of[e][c], inputs[r][i * 8 + e], dots[r][c]);
            }
          }
        }
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const float scale = Scale::value(scales_of[h][c], p.right.scale) * Format::factor;
        const float offset = static_cast<float>(biases_of[c]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          sums[r][c] = fma(scale, dots[r][c], sums[r][c]);
          if (Format::has_biases) {
            sums[r][c] = fma(offset, totals[r], sums[r][c]);
          }
        }
      }
    }
  }
  // What is no whole block, or lies where there are no vector loads.
#pragma unroll 1
  for (int k = whole + lane_of_all * 8; k < p.inner; k += p.splits * 256) {
#pragma unroll 1
    for (int c = 0; c < COLUMNS; ++c) {
      const packed::EightValues values = rest.eight(min(column + c, p.columns - 1), k);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float inputs[8];
        neighbours<8>(inputs, x + static_cast<int64_t>(min(row + r, p.rows - 1)) * p.inner + k);
        float dot = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          dot = fma(values.of[e], inputs[e], dot);
        }
        // With an index that is known, or the sums would be no registers.
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
          sums[r][i] += i == c ? dot : 0.0f;
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const float total = simd_sum(sums[r][c]);
      if (lane == 0) {
        parts[simdgroup][r * COLUMNS + c] = total;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int r = static_cast<int>(lane) / COLUMNS;
  const int c = static_cast<int>(lane) % COLUMNS;
  if (part == 0 && r < ROWS && row + r < p.rows && column + c < p.columns) {
    float total = 0.0f;
    for (int i = 0; i < p.splits; ++i) {
      total += parts[simdgroup + i][r * COLUMNS + c];
    }
    total *= right.global_scale;
    if (p.has_bias) {
      total += static_cast<float>(bias[column + c]);
    }
    result[(pair * p.rows + row + r) * p.columns + column + c] = static_cast<T>(total);
  }
}

constant constexpr int kRowSimdgroups = 8;

// The same of one row where lines of weights are rows of what is multiplied: each lane has eight
// columns, and each simdgroup every eighth line.
template <typename T>
kernel void quantized_few_rows_transposed(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[kRowSimdgroups][32 * 8];
  const uint across = (static_cast<uint>(p.columns) + 255) / 256;
  const int64_t pair = group / across / static_cast<uint>(p.rows);
  const PairPlace place = pair_place(pair, left_index, right_index, p);
  if (!place.is_there) {
    REPORT_PLACE(errors, place, p);
    return;
  }
  const int row = static_cast<int>(group / across % static_cast<uint>(p.rows));
  const int column = static_cast<int>(group % across) * 256 + static_cast<int>(lane) * 8;
  const auto right =
      packed::matrix_of<T>(codes, scales, biases, global_scale, p.right, place.right);
  device const T* const x = left + place.left * p.left_matrix + static_cast<int64_t>(row) * p.inner;
  float sums[8];
  for (int e = 0; e < 8; ++e) {
    sums[e] = 0.0f;
  }
  if (column < p.columns) {
    for (int k = static_cast<int>(simdgroup); k < p.inner; k += kRowSimdgroups) {
      const float input = static_cast<float>(x[k]);
      const packed::EightValues values = right.eight(k, column);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        sums[e] = fma(input, values.of[e], sums[e]);
      }
    }
  }
  for (int e = 0; e < 8; ++e) {
    parts[simdgroup][e * 32 + lane] = sums[e];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int mine = static_cast<int>(simdgroup) * 32 + static_cast<int>(lane);
  const int at = static_cast<int>(group % across) * 256 + mine;
  if (at < p.columns) {
    float total = 0.0f;
    for (int i = 0; i < kRowSimdgroups; ++i) {
      total += parts[i][mine % 8 * 32 + mine / 8];
    }
    if (p.has_bias) {
      total += static_cast<float>(bias[at]);
    }
    result[(pair * p.rows + row) * p.columns + at] = static_cast<T>(total);
  }
}

#endif

namespace metalops {
namespace matmul {

// Quantised weights as an operand of products of tiles.
template <typename T>
struct Packed {
  typedef T element;
  static constant constexpr bool is_decoded = true;

  packed::Matrix<T> matrix;
  bool is_transposed;
};

template <int COUNT, typename E, typename T>
inline void bring_run(threadgroup E* to, Packed<T> from, int64_t line, int64_t k, int left) {
  for (int first = 0; first < COUNT; first += 8) {
    if (first < left) {
      const packed::EightValues values = from.is_transposed ? from.matrix.eight(k, line + first)
                                                            : from.matrix.eight(line, k + first);
      for (int e = 0; e < 8; ++e) {
        to[first + e] = static_cast<E>(values.of[e]);
      }
    } else {
      for (int e = 0; e < 8; ++e) {
        to[first + e] = E(0);
      }
    }
  }
}

}  // namespace matmul
}  // namespace metalops

template <typename T>
struct store_with_bias {
  device T* result;
  device const T* bias;
  int columns;
  bool has_bias;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    const float offset = has_bias ? static_cast<float>(bias[column]) : 0.0f;
    result[static_cast<int64_t>(row) * columns + column] = static_cast<T>(sums.of[0] + offset);
  }
};

// A threadgroup for each tile.
template <typename T, typename Tile>
kernel void quantized_tiles(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Packed<T>>()];
  const uint across = (static_cast<uint>(p.columns) + Tile::columns - 1) / Tile::columns;
  const uint down = (static_cast<uint>(p.rows) + Tile::rows - 1) / Tile::rows;
  const int64_t pair = group / across / down;
  const PairPlace of = pair_place(pair, left_index, right_index, p);
  if (!of.is_there) {
    REPORT_PLACE(errors, of, p);
    return;
  }
  const matmul::Dense<T> a{left + of.left * p.left_matrix, p.inner, false};
  const matmul::Packed<T> b{
      packed::matrix_of<T>(codes, scales, biases, global_scale, p.right, of.right),
      p.right_transposed};
  const matmul::Place place{uint2(group % across, group / across % down), index, simdgroup, lane};
  const store_with_bias<T> epilogue{result + pair * p.rows * p.columns, bias, p.columns,
                                    p.has_bias};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{p.rows, p.columns, p.inner}, epilogue, workspace,
                              place);
}

#define PARAMETERS(T)                                                                     \
  (device T*, device const T*, device const uchar*, device const uchar*, device const T*, \
   device const T*, device const float*, device const int64_t*, device const int64_t*,    \
   constant QuantizedProduct&, device ErrorMessages*, uint, uint, uint)
#define TILE_PARAMETERS(T)                                                                \
  (device T*, device const T*, device const uchar*, device const uchar*, device const T*, \
   device const T*, device const float*, device const int64_t*, device const int64_t*,    \
   constant QuantizedProduct&, device ErrorMessages*, uint, uint, uint, uint)

#define REGISTER_TILES(T)                                                                       \
  template [[host_name(                                                                         \
      "quantized_tiles_small_" #T)]] kernel void quantized_tiles<T, matmul::Tile<16, 64, 1, 4>> \
      TILE_PARAMETERS(T);                                                                       \
  template [[host_name(                                                                         \
      "quantized_tiles_large_" #T)]] kernel void quantized_tiles<T, matmul::Tile<64, 64, 2, 2>> \
  TILE_PARAMETERS(T)

REGISTER_TILES(float);
REGISTER_TILES(half);
REGISTER_TILES(bfloat);

#if !defined(__HAVE_TENSOR__)

#define REGISTER_FEW_ROWS(NAME, T, ...)                                               \
  template [[host_name("quantized_one_row_" #NAME                                     \
                       "_" #T)]] kernel void quantized_few_rows<T, __VA_ARGS__, 1, 8> \
      PARAMETERS(T);                                                                  \
  template [[host_name("quantized_few_rows_" #NAME                                    \
                       "_" #T)]] kernel void quantized_few_rows<T, __VA_ARGS__, 4, 4> \
  PARAMETERS(T)

#define REGISTER_OTHERS(T)                                                                \
  REGISTER_FEW_ROWS(int1, T, packed::Integer<1>);                                         \
  REGISTER_FEW_ROWS(int2, T, packed::Integer<2>);                                         \
  REGISTER_FEW_ROWS(int3, T, packed::Integer<3>);                                         \
  REGISTER_FEW_ROWS(int4, T, packed::Integer<4>);                                         \
  REGISTER_FEW_ROWS(int5, T, packed::Integer<5>);                                         \
  REGISTER_FEW_ROWS(int6, T, packed::Integer<6>);                                         \
  REGISTER_FEW_ROWS(int7, T, packed::Integer<7>);                                         \
  REGISTER_FEW_ROWS(int8, T, packed::Integer<8>);                                         \
  REGISTER_FEW_ROWS(signed8, T, packed::Signed8);                                         \
  REGISTER_FEW_ROWS(e2m1, T, packed::E2M1);                                               \
  REGISTER_FEW_ROWS(e4m3, T, packed::E4M3);                                               \
  REGISTER_FEW_ROWS(nf4, T, packed::NormalFloat4);                                        \
  REGISTER_FEW_ROWS(fp4, T, packed::Float4);                                              \
  template [[host_name(                                                                   \
      "quantized_few_rows_transposed_" #T)]] kernel void quantized_few_rows_transposed<T> \
  PARAMETERS(T)

REGISTER_OTHERS(float);
REGISTER_OTHERS(half);
REGISTER_OTHERS(bfloat);

#endif

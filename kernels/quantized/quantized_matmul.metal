// GEMV, skinny GEMM and tile GEMM with quantised weights, which are dequantised inside the kernel.
// Sums are in float and rounded once. With few rows the product is bound by loading weights: a
// simdgroup reads some rows of W ("lines"), and adjacent lanes load adjacent blocks. With many
// rows, a threadgroup dequantises a tile of weights once for all of its rows.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/quantized/gemv.h>
#include <kernels/quantized/packed_weights.h>
#include <kernels/quantized/skinny_gemm.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::PackedLayout;
using metalops::QuantizedProduct;
namespace skinny = metalops::skinny;
namespace matmul = metalops::matmul;
namespace gemv = metalops::gemv;
namespace packed = metalops::packed;

// The indices of a pair's two matrices. in_range: true if both are in range.
struct PairIndices {
  int64_t left;
  int64_t right;
  bool in_range;
};

inline PairIndices pair_indices(int64_t pair, device const int64_t* left_index,
                                device const int64_t* right_index, constant QuantizedProduct& p) {
  PairIndices indices;
  indices.left = p.has_left_index ? left_index[pair] : pair;
  indices.right = p.has_right_index ? right_index[pair] : pair;
  indices.in_range = indices.left >= 0 && indices.left < p.left_matrices && indices.right >= 0 &&
                     indices.right < p.right_matrices;
  return indices;
}

#define REPORT_OUT_OF_RANGE(errors, indices, p)                                             \
  TORCH_REPORT_ERROR(errors, "gather_quantized_matmul: indices ", indices.left, " and ",    \
                     indices.right, " are not of ", p.left_matrices, " matrices of x and ", \
                     p.right_matrices, " of weights")

#if !defined(__HAVE_TENSOR__)

// A lane's block of 32 codes of each of LINES adjacent lines of weights, as stored, with the scales
// of both of its halves, and the biases.
template <typename T, typename Format, int LINES>
struct LinesOfWeights {
  typedef packed::Scale<T, Format> Scale;
  typedef typename Scale::type StoredScale;

  packed::Blocks<Format, LINES> blocks;
  StoredScale scales[2][LINES];
  T biases[LINES];

  inline float scale(int half_of, int line) const {
    return Scale::value(scales[half_of][line]) * Format::factor;
  }
};

// Where a lane's block of codes begins in the first of its lines, and where the group is that has
// the block's first half; next_group: how many groups behind it is that of the second half.
template <typename T, typename Format>
struct BlockOfLine {
  device const uchar* codes;
  device const typename packed::Scale<T, Format>::type* scales;
  device const T* biases;
  uint next_group;
};

// Loads a block of the lines from the first on; lines after last_line are loaded as that one. All
// loads are issued together, so that they are in flight together.
template <typename T, typename Format, int LINES>
inline void load_lines(thread LinesOfWeights<T, Format, LINES>& to, BlockOfLine<T, Format> from,
                       uint line_bytes, uint line_scales, int last_line) {
#pragma unroll
  for (int c = 0; c < LINES; ++c) {
    packed::load(to.blocks, c, from.codes + min(c, last_line) * line_bytes);
  }
#pragma unroll
  for (int c = 0; c < LINES; ++c) {
    const uint of_line = min(c, last_line) * line_scales;
    to.scales[0][c] = from.scales[of_line];
    to.scales[1][c] =
        Format::has_short_groups ? from.scales[of_line + from.next_group] : to.scales[0][c];
    to.biases[c] = Format::has_biases ? from.biases[of_line] : T(0);
  }
}

// Sixteen elements of ROWS rows of activations, multiplied by code_scale() where the format leaves
// codes shifted, and their sums where it has biases.
template <typename Format, int ROWS>
struct HalfOfRows {
  float of[ROWS][16];
  float totals[ROWS];
};

// x: the first element of row 0.
template <typename Format, int ROWS, typename T>
inline void load_half(thread HalfOfRows<Format, ROWS>& to, device const T* x, int row, int rows,
                      int inner) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int64_t row_of = min(row + r, rows - 1);
    skinny::load_adjacent<16>(to.of[r], x + row_of * inner);
    float4 four = 0.0f;
#pragma unroll
    for (int e = 0; e < 16; e += 4) {
      four += float4(to.of[r][e], to.of[r][e + 1], to.of[r][e + 2], to.of[r][e + 3]);
    }
    to.totals[r] = Format::has_biases ? (four.x + four.y) + (four.z + four.w) : 0.0f;
    if (Format::has_shifted_codes) {
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        to.of[r][e] *= packed::code_scale(e);
      }
    }
  }
}

// Adds the products of half of a block with rows of activations to the sums.
template <typename T, typename Format, int ROWS, int COLUMNS>
inline void add_half(thread float (&sums)[ROWS][COLUMNS],
                     thread const LinesOfWeights<T, Format, COLUMNS>& lines, int half_of,
                     thread const HalfOfRows<Format, ROWS>& inputs, uint exponent) {
  float dots[ROWS][COLUMNS];
  skinny::clear(dots);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    packed::EightOfLines<COLUMNS> weights;
    packed::unpack(weights, lines.blocks, half_of * 2 + i, exponent);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          dots[r][c] = fma(weights.of[e][c], inputs.of[r][i * 8 + e], dots[r][c]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const float scale = lines.scale(half_of, c);
    const float offset = static_cast<float>(lines.biases[c]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      sums[r][c] = fma(scale, dots[r][c], sums[r][c]);
      if (Format::has_biases) {
        sums[r][c] = fma(offset, inputs.totals[r], sums[r][c]);
      }
    }
  }
}

// Adds the products of eight elements of K, from k on: those of incomplete blocks, or of weights
// that are not aligned for vector loads. x: the first element of row 0.
template <typename T, int ROWS, int COLUMNS>
inline void add_eight(thread float (&sums)[ROWS][COLUMNS], packed::Matrix<T> right,
                      device const T* x, int row, int column, int k, constant QuantizedProduct& p) {
#pragma unroll 1
  for (int c = 0; c < COLUMNS; ++c) {
    const packed::EightValues values = right.eight(min(column + c, p.columns - 1), k);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float inputs[8];
      skinny::load_adjacent<8>(inputs,
                               x + static_cast<int64_t>(min(row + r, p.rows - 1)) * p.inner + k);
      float dot = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        dot = fma(values.of[e], inputs[e], dot);
      }
      // The index is a compile-time constant, so that the sums stay in registers.
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) {
        sums[r][i] += i == c ? dot : 0.0f;
      }
    }
  }
}

// Skinny GEMM: each simdgroup, or each group of p.splits simdgroups (split-K), computes ROWS x
// COLUMNS elements. Lines of weights are columns of the result.
template <typename T, typename Format, int ROWS, int COLUMNS>
kernel void quantized_matmul_skinny(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  typedef typename packed::Scale<T, Format>::type StoredScale;
  threadgroup float parts[skinny::kSimdgroups][ROWS * COLUMNS];
  const auto block = skinny::block_of<ROWS, COLUMNS>(group, p.splits, p.rows, p.columns);
  const PairIndices of = pair_indices(block.pair, left_index, right_index, p);
  if (!of.in_range) {
    REPORT_OUT_OF_RANGE(errors, of, p);
    return;
  }
  const auto share = skinny::share_of<COLUMNS>(block, simdgroup, p.splits);
  const int row = block.row;
  // The global factor of all scales is applied at the end.
  const auto right = packed::matrix_of<T>(codes, scales, biases, 1.0f, p.right, of.right);
  device const T* const x = left + of.left * p.left_matrix;
  const int whole = p.right.is_aligned ? p.inner / 32 * 32 : 0;
  const int lane_of_all = share.part * 32 + static_cast<int>(lane);
  const int first_line = min(share.column, p.columns - 1);
  device const uchar* const first_codes = right.codes + first_line * p.right.line_bytes;
  const int64_t first_scale = first_line * p.right.line_scales;
  const uint exponent = metalops::formats::exponent_of(p.inner);
  float sums[ROWS][COLUMNS];
  skinny::clear(sums);
#pragma unroll 1
  for (int k = lane_of_all * 32; k < whole; k += p.splits * 1024) {
    const int64_t group_of = first_scale + (k >> p.right.group_shift);
    const BlockOfLine<T, Format> from{
        first_codes + k / 8 * Format::bits,
        reinterpret_cast<device const StoredScale*>(right.scales) + group_of,
        right.biases + group_of,
        static_cast<uint>(((k + 16) >> p.right.group_shift) - (k >> p.right.group_shift))};
    LinesOfWeights<T, Format, COLUMNS> lines;
    load_lines(lines, from, static_cast<uint>(p.right.line_bytes),
               static_cast<uint>(p.right.line_scales), p.columns - 1 - first_line);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      HalfOfRows<Format, ROWS> inputs;
      load_half(inputs, x + k + h * 16, row, p.rows, p.inner);
      add_half(sums, lines, h, inputs, exponent);
    }
  }
#pragma unroll 1
  for (int k = whole + lane_of_all * 8; k < p.inner; k += p.splits * 256) {
    add_eight(sums, right, x, row, share.column, k, p);
  }
  const skinny::StoreRow<T> store{result + block.pair * p.rows * p.columns,
                                  bias,
                                  packed::global_factor(global_scale, p.right),
                                  p.rows,
                                  p.columns,
                                  p.has_bias};
  skinny::store_sums(store, sums, parts, row, share, p.splits, simdgroup, lane);
}

// Adds the products of a half (of `halves`) of a block of lines with a lane's 32 elements of the
// input vector to the sums.
template <int HALVES, typename T, typename Format, int LINES>
inline void add_half_of_vector(thread float (&sums)[LINES],
                               thread const LinesOfWeights<T, Format, LINES>& lines, int half_of,
                               thread const float (&inputs)[32], uint exponent) {
  float dots[LINES];
#pragma unroll
  for (int c = 0; c < LINES; ++c) {
    dots[c] = 0.0f;
  }
#pragma unroll
  for (int i = half_of * 4 / HALVES; i < (half_of + 1) * 4 / HALVES; ++i) {
    packed::EightOfLines<LINES> weights;
    packed::unpack(weights, lines.blocks, i, exponent);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
      for (int c = 0; c < LINES; ++c) {
        dots[c] = fma(weights.of[e][c], inputs[i * 8 + e], dots[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < LINES; ++c) {
    sums[c] = fma(lines.scale(half_of, c), dots[c], sums[c]);
  }
}

// GEMV: each threadgroup computes `lines` columns of one row (see gemv.h), for one pair of matrices
// whose blocks of 32 codes are whole and aligned.
template <typename T, typename Format>
[[max_total_threads_per_threadgroup(gemv::kMostThreads)]] kernel void quantized_matmul_gemv(
    device T* result [[buffer(0)]], device const T* x [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], constant QuantizedProduct& p [[buffer(7)]],
    constant int& lines [[buffer(8)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  typedef typename packed::Scale<T, Format>::type StoredScale;
  typedef LinesOfWeights<T, Format, gemv::kTogether> Lines;
  constexpr int together = gemv::kTogether;
  constexpr int halves = Format::has_short_groups ? 2 : 1;
  threadgroup float parts[gemv::kMostParts * 32];
  const uint line_bytes = static_cast<uint>(p.right.line_bytes);
  const uint line_scales = static_cast<uint>(p.right.line_scales);
  const int k = static_cast<int>(simdgroup * 32 + lane) * 32;
  // Lanes past the end load the last block and multiply it by zero.
  const int of_codes = min(k, p.inner - 32);
  const uint exponent = metalops::formats::exponent_of(of_codes);
  const int group_of = of_codes >> p.right.group_shift;
  const int64_t first_line = gemv::first_line(group, lines, p.columns);
  const int64_t first_scale = first_line * p.right.line_scales + group_of;
  const BlockOfLine<T, Format> first{
      codes + first_line * p.right.line_bytes + of_codes / 8 * Format::bits,
      reinterpret_cast<device const StoredScale*>(scales) + first_scale, biases + first_scale, 1};
  Lines next;
  load_lines(next, first, line_bytes, line_scales, together - 1);
  float inputs[32];
  gemv::load_adjacent<32>(inputs, x + of_codes);
  float total = 0.0f;
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    inputs[e] = k < p.inner ? inputs[e] : 0.0f;
    total += Format::has_biases ? inputs[e] : 0.0f;
    inputs[e] *= Format::has_shifted_codes ? packed::code_scale(e) : 1.0f;
  }
#pragma unroll 1
  for (int line = 0; line < lines; line += together) {
    const Lines now = next;
    float sums[together];
#pragma unroll
    for (int c = 0; c < together; ++c) {
      sums[c] = Format::has_biases ? static_cast<float>(now.biases[c]) * total : 0.0f;
    }
    // In the last iteration the last lines are loaded again, and not used.
    const int following = min(line + together, lines - together);
    const BlockOfLine<T, Format> from{first.codes + following * line_bytes,
                                      first.scales + following * line_scales,
                                      first.biases + following * line_scales, 1};
    load_lines(next, from, line_bytes, line_scales, together - 1);
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      add_half_of_vector<halves>(sums, now, h, inputs, exponent);
    }
#pragma unroll
    for (int c = 0; c < together; ++c) {
      parts[(static_cast<int>(simdgroup) * lines + line + c) * 32 + static_cast<int>(lane)] =
          sums[c];
    }
  }
  const skinny::StoreRow<T> store{result, bias,      packed::global_factor(global_scale, p.right),
                                  1,      p.columns, p.has_bias};
  gemv::store_lines(store, parts, group, lines, simdgroups, simdgroup, lane);
}

constant constexpr int kSplits = 8;

// A lane's block of 32 codes of a line of each tile of eight lines, with the scales of both of its
// halves, and the biases.
template <typename T, typename Format, int TILES>
struct TilesOfWeights {
  packed::Blocks<Format, TILES> blocks;
  float scales[2][TILES];
  T biases[TILES];
};

// Loads the block that begins at k: of line `line` of the first tile, and so on.
template <typename T, typename Format, int TILES>
inline void load_tiles(thread TilesOfWeights<T, Format, TILES>& to, packed::Matrix<T> right,
                       int first_line, int k, constant QuantizedProduct& p) {
  typedef packed::Scale<T, Format> Scale;
  const int group_of = k >> p.right.group_shift;
  const int next_group = (k + 16) >> p.right.group_shift;
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const int64_t line = min(first_line + t * 8, p.columns - 1);
    packed::load(to.blocks, t, right.codes + line * p.right.line_bytes + k / 8 * Format::bits);
    const int64_t first = line * p.right.line_scales;
    device const typename Scale::type* const of_line =
        reinterpret_cast<device const typename Scale::type*>(right.scales) + first;
    to.scales[0][t] = Scale::value(of_line[group_of]) * Format::factor;
    to.scales[1][t] = Format::has_short_groups ? Scale::value(of_line[next_group]) * Format::factor
                                               : to.scales[0][t];
    to.biases[t] = Format::has_biases ? right.biases[first + group_of] : T(0);
  }
}

// A lane's elements of two rows of activations, for one run of 128 elements of K.
template <typename T>
struct TwoRows {
  vec<T, 4> of[2][4];
};

// k: where the block of 32 elements begins that the elements are of; those past the end are zero.
// offset: of the first within the block.
template <typename T>
inline void load_rows(thread TwoRows<T>& to, device const T* x, int first_row, int k, int offset,
                      constant QuantizedProduct& p) {
  const int at = min(k, p.inner - 32) + offset;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = min(first_row + r, p.rows - 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to.of[r][i] = *reinterpret_cast<device const vec<T, 4>*>(x + row * p.inner + at + i * 8);
      to.of[r][i] = k < p.inner ? to.of[r][i] : vec<T, 4>(T(0));
    }
  }
}

// Adds the parts of a threadgroup's simdgroups and stores the results from `column` on. result: of
// the pair of matrices.
template <int TILES, typename T>
inline void store_tiles(skinny::StoreRow<T> store,
                        threadgroup const float (&parts)[kSplits][TILES * 64], int column,
                        uint index) {
  for (int i = static_cast<int>(index); i < store.rows * TILES * 8; i += kSplits * 32) {
    float total = 0.0f;
    for (int s = 0; s < kSplits; ++s) {
      total += parts[s][i];
    }
    store(i / (TILES * 8), column + i % (TILES * 8), total);
  }
}

// Skinny GEMM with simdgroup matrices, for up to eight rows and eight columns per tile of TILES:
// each weight is dequantised once for all rows. With split-K, each of the threadgroup's simdgroups
// takes every kSplits-th run of 128 elements of K. Each lane that holds a line of a matrix has 32
// adjacent codes of it. The order of K does not matter as long as it is the same in both operands.
template <typename T, typename Format, int TILES>
kernel void quantized_matmul_skinny_simdgroup_matrix(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[kSplits][TILES * 64];
  const uint across = (static_cast<uint>(p.columns) + TILES * 8 - 1) / (TILES * 8);
  const int64_t pair = group / across;
  PairIndices indices = pair_indices(pair, left_index, right_index, p);
  // Invalid pairs are computed with matrix 0 and not stored, to keep the threadgroup uniform.
  if (!indices.in_range) {
    REPORT_OUT_OF_RANGE(errors, indices, p);
    indices.left = 0;
    indices.right = 0;
  }
  const int column = static_cast<int>(group % across) * TILES * 8;
  const auto right = packed::matrix_of<T>(codes, scales, biases, 1.0f, p.right, indices.right);
  device const T* const x = left + indices.left * p.left_matrix;
  const matmul::LaneElements of = matmul::elements_of_lane(lane);
  const uint exponent = metalops::formats::exponent_of(p.inner);
  simdgroup_float8x8 sums[TILES];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    sums[t] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
#pragma unroll 1
  for (int k_start = 0; k_start < p.inner; k_start += kSplits * 128) {
    const int k = k_start + static_cast<int>(simdgroup) * 128;
    // Lanes past the end load the last block and multiply it by zero.
    TilesOfWeights<T, Format, TILES> weights;
    load_tiles(weights, right, column + of.row, min(k + of.column * 16, p.inner - 32), p);
    TwoRows<T> inputs;
    load_rows(inputs, x, of.column, k + of.row / 2 * 32, of.row % 2 * 4, p);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        simdgroup_matrix<T, 8, 8> b;
        b.thread_elements() = vec<T, 2>(inputs.of[0][i][e], inputs.of[1][i][e]);
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          vec<T, 2> two;
          packed::two_values(two, weights.blocks, t, i, e, weights.scales[i / 2][t],
                             weights.biases[t], exponent);
          simdgroup_matrix<T, 8, 8> a;
          a.thread_elements() = two;
          simdgroup_multiply_accumulate(sums[t], a, b, sums[t]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      parts[simdgroup][(of.column + e) * TILES * 8 + t * 8 + of.row] = sums[t].thread_elements()[e];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (indices.in_range) {
    const skinny::StoreRow<T> store{result + pair * p.rows * p.columns,
                                    bias,
                                    packed::global_factor(global_scale, p.right),
                                    p.rows,
                                    p.columns,
                                    p.has_bias};
    store_tiles<TILES>(store, parts, column, simdgroup * 32 + lane);
  }
}

constant constexpr int kRowSimdgroups = 8;

// GEMV with transposed weights (x W): lines of weights run along the columns of the result. Each
// lane has eight columns, and each simdgroup every eighth line.
template <typename T>
kernel void quantized_matmul_gemv_transposed(
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
  const PairIndices indices = pair_indices(pair, left_index, right_index, p);
  if (!indices.in_range) {
    REPORT_OUT_OF_RANGE(errors, indices, p);
    return;
  }
  const int row = static_cast<int>(group / across % static_cast<uint>(p.rows));
  const int column = static_cast<int>(group % across) * 256 + static_cast<int>(lane) * 8;
  const auto right = packed::matrix_of<T>(
      codes, scales, biases, packed::global_factor(global_scale, p.right), p.right, indices.right);
  device const T* const x =
      left + indices.left * p.left_matrix + static_cast<int64_t>(row) * p.inner;
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

// Quantised weights as the operand of a tile GEMM.
template <typename T>
struct Packed {
  typedef T element;
  static constant constexpr bool is_dequantized = true;

  packed::Matrix<T> matrix;
  bool is_transposed;

  inline packed::EightValues eight(int64_t line, int64_t k, int first) const {
    return is_transposed ? matrix.eight(k, line + first) : matrix.eight(line, k + first);
  }
};

template <int COUNT, typename E, typename T>
inline void stage_run(threadgroup E* to, Packed<T> from, int64_t line, int64_t k, int left) {
  stage_eights<COUNT>(to, from, line, k, left);
}

}  // namespace matmul
}  // namespace metalops

// Tile GEMM with quantised weights. One threadgroup per tile.
template <typename T, typename Tile>
kernel void quantized_matmul_tiles(
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
  const PairIndices of = pair_indices(pair, left_index, right_index, p);
  if (!of.in_range) {
    REPORT_OUT_OF_RANGE(errors, of, p);
    return;
  }
  const matmul::Dense<T> a{left + of.left * p.left_matrix, p.inner, false};
  const matmul::Packed<T> b{
      packed::matrix_of<T>(codes, scales, biases, packed::global_factor(global_scale, p.right),
                           p.right, of.right),
      p.right_transposed};
  const matmul::Place place{uint2(group % across, group / across % down), index, simdgroup, lane};
  const matmul::StoreWithBias<T> epilogue{result + pair * p.rows * p.columns, bias, p.columns,
                                          p.has_bias};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{p.rows, p.columns, p.inner}, epilogue, workspace,
                              place);
}

#define REGISTER_TILES(T)                                                        \
  REGISTER_KERNEL("quantized_matmul_tiles_small_" #T, quantized_matmul_tiles, T, \
                  matmul::Tile<16, 64, 1, 4>);                                   \
  REGISTER_KERNEL("quantized_matmul_tiles_large_" #T, quantized_matmul_tiles, T, \
                  matmul::Tile<64, 64, 2, 2>)

REGISTER_TILES(float);
REGISTER_TILES(half);
REGISTER_TILES(bfloat);

#if !defined(__HAVE_TENSOR__)

#define REGISTER_SKINNY_1(NAME, T, ...)                                                  \
  REGISTER_KERNEL("quantized_matmul_skinny_1_" #NAME "_" #T, quantized_matmul_skinny, T, \
                  __VA_ARGS__, 1, 8)
#define REGISTER_SKINNY_4(NAME, T, ...)                                                \
  REGISTER_KERNEL("quantized_matmul_skinny_" #NAME "_" #T, quantized_matmul_skinny, T, \
                  __VA_ARGS__, 4, 4)
#define REGISTER_SKINNY_SIMDGROUP_MATRIX(NAME, T, ...)     \
  REGISTER_KERNEL("quantized_matmul_skinny_" #NAME "_" #T, \
                  quantized_matmul_skinny_simdgroup_matrix, T, __VA_ARGS__, 4)

#define REGISTER_GEMV(NAME, T, ...) \
  REGISTER_KERNEL("quantized_matmul_gemv_" #NAME "_" #T, quantized_matmul_gemv, T, __VA_ARGS__)
#define REGISTER_GEMVS(T)                     \
  REGISTER_GEMV(int4, T, packed::Integer<4>); \
  REGISTER_GEMV(mxfp4, T, packed::MXFloat4);  \
  REGISTER_GEMV(nvfp4, T, packed::NVFloat4)

#define REGISTER_FORMATS(SKINNY, T)                      \
  REGISTER_FORMAT(SKINNY, int1, T, packed::Integer<1>);  \
  REGISTER_FORMAT(SKINNY, int2, T, packed::Integer<2>);  \
  REGISTER_FORMAT(SKINNY, int3, T, packed::Integer<3>);  \
  REGISTER_FORMAT(SKINNY, int4, T, packed::Integer<4>);  \
  REGISTER_FORMAT(SKINNY, int5, T, packed::Integer<5>);  \
  REGISTER_FORMAT(SKINNY, int6, T, packed::Integer<6>);  \
  REGISTER_FORMAT(SKINNY, int7, T, packed::Integer<7>);  \
  REGISTER_FORMAT(SKINNY, int8, T, packed::Integer<8>);  \
  REGISTER_FORMAT(SKINNY, signed8, T, packed::Signed8);  \
  REGISTER_FORMAT(SKINNY, mxfp4, T, packed::MXFloat4);   \
  REGISTER_FORMAT(SKINNY, nvfp4, T, packed::NVFloat4);   \
  REGISTER_FORMAT(SKINNY, mxfp8, T, packed::MXFloat8);   \
  REGISTER_FORMAT(SKINNY, nf4, T, packed::NormalFloat4); \
  REGISTER_FORMAT(SKINNY, fp4, T, packed::Float4);       \
  REGISTER_KERNEL("quantized_matmul_gemv_transposed_" #T, quantized_matmul_gemv_transposed, T)
#define REGISTER_FORMAT(SKINNY, NAME, T, ...) \
  REGISTER_SKINNY_1(NAME, T, __VA_ARGS__);    \
  SKINNY(NAME, T, __VA_ARGS__)

REGISTER_GEMVS(float);
REGISTER_GEMVS(half);
REGISTER_GEMVS(bfloat);

REGISTER_FORMATS(REGISTER_SKINNY_4, float);
REGISTER_FORMATS(REGISTER_SKINNY_SIMDGROUP_MATRIX, half);
REGISTER_FORMATS(REGISTER_SKINNY_SIMDGROUP_MATRIX, bfloat);

#endif

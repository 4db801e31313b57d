// GEMV, skinny GEMM and tile GEMM with quantised weights, which are dequantised inside the kernel.
// Sums are in float and rounded once. With few rows the product is bound by loading weights: a
// simdgroup reads some rows of W ("lines"), and adjacent lanes load adjacent blocks. With many
// rows, a threadgroup dequantises a tile of weights once for all of its rows.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/quantized/coded_weights.h>
#include <kernels/quantized/gemv.h>
#include <kernels/quantized/packed_weights.h>
#include <kernels/quantized/skinny_gemm.h>
#include <kernels/quantized/skinny_matrix.h>
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
  threadgroup float parts[skinny::kSimdgroups][ROWS * COLUMNS];
  const auto block = skinny::block_of<ROWS, COLUMNS>(group, p.splits, p.rows, p.columns);
  const PairIndices of = pair_indices(block.pair, left_index, right_index, p);
  if (!of.in_range) {
    REPORT_OUT_OF_RANGE(errors, of, p);
    return;
  }
  const auto share = skinny::share_of<COLUMNS>(block, simdgroup, p.splits);
  const int row = block.row;
  const int column = share.column;
  // The global factor of all scales is applied at the end.
  const auto right = packed::matrix_of<T>(codes, scales, biases, 1.0f, p.right, of.right);
  device const T* const x = left + of.left * p.left_matrix;
  float sums[ROWS][COLUMNS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      sums[r][c] = 0.0f;
    }
  }
  const int whole = p.right.is_aligned ? p.inner / 32 * 32 : 0;
  const int lane_of_all = share.part * 32 + static_cast<int>(lane);
  const int first_line = min(column, p.columns - 1);
  const int lines_left = p.columns - 1 - first_line;
  device const uchar* const first_codes = right.codes + first_line * p.right.line_bytes;
  const uint line_bytes = static_cast<uint>(p.right.line_bytes);
  const int64_t first_scale = first_line * p.right.line_scales;
  const uint line_scales = static_cast<uint>(p.right.line_scales);
  const uint exponent = metalops::formats::exponent_of(p.inner);
  // Each iteration issues all of its loads first, so that they are in flight together.
#pragma unroll 1
  for (int k = lane_of_all * 32; k < whole; k += p.splits * 1024) {
    typedef packed::Scale<T, Format> Scale;
    packed::Blocks<Format, COLUMNS> blocks;
    typename Scale::type scales_of[2][COLUMNS];
    T biases_of[COLUMNS];
    const int64_t group_of = first_scale + (k >> p.right.group_shift);
    device const typename Scale::type* const of_group =
        reinterpret_cast<device const typename Scale::type*>(right.scales) + group_of;
    const uint next_group = ((k + 16) >> p.right.group_shift) - (k >> p.right.group_shift);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      packed::load(blocks, c, first_codes + k / 8 * Format::bits + min(c, lines_left) * line_bytes);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const uint of_line = min(c, lines_left) * line_scales;
      scales_of[0][c] = of_group[of_line];
      scales_of[1][c] = Format::has_short_groups ? of_group[of_line + next_group] : scales_of[0][c];
      biases_of[c] = Format::has_biases ? (right.biases + group_of)[of_line] : T(0);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float inputs[ROWS][16];
      float totals[ROWS];
      float dots[ROWS][COLUMNS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int64_t row_of = min(row + r, p.rows - 1);
        skinny::load_adjacent<16>(inputs[r], x + row_of * p.inner + k + h * 16);
        float4 four = 0.0f;
#pragma unroll
        for (int e = 0; e < 16; e += 4) {
          four += float4(inputs[r][e], inputs[r][e + 1], inputs[r][e + 2], inputs[r][e + 3]);
        }
        totals[r] = Format::has_biases ? (four.x + four.y) + (four.z + four.w) : 0.0f;
        if (Format::has_shifted_codes) {
#pragma unroll
          for (int e = 0; e < 16; ++e) {
            inputs[r][e] *= packed::code_scale(e);
          }
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          dots[r][c] = 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        packed::EightOfLines<COLUMNS> weights;
        packed::unpack(weights, blocks, h * 2 + i, exponent);
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
        const float scale = Scale::value(scales_of[h][c]) * Format::factor;
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
  // The remainder: incomplete blocks, or weights that are not aligned for vector loads.
#pragma unroll 1
  for (int k = whole + lane_of_all * 8; k < p.inner; k += p.splits * 256) {
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
  const skinny::StoreRow<T> store{result + block.pair * p.rows * p.columns,
                                  bias,
                                  packed::global_factor(global_scale, p.right),
                                  p.rows,
                                  p.columns,
                                  p.has_bias};
  skinny::store_sums(store, sums, parts, row, share, p.splits, simdgroup, lane);
}

// A lane's part of LINES adjacent lines of weights, as stored.
template <typename T, typename Format, int LINES>
struct LinesOfRow {
  typedef typename packed::Scale<T, Format>::type StoredScale;

  packed::Blocks<Format, LINES> blocks;
  StoredScale scales[2][LINES];
  T biases[LINES];

  void load(device const uchar* codes, device const StoredScale* of_groups,
            device const T* biases_of_groups, uint line_bytes, uint line_scales) thread {
#pragma unroll
    for (int c = 0; c < LINES; ++c) {
      packed::load<Format::has_table>(blocks, c, codes + c * line_bytes);
      device const StoredScale* const of_line = of_groups + c * line_scales;
      scales[0][c] = of_line[0];
      scales[1][c] = Format::has_short_groups ? of_line[1] : scales[0][c];
      biases[c] = Format::has_biases ? biases_of_groups[c * line_scales] : T(0);
    }
  }
};

// Loads a lane's 32 elements of x, multiplied by what the format's codes are scaled by, and returns
// their sum for a format with biases. Lanes past the end of K have zeros.
template <typename Format, typename T>
inline float load_inputs(thread float (&inputs)[32], device const T* x, bool is_inside) {
  gemv::load_adjacent<32>(inputs, x);
  float total = 0.0f;
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    inputs[e] = is_inside ? inputs[e] : 0.0f;
    total += Format::has_biases ? inputs[e] : 0.0f;
    inputs[e] *= Format::has_shifted_codes ? packed::code_scale(e) : 1.0f;
  }
  return total;
}

// Adds the products of a lane's codes of LINES lines and its elements of x.
template <typename T, typename Format, int LINES>
inline void add_products(thread float (&sums)[LINES],
                         thread const LinesOfRow<T, Format, LINES>& now,
                         thread const float (&inputs)[32], uint exponent,
                         threadgroup const float2* table) {
  constexpr int halves = Format::has_short_groups ? 2 : 1;
#pragma unroll
  for (int h = 0; h < halves; ++h) {
    float dots[LINES];
#pragma unroll
    for (int c = 0; c < LINES; ++c) {
      dots[c] = 0.0f;
    }
#pragma unroll
    for (int i = h * 4 / halves; i < (h + 1) * 4 / halves; ++i) {
      packed::EightOfLines<LINES> weights;
      if (Format::has_table) {
        packed::unpack_by_pairs(weights, now.blocks, i, table);
      } else {
        packed::unpack(weights, now.blocks, i, exponent);
      }
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
      const float scale = packed::Scale<T, Format>::value(now.scales[h][c]) * Format::factor;
      sums[c] = fma(scale, dots[c], sums[c]);
    }
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
  typedef packed::Scale<T, Format> Scale;
  typedef typename Scale::type StoredScale;
  // Registers hold one line of long codes.
  constexpr int together = Format::bits <= 4 ? gemv::kTogether : 1;
  threadgroup float parts[gemv::kMostParts * 32];
  threadgroup float2 table[Format::has_table ? 256 * packed::kPairCopies : 1];
  if (Format::has_table) {
    packed::fill_pairs<Format>(table, simdgroup * 32 + lane, simdgroups * 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup const float2* const of_lane =
      table + (Format::has_table ? lane % packed::kPairCopies : 0u);
  const uint line_bytes = static_cast<uint>(p.right.line_bytes);
  const uint line_scales = static_cast<uint>(p.right.line_scales);
  const int k = static_cast<int>(simdgroup * 32 + lane) * 32;
  // Lanes past the end load the last block and multiply it by zero.
  const int of_codes = min(k, p.inner - 32);
  const uint exponent = metalops::formats::exponent_of(of_codes);
  const int group_of = of_codes >> p.right.group_shift;
  const int64_t first_line = gemv::first_line(group, lines, p.columns);
  const int64_t first_scale = first_line * p.right.line_scales + group_of;
  device const uchar* const first_codes =
      codes + first_line * p.right.line_bytes + of_codes / 8 * Format::bits;
  device const StoredScale* const first_scales =
      reinterpret_cast<device const StoredScale*>(scales) + first_scale;
  device const T* const first_biases = biases + first_scale;
  LinesOfRow<T, Format, together> next;
  next.load(first_codes, first_scales, first_biases, line_bytes, line_scales);
  float inputs[32];
  const float total = load_inputs<Format>(inputs, x + of_codes, k < p.inner);
#pragma unroll 1
  for (int line = 0; line < lines; line += together) {
    const LinesOfRow<T, Format, together> now = next;
    float sums[together];
#pragma unroll
    for (int c = 0; c < together; ++c) {
      sums[c] = Format::has_biases ? static_cast<float>(now.biases[c]) * total : 0.0f;
    }
    // In the last iteration the last lines are loaded again, and not used.
    const int following = min(line + together, lines - together);
    next.load(first_codes + following * line_bytes, first_scales + following * line_scales,
              first_biases + following * line_scales, line_bytes, line_scales);
    add_products<T, Format>(sums, now, inputs, exponent, of_lane);
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

// The lines of weights of a lane, one of each of TILES tiles, and 32 adjacent codes of each.
template <typename T, typename Format, int TILES>
struct LinesOfTiles {
  typedef packed::Scale<T, Format> Scale;
  typedef typename Scale::type StoredScale;

  device const uchar* codes[TILES];
  device const StoredScale* of_groups[TILES];
  device const T* biases_of_groups[TILES];
  packed::Blocks<Format, TILES> blocks;
  float scales[2][TILES];
  T biases[TILES];

  inline void begin(packed::Matrix<T> right, constant PackedLayout& layout, int first,
                    int last) thread {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const int64_t line = min(first + t * 8, last);
      codes[t] = right.codes + line * layout.line_bytes;
      of_groups[t] =
          reinterpret_cast<device const StoredScale*>(right.scales) + line * layout.line_scales;
      biases_of_groups[t] = right.biases + (Format::has_biases ? line * layout.line_scales : 0);
    }
  }
  inline void load(int k, int group_shift) thread {
    const uint group = static_cast<uint>(k >> group_shift);
    const uint next_group = static_cast<uint>((k + 16) >> group_shift);
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      packed::load<packed::distance_of_two<Format>() == 1>(
          blocks, t, codes[t] + static_cast<uint>(k / 8 * Format::bits));
      scales[0][t] = Scale::value(of_groups[t][group]) * Format::factor;
      scales[1][t] = Format::has_short_groups
                         ? Scale::value(of_groups[t][next_group]) * Format::factor
                         : scales[0][t];
      biases[t] = Format::has_biases ? biases_of_groups[t][group] : T(0);
    }
  }
};

// Skinny GEMM with simdgroup matrices (see skinny_matrix.h). Each lane has 32 adjacent codes.
template <typename T, typename Format, int TILES, int EIGHTS>
[[max_total_threads_per_threadgroup(skinny::kMostThreads)]] kernel void
quantized_matmul_skinny_simdgroup_matrix(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr int distance = packed::distance_of_two<Format>();
  typedef skinny::RowsOfX<T, EIGHTS, distance> RowsOfX;
  threadgroup float parts[skinny::kSplits][EIGHTS * TILES * 64];
#if defined(__METALOPS_MATRIX_PAIRS__)
  threadgroup half2 pairs[Format::has_table ? 256 * packed::kPairCopies : 1];
  if (Format::has_table) {
    packed::fill_pairs<Format>(pairs, simdgroup * 32 + lane, skinny::kSplits * 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const packed::LaneTable table{pairs + (Format::has_table ? lane % packed::kPairCopies : 0u)};
#else
  threadgroup float values[Format::has_table ? packed::kTableSize : 1];
  if (Format::has_table) {
    packed::fill_table<Format>(values, simdgroup * 32 + lane, skinny::kSplits * 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const packed::LaneTable table{values, lane};
#endif
  const uint across = (static_cast<uint>(p.columns) + TILES * 8 - 1) / (TILES * 8);
  const uint down = (static_cast<uint>(p.rows) + EIGHTS * 8 - 1) / (EIGHTS * 8);
  const int64_t pair = group / across / down;
  const int first_row = static_cast<int>(group / across % down) * EIGHTS * 8;
  PairIndices indices = pair_indices(pair, left_index, right_index, p);
  // Invalid pairs are computed with matrix 0 and not stored, to keep the threadgroup uniform.
  if (!indices.in_range) {
    REPORT_OUT_OF_RANGE(errors, indices, p);
    indices.left = 0;
    indices.right = 0;
  }
  const int column = static_cast<int>(group % across) * TILES * 8;
  device const T* const x = left + indices.left * p.left_matrix;
  const auto own = matmul::elements_of_lane(lane);
  const uint exponent = metalops::formats::exponent_of(p.inner);
  LinesOfTiles<T, Format, TILES> lines;
  lines.begin(packed::matrix_of<T>(codes, scales, biases, 1.0f, p.right, indices.right), p.right,
              column + own.row, p.columns - 1);
  simdgroup_float8x8 sums[EIGHTS][TILES];
  skinny::clear_matrices(sums);
#pragma unroll 1
  for (int k_start = 0; k_start < p.inner; k_start += skinny::kSplits * 128) {
    const int k = k_start + static_cast<int>(simdgroup) * 128;
    // Lanes past the end load the last block and multiply it by zero.
    lines.load(min(k + own.column * 16, p.inner - 32), p.right.group_shift);
    const int of_inputs = k + RowsOfX::lane_of_codes(own) * 32;
    RowsOfX inputs;
    inputs.load(x + min(of_inputs, p.inner - 32), p.inner, first_row, p.rows - 1, 16, own);
    if (k + 128 > p.inner && of_inputs >= p.inner) {
      inputs.clear();
    }
#pragma unroll
    for (int step = 0; step < skinny::kSteps; step += 2) {
      simdgroup_matrix<T, 8, 8> a[2][TILES];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          vec<T, 2> two;
          packed::two_values(two, lines.blocks, t, step / 4, step % 4 + s,
                             lines.scales[step / 8][t], lines.biases[t], exponent, table);
          a[s][t].thread_elements() = two;
        }
      }
      skinny::multiply_steps(sums, a, inputs, step);
    }
  }
  const skinny::StoreRow<T> store{
      result + pair * p.rows * p.columns, bias,      packed::global_factor(global_scale, p.right),
      indices.in_range ? p.rows : 0,      p.columns, p.has_bias};
  skinny::store_matrices(store, sums, parts, first_row, column, simdgroup, lane);
}

// Elements of x in threadgroup memory, lines of a thread, and bytes multiplied at a time: enough
// for compilers to vectorise their loop instead of unrolling it.
constant constexpr int kChunk = 2048;
constant constexpr int kLines = 4;
constant constexpr int kPairs = 32;

// A chunk of x, as bytes of two codes are multiplied by it: the elements of low and of high codes,
// and the sum of each 2 kPairs.
struct ChunkOfX {
  float low[kChunk / 2];
  float high[kChunk / 2];
  float totals[kChunk / (2 * kPairs)];
};
// Sums for each place of a pair of codes, which are the lanes of a CPU's vectors.
struct SumsOfLines {
  float of[kLines][kPairs];
  float of_biases[kLines];
};

template <typename T>
inline void load_chunk(threadgroup ChunkOfX& chunk, device const T* x, int count, uint lane) {
  for (int k = static_cast<int>(lane) * 2 * kPairs; k < count; k += 64 * kPairs) {
    float total = 0.0f;
    for (int j = 0; j < kPairs; ++j) {
      const float low = static_cast<float>(x[k + 2 * j]);
      const float high = static_cast<float>(x[k + 2 * j + 1]);
      chunk.low[k / 2 + j] = low;
      chunk.high[k / 2 + j] = high;
      total += low + high;
    }
    chunk.totals[k / (2 * kPairs)] = total;
  }
}

// Adds the products of `count` codes, from k on, of the lines from `first` on.
template <typename T>
inline void add_lines(thread SumsOfLines& sums, threadgroup const ChunkOfX& chunk,
                      packed::Matrix<T> right, int first, int last, int k, int count) {
  constant PackedLayout& layout = *right.layout;
  for (int i = 0; i < count; i += 2 * kPairs) {
    for (int c = 0; c < kLines; ++c) {
      const int64_t line = min(first + c, last);
      device const uchar* const pairs = right.codes + line * layout.line_bytes + (k + i) / 2;
      const int64_t group = line * layout.line_scales + ((k + i) >> layout.group_shift);
      const float scale =
          static_cast<float>(reinterpret_cast<device const T*>(right.scales)[group]);
      const float bias = static_cast<float>(right.biases[group]);
#pragma clang loop vectorize(assume_safety)
      for (int j = 0; j < kPairs; ++j) {
        const uint pair = pairs[j];
        const float dot = fma(static_cast<float>(pair >> 4), chunk.high[i / 2 + j],
                              static_cast<float>(pair & 15u) * chunk.low[i / 2 + j]);
        sums.of[c][j] = fma(scale, dot, sums.of[c][j]);
      }
      sums.of_biases[c] = fma(bias, chunk.totals[i / (2 * kPairs)], sums.of_biases[c]);
    }
  }
}

// GEMV of CPUs, for integers of 4 bits: each thread of a simdgroup multiplies kLines lines of W by
// x. Groups and K are multiples of 2 kPairs.
template <typename T>
kernel void quantized_matmul_gemv_lines(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ChunkOfX chunk;
  const uint across = (static_cast<uint>(p.columns) + 32 * kLines - 1) / (32 * kLines);
  const int64_t pair = group / across;
  const PairIndices of = pair_indices(pair, left_index, right_index, p);
  if (!of.in_range) {
    REPORT_OUT_OF_RANGE(errors, of, p);
    return;
  }
  const int column = (static_cast<int>(group % across) * 32 + static_cast<int>(lane)) * kLines;
  const auto right = packed::matrix_of<T>(codes, scales, biases, 1.0f, p.right, of.right);
  SumsOfLines sums = {};
  for (int k = 0; k < p.inner; k += kChunk) {
    const int count = min(kChunk, p.inner - k);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_chunk(chunk, left + of.left * p.left_matrix + k, count, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_lines(sums, chunk, right, column, p.columns - 1, k, count);
  }
  const skinny::StoreRow<T> store{result + pair * p.columns,
                                  bias,
                                  packed::global_factor(global_scale, p.right),
                                  1,
                                  p.columns,
                                  p.has_bias};
  for (int c = 0; c < kLines; ++c) {
    float total = sums.of_biases[c];
    for (int j = 0; j < kPairs; ++j) {
      total += sums.of[c][j];
    }
    store(0, column + c, total);
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
};

template <int COUNT, typename E, typename T>
inline void stage_run(threadgroup E* to, Packed<T> from, int64_t line, int64_t k, int left) {
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

#if defined(__HAVE_TENSOR__)

// COUNT integers of 4 bits, and the scale and the bias of each 64.
template <int COUNT>
struct LoadedIntegers {
  uchar pairs[COUNT / 2];
  float scales[COUNT / 64];
  float biases[COUNT / 64];
};

template <typename T>
inline bool is_loaded(Packed<T> from, StagedRun run, int count) {
  return run.left >= count && packed::is_int4(*from.matrix.layout);
}

template <int COUNT, typename T>
inline LoadedIntegers<COUNT> load_run(Packed<T> from, StagedRun run) {
  LoadedIntegers<COUNT> loaded;
  if (is_loaded(from, run, COUNT)) {
    constant PackedLayout& layout = *from.matrix.layout;
    device const uchar* const pairs = from.matrix.codes + run.line * layout.line_bytes + run.k / 2;
    for (int i = 0; i < COUNT / 2; ++i) {
      loaded.pairs[i] = pairs[i];
    }
    for (int i = 0; i < COUNT / 64; ++i) {
      const int64_t group =
          run.line * layout.line_scales + ((run.k + i * 64) >> layout.group_shift);
      loaded.scales[i] =
          static_cast<float>(reinterpret_cast<device const T*>(from.matrix.scales)[group]) *
          from.matrix.factor;
      loaded.biases[i] = static_cast<float>(from.matrix.biases[group]);
    }
  }
  return loaded;
}

// Stores two adjacent elements; narrow ones as a word, which takes a CPU's vectors no shuffles.
template <typename E>
inline void store_two(threadgroup E* to, float first, float second) {
  const uint low = as_type<ushort>(static_cast<E>(first));
  const uint high = as_type<ushort>(static_cast<E>(second));
  *reinterpret_cast<threadgroup uint*>(to) = low | high << 16;
}
inline void store_two(threadgroup float* to, float first, float second) {
  to[0] = first;
  to[1] = second;
}

// Integers of 4 bits are stored by a loop over their bytes, which is one of vectors on a CPU.
template <int COUNT, typename E, typename T>
inline void store_run(threadgroup E* to, Packed<T> from, StagedRun run,
                      LoadedIntegers<COUNT> loaded) {
  if (!is_loaded(from, run, COUNT)) {
    stage_run<COUNT>(to, from, run.line, run.k, run.left);
    return;
  }
  for (int i = 0; i < COUNT / 64; ++i) {
    const float scale = loaded.scales[i];
    const float bias = loaded.biases[i];
    for (int j = 0; j < 32; ++j) {
      const uint pair = loaded.pairs[i * 32 + j];
      store_two(to + i * 64 + 2 * j, fma(static_cast<float>(pair & 15u), scale, bias),
                fma(static_cast<float>(pair >> 4), scale, bias));
    }
  }
}

#endif

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
  const uint2 tile(group % across, group / across % down);
  const store_with_bias<T> epilogue{result + pair * p.rows * p.columns, bias, p.columns,
                                    p.has_bias};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{p.rows, p.columns, p.inner}, epilogue, workspace,
                              tile, matmul::Place{index, simdgroup, lane});
}

#define REGISTER_TILES(T)                                                        \
  REGISTER_KERNEL("quantized_matmul_tiles_small_" #T, quantized_matmul_tiles, T, \
                  matmul::Tile<16, 64, 1, 4>);                                   \
  REGISTER_KERNEL("quantized_matmul_tiles_large_" #T, quantized_matmul_tiles, T, \
                  matmul::Tile<64, 64, 2, 2>)

REGISTER_TILES(float);
REGISTER_TILES(half);
REGISTER_TILES(bfloat);

#if defined(__HAVE_TENSOR__)

// The tiles of CPUs, for lines of weights along K: few threads with long runs of them, and sums
// that are loaded and stored for each 512 bytes of K.
#define REGISTER_DEEP_TILES(T)                                                        \
  REGISTER_KERNEL("quantized_matmul_tiles_deep_small_" #T, quantized_matmul_tiles, T, \
                  matmul::Tile<16, 32, 1, 1, 1, 512 / sizeof(T)>);                    \
  REGISTER_KERNEL("quantized_matmul_tiles_deep_large_" #T, quantized_matmul_tiles, T, \
                  matmul::Tile<64, 32, 1, 1, 1, 512 / sizeof(T)>)

REGISTER_DEEP_TILES(float);
REGISTER_DEEP_TILES(half);
REGISTER_DEEP_TILES(bfloat);

#endif

#if defined(__METALOPS_CODED_LINES__) && defined(__HAVE_TENSOR__)

// GEMM with quantised weights that are decoded in registers: lines of weights by rows of x, a tile
// of LINES x ROWS for each threadgroup. Each 16 lines have a simdgroup for each of SPLITS parts of
// K, which is a multiple of 64.
template <typename T, typename Format, int LINES, int ROWS, int SPLITS>
[[max_total_threads_per_threadgroup(LINES * 2 * SPLITS)]] kernel void quantized_matmul_lines(
    device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
    device const uchar* codes [[buffer(2)]], device const uchar* scales [[buffer(3)]],
    device const T* biases [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const float* global_scale [[buffer(6)]], device const int64_t* left_index [[buffer(7)]],
    device const int64_t* right_index [[buffer(8)]], constant QuantizedProduct& p [[buffer(9)]],
    device ErrorMessages* errors [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  using namespace mpp::tensor_ops;
  const uint across = (static_cast<uint>(p.columns) + LINES - 1) / LINES;
  const uint down = (static_cast<uint>(p.rows) + ROWS - 1) / ROWS;
  const int64_t pair = group / across / down;
  const PairIndices of = pair_indices(pair, left_index, right_index, p);
  if (!of.in_range) {
    REPORT_OUT_OF_RANGE(errors, of, p);
    return;
  }
  const int line = static_cast<int>(group % across) * LINES;
  const int row = static_cast<int>(group / across % down) * ROWS;
  const int split = SPLITS == 1 ? 0 : static_cast<int>(simdgroup) / (LINES / 16);
  const int most = (p.inner / 64 + SPLITS - 1) / SPLITS * 64;
  const int first = min(split * most, p.inner);
  const int inner = min(most, p.inner - first);
  constexpr auto descriptor =
      matmul2d_descriptor(LINES, ROWS, static_cast<int>(dynamic_extent), false, true, false,
                          matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<descriptor, execution_simdgroups<LINES / 16>> operation;
  auto x =
      matmul::tensor_of<false>(matmul::Dense<T>{left + of.left * p.left_matrix, p.inner, false},
                               row, p.rows - row, first, inner);
  auto sums =
      operation.template get_destination_cooperative_tensor<decltype(x), decltype(x), float>();
  matmul::clear(sums);
  const auto lines = packed::coded_lines<T, Format>(
      packed::matrix_of<T>(codes, scales, biases, 1.0f, p.right, of.right), line, p.columns - 1,
      first);
  ::mpp::tensor_ops::run_coded<SPLITS>(operation, lines, x, inner, sums);
  if (split == 0) {
    const packed::FinishLine<T> finish{bias, packed::global_factor(global_scale, p.right), line,
                                       p.columns - 1, p.has_bias};
    ::mpp::tensor_ops::store_turned(sums, result + (pair * p.rows + row) * p.columns + line,
                                    static_cast<int64_t>(p.columns), p.columns - line, p.rows - row,
                                    finish);
  }
}

#define REGISTER_LINES(NAME, T, ...)                                                       \
  REGISTER_KERNEL("quantized_matmul_lines_32_" #NAME "_" #T, quantized_matmul_lines, T,    \
                  __VA_ARGS__, 64, 32, 4);                                                 \
  REGISTER_KERNEL("quantized_matmul_lines_64_" #NAME "_" #T, quantized_matmul_lines, T,    \
                  __VA_ARGS__, 64, 64, 3);                                                 \
  REGISTER_KERNEL("quantized_matmul_lines_128_" #NAME "_" #T, quantized_matmul_lines, T,   \
                  __VA_ARGS__, 64, 128, 2);                                                \
  REGISTER_KERNEL("quantized_matmul_lines_256_" #NAME "_" #T, quantized_matmul_lines, T,   \
                  __VA_ARGS__, 128, 128, 1);                                               \
  REGISTER_KERNEL("quantized_matmul_lines_large_" #NAME "_" #T, quantized_matmul_lines, T, \
                  __VA_ARGS__, 128, 256, 1)
#define REGISTER_LINES_OF(T)                    \
  REGISTER_LINES(int2, T, packed::Integer<2>);  \
  REGISTER_LINES(int4, T, packed::Integer<4>);  \
  REGISTER_LINES(int8, T, packed::Integer<8>);  \
  REGISTER_LINES(mxfp4, T, packed::MXFloat4);   \
  REGISTER_LINES(nvfp4, T, packed::NVFloat4);   \
  REGISTER_LINES(mxfp8, T, packed::MXFloat8);   \
  REGISTER_LINES(nf4, T, packed::NormalFloat4); \
  REGISTER_LINES(fp4, T, packed::Float4)

REGISTER_LINES_OF(half);
REGISTER_LINES_OF(bfloat);

#endif

#if !defined(__HAVE_TENSOR__)

#define REGISTER_SKINNY_1(NAME, T, ...)                                                  \
  REGISTER_KERNEL("quantized_matmul_skinny_1_" #NAME "_" #T, quantized_matmul_skinny, T, \
                  __VA_ARGS__, 1, 8)
#define REGISTER_SKINNY_4(NAME, T, ...)                                                \
  REGISTER_KERNEL("quantized_matmul_skinny_" #NAME "_" #T, quantized_matmul_skinny, T, \
                  __VA_ARGS__, 4, 4)
#define REGISTER_SKINNY_SIMDGROUP_MATRIX(NAME, T, ...)                             \
  REGISTER_KERNEL("quantized_matmul_skinny_" #NAME "_" #T,                         \
                  quantized_matmul_skinny_simdgroup_matrix, T, __VA_ARGS__, 4, 1); \
  REGISTER_KERNEL("quantized_matmul_skinny_16_" #NAME "_" #T,                      \
                  quantized_matmul_skinny_simdgroup_matrix, T, __VA_ARGS__, 4, 2)

#define REGISTER_GEMV(NAME, T, ...) \
  REGISTER_KERNEL("quantized_matmul_gemv_" #NAME "_" #T, quantized_matmul_gemv, T, __VA_ARGS__)
#define REGISTER_GEMVS(T)                      \
  REGISTER_GEMV(int4, T, packed::Integer<4>);  \
  REGISTER_GEMV(mxfp4, T, packed::MXFloat4);   \
  REGISTER_GEMV(nvfp4, T, packed::NVFloat4);   \
  REGISTER_GEMV(mxfp8, T, packed::MXFloat8);   \
  REGISTER_GEMV(nf4, T, packed::NormalFloat4); \
  REGISTER_GEMV(fp4, T, packed::Float4)

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

REGISTER_KERNEL("quantized_matmul_gemv_lines_float", quantized_matmul_gemv_lines, float);
REGISTER_KERNEL("quantized_matmul_gemv_lines_half", quantized_matmul_gemv_lines, half);
REGISTER_KERNEL("quantized_matmul_gemv_lines_bfloat", quantized_matmul_gemv_lines, bfloat);

REGISTER_GEMVS(float);
REGISTER_GEMVS(half);
REGISTER_GEMVS(bfloat);

REGISTER_FORMATS(REGISTER_SKINNY_4, float);
REGISTER_FORMATS(REGISTER_SKINNY_SIMDGROUP_MATRIX, half);
REGISTER_FORMATS(REGISTER_SKINNY_SIMDGROUP_MATRIX, bfloat);

#endif

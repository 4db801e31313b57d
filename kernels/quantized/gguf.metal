// GGUF weights (ggml's block formats): dequantisation, embedding rows, GEMV, skinny GEMM and tile
// GEMM. Sums are in float.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/quantized/gemv.h>
#include <kernels/quantized/gguf_blocks.h>
#include <kernels/quantized/gguf_pieces.h>
#include <kernels/quantized/skinny_gemm.h>
#include <kernels/quantized/skinny_matrix.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::GgufLayout;
using metalops::GgufProduct;
namespace skinny = metalops::skinny;
namespace gguf = metalops::gguf;
namespace matmul = metalops::matmul;
namespace gemv = metalops::gemv;

namespace metalops {
namespace matmul {

struct GgufSource {
  device const uchar* data;
  constant GgufLayout* layout;
};

// GGUF weights as the quantised operand of a tile GEMM in T.
template <typename T>
struct Blocks {
  typedef T element;
  static constant constexpr bool is_dequantized = true;
  static constant constexpr bool is_transposed = false;

  GgufSource source;

  inline gguf::Eight eight(int64_t line, int64_t k, int first) const {
    return gguf::eight(source.data, *source.layout, line, static_cast<int>(k) + first);
  }
};

template <int COUNT, typename E, typename T>
inline void stage_run(threadgroup E* to, Blocks<T> from, int64_t line, int64_t k, int left) {
  stage_eights<COUNT>(to, from, line, k, left);
}

}  // namespace matmul
}  // namespace metalops

// Tile GEMM with GGUF weights. One threadgroup per tile.
template <typename T, typename Tile>
kernel void gguf_tiles(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                       device const uchar* data [[buffer(2)]], device const T* bias [[buffer(3)]],
                       constant GgufProduct& p [[buffer(4)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Blocks<T>>()];
  const matmul::Dense<T> a{left, p.inner, false};
  const matmul::Blocks<T> b{{data, &p.right}};
  const matmul::StoreWithBias<T> epilogue{result, bias, p.columns, p.has_bias};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{p.rows, p.columns, p.inner}, epilogue, workspace,
                              matmul::tile_of<Tile>(group, p.columns),
                              matmul::Place{index, simdgroup, lane});
}

#define REGISTER_TILE(NAME, T, ...) \
  REGISTER_KERNEL("gguf_tiles_" #NAME "_" #T, gguf_tiles, T, matmul::Tile<__VA_ARGS__>)

#define REGISTER_TILES(T)                \
  REGISTER_TILE(small, T, 16, 64, 1, 4); \
  REGISTER_TILE(large, T, 64, 64, 2, 2)

REGISTER_TILES(float);
REGISTER_TILES(half);
REGISTER_TILES(bfloat);

#if !defined(__HAVE_TENSOR__)

// Skinny GEMM for types known at run time: each of four simdgroups computes ROWS rows x two
// columns; a lane takes eight adjacent elements of K at a time.
template <typename T, int ROWS>
kernel void gguf_skinny(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                        device const uchar* data [[buffer(2)]], device const T* bias [[buffer(3)]],
                        constant GgufProduct& p [[buffer(4)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  constexpr int columns = 2;
  const matmul::SkinnyBlock block = matmul::skinny_block_of<ROWS, columns>(group, p.columns);
  const int row = block.row;
  const int column = block.column + static_cast<int>(simdgroup) * columns;
  float sums[ROWS][columns];
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < columns; ++c) {
      sums[r][c] = 0.0f;
    }
  }
  for (int k = static_cast<int>(lane) * 8; k < p.inner; k += 256) {
    float inputs[ROWS][8];
    for (int r = 0; r < ROWS; ++r) {
      device const T* const x = left + static_cast<int64_t>(min(row + r, p.rows - 1)) * p.inner + k;
      for (int e = 0; e < 8; ++e) {
        inputs[r][e] = static_cast<float>(x[e]);
      }
    }
    for (int c = 0; c < columns; ++c) {
      const gguf::Eight values = gguf::eight(data, p.right, min(column + c, p.columns - 1), k);
      for (int r = 0; r < ROWS; ++r) {
        for (int e = 0; e < 8; ++e) {
          sums[r][c] = fma(inputs[r][e], values.of[e], sums[r][c]);
        }
      }
    }
  }
  const matmul::StoreWithBias<T> store{result, bias, p.columns, p.has_bias};
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < columns; ++c) {
      matmul::Sums<1> total;
      total.of[0] = simd_sum(sums[r][c]);
      if (lane == 0 && row + r < p.rows && column + c < p.columns) {
        store(row + r, column + c, total);
      }
    }
  }
}

// Returns the factor that compensates a code left in the low or high byte of its half word.
inline float scale_of_byte(int e) { return e % 2 == 0 ? 1.0f : 0x1p-8f; }

// Returns the value of element e of a run, without its scale, from the four codes that it is one
// of. An odd element is 256 times as large: see scale_of_byte().
template <typename Type>
inline float value_of(uint four, int e, uint exponent) {
  constexpr float of_zero = static_cast<float>(Type::zero);
  const uint two = e % 4 < 2 ? four : four >> 16;
  const uint code = two & (e % 2 == 0 ? 0xffu : 0xff00u);
  // Puts the code into the low mantissa bits of 2^23: GPUs add faster than they convert.
  return as_type<float>(exponent | code) - (0x1p23f + of_zero * (e % 2 == 0 ? 1.0f : 256.0f));
}

// Skinny GEMM for types known at compile time: each simdgroup, or each group of p.splits simdgroups
// (split-K), computes ROWS x COLUMNS elements. Lanes take pieces of lines (gguf_pieces.h).
template <typename T, typename Type, int ROWS, int COLUMNS>
kernel void gguf_skinny_pieces(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                               device const uchar* data [[buffer(2)]],
                               device const T* bias [[buffer(3)]],
                               constant GgufProduct& p [[buffer(4)]],
                               uint group [[threadgroup_position_in_grid]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[skinny::kSimdgroups][ROWS * COLUMNS];
  const auto block = skinny::block_of<ROWS, COLUMNS>(group, p.splits, p.rows, p.columns);
  const auto share = skinny::share_of<COLUMNS>(block, simdgroup, p.splits);
  const uint exponent = metalops::formats::exponent_of(p.inner);
  float sums[ROWS][COLUMNS];
  skinny::clear(sums);
#pragma unroll 1
  for (int number = share.part * 32 + static_cast<int>(lane); number < p.inner / 32;
       number += p.splits * 32) {
    typename Type::Piece pieces[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int64_t line = min(share.column + c, p.columns - 1);
      Type::load(pieces[c], data, line * p.right.line_bytes, number);
    }
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      float inputs[ROWS][16];
      float totals[ROWS];
      float dots[ROWS][COLUMNS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int64_t row = min(block.row + r, p.rows - 1);
        skinny::load_adjacent<16>(
            inputs[r], left + row * p.inner + Type::first(number) + run * Type::run_stride);
        totals[r] = 0.0f;
#pragma unroll
        for (int e = 0; e < 16; ++e) {
          totals[r] += Type::has_minimum ? inputs[r][e] : 0.0f;
          inputs[r][e] *= scale_of_byte(e);
        }
      }
      skinny::clear(dots);
#pragma unroll
      for (int e = 0; e < 16; ++e) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const float value = value_of<Type>(Type::four(pieces[c], run, e / 4), e, exponent);
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            dots[r][c] = fma(value, inputs[r][e], dots[r][c]);
          }
        }
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const float scale = Type::scale(pieces[c], run);
        const float minimum = Type::minimum(pieces[c], run);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          sums[r][c] = fma(scale, dots[r][c], sums[r][c]);
          if (Type::has_minimum) {
            sums[r][c] = fma(-minimum, totals[r], sums[r][c]);
          }
        }
      }
    }
  }
  const skinny::StoreRow<T> store{result, bias, 1.0f, p.rows, p.columns, p.has_bias};
  skinny::store_sums(store, sums, parts, block.row, share, p.splits, simdgroup, lane);
}

// Returns codes e and e + 8 of a run of an interleaved piece, as multiples of Type::unit. They
// become the low mantissa bits of 1024.
template <typename Type>
inline half2 codes_of(thread const typename Type::Piece& piece, int run, int e, uint of_halves) {
  const float factor = 1.0f / static_cast<float>(1 << Type::shift(run));
  return fma(as_type<half2>(Type::two(piece, run, e) ^ (of_halves ^ Type::flipped)),
             half2(static_cast<half>(factor * Type::unit)),
             half2(static_cast<half>(-(1024.0f * factor + Type::zero) * Type::unit)));
}
// Scales codes, which are multiples of Type::unit.
template <typename Type>
inline half2 scaled(half2 codes, float scale, float minimum, half) {
  return fma(codes, half2(static_cast<half>(scale * (1.0f / Type::unit))),
             half2(static_cast<half>(-minimum)));
}
template <typename Type>
inline vec<bfloat, 2> scaled(half2 codes, float scale, float minimum, bfloat) {
  const float factor = scale * (1.0f / Type::unit);
  return vec<bfloat, 2>(static_cast<bfloat>(fma(static_cast<float>(codes.x), factor, -minimum)),
                        static_cast<bfloat>(fma(static_cast<float>(codes.y), factor, -minimum)));
}

constant constexpr int kTableCopies = 16;

// Fills the table of the values of both codes of a byte, in copies: adjacent lanes read from
// different banks.
template <typename Type>
inline void fill_table(threadgroup half2* table, uint thread_index) {
  for (uint i = thread_index; i < 256 * kTableCopies; i += skinny::kSplits * 32) {
    const uint two = i / kTableCopies;
    table[i] = half2(static_cast<half>(gguf::kNonLinear4[two & 15u] * Type::unit),
                     static_cast<half>(gguf::kNonLinear4[two >> 4] * Type::unit));
  }
}

// Returns the two codes of a lane's step as multiples of Type::unit. table: if the type has one.
// The byte's place in it is its bits where they are, shifted and masked.
template <typename Type>
inline half2 codes_of_step(thread const typename Type::Piece& piece, int step, uint of_halves,
                           threadgroup const half2* table, uint lane) {
  if (!Type::has_table) {
    return codes_of<Type>(piece, step / 8, step % 8, of_halves);
  }
  constexpr int shift = 6;  // of a byte in the place of its value, in bytes
  static_assert(kTableCopies * 4 == 1 << shift, "values are of four bytes");
  const uint word = Type::four(piece, step / 8, step % 8 / 2);
  const int bit = step % 4 * 8;
  const uint place = (bit < shift ? word << (shift - bit) : word >> (bit - shift)) & 255u << shift;
  const uint own = lane % static_cast<uint>(kTableCopies) * 4u;
  return *reinterpret_cast<threadgroup const half2*>(
      reinterpret_cast<threadgroup const uchar*>(table) + (place | own));
}

// Skinny GEMM with simdgroup matrices (see skinny_matrix.h) for types known at compile time. Lanes
// take pieces of lines (gguf_pieces.h).
template <typename T, typename Type, int TILES, int EIGHTS>
[[max_total_threads_per_threadgroup(skinny::kMostThreads)]] kernel void
gguf_skinny_simdgroup_matrix(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                             device const uchar* data [[buffer(2)]],
                             device const T* bias [[buffer(3)]],
                             constant GgufProduct& p [[buffer(4)]],
                             uint group [[threadgroup_position_in_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  // Codes of a step are those of a byte of a table, or as far apart as interleaved ones.
  typedef skinny::RowsOfX<T, EIGHTS, Type::has_table ? 16 : 8> RowsOfX;
  threadgroup float parts[skinny::kSplits][EIGHTS * TILES * 64];
  threadgroup half2 table[Type::has_table ? 256 * kTableCopies : 1];
  if (Type::has_table) {
    fill_table<Type>(table, simdgroup * 32 + lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const uint across = (static_cast<uint>(p.columns) + TILES * 8 - 1) / (TILES * 8);
  const int row = static_cast<int>(group / across) * EIGHTS * 8;
  const int column = static_cast<int>(group % across) * TILES * 8;
  const auto own = matmul::elements_of_lane(lane);
  const uint of_halves =
      metalops::formats::kept(0x64006400u, metalops::formats::exponent_of(p.inner));
  const int pieces = p.inner / 32;
  const bool has_vectors = p.right.line_bytes % 16 == 0;
  simdgroup_float8x8 sums[EIGHTS][TILES];
  skinny::clear_matrices(sums);
#pragma unroll 1
  for (int start = 0; start < pieces; start += skinny::kSplits * 4) {
    const int first = start + static_cast<int>(simdgroup) * 4;
    // Lanes past the end load the last piece and multiply it by zero.
    typename Type::Piece of_tiles[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const int64_t line = min(column + t * 8 + own.row, p.columns - 1);
      Type::load(of_tiles[t], data, line * p.right.line_bytes,
                 min(first + own.column / 2, pieces - 1), has_vectors);
    }
    const int of_inputs = first + RowsOfX::lane_of_codes(own);
    RowsOfX inputs;
    inputs.load(left + Type::first(min(of_inputs, pieces - 1)), p.inner, row, p.rows - 1,
                Type::run_stride, own);
    if (first + 4 > pieces && of_inputs >= pieces) {
      inputs.clear();
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      if (!Type::has_table) {
        Type::interleave(of_tiles[t]);
      }
    }
#pragma unroll
    for (int step = 0; step < skinny::kSteps; step += 2) {
      simdgroup_matrix<T, 8, 8> a[2][TILES];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          const half2 codes = codes_of_step<Type>(of_tiles[t], step + s, of_halves, table, lane);
          a[s][t].thread_elements() = scaled<Type>(codes, Type::scale(of_tiles[t], step / 8),
                                                   Type::minimum(of_tiles[t], step / 8), T(0));
        }
      }
      skinny::multiply_steps(sums, a, inputs, step);
    }
  }
  const skinny::StoreRow<T> store{result, bias, 1.0f, p.rows, p.columns, p.has_bias};
  skinny::store_matrices(store, sums, parts, row, column, simdgroup, lane);
}

// Returns a piece's part of the dot product of its line with x. totals: the sums of both runs'
// inputs.
template <typename Type>
inline float dot_of(thread const typename Type::Stored& piece, int,
                    thread const float (&inputs)[32], thread const float (&totals)[2]) {
  constexpr float of_zero = static_cast<float>(Type::zero);
  float dots[2];
  gguf::dots_of<Type>(dots, piece, inputs);
  float sum = 0.0f;
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const float scale = Type::scale(piece, run);
    sum = fma(scale, fma(dots[run], 0x1p24f, -of_zero * totals[run]), sum);
    if (Type::has_minimum) {
      sum = fma(-Type::minimum(piece, run), totals[run], sum);
    }
  }
  return sum;
}
template <>
inline float dot_of<gguf::Q4_K>(thread const gguf::Q4_K::Stored& stored, int number,
                                thread const float (&inputs)[32], thread const float (&totals)[2]) {
  typedef gguf::Q4_K Type;
  const auto of = Type::parts_of(stored.header, Type::part_of(number));
  float dots[2];
  Type::multiply(dots, stored.words, inputs);
  float sum = dots[0] * (of.scales[0] * Type::factor);
  sum = fma(dots[1], of.scales[1] * (Type::factor / 16.0f), sum);
  sum = fma(-of.minima[0], totals[0], sum);
  return fma(-of.minima[1], totals[1], sum);
}

// GEMV: each threadgroup computes `lines` columns of one row (see gemv.h).
template <typename T, typename Type>
[[max_total_threads_per_threadgroup(gemv::kMostThreads)]] kernel void gguf_gemv(
    device T* result [[buffer(0)]], device const T* x [[buffer(1)]],
    device const uchar* data [[buffer(2)]], device const T* bias [[buffer(3)]],
    constant GgufProduct& p [[buffer(4)]], constant int& lines [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr int together = Type::together;
  threadgroup float parts[gemv::kMostParts * 32];
  threadgroup float* const mine = parts + simdgroup * lines * 32 + lane;
  const uint line_bytes = static_cast<uint>(p.right.line_bytes);
  const int own = static_cast<int>(simdgroup * 32 + lane);
  // Lanes past the end load the last piece, and their sums are replaced by zero.
  const int number = min(own, p.inner / 32 - 1);
  const int64_t first = gemv::first_line(group, lines, p.columns) * p.right.line_bytes;
  typename Type::Stored next[together];
#pragma unroll
  for (int c = 0; c < together; ++c) {
    Type::load(next[c], data, first + c * line_bytes, number);
  }
  float inputs[32];
  float totals[2];
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    gemv::load_adjacent<16>(inputs + run * 16, x + Type::first(number) + run * Type::run_stride);
    totals[run] = 0.0f;
#pragma unroll
    for (int e = run * 16; e < run * 16 + 16; ++e) {
      totals[run] += inputs[e];
    }
  }
#pragma unroll 1
  for (int line = 0; line < lines; line += together) {
    typename Type::Stored now[together];
#pragma unroll
    for (int c = 0; c < together; ++c) {
      now[c] = next[c];
    }
    // In the last iteration the last lines are loaded again, and not used.
    const int following = min(line + together, lines - together);
#pragma unroll
    for (int c = 0; c < together; ++c) {
      Type::load(next[c], data, first + (following + c) * line_bytes, number);
    }
#pragma unroll
    for (int c = 0; c < together; ++c) {
      const float sum = dot_of<Type>(now[c], number, inputs, totals);
      mine[(line + c) * 32] = number == own ? sum : 0.0f;
    }
  }
  const skinny::StoreRow<T> store{result, bias, 1.0f, 1, p.columns, p.has_bias};
  gemv::store_lines(store, parts, group, lines, simdgroups, simdgroup, lane);
}

// Dequantises eight elements of a line per thread, for all lines or for those in `indices`.
template <typename T>
kernel void gguf_dequantize(device T* result [[buffer(0)]], device const uchar* data [[buffer(1)]],
                            device const int64_t* indices [[buffer(2)]],
                            constant GgufLayout& layout [[buffer(3)]],
                            constant bool& has_indices [[buffer(4)]],
                            device ErrorMessages* errors [[buffer(5)]],
                            uint2 position [[thread_position_in_grid]]) {
  int64_t line = position.y;
  if (has_indices) {
    line = indices[position.y];
    if (line < 0 || line >= layout.lines) {
      TORCH_REPORT_ERROR(errors, "gguf_embedding: index ", line, " is not one of ", layout.lines);
      return;
    }
  }
  const int k = static_cast<int>(position.x) * 8;
  const gguf::Eight values = gguf::eight(data, layout, line, k);
  device T* const to = result + static_cast<int64_t>(position.y) * layout.inner + k;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    vec<T, 4> four;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      four[e] = static_cast<T>(values.of[4 * i + e]);
    }
    reinterpret_cast<device vec<T, 4>*>(to)[i] = four;
  }
}

#define REGISTER_OTHERS(T)                                 \
  REGISTER_KERNEL("gguf_skinny_1_" #T, gguf_skinny, T, 1); \
  REGISTER_KERNEL("gguf_skinny_" #T, gguf_skinny, T, 4);   \
  REGISTER_KERNEL("gguf_dequantize_" #T, gguf_dequantize, T)

// COLUMNS: the block width of the one-row kernel. More columns load the row's elements less often
// and use more registers.
#define REGISTER_PIECES_1(TYPE, COLUMNS, T) \
  REGISTER_KERNEL("gguf_skinny_1_" #TYPE "_" #T, gguf_skinny_pieces, T, gguf::TYPE, 1, COLUMNS)
#define REGISTER_PIECES_4(TYPE, T) \
  REGISTER_KERNEL("gguf_skinny_" #TYPE "_" #T, gguf_skinny_pieces, T, gguf::TYPE, 4, 2)
#define REGISTER_SIMDGROUP_MATRIX(TYPE, T)                                                         \
  REGISTER_KERNEL("gguf_skinny_" #TYPE "_" #T, gguf_skinny_simdgroup_matrix, T, gguf::TYPE, 4, 1); \
  REGISTER_KERNEL("gguf_skinny_16_" #TYPE "_" #T, gguf_skinny_simdgroup_matrix, T, gguf::TYPE, 4, 2)

#define REGISTER_GEMV(TYPE, T) REGISTER_KERNEL("gguf_gemv_" #TYPE "_" #T, gguf_gemv, T, gguf::TYPE)

#define REGISTER_ALL(SKINNY, T)  \
  REGISTER_OTHERS(T);            \
  REGISTER_PIECES_1(Q4_0, 4, T); \
  REGISTER_PIECES_1(Q8_0, 4, T); \
  REGISTER_PIECES_1(Q4_K, 8, T); \
  REGISTER_PIECES_1(Q5_K, 4, T); \
  REGISTER_PIECES_1(Q6_K, 4, T); \
  SKINNY(Q4_0, T);               \
  SKINNY(Q8_0, T);               \
  SKINNY(Q4_K, T);               \
  SKINNY(Q5_K, T);               \
  SKINNY(Q6_K, T);               \
  REGISTER_GEMV(Q4_0, T);        \
  REGISTER_GEMV(Q8_0, T);        \
  REGISTER_GEMV(Q4_K, T);        \
  REGISTER_GEMV(Q5_K, T);        \
  REGISTER_GEMV(Q6_K, T)

REGISTER_ALL(REGISTER_PIECES_4, float);
REGISTER_ALL(REGISTER_SIMDGROUP_MATRIX, half);
REGISTER_ALL(REGISTER_SIMDGROUP_MATRIX, bfloat);
REGISTER_SIMDGROUP_MATRIX(IQ4_NL, half);
REGISTER_SIMDGROUP_MATRIX(IQ4_NL, bfloat);
REGISTER_SIMDGROUP_MATRIX(IQ4_XS, half);
REGISTER_SIMDGROUP_MATRIX(IQ4_XS, bfloat);

#endif

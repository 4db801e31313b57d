// Blocked GEMM on the host, in float: blocks of both operands are dequantised and packed, and then
// multiplied by a vectorised micro-kernel. For bytes and bfloat it is that of amx_product.h, or for
// bytes that of byte_product.h, if the CPU supports it.
#pragma once

#include <msl/host/amx_product.h>
#include <msl/host/byte_product.h>
#include <msl/host/transpose.h>
#include <msl/host/widen.h>
#include <msl/tensor_ops/matrix_view.h>

namespace msl::msl_impl {

// Block sizes: 32 KiB of a thread's stack.
constexpr int kBlockRows = 32, kBlockColumns = 32, kBlockInner = 128;
static_assert(kBytePanel == kBlockColumns);
// Register block of the micro-kernel. Rows and columns of a block are padded to multiples of these.
constexpr int kStripRows = 4, kStripColumns = 16;
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// to[i][j] = columns[j][i] for 8 x 8 elements. The leading dimension of `to` is Line, that of
// `columns` `stride`.
template <int Line, class T>
MSL_INLINE void transpose_block(float* to, const T* columns, long stride) {
  EightFloats a[8], b[8];
  for (int j = 0; j < 8; ++j) a[j] = widen_eight(columns + j * stride);
  transpose_eight(a, b);
  for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * Line, &b[i], sizeof(EightFloats));
}

// Packs a block: to[i][j] = view(row + i, column + j) for `rows` rows and `columns` columns, padded
// with 0. The leading dimension of `to` is Line.
template <int Line, class View>
__attribute__((noinline)) void pack_block(float* to, const View& view, long row, long column,
                                          int rows, int columns, int filled_rows,
                                          int filled_columns) {
  const int down = int(clamped(view.rows - row, rows));
  const int across = int(clamped(view.columns - column, columns));
  if (View::is_plain && view.column_stride == 1) {
    for (int i = 0; i < down; ++i) {
      if constexpr (View::is_plain) {
        const auto* const from = &view.first.at((row + i) * view.row_stride + column);
        widen_run(to + i * Line, from, across);
      }
    }
  } else if (view.column_stride == 1) {
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) to[i * Line + j] = view.value(row + i, column + j);
    }
  } else {
    int first = 0;  // first line that is left
    if constexpr (View::is_plain) {
      if (view.row_stride == 1) {
        for (; first + 8 <= down; first += 8) {
          const auto* const from = &view.first.at(row + first + column * view.column_stride);
          for (int j = 0; j + 8 <= across; j += 8) {
            transpose_block<Line>(to + first * Line + j, from + j * view.column_stride,
                                  view.column_stride);
          }
          for (int j = across / 8 * 8; j < across; ++j) {
            for (int i = 0; i < 8; ++i) {
              to[(first + i) * Line + j] = float(from[j * view.column_stride + i]);
            }
          }
        }
      }
    }
    for (int j = 0; j < across; ++j) {
      for (int i = first; i < down; ++i) to[i * Line + j] = view.value(row + i, column + j);
    }
  }
  for (int i = 0; i < down; ++i) {
    for (int j = across; j < filled_columns; ++j) to[i * Line + j] = 0.0f;
  }
  for (int i = down; i < filled_rows; ++i) {
    for (int j = 0; j < filled_columns; ++j) to[i * Line + j] = 0.0f;
  }
}

// The operands of a block, packed or in place: element (i, k) of the left one is a[i * a_row + k *
// a_inner], element (k, j) of the right one b[k * b_inner + j].
struct BlockOperands {
  const float* a;
  long a_row, a_inner;
  const float* b;
  long b_inner;
  int depth;
};

#if defined(__clang__)
#define MSL_FUSED
#define MSL_FUSED_HERE _Pragma("clang fp contract(fast)")
#define MSL_WHOLE_STRIP _Pragma("clang loop unroll(full)")
#else
#define MSL_FUSED __attribute__((optimize("fp-contract=fast")))
#define MSL_FUSED_HERE
#define MSL_WHOLE_STRIP _Pragma("GCC unroll 8")
#endif

// Micro-kernel: Rows x (Vectors * Bytes / 4) elements of sums += a b, with fused multiply-adds.
// Bytes: the width of registers; g++ keeps larger vectors in memory.
template <int Bytes, int Rows, int Vectors>
MSL_FUSED MSL_INLINE void multiply_strip(const BlockOperands& from, int row, int column,
                                         float* sums) {
  MSL_FUSED_HERE
  typedef float Vector __attribute__((vector_size(Bytes), aligned(4)));
  constexpr int floats = Bytes / int(sizeof(float));
  const float *a = from.a + row * from.a_row, *b = from.b + column;
  float* const to = sums + row * kBlockColumns + column;
  Vector strip[Rows][Vectors];
  MSL_WHOLE_STRIP
  for (int r = 0; r < Rows; ++r) {
    MSL_WHOLE_STRIP
    for (int v = 0; v < Vectors; ++v) {
      strip[r][v] = *reinterpret_cast<const Vector*>(to + r * kBlockColumns + v * floats);
    }
  }
  for (int k = 0; k < from.depth; ++k, a += from.a_inner, b += from.b_inner) {
    Vector right[Vectors];
    MSL_WHOLE_STRIP
    for (int v = 0; v < Vectors; ++v) right[v] = *reinterpret_cast<const Vector*>(b + v * floats);
    MSL_WHOLE_STRIP
    for (int r = 0; r < Rows; ++r) {
      MSL_WHOLE_STRIP
      for (int v = 0; v < Vectors; ++v) strip[r][v] += a[r * from.a_row] * right[v];
    }
  }
  MSL_WHOLE_STRIP
  for (int r = 0; r < Rows; ++r) {
    MSL_WHOLE_STRIP
    for (int v = 0; v < Vectors; ++v) {
      *reinterpret_cast<Vector*>(to + r * kBlockColumns + v * floats) = strip[r][v];
    }
  }
}

// sums += a b: rows and columns are multiples of those of a strip.
template <int Bytes>
MSL_FUSED MSL_INLINE void multiply_strips(const BlockOperands& from, float* sums, int rows,
                                          int columns) {
  // With 32 registers strips may be larger than with 16.
  constexpr int most_rows = Bytes == 64 ? 2 * kStripRows : kStripRows;
  constexpr int most_vectors = Bytes == 16 ? 4 : 2;
  constexpr int most_columns = most_vectors * Bytes / int(sizeof(float));
  constexpr int least_vectors = kStripColumns * int(sizeof(float)) / Bytes;
  for (int i = 0; i < rows;) {
    const bool is_whole = rows - i >= most_rows;
    for (int j = 0; j < columns;) {
      const bool is_wide = columns - j >= most_columns;
      if (!is_whole) {
        multiply_strip<Bytes, kStripRows, least_vectors>(from, i, j, sums);
      } else if (is_wide) {
        multiply_strip<Bytes, most_rows, most_vectors>(from, i, j, sums);
      } else {
        multiply_strip<Bytes, most_rows, least_vectors>(from, i, j, sums);
      }
      j += is_whole && is_wide ? most_columns : kStripColumns;
    }
    i += is_whole ? most_rows : kStripRows;
  }
}
#if defined(MSL_PORTABLE)
MSL_FUSED
__attribute__((noinline, target("arch=x86-64-v4"))) inline void multiply_blocks_wide(
    const BlockOperands& from, float* sums, int rows, int columns) {
  multiply_strips<64>(from, sums, rows, columns);
}
#endif
MSL_FUSED
__attribute__((noinline)) inline void multiply_blocks(const BlockOperands& from, float* sums,
                                                      int rows, int columns) {
#if defined(MSL_PORTABLE)
  if (msl_runtime->product_instructions() & abi::kWideFloats) {
    return multiply_blocks_wide(from, sums, rows, columns);
  }
#endif
  multiply_strips<kVectorBytes>(from, sums, rows, columns);
}
#undef MSL_FUSED
#undef MSL_FUSED_HERE
#undef MSL_WHOLE_STRIP

constexpr int filled_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int filled_rows(int rows) { return filled_up(rows, kStripRows); }
constexpr int filled_columns(int columns) { return filled_up(columns, kStripColumns); }

// Largest leading dimension of a right operand, or of a transposed left one, that is not packed:
// its blocks then stay in the cache.
constexpr long kNear = 128;

// The blocks of the product of `left` and `right` along K, in order: bring() returns the operands
// of one, with rows [row, row + rows) and columns [column, column + columns), both padded. `a` and
// `b` are buffers for packing.
template <class Left, class Right>
struct MatrixBlocks {
  static constexpr bool are_bytes = is_of_bytes<Left> && is_of_bytes<Right>;
  template <class Sum>
  static constexpr u32 amx_instruction = amx_instruction_of<Left, Right, Sum>;
  Left left;
  Right right;
  long inner;
  MSL_INLINE long count() const { return (inner + kBlockInner - 1) / kBlockInner; }
  MSL_INLINE BlockOperands bring(long block, float* a, int row, int rows, float* b, int column,
                                 int columns) const {
    const long k = block * kBlockInner;
    const int depth = int(clamped(inner - k, kBlockInner));
    BlockOperands operands{a, kBlockInner, 1, b, kBlockColumns, depth};
    if (is_ready(left, row, filled_rows(rows), k, depth) &&
        (left.column_stride == 1 || left.column_stride <= kNear)) {
      operands.a = in_memory(left, row, k);
      operands.a_row = left.row_stride;
      operands.a_inner = left.column_stride;
    } else {
      pack_block<kBlockInner>(a, left, row, k, rows, depth, filled_rows(rows), depth);
    }
    if (is_ready(right, k, depth, column, filled_columns(columns)) && right.column_stride == 1 &&
        right.row_stride <= kNear) {
      operands.b = in_memory(right, k, column);
      operands.b_inner = right.row_stride;
    } else {
      pack_block<kBlockColumns>(b, right, k, column, depth, columns, depth,
                                filled_columns(columns));
    }
    return operands;
  }

 private:
  // True if operands can be read in place: they are floats in memory. Instrumented code packs, so
  // that each access is checked.
  template <class View>
  static constexpr bool is_of_floats =
      metal::is_same_v<const typename View::Element, const float> && !MSL_INSTRUMENTED;
  template <class View>
  static MSL_INLINE bool is_ready(const View& view, long row, long rows, long column,
                                  long columns) {
    return is_of_floats<View> && row + rows <= view.rows && column + columns <= view.columns;
  }
  template <class View>
  static MSL_INLINE const float* in_memory(const View& view, long row, long column) {
    if constexpr (is_of_floats<View>) {
      return &view.first.at(row * view.row_stride + column * view.column_stride);
    } else {
      return nullptr;
    }
  }
};

// Computes rows [row, row + rows) and columns [column, column + columns) of a product. begin(sums,
// i, down, j, across) initialises a buffer of kBlockRows x kBlockColumns with the values to
// accumulate to, for the rows from i and the columns from j on; done() stores it. Sum: float, or
// int for integers; their products, and the sums over one block, are exact in float.
template <class Sum, class Blocks, class Begin, class Done>
MSL_INLINE void multiply(const Blocks& blocks, int row, int rows, int column, int columns,
                         const Begin& begin, const Done& done) {
  constexpr bool is_float = metal::is_same_v<Sum, float>;
#if defined(__x86_64__)
  if constexpr (Blocks::template amx_instruction<Sum> != 0 && !MSL_INSTRUMENTED) {
    if (msl_runtime->product_instructions() & Blocks::template amx_instruction<Sum>) {
      multiply_by_amx<Sum>(blocks.left, blocks.right, blocks.inner, row, rows, column, columns,
                           begin, done);
      return;
    }
  }
  if constexpr (!is_float && Blocks::are_bytes && !MSL_INSTRUMENTED) {
    if (msl_runtime->product_instructions() & abi::kVnniBytes) {
      multiply_byte_matrices(blocks.left, blocks.right, blocks.inner, row, rows, column, columns,
                             begin, done);
      return;
    }
  }
#endif
  constexpr int size = kBlockRows * kBlockColumns;
  alignas(64) float a[kBlockRows * kBlockInner];
  alignas(64) float b[kBlockInner * kBlockColumns];
  alignas(64) float sums[size];
  Sum totals[is_float ? 1 : size];
  Sum* const result = is_float ? reinterpret_cast<Sum*>(sums) : totals;
  const long count = blocks.count();
  for (int i = row; i < row + rows; i += kBlockRows) {
    const int down = int(clamped(row + rows - i, kBlockRows));
    for (int j = column; j < column + columns; j += kBlockColumns) {
      const int across = int(clamped(column + columns - j, kBlockColumns));
      for (int e = 0; e < size; ++e) sums[e] = 0.0f;
      if constexpr (!is_float) {
        for (int e = 0; e < size; ++e) totals[e] = Sum(0);
      }
      begin(result, i, down, j, across);
      for (long block = 0; block < count; ++block) {
        const auto operands = blocks.bring(block, a, i, down, b, j, across);
        multiply_blocks(operands, sums, filled_rows(down), filled_columns(across));
        if constexpr (!is_float) {
          for (int e = 0; e < size; ++e) {
            totals[e] = Sum(uint(totals[e]) + uint(int(sums[e])));
            sums[e] = 0.0f;
          }
        }
      }
      done(result, i, down, j, across);
    }
  }
}

}  // namespace msl::msl_impl

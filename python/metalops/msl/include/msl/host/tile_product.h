// The product of two matrices on the host, in float: blocks of both are decoded and packed, and
// then multiplied by vectors.
#pragma once

#include <msl/tensor_ops/matrix_view.h>

namespace msl::msl_impl {

// What is packed at a time: 32 KiB of a thread's stack.
constexpr int kBlockRows = 32, kBlockColumns = 32, kBlockInner = 128;
// What the innermost loop keeps in registers. Rows and columns of a block are filled up to these.
constexpr int kStripRows = 4;
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kStripVectors = 2;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kStripVectors = 2;
#else
constexpr int kVectorBytes = 16, kStripVectors = 4;
#endif
// As wide as registers are: larger vectors g++ keeps in memory.
typedef float StripVector __attribute__((vector_size(kVectorBytes)));
constexpr int kVectorFloats = kVectorBytes / int(sizeof(float));
constexpr int kStripColumns = kStripVectors * kVectorFloats;

// to[i][j] = columns[j][i] for 8 x 8 elements: lines of `to` are Line apart, columns `stride`.
typedef float Eight __attribute__((vector_size(32)));
template <int Line, class T>
MSL_INLINE void transpose_eight(float* to, const T* columns, long stride) {
  Eight a[8], b[8];
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 8; ++i) a[j][i] = float(columns[j * stride + i]);
  }
  // Pairs of columns, fours and eights of them become lines.
  for (int j = 0; j < 8; j += 2) {
    b[j] = __builtin_shufflevector(a[j], a[j + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[j + 1] = __builtin_shufflevector(a[j], a[j + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int j = 0; j < 8; j += 4) {
    for (int i = 0; i < 2; ++i) {
      a[j + i] = __builtin_shufflevector(b[j + i], b[j + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[j + i + 2] = __builtin_shufflevector(b[j + i], b[j + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * Line, &b[i], sizeof(Eight));
}

// to[i][j] = view(row + i, column + j) for so many rows and columns, and 0 beyond them, up to those
// that are filled up. Lines of `to` are Line apart.
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
        for (int j = 0; j < across; ++j) to[i * Line + j] = float(from[j]);
      }
    }
  } else if (view.column_stride == 1) {
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) to[i * Line + j] = view.value(row + i, column + j);
    }
  } else {
    int first = 0;  // of the lines that are left
    if constexpr (View::is_plain) {
      if (view.row_stride == 1) {
        for (; first + 8 <= down; first += 8) {
          const auto* const from = &view.first.at(row + first + column * view.column_stride);
          for (int j = 0; j + 8 <= across; j += 8) {
            transpose_eight<Line>(to + first * Line + j, from + j * view.column_stride,
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

// sums += a b, with fused multiply-adds: rows and columns are multiples of those of a strip.
#if defined(__clang__)
#define MSL_FUSED
#define MSL_FUSED_HERE _Pragma("clang fp contract(fast)")
#define MSL_WHOLE_STRIP _Pragma("clang loop unroll(full)")
#else
#define MSL_FUSED __attribute__((optimize("fp-contract=fast")))
#define MSL_FUSED_HERE
#define MSL_WHOLE_STRIP _Pragma("GCC unroll 4")
#endif
MSL_FUSED __attribute__((noinline)) inline void multiply_blocks(const float* a, const float* b,
                                                                float* sums, int rows, int columns,
                                                                int inner) {
  MSL_FUSED_HERE
  for (int i = 0; i < rows; i += kStripRows) {
    for (int j = 0; j < columns; j += kStripColumns) {
      StripVector strip[kStripRows][kStripVectors];
      MSL_WHOLE_STRIP
      for (int r = 0; r < kStripRows; ++r) {
        MSL_WHOLE_STRIP
        for (int v = 0; v < kStripVectors; ++v) {
          strip[r][v] = *reinterpret_cast<const StripVector*>(sums + (i + r) * kBlockColumns + j +
                                                              v * kVectorFloats);
        }
      }
      const float* const from = a + i * kBlockInner;
      for (int k = 0; k < inner; ++k) {
        StripVector right[kStripVectors];
        MSL_WHOLE_STRIP
        for (int v = 0; v < kStripVectors; ++v) {
          right[v] =
              *reinterpret_cast<const StripVector*>(b + k * kBlockColumns + j + v * kVectorFloats);
        }
        MSL_WHOLE_STRIP
        for (int r = 0; r < kStripRows; ++r) {
          MSL_WHOLE_STRIP
          for (int v = 0; v < kStripVectors; ++v) {
            strip[r][v] += from[k + r * kBlockInner] * right[v];
          }
        }
      }
      MSL_WHOLE_STRIP
      for (int r = 0; r < kStripRows; ++r) {
        MSL_WHOLE_STRIP
        for (int v = 0; v < kStripVectors; ++v) {
          *reinterpret_cast<StripVector*>(sums + (i + r) * kBlockColumns + j + v * kVectorFloats) =
              strip[r][v];
        }
      }
    }
  }
}
#undef MSL_FUSED
#undef MSL_FUSED_HERE
#undef MSL_WHOLE_STRIP

constexpr int filled_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int filled_rows(int rows) { return filled_up(rows, kStripRows); }
constexpr int filled_columns(int columns) { return filled_up(columns, kStripColumns); }

// The blocks of a product left right with so many inner elements, in order: pack() brings one into
// `a`, of rows [row, row + rows), and `b`, of columns [column, column + columns), both filled up;
// how deep it is.
template <class Left, class Right>
struct MatrixBlocks {
  Left left;
  Right right;
  long inner;
  MSL_INLINE long count() const { return (inner + kBlockInner - 1) / kBlockInner; }
  MSL_INLINE int pack(long block, float* a, int row, int rows, float* b, int column,
                      int columns) const {
    const long k = block * kBlockInner;
    const int depth = int(clamped(inner - k, kBlockInner));
    pack_block<kBlockInner>(a, left, row, k, rows, depth, filled_rows(rows), depth);
    pack_block<kBlockColumns>(b, right, k, column, depth, columns, depth, filled_columns(columns));
    return depth;
  }
};

// Rows [row, row + rows) and columns [column, column + columns) of a product. begin(sums, i, down,
// j, across) puts what is added to into a buffer of kBlockRows x kBlockColumns that stands for the
// rows from i and the columns from j on, done() takes it. Sum: float, or int for integers, whose
// products, and the sums of a block's, are exact in float.
template <class Sum, class Blocks, class Begin, class Done>
MSL_INLINE void multiply(const Blocks& blocks, int row, int rows, int column, int columns,
                         const Begin& begin, const Done& done) {
  constexpr bool is_float = metal::is_same_v<Sum, float>;
  constexpr int size = kBlockRows * kBlockColumns;
  alignas(StripVector) float a[kBlockRows * kBlockInner];
  alignas(StripVector) float b[kBlockInner * kBlockColumns];
  alignas(StripVector) float sums[size];
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
        const int depth = blocks.pack(block, a, i, down, b, j, across);
        multiply_blocks(a, b, sums, filled_rows(down), filled_columns(across), depth);
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

// GEMM of int8 matrices with integer sums, on CPUs with an instruction that accumulates dot
// products of four bytes (AVX-512 VNNI). Blocks are packed as bytes, as in GotoBLAS.
#pragma once

#include <msl/tensor_ops/matrix_view.h>

namespace msl::msl_impl {

template <class View>
constexpr bool is_of_bytes = false;
template <class T, class Planes>
constexpr bool is_of_bytes<MatrixView<T, Planes>> =
    metal::is_same_v<metal::remove_cv_t<T>, char> ||
    metal::is_same_v<metal::remove_cv_t<T>, signed char>;

// Block sizes; with the sums a packed block takes 80 KiB of a thread's stack.
constexpr int kByteRows = 128, kByteColumns = 64, kByteInner = 256;
// Lines of a packed block, one per lane of a vector of sums; columns of a panel of sums; rows that
// are kept in registers.
constexpr int kByteLines = 16, kBytePanel = 32, kByteStrip = 8;
static_assert(kBytePanel == 2 * kByteLines);

#if defined(__x86_64__)

#define MSL_BYTE_PRODUCTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"), noinline))

typedef unsigned char SixteenBytes __attribute__((vector_size(16)));
typedef unsigned short EightShorts __attribute__((vector_size(16)));
typedef int FourInts __attribute__((vector_size(16)));
typedef unsigned SixteenSums __attribute__((vector_size(64)));

// to[j][i] = from[i][j] for the bytes of four vectors, and for their words of four bytes.
MSL_INLINE void interleave_bytes(const SixteenBytes (&from)[4], EightShorts (&to)[4]) {
  EightShorts low[2], high[2];
  for (int i = 0; i < 2; ++i) {
    const SixteenBytes a = from[2 * i], b = from[2 * i + 1];
    low[i] = EightShorts(
        __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    high[i] = EightShorts(__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                  29, 14, 30, 15, 31));
  }
  to[0] = __builtin_shufflevector(low[0], low[1], 0, 8, 1, 9, 2, 10, 3, 11);
  to[1] = __builtin_shufflevector(low[0], low[1], 4, 12, 5, 13, 6, 14, 7, 15);
  to[2] = __builtin_shufflevector(high[0], high[1], 0, 8, 1, 9, 2, 10, 3, 11);
  to[3] = __builtin_shufflevector(high[0], high[1], 4, 12, 5, 13, 6, 14, 7, 15);
}
MSL_INLINE void interleave_words(const FourInts (&from)[4], FourInts (&to)[4]) {
  const FourInts a = __builtin_shufflevector(from[0], from[1], 0, 4, 1, 5);
  const FourInts b = __builtin_shufflevector(from[0], from[1], 2, 6, 3, 7);
  const FourInts c = __builtin_shufflevector(from[2], from[3], 0, 4, 1, 5);
  const FourInts d = __builtin_shufflevector(from[2], from[3], 2, 6, 3, 7);
  to[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  to[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  to[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  to[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// Flipping this bit of a signed byte adds 128 and gives an unsigned byte.
constexpr unsigned char kByteSign = 0x80;
constexpr unsigned in_four_bytes(unsigned char byte) { return byte * 0x01010101u; }

// Lines along K, which are the rows of a left operand and the columns of a right one. flipped: bits
// that are flipped in packing.
struct ByteLines {
  const unsigned char* first;
  long line_stride, inner_stride;
  int lines, inner;
  unsigned char flipped;
};

// Packs: to[i / 16][k / 4][i % 16][k % 4] = element k of line i, 0 up to a multiple of four
// elements, and anything beyond the last line. Strided memory is prefetched.
MSL_BYTE_PRODUCTS inline void pack_bytes(unsigned char* to, const ByteLines& from) {
  constexpr long block = kByteLines * kByteInner, four = 4 * kByteLines, ahead = 32;
  int done = 0;  // elements of each line
  if (from.inner_stride == 1) {
    for (int i = 0; i < from.lines; i += 4) {
      const unsigned char* lines[4];
      for (int j = 0; j < 4; ++j) {
        lines[j] = from.first + clamped(i + j, from.lines - 1) * from.line_stride;
      }
      unsigned char* const there = to + i / kByteLines * block + i % kByteLines * 4;
      for (done = 0; done + 16 <= from.inner; done += 16) {
        FourInts elements[4], fours[4];
        for (int j = 0; j < 4; ++j) {
          if (done % 64 == 0) __builtin_prefetch(lines[j] + 4 * from.line_stride + done);
          __builtin_memcpy(&elements[j], lines[j] + done, sizeof(FourInts));
          elements[j] ^= int(in_four_bytes(from.flipped));
        }
        interleave_words(elements, fours);
        for (int k = 0; k < 4; ++k) {
          __builtin_memcpy(there + (done / 4 + k) * four, &fours[k], sizeof(FourInts));
        }
      }
    }
  } else if (from.line_stride == 1) {
    // Memory beyond the last line is readable where another element of the first one follows.
    const int readable = from.lines % kByteLines == 0      ? from.inner
                         : from.inner_stride >= kByteLines ? from.inner - 1
                                                           : 0;
    for (; done + 4 <= readable; done += 4) {
      const unsigned char* const first = from.first + done * from.inner_stride;
      for (int k = 0; k < 4; ++k) __builtin_prefetch(first + (ahead + k) * from.inner_stride);
      for (int i = 0; i < from.lines; i += kByteLines) {
        SixteenBytes elements[4];
        for (int k = 0; k < 4; ++k) {
          __builtin_memcpy(&elements[k], first + k * from.inner_stride + i, sizeof(SixteenBytes));
          elements[k] ^= from.flipped;
        }
        EightShorts fours[4];
        interleave_bytes(elements, fours);
        __builtin_memcpy(to + i / kByteLines * block + done / 4 * four, fours, sizeof(fours));
      }
    }
  }
  for (int k = done; k < (from.inner + 3) / 4 * 4; ++k) {
    for (int i = 0; i < from.lines; ++i) {
      const unsigned char* const element =
          from.first + i * from.line_stride + k * from.inner_stride;
      to[i / kByteLines * block + k / 4 * four + i % kByteLines * 4 + k % 4] =
          k < from.inner ? (unsigned char)(*element ^ from.flipped) : 0;
    }
  }
}

// Micro-kernel: Rows x (16 * Vectors) elements of a panel, sums += a b for `fours` groups of four
// elements, minus the excess of each column.
template <int Rows, int Vectors>
MSL_BYTE_PRODUCTS void multiply_byte_strip(const unsigned char* a, const unsigned char* b,
                                           int* sums, const SixteenSums* excess, int fours) {
  SixteenSums strip[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      __builtin_memcpy(&strip[r][v], sums + r * kBytePanel + v * 16, sizeof(SixteenSums));
      strip[r][v] -= excess[v];
    }
  }
  for (int k = 0; k < fours; ++k, a += 4 * kByteLines, b += 4 * kByteLines) {
    SixteenSums right[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      __builtin_memcpy(&right[v], b + v * kByteLines * kByteInner, sizeof(SixteenSums));
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      int four;
      __builtin_memcpy(&four, a + 4 * r, sizeof(four));
      const SixteenSums left = SixteenSums{} + four;
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) {
        __asm__("vpdpbusd %2, %1, %0" : "+v"(strip[r][v]) : "v"(left), "v"(right[v]));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      __builtin_memcpy(sums + r * kBytePanel + v * 16, &strip[r][v], sizeof(SixteenSums));
    }
  }
}

// Rows of a panel: sums += a b, modulo 2^32. The instruction multiplies unsigned bytes by signed
// ones, so bytes of `a` are stored plus 128: 128 times the column sum of `b` is subtracted.
template <int Vectors>
MSL_BYTE_PRODUCTS void multiply_bytes(const unsigned char* a, const unsigned char* b, int* sums,
                                      int rows, int fours) {
  SixteenSums excess[Vectors] = {};
  const SixteenSums factor = SixteenSums{} + in_four_bytes(kByteSign);
  for (int k = 0; k < fours; ++k) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      SixteenSums right;
      __builtin_memcpy(&right, b + (v * kByteInner + 4 * k) * kByteLines, sizeof(right));
      __asm__("vpdpbusd %2, %1, %0" : "+v"(excess[v]) : "v"(factor), "v"(right));
    }
  }
  for (int i = 0; i < rows;) {
    const unsigned char* const from =
        a + i / kByteLines * kByteLines * kByteInner + i % kByteLines * 4;
    const bool is_whole = rows - i > kByteStrip / 2;
    (is_whole ? multiply_byte_strip<kByteStrip, Vectors>
              : multiply_byte_strip<kByteStrip / 2, Vectors>)(from, b, sums + i * kBytePanel,
                                                              excess, fours);
    i += is_whole ? kByteStrip : kByteStrip / 2;
  }
}
#undef MSL_BYTE_PRODUCTS

template <class View>
MSL_INLINE const unsigned char* bytes_at(const View& view, long row, long column) {
  return reinterpret_cast<const unsigned char*>(
      &view.first.at(row * view.row_stride + column * view.column_stride));
}

// Like multiply() of tile_product.h, for bytes.
template <class Left, class Right, class Begin, class Done>
MSL_INLINE void multiply_byte_matrices(const Left& left, const Right& right, long inner, int row,
                                       int rows, int column, int columns, const Begin& begin,
                                       const Done& done) {
  constexpr int panels = kByteColumns / kBytePanel;
  alignas(64) unsigned char a[kByteRows * kByteInner];
  alignas(64) unsigned char b[kByteInner * kByteColumns];
  alignas(64) int sums[panels][kByteRows * kBytePanel];
  const long in_left = clamped(left.columns, inner), in_both = clamped(right.rows, in_left);
  for (int i = row; i < row + rows; i += kByteRows) {
    const int down = int(clamped(row + rows - i, kByteRows));
    for (int j = column; j < column + columns; j += kByteColumns) {
      const int across = int(clamped(column + columns - j, kByteColumns));
      // Calls f(number, first column, columns) for each panel of sums.
      const auto for_panels = [&](int columns, const auto& f) {
        for (int p = 0; p * kBytePanel < columns; ++p) {
          f(p, j + p * kBytePanel, int(clamped(columns - p * kBytePanel, kBytePanel)));
        }
      };
      for_panels(across, [&](int p, int first, int count) {
        __builtin_memset(sums[p], 0, unsigned(down * kBytePanel) * sizeof(int));
        begin(sums[p], i, down, first, count);
      });
      const int left_rows = int(clamped(left.rows - i, down));
      const int right_columns = int(clamped(right.columns - j, across));
      for (long k = 0; k < in_both && left_rows > 0 && right_columns > 0; k += kByteInner) {
        const int depth = int(clamped(in_both - k, kByteInner));
        pack_bytes(a, {bytes_at(left, i, k), left.row_stride, left.column_stride, left_rows, depth,
                       kByteSign});
        pack_bytes(b, {bytes_at(right, k, j), right.column_stride, right.row_stride, right_columns,
                       depth, 0});
        for_panels(right_columns, [&](int p, int, int count) {
          (count > kByteLines ? multiply_bytes<2>
                              : multiply_bytes<1>)(a, b + p * kBytePanel * kByteInner, sums[p],
                                                   left_rows, (depth + 3) / 4);
        });
      }
      for_panels(across,
                 [&](int p, int first, int count) { done(sums[p], i, down, first, count); });
    }
  }
}

#endif

}  // namespace msl::msl_impl

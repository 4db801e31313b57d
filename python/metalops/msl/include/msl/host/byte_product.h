// The product of two matrices of signed bytes on CPUs that add up products of four bytes in one
// instruction (AVX-512 VNNI): its parts are packed as bytes, and the sums are integers.
#pragma once

#include <msl/host/transpose.h>
#include <msl/tensor_ops/matrix_view.h>

namespace msl::msl_impl {

template <class View>
constexpr bool is_of_bytes = false;
template <class T, class Planes>
constexpr bool is_of_bytes<MatrixView<T, Planes>> =
    metal::is_same_v<metal::remove_cv_t<T>, char> ||
    metal::is_same_v<metal::remove_cv_t<T>, signed char>;

// What is packed at a time, 32 KiB of a thread's stack, and what is kept in registers.
constexpr int kByteRows = 32, kByteColumns = 32, kByteInner = 512;
constexpr int kByteStrip = 8;

#if defined(__x86_64__)

inline bool has_byte_products() {
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  }();
  return has;
}
#define MSL_BYTE_PRODUCTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"), noinline))

// to[i][j] = view(row + i, column + j), and 0 up to a multiple of the rows in registers and of four
// columns. Lines of `to` are kByteInner apart.
template <class View>
MSL_BYTE_PRODUCTS void pack_left_bytes(signed char* to, const View& view, long row, long column,
                                       int rows, int columns) {
  const int down = int(clamped(view.rows - row, rows));
  const int across = int(clamped(view.columns - column, columns));
  const int filled = (across + 3) / 4 * 4;
  for (int i = 0; i < (rows + kByteStrip - 1) / kByteStrip * kByteStrip; ++i) {
    signed char* const line = to + i * kByteInner;
    const int there = i < down ? across : 0;
    if (there > 0) {
      const auto* const from =
          &view.first.at((row + i) * view.row_stride + column * view.column_stride);
      if (view.column_stride == 1) {
        __builtin_memcpy(line, from, unsigned(there));
      } else {
        for (int j = 0; j < there; ++j) line[j] = from[j * view.column_stride];
      }
    }
    __builtin_memset(line + there, 0, unsigned(filled - there));
  }
}

// Fours of rows: to[i / 4][j][i % 4] = view(row + i, column + j) + 128 as an unsigned byte, and
// anything beyond rows and columns that there are.
typedef unsigned char Bytes __attribute__((vector_size(32)));
typedef unsigned short Shorts __attribute__((vector_size(32)));
template <class View>
MSL_BYTE_PRODUCTS void pack_right_bytes(unsigned char* to, const View& view, long row, long column,
                                        int rows, int columns) {
  constexpr int line = 4 * kByteColumns;
  const int down = int(clamped(view.rows - row, rows));
  const int across = int(clamped(view.columns - column, columns));
  if (down == 0 || across == 0) return;
  const auto* const from = &view.first.at(row * view.row_stride + column * view.column_stride);
  int done_rows = 0;
  int done_columns = kByteColumns;  // of done_rows
  if (view.column_stride == 1 && across == kByteColumns) {
    for (; done_rows + 4 <= down; done_rows += 4) {
      Bytes r[4];
      for (int i = 0; i < 4; ++i) {
        __builtin_memcpy(&r[i], from + (done_rows + i) * view.row_stride, sizeof(Bytes));
        r[i] ^= (unsigned char)(0x80);
      }
      Shorts pairs[4];  // of the first two rows, and of the others: lower and upper half
      for (int i = 0; i < 2; ++i) {
        pairs[2 * i] = Shorts(__builtin_shufflevector(
            r[2 * i], r[2 * i + 1], 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40,
            9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47));
        pairs[2 * i + 1] = Shorts(__builtin_shufflevector(
            r[2 * i], r[2 * i + 1], 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
            24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63));
      }
      unsigned char* const there = to + done_rows / 4 * line;
      for (int half = 0; half < 2; ++half) {
        const Shorts low = __builtin_shufflevector(pairs[half], pairs[half + 2], 0, 16, 1, 17, 2,
                                                   18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const Shorts high = __builtin_shufflevector(pairs[half], pairs[half + 2], 8, 24, 9, 25, 10,
                                                    26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        __builtin_memcpy(there + half * 64, &low, sizeof(low));
        __builtin_memcpy(there + half * 64 + 32, &high, sizeof(high));
      }
    }
  } else if (view.row_stride == 1) {
    done_columns = across / 8 * 8;
    for (; done_rows + 32 <= down; done_rows += 32) {
      for (int j = 0; j < done_columns; j += 8) {
        EightInts columns_of_words[8], words[8];
        for (int i = 0; i < 8; ++i) {
          __builtin_memcpy(&columns_of_words[i], from + (j + i) * view.column_stride + done_rows,
                           sizeof(EightInts));
          columns_of_words[i] ^= int(0x80808080u);
        }
        transpose_eight(columns_of_words, words);
        for (int i = 0; i < 8; ++i) {
          __builtin_memcpy(to + (done_rows / 4 + i) * line + 4 * j, &words[i], sizeof(EightInts));
        }
      }
    }
  }
  for (int i = 0; i < down; ++i) {
    for (int j = i < done_rows ? done_columns : 0; j < across; ++j) {
      to[i / 4 * line + 4 * j + i % 4] =
          (unsigned char)(from[i * view.row_stride + j * view.column_stride] ^ 0x80);
    }
  }
}

// sums += a b, modulo 2^32: instructions multiply unsigned bytes with signed ones, so that 128
// times the sum of a row of `a` is taken off.
typedef int SixteenInts __attribute__((vector_size(64)));
MSL_BYTE_PRODUCTS inline void multiply_bytes(const signed char* a, const unsigned char* b,
                                             int* sums, int rows, int inner) {
  for (int i = 0; i < rows; i += kByteStrip) {
    SixteenInts strip[kByteStrip][2];
    unsigned of_row[kByteStrip];
#pragma GCC unroll 8
    for (int r = 0; r < kByteStrip; ++r) {
      strip[r][0] = strip[r][1] = SixteenInts{};
      int sum = 0;
      for (int k = 0; k < inner; ++k) sum += a[(i + r) * kByteInner + k];
      of_row[r] = 128u * unsigned(sum);
    }
    for (int k = 0; k < inner; k += 4) {
      SixteenInts right[2];
      __builtin_memcpy(right, b + k * kByteColumns, sizeof(right));
#pragma GCC unroll 8
      for (int r = 0; r < kByteStrip; ++r) {
        int four;
        __builtin_memcpy(&four, a + (i + r) * kByteInner + k, 4);
        const SixteenInts left = SixteenInts{} + four;
        __asm__("vpdpbusd %2, %1, %0" : "+v"(strip[r][0]) : "v"(right[0]), "v"(left));
        __asm__("vpdpbusd %2, %1, %0" : "+v"(strip[r][1]) : "v"(right[1]), "v"(left));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kByteStrip; ++r) {
      int* const to = sums + (i + r) * kByteColumns;
      int products[2 * 16];
      __builtin_memcpy(products, strip[r], sizeof(products));
      for (int j = 0; j < kByteColumns; ++j) {
        to[j] = int(unsigned(to[j]) + unsigned(products[j]) - of_row[r]);
      }
    }
  }
}
#undef MSL_BYTE_PRODUCTS

// As multiply() of tile_product.h.
template <class Left, class Right, class Begin, class Done>
MSL_INLINE void multiply_byte_matrices(const Left& left, const Right& right, long inner, int row,
                                       int rows, int column, int columns, const Begin& begin,
                                       const Done& done) {
  alignas(64) signed char a[kByteRows * kByteInner];
  alignas(64) unsigned char b[kByteInner * kByteColumns];
  int sums[kByteRows * kByteColumns];
  for (int i = row; i < row + rows; i += kByteRows) {
    const int down = int(clamped(row + rows - i, kByteRows));
    for (int j = column; j < column + columns; j += kByteColumns) {
      const int across = int(clamped(column + columns - j, kByteColumns));
      __builtin_memset(sums, 0, sizeof(sums));
      begin(sums, i, down, j, across);
      for (long k = 0; k < inner; k += kByteInner) {
        const int depth = int(clamped(inner - k, kByteInner));
        pack_left_bytes(a, left, i, k, down, depth);
        pack_right_bytes(b, right, k, j, depth, across);
        multiply_bytes(a, b, sums, down, (depth + 3) / 4 * 4);
      }
      done(sums, i, down, j, across);
    }
  }
}

#endif

}  // namespace msl::msl_impl

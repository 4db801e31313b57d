// GEMM of bytes with integer sums, and of bfloat with float sums, on CPUs with tile registers
// (AMX). The instructions take denormal numbers of bfloat, and denormal results, for zero.
#pragma once

#include <msl/host/byte_product.h>

namespace msl::msl_impl {

// How numbers of a type are multiplied: instruction, the bit of ProductInstruction, 0 if there is
// none, and the type of sums.
template <class T>
struct AmxProduct {
  static constexpr u32 instruction = 0;
  using Sum = void;
};
template <>
struct AmxProduct<signed char> {
  static constexpr u32 instruction = abi::kAmxBytes;
  using Sum = int;
};
template <>
struct AmxProduct<char> : AmxProduct<signed char> {};
template <>
struct AmxProduct<unsigned char> : AmxProduct<signed char> {};
template <>
struct AmxProduct<bfloat> {
  static constexpr u32 instruction = abi::kAmxBfloats;
  using Sum = float;
};

// The instruction that multiplies two matrices in memory to sums of a type.
template <class Left, class Right, class Sum>
constexpr u32 amx_instruction_of = 0;
template <class L, class P, class R, class Q, class Sum>
constexpr u32 amx_instruction_of<MatrixView<L, P>, MatrixView<R, Q>, Sum> =
    metal::is_same_v<metal::remove_cv_t<L>, metal::remove_cv_t<R>> &&
            metal::is_same_v<typename AmxProduct<metal::remove_cv_t<L>>::Sum, Sum>
        ? AmxProduct<metal::remove_cv_t<L>>::instruction
        : 0;

#if defined(__x86_64__)

#define MSL_AMX_PRODUCTS __attribute__((target("avx512f,avx512bw,avx512vl"), noinline))

// A tile has 16 rows of 16 words. A word is a sum, or four bytes, or two bfloats that are adjacent
// along K. Panels of operands have 16 lines; lines of one block have kAmxInner bytes of K.
constexpr int kAmxLines = 16, kAmxRowBytes = 64, kAmxTileBytes = kAmxLines * kAmxRowBytes;
constexpr int kAmxRows = 128, kAmxColumns = 64, kAmxInner = 256;
static_assert(kBytePanel == 2 * kAmxLines);

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

#define MSL_TILE(instruction) __asm__ volatile(instruction : : "r"(at), "r"(row_bytes) : "memory")
// Loads register 4 + Index, an operand, or register Index, sums.
template <int Index>
MSL_INLINE void load_operand(const unsigned char* at, long row_bytes) {
  if constexpr (Index == 0) MSL_TILE("tileloadd (%0,%1,1), %%tmm4");
  if constexpr (Index == 1) MSL_TILE("tileloadd (%0,%1,1), %%tmm5");
  if constexpr (Index == 2) MSL_TILE("tileloadd (%0,%1,1), %%tmm6");
  if constexpr (Index == 3) MSL_TILE("tileloadd (%0,%1,1), %%tmm7");
}
template <int Index>
MSL_INLINE void load_sums(const void* at, long row_bytes) {
  if constexpr (Index == 0) MSL_TILE("tileloadd (%0,%1,1), %%tmm0");
  if constexpr (Index == 1) MSL_TILE("tileloadd (%0,%1,1), %%tmm1");
  if constexpr (Index == 2) MSL_TILE("tileloadd (%0,%1,1), %%tmm2");
  if constexpr (Index == 3) MSL_TILE("tileloadd (%0,%1,1), %%tmm3");
}
template <int Index>
MSL_INLINE void store_sums(void* at, long row_bytes) {
  if constexpr (Index == 0) MSL_TILE("tilestored %%tmm0, (%0,%1,1)");
  if constexpr (Index == 1) MSL_TILE("tilestored %%tmm1, (%0,%1,1)");
  if constexpr (Index == 2) MSL_TILE("tilestored %%tmm2, (%0,%1,1)");
  if constexpr (Index == 3) MSL_TILE("tilestored %%tmm3, (%0,%1,1)");
}
#undef MSL_TILE

// Adds the products of two operands to register 2 * I + J of sums. The left operand is register 4 +
// I, the right one register 6 + J.
#define MSL_TILE_PRODUCT(instruction)                                                   \
  if constexpr (I == 0 && J == 0) __asm__ volatile(instruction " %tmm6, %tmm4, %tmm0"); \
  if constexpr (I == 0 && J == 1) __asm__ volatile(instruction " %tmm7, %tmm4, %tmm1"); \
  if constexpr (I == 1 && J == 0) __asm__ volatile(instruction " %tmm6, %tmm5, %tmm2"); \
  if constexpr (I == 1 && J == 1) __asm__ volatile(instruction " %tmm7, %tmm5, %tmm3");
template <class T, int I, int J>
MSL_INLINE void multiply_tile() {
  if constexpr (metal::is_same_v<T, bfloat>) {
    MSL_TILE_PRODUCT("tdpbf16ps")
  } else if constexpr (metal::is_same_v<T, unsigned char>) {
    MSL_TILE_PRODUCT("tdpbuud")
  } else {
    MSL_TILE_PRODUCT("tdpbssd")
  }
}
#undef MSL_TILE_PRODUCT

// A block of the left operand, packed or in memory: the distances of its rows, of its panels, and
// of 64 bytes of K.
struct AmxLeft {
  const unsigned char* first;
  long row_bytes, panel_bytes, step_bytes;
};

// Adds Down x Across tiles of sums, for `steps` times 64 bytes of K.
template <class T, int Down, int Across>
MSL_INLINE void multiply_tiles(const AmxLeft& left, const unsigned char* b, void* sums, int steps) {
  constexpr long line = kBytePanel * 4;
  unsigned char* const first = static_cast<unsigned char*>(sums);
  const auto for_sums = [&](const auto& f) {
    f(metal::integral_constant<int, 0>(), first);
    if constexpr (Across == 2) f(metal::integral_constant<int, 1>(), first + kAmxRowBytes);
    if constexpr (Down == 2) f(metal::integral_constant<int, 2>(), first + kAmxLines * line);
    if constexpr (Down == 2 && Across == 2) {
      f(metal::integral_constant<int, 3>(), first + kAmxLines * line + kAmxRowBytes);
    }
  };
  for_sums([](auto index, unsigned char* at) { load_sums<decltype(index)::value>(at, line); });
  const unsigned char* a = left.first;
  for (int step = 0; step < steps; ++step, a += left.step_bytes, b += kAmxTileBytes) {
    load_operand<0>(a, left.row_bytes);
    load_operand<2>(b, kAmxRowBytes);
    multiply_tile<T, 0, 0>();
    if constexpr (Across == 2) {
      load_operand<3>(b + kAmxLines * kAmxInner, kAmxRowBytes);
      multiply_tile<T, 0, 1>();
    }
    if constexpr (Down == 2) {
      load_operand<1>(a + left.panel_bytes, left.row_bytes);
      multiply_tile<T, 1, 0>();
      if constexpr (Across == 2) multiply_tile<T, 1, 1>();
    }
  }
  for_sums([](auto index, unsigned char* at) { store_sums<decltype(index)::value>(at, line); });
}

// Adds `rows` rows and `columns` columns, at most one panel of sums, of which there are as many as
// whole tiles have.
template <class T>
inline void multiply_tile_panel(AmxLeft left, const unsigned char* b, void* sums, int rows,
                                int columns, int steps) {
  const bool is_wide = columns > kAmxLines;
  unsigned char* at = static_cast<unsigned char*>(sums);
  for (int i = 0; i < rows; i += 2 * kAmxLines) {
    const bool is_high = rows - i > kAmxLines;
    (is_high   ? is_wide ? multiply_tiles<T, 2, 2> : multiply_tiles<T, 2, 1>
     : is_wide ? multiply_tiles<T, 1, 2>
               : multiply_tiles<T, 1, 1>)(left, b, at, steps);
    left.first += 2 * left.panel_bytes;
    at += 2 * kAmxLines * kBytePanel * 4;
  }
}

// to[j] = word i of line j, for 16 lines of 16 words each, at to + i * 64 bytes.
MSL_INLINE void transpose_words(unsigned char* to, const unsigned char* from, long line_bytes,
                                int lines) {
  for (int i = 0; i < kAmxLines; i += 4) {
    const unsigned char* line[4];
    for (int j = 0; j < 4; ++j) line[j] = from + clamped(i + j, lines - 1) * line_bytes;
    for (int k = 0; k < kAmxLines; k += 4) {
      FourInts words[4], columns[4];
      for (int j = 0; j < 4; ++j) __builtin_memcpy(&words[j], line[j] + 4 * k, sizeof(FourInts));
      interleave_words(words, columns);
      for (int j = 0; j < 4; ++j) {
        __builtin_memcpy(to + (k + j) * kAmxRowBytes + 4 * i, &columns[j], sizeof(FourInts));
      }
    }
  }
}

// Lines of an operand along K, as ByteLines. Elements have Bytes bytes; strides are in bytes.
template <int Bytes>
struct AmxLines {
  const unsigned char* first;
  long line_stride, inner_stride;
  int lines, inner;

  // Copies elements [done, ...) of each line to words [done * Bytes / 4, words) of a tile that has
  // lines as rows (place: of element k of line i), with zeros where there are none.
  template <class F>
  MSL_INLINE void copy_rest(int line, int count, int done, int words, const F& place) const {
    for (int k = done; k < words * 4 / Bytes; ++k) {
      for (int i = 0; i < count; ++i) {
        unsigned char* const to = place(i, k);
        if (k < inner) {
          __builtin_memcpy(to, first + (line + i) * line_stride + k * inner_stride, Bytes);
        } else {
          __builtin_memset(to, 0, Bytes);
        }
      }
    }
  }
};

// to[0] and to[1] are words of elements (a[i], b[i]) of 32 lines.
typedef unsigned short ManyShorts __attribute__((vector_size(64)));
MSL_INLINE void interleave_shorts(const ManyShorts& a, const ManyShorts& b, ManyShorts& low,
                                  ManyShorts& high) {
  low = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40,
                                9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
  high =
      __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                              24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
}

// Stores words of 16 lines that are contiguous: those of elements [0, 4 / Bytes) of K. Vectors are
// stored one by one, because g++ keeps arrays of them in memory.
template <int Bytes>
MSL_INLINE void store_words(unsigned char* to, const unsigned char* row, long inner_stride) {
  if constexpr (Bytes == 1) {
    SixteenBytes elements[4];
    for (int k = 0; k < 4; ++k) {
      __builtin_memcpy(&elements[k], row + k * inner_stride, sizeof(SixteenBytes));
    }
    EightShorts fours[4];
    interleave_bytes(elements, fours);
    __builtin_memcpy(to, &fours[0], sizeof(EightShorts));
    __builtin_memcpy(to + 16, &fours[1], sizeof(EightShorts));
    __builtin_memcpy(to + 32, &fours[2], sizeof(EightShorts));
    __builtin_memcpy(to + 48, &fours[3], sizeof(EightShorts));
  } else {
    for (int half = 0; half < 2; ++half) {
      EightShorts a, b;
      __builtin_memcpy(&a, row + half * 16, sizeof(a));
      __builtin_memcpy(&b, row + inner_stride + half * 16, sizeof(b));
      const EightShorts low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      const EightShorts high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
      __builtin_memcpy(to + half * 32, &low, sizeof(low));
      __builtin_memcpy(to + half * 32 + 16, &high, sizeof(high));
    }
  }
}

// Packs tiles whose rows are words of 16 lines: word w of line i of a panel is at to + w * 64 + i *
// 4 bytes. The number of words is rounded up to whole tiles, with zeros.
template <int Bytes>
MSL_AMX_PRODUCTS void pack_words(unsigned char* to, const AmxLines<Bytes>& from) {
  constexpr int in_word = 4 / Bytes, in_row = kAmxRowBytes / Bytes;
  constexpr long panel = kAmxLines * kAmxInner;
  const int words = (from.inner + in_row - 1) / in_row * kAmxLines;
  const int whole = from.lines / kAmxLines * kAmxLines;  // lines of whole panels
  // Elements of each line that are packed, in whole panels and in all.
  int done = 0, done_in_all = 0;
  if (from.inner_stride == Bytes) {
    for (; done + in_row <= from.inner; done += in_row) {
      for (int line = 0; line < from.lines; line += kAmxLines) {
        transpose_words(to + line * kAmxInner + done / in_word * kAmxRowBytes,
                        from.first + line * from.line_stride + done * Bytes, from.line_stride,
                        from.lines - line);
      }
    }
    done_in_all = done;
  } else if (from.line_stride == Bytes) {
    // A row after the other, because addresses of rows may share few sets of the cache.
    for (; done + in_word <= from.inner; done += in_word) {
      const unsigned char* const row = from.first + done * from.inner_stride;
      unsigned char* const there = to + done / in_word * kAmxRowBytes;
      int line = 0;
      if constexpr (Bytes == 2) {
        for (; line + 2 * kAmxLines <= whole; line += 2 * kAmxLines) {
          ManyShorts a, b, low, high;
          __builtin_memcpy(&a, row + line * Bytes, sizeof(a));
          __builtin_memcpy(&b, row + line * Bytes + from.inner_stride, sizeof(b));
          interleave_shorts(a, b, low, high);
          __builtin_memcpy(there + line * kAmxInner, &low, sizeof(low));
          __builtin_memcpy(there + line * kAmxInner + panel, &high, sizeof(high));
        }
      }
      for (; line < whole; line += kAmxLines) {
        store_words<Bytes>(there + line * kAmxInner, row + line * Bytes, from.inner_stride);
      }
    }
  }
  for (int line = 0; line < from.lines; line += kAmxLines, to += panel) {
    const int count = int(clamped(from.lines - line, kAmxLines));
    from.copy_rest(line, count, line < whole ? done : done_in_all, words, [&](int i, int k) {
      return to + k / in_word * kAmxRowBytes + i * 4 + k % in_word * Bytes;
    });
  }
}

// Packs tiles whose rows are 16 lines: element k of line i of a panel is in tile k * Bytes / 64.
template <int Bytes>
MSL_AMX_PRODUCTS void pack_lines(unsigned char* to, const AmxLines<Bytes>& from) {
  constexpr int in_row = kAmxRowBytes / Bytes;
  const int tiles = (from.inner * Bytes + kAmxRowBytes - 1) / kAmxRowBytes;
  if (from.line_stride == Bytes && from.inner_stride != Bytes) {
    alignas(64) unsigned char words[kAmxTileBytes];
    pack_words<Bytes>(to, from);
    for (int line = 0; line < from.lines; line += kAmxLines, to += kAmxLines * kAmxInner) {
      for (int tile = 0; tile < tiles; ++tile) {
        __builtin_memcpy(words, to + tile * kAmxTileBytes, kAmxTileBytes);
        transpose_words(to + tile * kAmxTileBytes, words, kAmxRowBytes, kAmxLines);
      }
    }
    return;
  }
  for (int line = 0; line < from.lines; line += kAmxLines, to += kAmxLines * kAmxInner) {
    const int count = int(clamped(from.lines - line, kAmxLines));
    int done = 0;
    if (from.inner_stride == Bytes) {
      for (; done + in_row <= from.inner; done += in_row) {
        for (int i = 0; i < count; ++i) {
          __builtin_memcpy(to + done / in_row * kAmxTileBytes + i * kAmxRowBytes,
                           from.first + (line + i) * from.line_stride + done * Bytes, kAmxRowBytes);
        }
      }
    }
    from.copy_rest(line, count, done, tiles * kAmxLines, [&](int i, int k) {
      return to + k / in_row * kAmxTileBytes + i * kAmxRowBytes + k % in_row * Bytes;
    });
  }
}

// Adds a product of blocks to panels of sums.
template <class T, class Sum>
MSL_AMX_PRODUCTS void multiply_amx_block(const AmxLines<sizeof(T)>& left,
                                         const AmxLines<sizeof(T)>& right, unsigned char* a,
                                         unsigned char* b, Sum (*sums)[kAmxRows * kBytePanel]) {
  const TileShapes shapes;
  AmxLeft block{a, kAmxRowBytes, kAmxLines * kAmxInner, kAmxTileBytes};
  if (left.inner_stride == sizeof(T) && left.lines % kAmxLines == 0 &&
      left.inner * sizeof(T) % kAmxRowBytes == 0) {
    block = {left.first, left.line_stride, kAmxLines * left.line_stride, kAmxRowBytes};
  } else {
    pack_lines<sizeof(T)>(a, left);
  }
  pack_words<sizeof(T)>(b, right);
  const int steps = int((left.inner * sizeof(T) + kAmxRowBytes - 1) / kAmxRowBytes);
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
  for (int p = 0; p * kBytePanel < right.lines; ++p) {
    multiply_tile_panel<T>(block, b + p * kBytePanel * kAmxInner, sums[p], left.lines,
                           right.lines - p * kBytePanel, steps);
  }
  __asm__ volatile("tilerelease");
}
#undef MSL_AMX_PRODUCTS

// Like multiply() of tile_product.h, with tile registers.
template <class Sum, class Left, class Right, class Begin, class Done>
MSL_INLINE void multiply_by_amx(const Left& left, const Right& right, long inner, int row, int rows,
                                int column, int columns, const Begin& begin, const Done& done) {
  using T = metal::remove_cv_t<typename Left::Element>;
  constexpr int panels = kAmxColumns / kBytePanel, size = int(sizeof(T));
  alignas(64) unsigned char a[kAmxRows * kAmxInner];
  alignas(64) unsigned char b[kAmxInner * kAmxColumns];
  alignas(64) Sum sums[panels][kAmxRows * kBytePanel];
  const long in_left = clamped(left.columns, inner), in_both = clamped(right.rows, in_left);
  for (int i = row; i < row + rows; i += kAmxRows) {
    const int down = int(clamped(row + rows - i, kAmxRows));
    for (int j = column; j < column + columns; j += kAmxColumns) {
      const int across = int(clamped(column + columns - j, kAmxColumns));
      const auto for_panels = [&](const auto& f) {
        for (int p = 0; p * kBytePanel < across; ++p) {
          f(sums[p], i, down, j + p * kBytePanel,
            int(clamped(across - p * kBytePanel, kBytePanel)));
        }
      };
      for_panels([&](Sum* of, int i, int down, int first, int count) {
        __builtin_memset(of, 0, unsigned(down * kBytePanel) * sizeof(Sum));
        begin(of, i, down, first, count);
      });
      const int left_rows = int(clamped(left.rows - i, down));
      const int right_columns = int(clamped(right.columns - j, across));
      for (long k = 0; k < in_both && left_rows > 0 && right_columns > 0; k += kAmxInner / size) {
        const int depth = int(clamped(in_both - k, kAmxInner / size));
        multiply_amx_block<T, Sum>({bytes_at(left, i, k), left.row_stride * size,
                                    left.column_stride * size, left_rows, depth},
                                   {bytes_at(right, k, j), right.column_stride * size,
                                    right.row_stride * size, right_columns, depth},
                                   a, b, sums);
      }
      for_panels([&](const Sum* of, int i, int down, int first, int count) {
        done(of, i, down, first, count);
      });
    }
  }
}

#endif

}  // namespace msl::msl_impl

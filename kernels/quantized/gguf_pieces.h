// The unit of work of a lane on a line of ggml blocks, for kernels compiled for one type: a piece
// of 32 elements, which are two runs of 16 adjacent ones.
#pragma once
#include <metal_stdlib>

#include <kernels/quantized/gguf.h>

namespace metalops {
namespace gguf {

// A type has:
//   Piece: a lane's codes and scales in registers
//   load(piece, data, offset, number): loads piece `number` of the line at byte `offset`
//   first(number): the element of the line at which the piece's first run begins
//   run_stride: the distance from the first run to the second
//   four(piece, run, i): codes 4 i to 4 i + 3 of a run, in the bytes of a word
//   zero: the code that stands for 0
//   scale(piece, run)
//   minimum(piece, run): subtracted, if has_minimum

// Loads COUNT words from an even offset on.
template <int COUNT>
inline void words_from(thread uint (&to)[COUNT], device const uchar* data, int64_t offset) {
  const bool is_between = (offset & 2) != 0;
  device const uint* const from = reinterpret_cast<device const uint*>(data + (offset & ~3ll));
  // Only a half word is loaded at the end: a whole word might extend beyond the buffer.
  uint next = *reinterpret_cast<device const ushort*>(data + offset + COUNT * 4 - 2);
#pragma unroll
  for (int i = COUNT - 1; i >= 0; --i) {
    const uint word = from[i];
    to[i] = is_between ? word >> 16 | next << 16 : word;
    next = word;
  }
}
inline float half_of(device const uchar* data, int64_t offset) {
  return static_cast<float>(*reinterpret_cast<device const half*>(data + offset));
}

struct Q4_0 {
  static constant constexpr int run_stride = 16;
  static constant constexpr int zero = 8;
  static constant constexpr bool has_minimum = false;
  struct Piece {
    uint words[4];
    float scale;
  };
  static inline int first(int number) { return number * 32; }
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number) {
    const int64_t block = line + static_cast<int64_t>(number) * 18;
    piece.scale = half_of(data, block);
    words_from(piece.words, data, block + 2);
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return piece.words[i] >> (4 * run) & 0x0f0f0f0fu;
  }
  static inline float scale(thread const Piece& piece, int) { return piece.scale; }
  static inline float minimum(thread const Piece&, int) { return 0.0f; }
};

struct Q8_0 {
  static constant constexpr int run_stride = 16;
  static constant constexpr int zero = 128;
  static constant constexpr bool has_minimum = false;
  struct Piece {
    uint words[8];
    float scale;
  };
  static inline int first(int number) { return number * 32; }
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number) {
    const int64_t block = line + static_cast<int64_t>(number) * 34;
    piece.scale = half_of(data, block);
    words_from(piece.words, data, block + 2);
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return piece.words[4 * run + i] ^ 0x80808080u;
  }
  static inline float scale(thread const Piece& piece, int) { return piece.scale; }
  static inline float minimum(thread const Piece&, int) { return 0.0f; }
};

// K-quants with minima: blocks of 256 elements in 8 parts of 32, with a 6-bit scale and a 6-bit
// minimum each. The low bits of bytes are one part, the high bits the next.
struct KWithMinimum {
  static constant constexpr int run_stride = 32;
  static constant constexpr int zero = 0;
  static constant constexpr bool has_minimum = true;
  static inline int first(int number) {
    return number / 8 * 256 + number % 8 / 2 * 64 + number % 2 * 16;
  }
  struct Parts {
    float scales[2];
    float minima[2];
  };
  // Unpacks the scales and minima of an even part and of the next one. header: d and dmin as
  // halves, then 12 bytes: four with scales 0 to 3 (6 bits) and the two high bits of scales 4 to 7,
  // four with the minima likewise, and four with the low four bits of scales and minima 4 to 7.
  static inline Parts parts_of(uint4 header, int part) {
    const int shift = part % 4 * 8;
    const uint scales = header.y >> shift;
    const uint minima = header.z >> shift;
    const uint rest = header.w >> shift;
    const bool is_first_half = part < 4;
    const uint two_scales =
        is_first_half ? scales & 0x3f3fu : (rest & 0x0f0fu) | (scales >> 2 & 0x3030u);
    const uint two_minima =
        is_first_half ? minima & 0x3f3fu : (rest >> 4 & 0x0f0fu) | (minima >> 2 & 0x3030u);
    const half2 factors = ::metal::as_type<half2>(header.x);
    const float d = static_cast<float>(factors.x);
    const float of_minima = static_cast<float>(factors.y);
    return {{d * static_cast<float>(two_scales & 255u), d * static_cast<float>(two_scales >> 8)},
            {of_minima * static_cast<float>(two_minima & 255u),
             of_minima * static_cast<float>(two_minima >> 8)}};
  }
};

struct Q4_K : KWithMinimum {
  struct Piece {
    uint4 words;
    Parts parts;
  };
  // A block's data as loaded, before it is unpacked, so that nothing waits for the loads.
  struct Stored {
    uint4 header;
    uint4 words;
  };
  static inline int part_of(int number) { return number % 8 / 2 * 2; }
  static inline int64_t block_of(int number) { return static_cast<int64_t>(number / 8) * 144; }
  static inline void load(thread Stored& stored, device const uchar* block, int number) {
    stored.words = reinterpret_cast<device const uint4*>(block)[1 + number % 8];
    stored.header = reinterpret_cast<device const uint4*>(block)[0];
  }
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number) {
    Stored stored;
    load(stored, data + line + block_of(number), number);
    piece.parts = parts_of(stored.header, part_of(number));
    piece.words = stored.words;
  }
  // Computes the dot products of both runs with inputs; the second is 16 times too large.
  static inline void multiply(thread float (&dots)[2], uint4 words,
                              thread const float (&inputs)[32]) {
    dots[0] = 0.0f;
    dots[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int run = e % 2;
        const int at = run * 16 + 4 * i + e / 2;
        // The codes become the low mantissa bits of (subnormal) halves without being shifted.
        const uint word = e < 2 ? words[i] : words[i] >> 8;
        const half2 pair = ::metal::as_type<half2>(word & (run == 0 ? 0x000f000fu : 0x00f000f0u));
        dots[run] = ::metal::fma(static_cast<float>(pair.x), inputs[at], dots[run]);
        dots[run] = ::metal::fma(static_cast<float>(pair.y), inputs[at + 2], dots[run]);
      }
    }
  }
  static constant constexpr float factor = 0x1p24f;  // scales multiply()'s results
  static inline uint four(thread const Piece& piece, int run, int i) {
    return piece.words[i] >> (4 * run) & 0x0f0f0f0fu;
  }
  static inline float scale(thread const Piece& piece, int run) { return piece.parts.scales[run]; }
  static inline float minimum(thread const Piece& piece, int run) {
    return piece.parts.minima[run];
  }
};

struct Q5_K : KWithMinimum {
  struct Piece {
    uint4 fifths;
    uint4 words;
    int part;
    Parts parts;
  };
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number) {
    device const uint4* const block =
        reinterpret_cast<device const uint4*>(data + line + static_cast<int64_t>(number / 8) * 176);
    piece.part = number % 8 / 2 * 2;
    piece.parts = parts_of(block[0], piece.part);
    piece.fifths = block[1 + number % 2];
    piece.words = block[3 + number % 8];
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return (piece.words[i] >> (4 * run) & 0x0f0f0f0fu) |
           (piece.fifths[i] >> (piece.part + run) & 0x01010101u) << 4;
  }
  static inline float scale(thread const Piece& piece, int run) { return piece.parts.scales[run]; }
  static inline float minimum(thread const Piece& piece, int run) {
    return piece.parts.minima[run];
  }
};

struct Q6_K {
  static constant constexpr int run_stride = 64;
  static constant constexpr int zero = 32;
  static constant constexpr bool has_minimum = false;
  struct Piece {
    uint low[4];
    uint high[4];
    float scales[2];
    int shift;
  };
  static inline int first(int number) {
    return number / 4 * 128 + number % 4 / 2 * 32 + number % 2 * 16;
  }
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number) {
    const int64_t block = line + static_cast<int64_t>(number / 8) * 210;
    const int half_of_block = number % 8 / 4;
    words_from(piece.low, data, block + number % 8 * 16);
    words_from(piece.high, data, block + 128 + half_of_block * 32 + number % 2 * 16);
    device const char* const scales = reinterpret_cast<device const char*>(data + block + 192);
    const float d = half_of(data, block + 208);
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      piece.scales[run] = d * static_cast<float>(scales[half_of_block * 8 + run * 4 + number % 4]);
    }
    piece.shift = number % 4 / 2 * 2;
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return (piece.low[i] >> (4 * run) & 0x0f0f0f0fu) |
           (piece.high[i] >> (4 * run + piece.shift) & 0x03030303u) << 4;
  }
  static inline float scale(thread const Piece& piece, int run) { return piece.scales[run]; }
  static inline float minimum(thread const Piece&, int) { return 0.0f; }
};

}  // namespace gguf
}  // namespace metalops

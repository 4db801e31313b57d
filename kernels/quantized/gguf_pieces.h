// The unit of work of a lane on a line of ggml blocks, for kernels compiled for one type: a piece
// of 32 elements, which are two runs of 16 adjacent ones.
#pragma once
#include <metal_stdlib>

#include <kernels/quantized/gguf.h>

namespace metalops {
namespace gguf {

// A type has:
//   Piece: a lane's codes and scales in registers
//   load(piece, data, offset, number, has_vectors): loads piece `number` of the line at byte
//     `offset`; has_vectors: see words_from()
//   first(number): the element of the line at which the piece's first run begins
//   run_stride: the distance from the first run to the second
//   four(piece, run, i): codes 4 i to 4 i + 3 of a run, in the bytes of a word
//   zero: the code that stands for 0
//   scale(piece, run)
//   minimum(piece, run): subtracted, if has_minimum
//   interleave(piece): makes four() return codes 2 i, 2 i + 1, 2 i + 8 and 2 i + 9 of a run instead
//   two(piece, run, e): codes e and e + 8 of an interleaved run in the halves of a word, times
//     2^shift(run), with the bits `flipped` inverted
//   unit: a power of two that makes the largest code about 1
//   mixed(piece, run, i): four(), with unused bits above codes. mask: two codes of it
//   Stored, load(stored, data, offset, number): what the GEMV loads ahead
//   together: the lines that the GEMV loads at once; registers bound it
//   has_table: codes are indices into kNonLinear4. four(piece, run, i) has codes of both runs: byte
//     2 (i % 2) + j has those of elements 8 run + 2 i + j

// Loads BYTES bytes from an even offset on, as words of which the last may have others, by eight
// bytes each. All multiples of eight bytes that have some of the bytes exist. Lanes' bytes are in
// different cache lines, so that the number of loads matters.
template <int BYTES>
inline void words_by_eight_bytes(thread uint (&to)[(BYTES + 3) / 4], device const uchar* data,
                                 int64_t offset) {
  constexpr int count = (BYTES + 3) / 4;
  constexpr int loads = (BYTES + 6 + 7) / 8;
  const int within = static_cast<int>(offset) & 7;
  const int last = (within + BYTES - 1) & ~7;
  device const uchar* const from = data + (offset & ~7ll);
  uint all[loads * 2];
#pragma unroll
  for (int i = 0; i < loads; ++i) {
    const uint2 two = *reinterpret_cast<device const uint2*>(from + ::metal::min(8 * i, last));
    all[2 * i] = two.x;
    all[2 * i + 1] = two.y;
  }
  // Moves the words by one, and by half a word, if need be.
  uint some[count + 1];
#pragma unroll
  for (int i = 0; i < count + 1; ++i) {
    some[i] = (within & 4) != 0 ? all[::metal::min(i + 1, 2 * loads - 1)] : all[i];
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    to[i] = (within & 2) != 0 ? some[i] >> 16 | some[i + 1] << 16 : some[i];
  }
}

// Loads COUNT words from an even offset on. has_vectors: the line begins and ends at a multiple of
// 16 bytes, so that all that contains the words can be loaded as vectors.
template <int COUNT>
inline void words_from(thread uint (&to)[COUNT], device const uchar* data, int64_t offset,
                       bool has_vectors = false) {
  const bool is_between = (offset & 2) != 0;
  if (has_vectors) {
    constexpr int vectors = (COUNT * 4 + 14 + 15) / 16;
    const int within = static_cast<int>(offset) & 15;
    const int last = (within + COUNT * 4 - 1) & ~15;
    device const uchar* const from = data + (offset & ~15ll);
    uint all[vectors * 4];
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      // Vectors behind the last word, which may not exist, are that of the last word.
      const uint4 four = *reinterpret_cast<device const uint4*>(from + ::metal::min(16 * i, last));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        all[4 * i + e] = four[e];
      }
    }
    // Moves the words by two and by one, if need be.
    uint some[COUNT + 2];
#pragma unroll
    for (int i = 0; i < COUNT + 2; ++i) {
      some[i] = (within & 8) != 0 ? all[i + 2] : all[i];
    }
#pragma unroll
    for (int i = 0; i < COUNT + 1; ++i) {
      some[i] = (within & 4) != 0 ? some[i + 1] : some[i];
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      to[i] = is_between ? some[i] >> 16 | some[i + 1] << 16 : some[i];
    }
    return;
  }
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
// Reorders the sixteen bytes of four words: word i gets bytes 2 i, 2 i + 1, 2 i + 8 and 2 i + 9.
template <typename Words>
inline void interleave_bytes(thread Words& words, int first = 0) {
  uint to[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint low = words[first + i];
    const uint high = words[first + i + 2];
    to[2 * i] = (low & 0xffffu) | high << 16;
    to[2 * i + 1] = low >> 16 | (high & 0xffff0000u);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[first + i] = to[i];
  }
}
inline float half_of(device const uchar* data, int64_t offset) {
  return static_cast<float>(*reinterpret_cast<device const half*>(data + offset));
}

// Puts bits of `high` from bit `from` of each byte on above the low four bits of `low`.
inline uint low_and_high(uint low, uint high, int from) {
  const uint rotated = ::metal::rotate(high, static_cast<uint>(4 - from) & 31u);
  return (low & 0x0f0f0f0fu) | (rotated & 0xf0f0f0f0u);
}

// Codes e and e + 8 of an interleaved run, from the word that has two more.
inline uint two_of(uint four, int e, uint mask) { return (e % 2 == 0 ? four : four >> 8) & mask; }

// Computes the dot products of both runs with inputs, of codes without their zero, 2^24 times too
// small: codes become the low mantissa bits of (subnormal) halves.
template <typename Type>
inline void dots_of(thread float (&dots)[2], thread const typename Type::Piece& piece,
                    thread const float (&inputs)[32]) {
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    dots[run] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint four = Type::mixed(piece, run, i);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const half2 pair = ::metal::as_type<half2>((e == 0 ? four : four >> 8) & Type::mask);
        const int at = run * 16 + 4 * i + e;
        dots[run] = ::metal::fma(static_cast<float>(pair.x), inputs[at], dots[run]);
        dots[run] = ::metal::fma(static_cast<float>(pair.y), inputs[at + 2], dots[run]);
      }
    }
  }
}

struct Q4_0 {
  static constant constexpr int run_stride = 16;
  static constant constexpr int zero = 8;
  static constant constexpr bool has_minimum = false;
  static constant constexpr float unit = 0x1p-4f;
  static constant constexpr int together = 2;
  static constant constexpr bool has_table = false;
  static constant constexpr uint mask = 0x000f000fu;  // of two codes of mixed()
  static constant constexpr uint flipped = 0u;
  struct Piece {
    uint words[4];
    float scale;
  };
  typedef Piece Stored;
  static inline int first(int number) { return number * 32; }
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number,
                          bool has_vectors = false) {
    const int64_t block = line + static_cast<int64_t>(number) * 18;
    piece.scale = half_of(data, block);
    words_from(piece.words, data, block + 2, has_vectors);
  }
  static inline uint mixed(thread const Piece& piece, int run, int i) {
    return piece.words[i] >> (4 * run);
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return piece.words[i] >> (4 * run) & 0x0f0f0f0fu;
  }
  static inline float scale(thread const Piece& piece, int) { return piece.scale; }
  static inline float minimum(thread const Piece&, int) { return 0.0f; }
  static inline void interleave(thread Piece& piece) { interleave_bytes(piece.words); }
  static inline int shift(int run) { return 4 * run; }
  static inline uint two(thread const Piece& piece, int run, int e) {
    return two_of(piece.words[e / 2], e, run == 0 ? 0x000f000fu : 0x00f000f0u);
  }
};

struct Q8_0 {
  static constant constexpr int run_stride = 16;
  static constant constexpr int zero = 128;
  static constant constexpr bool has_minimum = false;
  static constant constexpr float unit = 0x1p-7f;
  static constant constexpr int together = 1;
  static constant constexpr bool has_table = false;
  static constant constexpr uint mask = 0x00ff00ffu;  // of two codes of mixed()
  static constant constexpr uint flipped = 0x00800080u;
  struct Piece {
    uint words[8];
    float scale;
  };
  typedef Piece Stored;
  static inline int first(int number) { return number * 32; }
  // Moving eight words behind loads of 16 bytes takes longer than behind those of eight.
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number,
                          bool has_vectors = false) {
    const int64_t block = line + static_cast<int64_t>(number) * 34;
    if (has_vectors) {
      uint all[9];  // the scale, and codes two bytes later
      words_by_eight_bytes<34>(all, data, block);
      piece.scale = static_cast<float>(::metal::as_type<half2>(all[0]).x);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        piece.words[i] = all[i] >> 16 | all[i + 1] << 16;
      }
      return;
    }
    piece.scale = half_of(data, block);
    words_from(piece.words, data, block + 2);
  }
  static inline uint mixed(thread const Piece& piece, int run, int i) {
    return piece.words[4 * run + i] ^ 0x80808080u;
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return piece.words[4 * run + i] ^ 0x80808080u;
  }
  static inline float scale(thread const Piece& piece, int) { return piece.scale; }
  static inline float minimum(thread const Piece&, int) { return 0.0f; }
  static inline void interleave(thread Piece& piece) {
    interleave_bytes(piece.words);
    interleave_bytes(piece.words, 4);
  }
  static inline int shift(int) { return 0; }
  static inline uint two(thread const Piece& piece, int run, int e) {
    return two_of(piece.words[4 * run + e / 2], e, mask);
  }
};

// K-quants with minima: blocks of 256 elements in 8 parts of 32, with a 6-bit scale and a 6-bit
// minimum each. The low bits of bytes are one part, the high bits the next.
struct KWithMinimum {
  static constant constexpr int run_stride = 32;
  static constant constexpr int zero = 0;
  static constant constexpr bool has_minimum = true;
  static constant constexpr bool has_table = false;
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
  static constant constexpr float unit = 0x1p-4f;
  static constant constexpr uint flipped = 0u;
  static constant constexpr int together = 2;
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
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number,
                          bool = false) {
    Stored stored;
    load(stored, data + line + block_of(number), number);
    piece.parts = parts_of(stored.header, part_of(number));
    piece.words = stored.words;
  }
  static inline void load(thread Stored& stored, device const uchar* data, int64_t line,
                          int number) {
    load(stored, data + block_of(number) + line, number);
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
  static inline void interleave(thread Piece& piece) { interleave_bytes(piece.words); }
  static inline int shift(int run) { return 4 * run; }
  static inline uint two(thread const Piece& piece, int run, int e) {
    return two_of(piece.words[e / 2], e, run == 0 ? 0x000f000fu : 0x00f000f0u);
  }
};

struct Q5_K : KWithMinimum {
  static constant constexpr float unit = 0x1p-5f;
  static constant constexpr int together = 1;
  static constant constexpr uint mask = 0x001f001fu;  // of two codes of mixed()
  static constant constexpr uint flipped = 0u;
  struct Piece {
    uint4 fifths;
    uint4 words;
    int part;
    Parts parts;
  };
  typedef Piece Stored;
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number,
                          bool = false) {
    device const uint4* const block =
        reinterpret_cast<device const uint4*>(data + line + static_cast<int64_t>(number / 8) * 176);
    piece.part = number % 8 / 2 * 2;
    piece.parts = parts_of(block[0], piece.part);
    piece.fifths = block[1 + number % 2];
    piece.words = block[3 + number % 8];
  }
  // Returns four(), with unused bits above codes.
  static inline uint mixed(thread const Piece& piece, int run, int i) {
    return low_and_high(piece.words[i] >> (4 * run), piece.fifths[i], piece.part + run);
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return mixed(piece, run, i) & 0x1f1f1f1fu;
  }
  static inline float scale(thread const Piece& piece, int run) { return piece.parts.scales[run]; }
  static inline float minimum(thread const Piece& piece, int run) {
    return piece.parts.minima[run];
  }
  static inline void interleave(thread Piece& piece) {
    interleave_bytes(piece.words);
    interleave_bytes(piece.fifths);
  }
  static inline int shift(int) { return 0; }
  static inline uint two(thread const Piece& piece, int run, int e) {
    return two_of(mixed(piece, run, e / 2), e, mask);
  }
};

struct Q6_K {
  static constant constexpr int run_stride = 64;
  static constant constexpr int zero = 32;
  static constant constexpr bool has_minimum = false;
  static constant constexpr float unit = 0x1p-5f;
  static constant constexpr int together = 1;
  static constant constexpr bool has_table = false;
  static constant constexpr uint mask = 0x003f003fu;  // of two codes of mixed()
  static constant constexpr uint flipped = 0u;
  struct Piece {
    uint low[4];
    uint high[4];
    float scales[2];
    int shift;
  };
  typedef Piece Stored;
  static inline int first(int number) {
    return number / 4 * 128 + number % 4 / 2 * 32 + number % 2 * 16;
  }
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number,
                          bool = false) {
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
  // Returns four(), with unused bits above codes.
  static inline uint mixed(thread const Piece& piece, int run, int i) {
    return low_and_high(piece.low[i] >> (4 * run), piece.high[i], piece.shift + 4 * run);
  }
  static inline uint four(thread const Piece& piece, int run, int i) {
    return mixed(piece, run, i) & 0x3f3f3f3fu;
  }
  static inline float scale(thread const Piece& piece, int run) { return piece.scales[run]; }
  static inline float minimum(thread const Piece&, int) { return 0.0f; }
  static inline void interleave(thread Piece& piece) {
    interleave_bytes(piece.low);
    interleave_bytes(piece.high);
  }
  static inline int shift(int) { return 0; }
  static inline uint two(thread const Piece& piece, int run, int e) {
    return two_of(mixed(piece, run, e / 2), e, mask);
  }
};

// Types whose codes are indices into the table kNonLinear4.
struct IQ4_NL : Q4_0 {
  static constant constexpr float unit = 0x1p-7f;
  static constant constexpr bool has_table = true;
  static inline uint four(thread const Piece& piece, int run, int i) {
    return piece.words[2 * run + i / 2];
  }
};

struct IQ4_XS : IQ4_NL {
  static inline void load(thread Piece& piece, device const uchar* data, int64_t line, int number,
                          bool = false) {
    device const uint2* const block =
        reinterpret_cast<device const uint2*>(data + line + static_cast<int64_t>(number / 8) * 136);
    const int part = number % 8;
    const uint2 header = block[0];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 words = block[1 + 2 * part + i];
      piece.words[2 * i] = words.x;
      piece.words[2 * i + 1] = words.y;
    }
    const uint scale = (header.y >> (4 * part) & 15u) | (header.x >> (16 + 2 * part) & 3u) << 4;
    const float d = static_cast<float>(::metal::as_type<half2>(header.x).x);
    piece.scale = d * (static_cast<float>(scale) - 32.0f);
  }
};

}  // namespace gguf
}  // namespace metalops

// Unpacking quantised weights and their scales: 32 codes at a time for kernels compiled for one
// format, eight at a time for kernels that get the format at run time.
#pragma once
#include <metal_stdlib>

#include <kernels/common/number_formats.h>
#include <kernels/quantized/quantized.h>

namespace metalops {
namespace packed {

// NormalFloat4: quantiles of a normal distribution (QLoRA, Dettmers et al., 2023, appendix E); and
// the four-bit floats of bitsandbytes.
constant constexpr float kNormalFloat4Values[16] = {-1.0f,
                                                    -0.6961928009986877f,
                                                    -0.5250730514526367f,
                                                    -0.39491748809814453f,
                                                    -0.28444138169288635f,
                                                    -0.18477343022823334f,
                                                    -0.09105003625154495f,
                                                    0.0f,
                                                    0.07958029955625534f,
                                                    0.16093020141124725f,
                                                    0.24611230194568634f,
                                                    0.33791524171829224f,
                                                    0.44070982933044434f,
                                                    0.5626170039176941f,
                                                    0.7229568362236023f,
                                                    1.0f};
constant constexpr float kFloat4Values[16] = {
    0.0f, 0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
    0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};

// Swaps the halves of each byte.
inline uint swapped(uint word) { return (word & 0x0f0f0f0fu) << 4 | (word >> 4 & 0x0f0f0f0fu); }

// ---- formats known at compile time --------------------------------------------------------------

// A format has: bits; finish(word), applied to 32 bits of codes before they are unpacked;
// unscaled(code, exponent), its value without `factor`; has_biases; has_short_groups, true if
// groups may have 16 elements; has_shifted_codes, true if unpack() leaves codes shifted within
// their word, so that the other operand must be multiplied by code_scale(); and has_table, true if
// codes are indices into a table. These are the defaults:
template <int BITS>
struct Usual {
  static constant constexpr int bits = BITS;
  static constant constexpr bool has_biases = false;
  static constant constexpr bool has_short_groups = false;
  static constant constexpr bool has_shifted_codes = false;
  static constant constexpr bool has_table = false;
  static constant constexpr float factor = 1.0f;
  static inline uint finish(uint word) { return word; }
};

template <int BITS>
struct Integer : Usual<BITS> {
  static constant constexpr bool has_biases = true;
  static constant constexpr bool has_shifted_codes = BITS == 4;
  // Puts the code into the low mantissa bits of 2^23, whose bits are `exponent`: GPUs add faster
  // than they convert.
  static inline float unscaled(uint code, uint exponent) {
    return ::metal::as_type<float>(exponent | code) - 0x1p23f;
  }
};
struct Signed8 : Usual<8> {
  static inline float unscaled(uint code, uint) { return formats::int8::decode(code); }
};
struct E2M1 : Usual<4> {
  static constant constexpr float factor = 0x1p14f;
  static inline float unscaled(uint code, uint) {
    return static_cast<float>(
        ::metal::as_type<half>(static_cast<ushort>((code & 7u) << 9 | (code & 8u) << 12)));
  }
};
struct MXFloat4 : E2M1 {};
struct NVFloat4 : E2M1 {
  static constant constexpr bool has_short_groups = true;
};
// The bits of two e4m3 codes become the upper bits of halves, `factor` times too small. sign: the
// codes' signs in bit 15 of each half; magnitude: their other bits, from bit 7 on. The largest
// magnitude stands for NaN: the carry makes it one of half.
inline half2 two_e4m3(uint sign, uint magnitude) {
  return ::metal::as_type<half2>(sign | magnitude | ((magnitude + 0x00800080u) & 0x40004000u));
}
struct MXFloat8 : Usual<8> {
  static constant constexpr float factor = 0x1p8f;
  static inline float unscaled(uint code, uint) {
    return static_cast<float>(two_e4m3((code & 0x80u) << 8, (code & 0x7fu) << 7).x);
  }
};
struct NormalFloat4 : Usual<4> {
  static constant constexpr bool has_table = true;
  static inline uint finish(uint word) { return swapped(word); }
  static inline float unscaled(uint code, uint) { return kNormalFloat4Values[code]; }
};
struct Float4 : Usual<4> {
  static constant constexpr bool has_table = true;
  static inline uint finish(uint word) { return swapped(word); }
  static inline float unscaled(uint code, uint) { return kFloat4Values[code]; }
};

// 32 codes of each of LINES lines: one word per bit of a code.
template <typename Format, int LINES>
struct Blocks {
  uint words[Format::bits][LINES];

  inline uint code(int i, int line) const {
    constexpr uint mask = (1u << Format::bits) - 1u;
    const int bit = i * Format::bits;
    const int shift = bit % 32;
    uint code = words[bit / 32][line] >> shift;
    if (shift + Format::bits > 32) {
      code |= words[bit / 32 + 1][line] << (32 - shift);
    }
    return code & mask;
  }
};

// The values of codes 8 i to 8 i + 7 of each line, without `factor`.
template <int LINES>
struct EightOfLines {
  float of[8][LINES];
};
// Unpacks 4-bit codes without shifting them within their half word: each value is 16 times as large
// as the one before; see code_scale().
template <int LINES>
inline void unpack(thread EightOfLines<LINES>& values,
                   thread const Blocks<Integer<4>, LINES>& blocks, int i, uint exponent) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const uint word = blocks.words[i][line];
      const uint mask = 15u << (4 * e);
      values.of[e][line] = Integer<4>::unscaled(word & mask, exponent);
      values.of[e + 4][line] = Integer<4>::unscaled(word >> 16 & mask, exponent);
    }
  }
}
inline float code_scale(int e) { return 1.0f / static_cast<float>(1 << (e % 4 * 4)); }
// Unpacks eight e2m1 codes. They become the upper bytes of halves, with the sign in bit 7 and the
// magnitude in bits 3 to 1, once for the low and once for the high halves of a word's bytes. The
// codes e and e + 4 are sixteen bits apart.
template <int LINES>
inline void eight_e2m1(thread EightOfLines<LINES>& values, thread const uint (&words)[LINES]) {
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const uint word = words[line];
    const uint lower = (word << 4 & 0x80808080u) | (word << 1 & 0x0e0e0e0eu);
    const uint upper = (word & 0x80808080u) | (word >> 3 & 0x0e0e0e0eu);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint bytes = e % 2 == 0 ? lower : upper;
      const half2 pair = ::metal::as_type<half2>((e < 2 ? bytes << 8 : bytes) & 0xff00ff00u);
      values.of[e][line] = static_cast<float>(pair.x);
      values.of[e + 4][line] = static_cast<float>(pair.y);
    }
  }
}
template <int LINES>
inline void unpack(thread EightOfLines<LINES>& values, thread const Blocks<MXFloat4, LINES>& blocks,
                   int i, uint) {
  eight_e2m1(values, blocks.words[i]);
}
template <int LINES>
inline void unpack(thread EightOfLines<LINES>& values, thread const Blocks<NVFloat4, LINES>& blocks,
                   int i, uint) {
  eight_e2m1(values, blocks.words[i]);
}
template <int LINES>
inline void unpack(thread EightOfLines<LINES>& values, thread const Blocks<MXFloat8, LINES>& blocks,
                   int i, uint) {
#pragma unroll
  for (int four = 0; four < 2; ++four) {
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const uint word = blocks.words[2 * i + four][line];
      const half2 even = two_e4m3(word << 8 & 0x80008000u, word << 7 & 0x3f803f80u);
      const half2 odd = two_e4m3(word & 0x80008000u, word >> 1 & 0x3f803f80u);
      values.of[4 * four][line] = static_cast<float>(even.x);
      values.of[4 * four + 1][line] = static_cast<float>(odd.x);
      values.of[4 * four + 2][line] = static_cast<float>(even.y);
      values.of[4 * four + 3][line] = static_cast<float>(odd.y);
    }
  }
}
template <typename Format, int LINES>
inline void unpack(thread EightOfLines<LINES>& values, thread const Blocks<Format, LINES>& blocks,
                   int i, uint exponent) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      values.of[e][line] = Format::unscaled(blocks.code(8 * i + e, line), exponent);
    }
  }
}

// Copies of a format's table of pairs, the values of both codes of a byte as it is stored, so that
// lanes do not wait for each other: each reads from its copy on, of byte b at kPairCopies * b.
#if defined(__METALOPS_MATRIX_PAIRS__)
constant constexpr int kPairCopies = 16;
#else
constant constexpr int kPairCopies = 2;  // Apple's GPUs have less memory
#endif
template <typename Format, typename T>
inline void fill_pairs(threadgroup::metal::vec<T, 2>* table, uint thread_index, uint threads) {
  for (uint i = thread_index; i < 256 * kPairCopies; i += threads) {
    const uint codes = Format::finish(i / kPairCopies);
    table[i] = ::metal::vec<T, 2>(static_cast<T>(Format::unscaled(codes & 15u, 0u)),
                                  static_cast<T>(Format::unscaled(codes >> 4 & 15u, 0u)));
  }
}
// own: the lane's copy.
template <typename T, typename Format, int LINES>
inline ::metal::vec<T, 2> pair_of_byte(thread const Blocks<Format, LINES>& blocks, int line, int i,
                                       int byte, threadgroup const ::metal::vec<T, 2>* own) {
  return own[(blocks.words[i][line] >> (8 * byte) & 255u) * kPairCopies];
}
template <typename Format, int LINES>
inline void unpack_by_pairs(thread EightOfLines<LINES>& values,
                            thread const Blocks<Format, LINES>& blocks, int i,
                            threadgroup const float2* own) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const float2 pair = pair_of_byte(blocks, line, i, j, own);
      values.of[2 * j][line] = pair.x;
      values.of[2 * j + 1][line] = pair.y;
    }
  }
}

#if defined(__METALOPS_MATRIX_PAIRS__)

// A lane's copy of a format's table of pairs, if it has one.
struct LaneTable {
  threadgroup const half2* own;
};

#else

// A copy of a format's table for each bank of threadgroup memory: lane l reads from element l on,
// value `code` at 32 * code.
constant constexpr int kTableSize = 16 * 32;
template <typename Format>
inline void fill_table(threadgroup float* table, uint thread_index, uint threads) {
  for (uint i = thread_index; i < kTableSize; i += threads) {
    table[i] = Format::unscaled(i / 32, 0u);
  }
}

// A format's table, if it has one, and this lane, whose copy of the table is interleaved with those
// of the other lanes.
struct LaneTable {
  threadgroup const float* values;
  uint lane;
};

// Returns the value of a code of four bits. The code's place in the table, in bytes, is its bits
// where they are, shifted and masked.
template <typename Format, int LINES>
inline float value_in_table(thread const Blocks<Format, LINES>& blocks, int i, int line,
                            LaneTable table) {
  constexpr int shift = 7;  // of a code in the place of its value
  static_assert(Format::bits == 4 && kTableSize * 4 == 16 << shift,
                "a table is of codes of 4 bits");
  const uint word = blocks.words[i / 8][line];
  const int bit = i % 8 * 4;
  const uint place = (bit < shift ? word << (shift - bit) : word >> (bit - shift)) & 15u << shift;
  return *reinterpret_cast<threadgroup const float*>(
      reinterpret_cast<threadgroup const uchar*>(table.values) + (place | table.lane * 4u));
}

#endif

inline half2 product_of(half2 x, half2 y) { return ::metal::fma(x, y, half2(-0.0h)); }
// A scale that is no normal half is two factors, the second 2^-14: halves would round it.
inline half2 second_factor(bool is_small) {
  return ::metal::as_type<half2>(is_small ? 0x04000400u : 0x3c003c00u);
}
inline half2 scaled_by_float(half2 values, float scale) {
  const bool is_small = scale < 0x1p-14f;
  const half2 first = half2(static_cast<half>(is_small ? scale * 0x1p14f : scale));
  return product_of(product_of(values, first), second_factor(is_small));
}

// How far apart the codes are that are dequantised together.
template <typename Format>
constexpr int distance_of_two() {
#if defined(__METALOPS_MATRIX_PAIRS__)
  return Format::has_table ? 1 : 4;
#else
  return 4;
#endif
}

// The functions two_values dequantise codes 8 i + e and 8 i + e + 4 of a line to T, for e < 4, or,
// of those one apart, codes 8 i + 2 e and 8 i + 2 e + 1. table: if the format has one.
template <typename T, typename Format, int LINES>
inline void two_values(thread::metal::vec<T, 2>& values, thread const Blocks<Format, LINES>& blocks,
                       int line, int i, int e, float scale, T bias, uint exponent, LaneTable) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float value = Format::unscaled(blocks.code(8 * i + e + 4 * j, line), exponent);
    values[j] = static_cast<T>(::metal::fma(value, scale, static_cast<float>(bias)));
  }
}

#if defined(__METALOPS_MATRIX_PAIRS__)
inline void scale_halves(thread half2& values, half2 codes, float scale) {
  values = scaled_by_float(codes, scale);
}
inline void scale_halves(thread::metal::vec<bfloat, 2>& values, half2 codes, float scale) {
  values = ::metal::vec<bfloat, 2>(static_cast<bfloat>(static_cast<float>(codes.x) * scale),
                                   static_cast<bfloat>(static_cast<float>(codes.y) * scale));
}
template <typename T, typename Format, int LINES>
inline void two_of_table(thread::metal::vec<T, 2>& values,
                         thread const Blocks<Format, LINES>& blocks, int line, int i, int e,
                         float scale, LaneTable table) {
  scale_halves(values, pair_of_byte(blocks, line, i, e, table.own), scale);
}
#else
template <typename T, typename Format, int LINES>
inline void two_of_table(thread::metal::vec<T, 2>& values,
                         thread const Blocks<Format, LINES>& blocks, int line, int i, int e,
                         float scale, LaneTable table) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    values[j] = static_cast<T>(value_in_table(blocks, 8 * i + e + 4 * j, line, table) * scale);
  }
}
#endif
template <typename T, int LINES>
inline void two_values(thread::metal::vec<T, 2>& values,
                       thread const Blocks<NormalFloat4, LINES>& blocks, int line, int i, int e,
                       float scale, T, uint, LaneTable table) {
  two_of_table(values, blocks, line, i, e, scale, table);
}
template <typename T, int LINES>
inline void two_values(thread::metal::vec<T, 2>& values, thread const Blocks<Float4, LINES>& blocks,
                       int line, int i, int e, float scale, T, uint, LaneTable table) {
  two_of_table(values, blocks, line, i, e, scale, table);
}

// Integers become the low mantissa bits of the half 1024, two at once.
inline uint two_halves(uint exponent) { return formats::kept(0x64006400u, exponent); }
inline half2 two_integers(uint codes, float scale, half bias, uint exponent) {
  const half2 values = ::metal::fma(::metal::as_type<half2>(codes | two_halves(exponent)),
                                    half2(1.0h), half2(-1024.0h));
  return ::metal::fma(values, half2(static_cast<half>(scale)), half2(bias));
}
template <int BITS, int LINES>
inline void two_values(thread half2& values, thread const Blocks<Integer<BITS>, LINES>& blocks,
                       int line, int i, int e, float scale, half bias, uint exponent, LaneTable) {
  const uint codes = blocks.code(8 * i + e, line) | blocks.code(8 * i + e + 4, line) << 16;
  values = two_integers(codes, scale, bias, exponent);
}
// Integers of 4 bits are left where they are, if need be 16 times as large.
template <int LINES>
inline void two_values(thread half2& values, thread const Blocks<Integer<4>, LINES>& blocks,
                       int line, int i, int e, float scale, half bias, uint exponent, LaneTable) {
  const uint word = e < 2 ? blocks.words[i][line] : blocks.words[i][line] >> 8;
  const uint of_halves = two_halves(exponent);
  const half2 codes = e % 2 == 0
                          ? ::metal::fma(::metal::as_type<half2>((word & 0x000f000fu) | of_halves),
                                         half2(1.0h), half2(-1024.0h))
                          : ::metal::fma(::metal::as_type<half2>((word & 0x00f000f0u) | of_halves),
                                         half2(0.0625h), half2(-64.0h));
  values = ::metal::fma(codes, half2(static_cast<half>(scale)), half2(bias));
}
// Returns bytes e and e + 4 of part i of a line: if e is even, in the low bytes of the word's
// halves, else in the high bytes.
template <typename Format, int LINES>
inline uint two_bytes(thread const Blocks<Format, LINES>& blocks, int line, int i, int e) {
  const uint first = blocks.words[2 * i][line];
  const uint second = blocks.words[2 * i + 1][line];
  return e < 2 ? (first & 0xffffu) | second << 16 : first >> 16 | (second & 0xffff0000u);
}
template <int LINES>
inline void two_values(thread half2& values, thread const Blocks<Integer<8>, LINES>& blocks,
                       int line, int i, int e, float scale, half bias, uint exponent, LaneTable) {
  const uint bytes = two_bytes(blocks, line, i, e);
  values = two_integers((e % 2 == 0 ? bytes : bytes >> 8) & 0x00ff00ffu, scale, bias, exponent);
}

// Scales two halves in float, whose range scales need.
template <typename T>
inline void scale_two(thread::metal::vec<T, 2>& values, half2 codes, float scale) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    values[j] = static_cast<T>(static_cast<float>(codes[j]) * scale);
  }
}
// The bits of small floats become the upper bits of halves.
template <typename T>
inline void two_e2m1(thread::metal::vec<T, 2>& values, uint word, int e, float scale) {
  const uint sign = word << (12 - 4 * e) & 0x80008000u;
  const uint magnitude = (e < 3 ? word << (9 - 4 * e) : word >> 3) & 0x0e000e00u;
  scale_two(values, ::metal::as_type<half2>(sign | magnitude), scale);
}
template <typename T, int LINES>
inline void two_values(thread::metal::vec<T, 2>& values,
                       thread const Blocks<MXFloat4, LINES>& blocks, int line, int i, int e,
                       float scale, T, uint, LaneTable) {
  two_e2m1(values, blocks.words[i][line], e, scale);
}
template <typename T, int LINES>
inline void two_values(thread::metal::vec<T, 2>& values,
                       thread const Blocks<NVFloat4, LINES>& blocks, int line, int i, int e,
                       float scale, T, uint, LaneTable) {
  two_e2m1(values, blocks.words[i][line], e, scale);
}
template <typename T, int LINES>
inline void two_values(thread::metal::vec<T, 2>& values,
                       thread const Blocks<MXFloat8, LINES>& blocks, int line, int i, int e,
                       float scale, T, uint, LaneTable) {
  const uint bytes = two_bytes(blocks, line, i, e);
  const uint sign = (e % 2 == 0 ? bytes << 8 : bytes) & 0x80008000u;
  const uint magnitude = (e % 2 == 0 ? bytes << 7 : bytes >> 1) & 0x3f803f80u;
  scale_two(values, two_e4m3(sign, magnitude), scale);
}

template <int WORDS>
struct Vector {
  typedef uint type;
  static constant constexpr int words = 1;
  static inline uint word(uint vector, int) { return vector; }
};
template <>
struct Vector<2> {
  typedef uint2 type;
  static constant constexpr int words = 2;
  static inline uint word(uint2 vector, int i) { return vector[i]; }
};
template <>
struct Vector<4> {
  typedef uint4 type;
  static constant constexpr int words = 4;
  static inline uint word(uint4 vector, int i) { return vector[i]; }
};

// Loads 32 codes of one line from `from` on with the widest vector loads. IS_STORED: as they are
// stored, for a table of pairs.
template <bool IS_STORED = false, typename Format, int LINES>
inline void load(thread Blocks<Format, LINES>& blocks, int line, device const uchar* from) {
  typedef Vector<Format::bits % 4 == 0 ? 4 : Format::bits % 2 == 0 ? 2 : 1> V;
#pragma unroll
  for (int i = 0; i < Format::bits / V::words; ++i) {
    const typename V::type vector = reinterpret_cast<device const typename V::type*>(from)[i];
#pragma unroll
    for (int j = 0; j < V::words; ++j) {
      const uint word = V::word(vector, j);
      blocks.words[i * V::words + j][line] = IS_STORED ? word : Format::finish(word);
    }
  }
}

// The type in which a format's scales are stored, if weights are multiplied as T.
template <typename T, typename Format>
struct Scale {
  typedef T type;
  static inline float value(T scale) { return static_cast<float>(scale); }
};
template <typename T>
struct Scale<T, MXFloat4> {
  typedef formats::e8m0 type;
  static inline float value(formats::e8m0 scale) { return formats::scale_of(scale); }
};
template <typename T>
struct Scale<T, MXFloat8> : Scale<T, MXFloat4> {};
template <typename T>
struct Scale<T, NVFloat4> {
  typedef uchar type;
  static inline float value(uchar scale) { return formats::e4m3::decode(scale); }
};
template <typename T>
struct Scale<T, NormalFloat4> {
  typedef float type;
  static inline float value(float scale) { return scale; }
};
template <typename T>
struct Scale<T, Float4> : Scale<T, NormalFloat4> {};

// ---- formats known at run time ------------------------------------------------------------------

template <typename T>
inline float scale_at(device const uchar* scales, int64_t i, ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kElement:
      return static_cast<float>(reinterpret_cast<device const T*>(scales)[i]);
    case ScaleFormat::kFloat:
      return reinterpret_cast<device const float*>(scales)[i];
    case ScaleFormat::kE8M0:
      return formats::scale_of(formats::e8m0{scales[i]});
    default:
      return formats::e4m3::decode(scales[i]);
  }
}

inline float value_of(uint code, CodeFormat format) {
  switch (format) {
    case CodeFormat::kInteger:
      return static_cast<float>(code);
    case CodeFormat::kE2M1:
      return formats::e2m1::decode(code);
    case CodeFormat::kE4M3:
      return formats::e4m3::decode(code);
    case CodeFormat::kSigned8:
      return formats::int8::decode(code);
    case CodeFormat::kNormalFloat4:
      return kNormalFloat4Values[code];
    default:
      return kFloat4Values[code];
  }
}

inline bool is_high_first(CodeFormat format) {
  return format == CodeFormat::kNormalFloat4 || format == CodeFormat::kFloat4;
}

// Returns true if codes are integers of 4 bits, of which 64 that begin at a multiple of 64 share a
// scale.
inline bool is_int4(constant PackedLayout& layout) {
  return layout.format == CodeFormat::kInteger && layout.bits == 4 && layout.group_shift >= 6;
}

struct EightCodes {
  uint of[8];
};

// Unpacks the eight codes of `layout` that begin at a whole byte.
inline EightCodes eight_codes(device const uchar* from, constant PackedLayout& layout) {
  EightCodes codes;
  if (layout.bits == 4) {
    uint word;
    if (layout.is_aligned) {
      word = *reinterpret_cast<device const uint*>(from);
    } else {
      word = from[0] | static_cast<uint>(from[1]) << 8 | static_cast<uint>(from[2]) << 16 |
             static_cast<uint>(from[3]) << 24;
    }
    word = is_high_first(layout.format) ? swapped(word) : word;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      codes.of[i] = word >> (4 * i) & 15u;
    }
  } else if (layout.bits == 8) {
    if (layout.is_aligned) {
      const uint2 words = *reinterpret_cast<device const uint2*>(from);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        codes.of[i] = words[i / 4] >> (8 * (i % 4)) & 255u;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        codes.of[i] = from[i];
      }
    }
  } else {
    ulong word = 0;
    for (int i = 0; i < layout.bits; ++i) {
      word |= static_cast<ulong>(from[i]) << (8 * i);
    }
    const uint mask = (1u << layout.bits) - 1u;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      codes.of[i] = static_cast<uint>(word >> (layout.bits * i)) & mask;
    }
  }
  return codes;
}

struct EightValues {
  float of[8];
};

// Returns the factor common to all scales. global_scale: the value of the largest code times the
// largest e4m3 scale, as in MLX.
inline float global_factor(device const float* global_scale, constant PackedLayout& layout) {
  return layout.has_global ? global_scale[0] / (6.0f * 448.0f) : 1.0f;
}

// A matrix of quantised weights. biases: used with kInteger only.
template <typename T>
struct Matrix {
  device const uchar* codes;
  device const uchar* scales;
  device const T* biases;
  float factor;  // multiplies all scales
  constant PackedLayout* layout;

  // Dequantises eight elements of a line from k on; k is a multiple of 8.
  inline EightValues eight(int64_t line, int64_t k) const {
    const EightCodes codes_of =
        eight_codes(codes + line * layout->line_bytes + k / 8 * layout->bits, *layout);
    const int64_t group = line * layout->line_scales + (k >> layout->group_shift);
    const float scale = scale_at<T>(scales, group, layout->scale) * factor;
    EightValues values;
    if (layout->format == CodeFormat::kInteger) {
      const float bias = static_cast<float>(biases[group]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        values.of[i] = ::metal::fma(static_cast<float>(codes_of.of[i]), scale, bias);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        values.of[i] = value_of(codes_of.of[i], layout->format) * scale;
      }
    }
    return values;
  }
};

// Returns matrix number `index` of a batch.
template <typename T>
inline Matrix<T> matrix_of(device const uchar* codes, device const uchar* scales,
                           device const T* biases, float factor, constant PackedLayout& layout,
                           int64_t index) {
  const int64_t first = index * layout.matrix_scales;
  const int64_t size = layout.scale == ScaleFormat::kElement ? static_cast<int64_t>(sizeof(T))
                       : layout.scale == ScaleFormat::kFloat ? 4
                                                             : 1;
  return {codes + index * layout.matrix_bytes, scales + first * size, biases + first, factor,
          &layout};
}

}  // namespace packed
}  // namespace metalops

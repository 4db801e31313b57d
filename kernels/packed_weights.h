// Reading codes and scales of quantised weights: for kernels that know the format when they are
// compiled, 32 codes at a time, and for those that are told, eight.
#pragma once
#include <metal_stdlib>

#include "number_formats.h"
#include "quantized.h"

namespace metalops {
namespace packed {

// The quantiles of a normal distribution of QLoRA (Dettmers et al., 2023, appendix E), and the
// four-bit floats of bitsandbytes.
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

// The halves of each byte the other way round.
inline uint swapped(uint word) { return (word & 0x0f0f0f0fu) << 4 | (word >> 4 & 0x0f0f0f0fu); }

// ---- formats of kernels that are compiled for them
// -----------------------------------------------

// A format has: bits; finish(word), what is done to 32 bits of codes before they are taken apart;
// unscaled(code), its value but for `factor`; and whether its groups may be of 16.
template <int BITS>
struct Integer {
  static constant constexpr int bits = BITS;
  static constant constexpr bool has_biases = true;
  static constant constexpr bool has_short_groups = false;
  static constant constexpr float factor = 1.0f;
  static inline uint finish(uint word) { return word; }
  static inline float unscaled(uint code) { return static_cast<float>(code); }
};
struct Signed8 {
  static constant constexpr int bits = 8;
  static constant constexpr bool has_biases = false;
  static constant constexpr bool has_short_groups = false;
  static constant constexpr float factor = 1.0f;
  static inline uint finish(uint word) { return word; }
  static inline float unscaled(uint code) { return formats::int8::decode(code); }
};
struct E2M1 {
  static constant constexpr int bits = 4;
  static constant constexpr bool has_biases = false;
  static constant constexpr bool has_short_groups = true;
  static constant constexpr float factor = 0x1p14f;
  static inline uint finish(uint word) { return word; }
  static inline float unscaled(uint code) {
    return static_cast<float>(
        ::metal::as_type<half>(static_cast<ushort>((code & 7u) << 9 | (code & 8u) << 12)));
  }
};
struct E4M3 {
  static constant constexpr int bits = 8;
  static constant constexpr bool has_biases = false;
  static constant constexpr bool has_short_groups = false;
  static constant constexpr float factor = 1.0f;
  static inline uint finish(uint word) { return word; }
  static inline float unscaled(uint code) { return formats::e4m3::decode(code); }
};
struct NormalFloat4 {
  static constant constexpr int bits = 4;
  static constant constexpr bool has_biases = false;
  static constant constexpr bool has_short_groups = false;
  static constant constexpr float factor = 1.0f;
  static inline uint finish(uint word) { return swapped(word); }
  static inline float unscaled(uint code) { return kNormalFloat4Values[code]; }
};
struct Float4 {
  static constant constexpr int bits = 4;
  static constant constexpr bool has_biases = false;
  static constant constexpr bool has_short_groups = false;
  static constant constexpr float factor = 1.0f;
  static inline uint finish(uint word) { return swapped(word); }
  static inline float unscaled(uint code) { return kFloat4Values[code]; }
};

// 32 codes of each of some lines, which are as many words as a code has bits.
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

// Those of one line, from `from` on, where there are `bytes` of it left, by the widest loads if
// is_whole.
template <typename Format, int LINES>
inline void load(thread Blocks<Format, LINES>& blocks, int line, device const uchar* from,
                 int64_t bytes, bool is_whole) {
  typedef Vector<Format::bits % 4 == 0 ? 4 : Format::bits % 2 == 0 ? 2 : 1> V;
  if (is_whole) {
    for (int i = 0; i < Format::bits / V::words; ++i) {
      const typename V::type vector = reinterpret_cast<device const typename V::type*>(from)[i];
      for (int j = 0; j < V::words; ++j) {
        blocks.words[i * V::words + j][line] = Format::finish(V::word(vector, j));
      }
    }
  } else {
    for (int i = 0; i < Format::bits; ++i) {
      uint word = 0;
      for (int j = 0; j < 4; ++j) {
        word |= i * 4 + j < bytes ? static_cast<uint>(from[i * 4 + j]) << (8 * j) : 0u;
      }
      blocks.words[i][line] = Format::finish(word);
    }
  }
}

// ---- formats of kernels that are told
// ------------------------------------------------------------

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

struct EightCodes {
  uint of[8];
};

// The codes of `layout` that begin there, at a whole byte.
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
    for (int i = 0; i < 8; ++i) {
      codes.of[i] = word >> (4 * i) & 15u;
    }
  } else if (layout.bits == 8) {
    for (int i = 0; i < 8; ++i) {
      codes.of[i] = from[i];
    }
  } else {
    ulong word = 0;
    for (int i = 0; i < layout.bits; ++i) {
      word |= static_cast<ulong>(from[i]) << (8 * i);
    }
    const uint mask = (1u << layout.bits) - 1u;
    for (int i = 0; i < 8; ++i) {
      codes.of[i] = static_cast<uint>(word >> (layout.bits * i)) & mask;
    }
  }
  return codes;
}

struct EightValues {
  float of[8];
};

// A matrix of quantised weights. biases: with kInteger only.
template <typename T>
struct Matrix {
  device const uchar* codes;
  device const uchar* scales;
  device const T* biases;
  float global_scale;
  constant PackedLayout* layout;

  // The values from k on, a multiple of 8, in a line.
  inline EightValues eight(int64_t line, int64_t k) const {
    const EightCodes codes_of =
        eight_codes(codes + line * layout->line_bytes + k / 8 * layout->bits, *layout);
    const int64_t group = line * layout->line_scales + (k >> layout->group_shift);
    const float scale = scale_at<T>(scales, group, layout->scale) * global_scale;
    EightValues values;
    if (layout->format == CodeFormat::kInteger) {
      const float bias = static_cast<float>(biases[group]);
      for (int i = 0; i < 8; ++i) {
        values.of[i] = ::metal::fma(static_cast<float>(codes_of.of[i]), scale, bias);
      }
    } else {
      for (int i = 0; i < 8; ++i) {
        values.of[i] = value_of(codes_of.of[i], layout->format) * scale;
      }
    }
    return values;
  }
};

// Matrix number `index`.
template <typename T>
inline Matrix<T> matrix_of(device const uchar* codes, device const uchar* scales,
                           device const T* biases, device const float* global_scale,
                           constant PackedLayout& layout, int64_t index) {
  const int64_t first = index * layout.matrix_scales;
  const int64_t size = layout.scale == ScaleFormat::kElement ? static_cast<int64_t>(sizeof(T))
                       : layout.scale == ScaleFormat::kFloat ? 4
                                                             : 1;
  return {codes + index * layout.matrix_bytes, scales + first * size, biases + first,
          layout.has_global ? global_scale[0] : 1.0f, &layout};
}

}  // namespace packed
}  // namespace metalops

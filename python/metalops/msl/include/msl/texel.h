// Texels in memory: reads and writes of one texel in every pixel format.
//
// Normalised integers are the exact quotient, rounded once; writes round to nearest even and clamp,
// and NaN becomes zero. Integers are clamped to the range of a narrower format. Floats of 10 and 11
// bits round to nearest even, negative numbers become zero, and finite numbers beyond the largest
// one become it.
#pragma once

#include <msl/half.h>
#include <msl/math.h>
#include <msl/texture_abi.h>

// Compiled once for each library, and no part of a vectorised loop. Accesses to memory are the
// kernel's own for a sanitizer, which names their lines.
#define MSL_TEXTURE_FUNCTION inline __attribute__((noinline))
#if MSL_INSTRUMENTED
#define MSL_TEXEL_FUNCTION MSL_INLINE
#else
#define MSL_TEXEL_FUNCTION MSL_TEXTURE_FUNCTION
#endif

namespace msl::msl_impl {

// On GPUs the memory of tensors is aligned to their elements, without which bytes would be loaded.
#if defined(__CUDACC_RTC__)
#define MSL_COMPONENT_AT(T, address) __builtin_assume_aligned(address, alignof(T))
#else
#define MSL_COMPONENT_AT(T, address) address
#endif

// V is float, or uint for the bits of an integer.
template <class V>
struct Texel {
  V c[4];
};

MSL_INLINE constexpr abi::TextureComponent component_of(abi::TexelEncoding encoding) {
  using E = abi::TexelEncoding;
  switch (encoding) {
    case E::kUint8:
    case E::kUint16:
    case E::kUint32:
    case E::kRgb10A2Uint:
      return abi::TextureComponent::kUint;
    case E::kSint8:
    case E::kSint16:
    case E::kSint32:
      return abi::TextureComponent::kInt;
    default:
      return abi::TextureComponent::kFloat;
  }
}

template <class T>
MSL_INLINE T value_at(const void* address) {
  T value;
  __builtin_memcpy(&value, MSL_COMPONENT_AT(T, address), sizeof(T));
  return value;
}
template <class T>
MSL_INLINE void set_value_at(void* address, T value) {
  __builtin_memcpy(MSL_COMPONENT_AT(T, address), &value, sizeof(T));
}

// ---- numbers ------------------------------------------------------------------------------------

// A product that is rounded before something is added to it, also on GPUs, whose compilers contract
// the two; on the CPU contraction is off.
MSL_INLINE float product(float x, float y) {
#if defined(__CUDACC_RTC__)
  return ::__fmul_rn(x, y);
#else
  return x * y;
#endif
}

MSL_INLINE float unorm_value(uint code, uint bits) { return float(code) / float((1u << bits) - 1); }
MSL_INLINE float snorm_value(int code, uint bits) {
  const float value = float(code) / float((1u << (bits - 1)) - 1);
  return value < -1.0f ? -1.0f : value;
}

// Rounds a number that is not negative to the nearest integer, ties to even.
MSL_INLINE uint rounded(double value) {
  const double floor = double(uint(value));
  const double rest = value - floor;
  const uint below = uint(floor);
  return rest > 0.5 || (rest == 0.5 && (below & 1)) ? below + 1 : below;
}
MSL_INLINE uint unorm_code(float value, uint bits) {
  if (!(value > 0.0f)) return 0;
  const uint most = (1u << bits) - 1;
  return value >= 1.0f ? most : rounded(double(value) * most);  // the product is exact
}
MSL_INLINE int snorm_code(float value, uint bits) {
  const int code = int(unorm_code(value < 0.0f ? -value : value, bits - 1));
  return value < 0.0f ? -code : code;
}

MSL_INLINE float srgb_value(uint code) {
  const double c = code / 255.0;
  return float(c <= 0.04045 ? c / 12.92 : __builtin_pow((c + 0.055) / 1.055, 2.4));
}
MSL_INLINE uint srgb_code(float linear) {
  if (!(linear > 0.0f)) return 0;
  if (linear >= 1.0f) return 255;
  const double c = linear;
  return rounded(255.0 * (c < 0.0031308 ? 12.92 * c : 1.055 * __builtin_pow(c, 1 / 2.4) - 0.055));
}

// Floats without a sign, with five bits of exponent.
MSL_INLINE float small_float_value(uint code, uint mantissa_bits) {
  return float(bit_cast<half>(ushort(code << (10 - mantissa_bits))));
}
MSL_INLINE uint small_float_code(float value, uint mantissa_bits) {
  const uint infinity = 31u << mantissa_bits;
  if (value != value) return infinity | 1u << (mantissa_bits - 1);
  if (!(value > 0.0f)) return 0;
  const uint bits = bit_cast<uint>(value);
  if (bits == 0x7f800000u) return infinity;
  const int exponent = int(bits >> 23) - 127;
  if (exponent > 15) return infinity - 1;
  uint code;
  if (exponent < -14) {
    const double scaled = double(value) * double(1u << mantissa_bits) * 16384.0;
    code = rounded(scaled);  // may become the smallest normal number
  } else {
    const uint shift = 23 - mantissa_bits;
    const uint biased = (bits & 0x7fffffu) | uint(exponent + 15) << 23;
    code = (biased + (1u << (shift - 1)) - 1 + (biased >> shift & 1)) >> shift;
  }
  return code < infinity ? code : infinity - 1;
}

// Three mantissas of nine bits with one exponent, rounded as EXT_texture_shared_exponent defines.
MSL_INLINE void rgb9e5_value(uint code, float* c) {
  const float scale = bit_cast<float>(((code >> 27) + (127 - 24)) << 23);
  for (uint i = 0; i < 3; ++i) c[i] = float(code >> (9 * i) & 511u) * scale;
}
MSL_INLINE uint rgb9e5_code(const float* c) {
  float clamped[3];
  float largest = 0.0f;
  for (int i = 0; i < 3; ++i) {
    clamped[i] = c[i] > 0.0f ? (c[i] < 65408.0f ? c[i] : 65408.0f) : 0.0f;
    largest = clamped[i] > largest ? clamped[i] : largest;
  }
  int exponent = int(bit_cast<uint>(largest) >> 23) - 127 + 16;  // floor(log2) + 1 + 15
  if (exponent < 0) exponent = 0;
  const auto scale = [](int of) { return double(bit_cast<float>(uint(24 - of + 127) << 23)); };
  if (uint(largest * scale(exponent) + 0.5) == 512) ++exponent;
  uint code = uint(exponent) << 27;
  for (uint i = 0; i < 3; ++i) code |= uint(clamped[i] * scale(exponent) + 0.5) << (9 * i);
  return code;
}

// ---- texels -------------------------------------------------------------------------------------

MSL_INLINE unsigned char* texel_address(const abi::Texture& of, const abi::TextureLevel& level,
                                        uint x, uint y, uint slice) {
  return level.texels + ulong(slice) * level.slice_bytes + ulong(y) * level.row_bytes +
         ulong(x) * of.format.bytes;
}

// The fields of a format whose normalised components are packed into one integer: for red, green,
// blue and alpha the bits before it, and its width. All widths are 0 for every other format.
struct PackedFields {
  unsigned char offset[4], width[4];
};
MSL_INLINE PackedFields packed_fields(abi::TexelEncoding encoding) {
  using E = abi::TexelEncoding;
  switch (encoding) {
    case E::kB5G6R5:
      return {{11, 5, 0, 0}, {5, 6, 5, 0}};
    case E::kA1Bgr5:
      return {{11, 6, 1, 0}, {5, 5, 5, 1}};
    case E::kAbgr4:
      return {{12, 8, 4, 0}, {4, 4, 4, 4}};
    case E::kBgr5A1:
      return {{10, 5, 0, 15}, {5, 5, 5, 1}};
    case E::kBgr10A2:
      return {{20, 10, 0, 30}, {10, 10, 10, 2}};
    case E::kRgb10A2:
      return {{0, 10, 20, 30}, {10, 10, 10, 2}};
    default:
      return {};
  }
}
MSL_INLINE uint packed_code(const abi::Texture& of, const unsigned char* from) {
  return of.format.bytes == 2 ? value_at<ushort>(from) : value_at<uint>(from);
}

// Puts stored components in their places; those that the format lacks are 0, and alpha 1.
template <class V>
MSL_INLINE Texel<V> in_order(abi::TexelFormat format, const V* stored) {
  if (format.order == abi::TexelOrder::kAlpha) return {{V(0), V(0), V(0), stored[0]}};
  Texel<V> texel = {{V(0), V(0), V(0), V(1)}};
  for (uint i = 0; i < format.channels; ++i) texel.c[i] = stored[i];
  if (format.order == abi::TexelOrder::kBgra) {
    texel.c[0] = stored[2];
    texel.c[2] = stored[0];
  }
  return texel;
}
// Returns the component of a texel that is stored at a place.
template <class V>
MSL_INLINE V stored_at(abi::TexelFormat format, const Texel<V>& texel, uint place) {
  if (format.order == abi::TexelOrder::kAlpha) return texel.c[3];
  if (format.order == abi::TexelOrder::kBgra && place != 3) return texel.c[2 - place];
  return texel.c[place];
}

MSL_TEXEL_FUNCTION Texel<float> load_float(const abi::Texture& of, const unsigned char* from) {
  using E = abi::TexelEncoding;
  float c[4] = {0.0f, 0.0f, 0.0f, 1.0f};
  switch (of.format.encoding) {
    case E::kRg11B10Float: {
      const uint code = value_at<uint>(from);
      return {{small_float_value(code & 2047u, 6), small_float_value(code >> 11 & 2047u, 6),
               small_float_value(code >> 22, 5), 1.0f}};
    }
    case E::kRgb9E5Float:
      rgb9e5_value(value_at<uint>(from), c);
      return {{c[0], c[1], c[2], 1.0f}};
    default:
      break;
  }
  if (const PackedFields fields = packed_fields(of.format.encoding); fields.width[0] != 0) {
    const uint code = packed_code(of, from);
    for (int i = 0; i < 4; ++i) {
      const uint width = fields.width[i];
      if (width != 0) c[i] = unorm_value(code >> fields.offset[i] & ((1u << width) - 1), width);
    }
    return {{c[0], c[1], c[2], c[3]}};
  }
  for (uint i = 0; i < of.format.channels; ++i) {
    switch (of.format.encoding) {
      case E::kUnorm8:
        c[i] = unorm_value(from[i], 8);
        break;
      case E::kSnorm8:
        c[i] = snorm_value(value_at<signed char>(from + i), 8);
        break;
      case E::kSrgb8:
        c[i] = i == 3 ? unorm_value(from[i], 8) : srgb_value(from[i]);
        break;
      case E::kUnorm16:
        c[i] = unorm_value(value_at<ushort>(from + 2 * i), 16);
        break;
      case E::kSnorm16:
        c[i] = snorm_value(value_at<short>(from + 2 * i), 16);
        break;
      case E::kHalf:
        c[i] = float(value_at<half>(from + 2 * i));
        break;
      default:
        c[i] = value_at<float>(from + 4 * i);
        break;
    }
  }
  return in_order(of.format, c);
}

MSL_TEXEL_FUNCTION void store_float(const abi::Texture& of, unsigned char* to,
                                    const Texel<float>& texel) {
  using E = abi::TexelEncoding;
  switch (of.format.encoding) {
    case E::kRg11B10Float:
      return set_value_at(to, small_float_code(texel.c[0], 6) |
                                  small_float_code(texel.c[1], 6) << 11 |
                                  small_float_code(texel.c[2], 5) << 22);
    case E::kRgb9E5Float:
      return set_value_at(to, rgb9e5_code(texel.c));
    default:
      break;
  }
  if (const PackedFields fields = packed_fields(of.format.encoding); fields.width[0] != 0) {
    uint code = 0;
    for (int i = 0; i < 4; ++i) {
      if (fields.width[i] != 0) {
        code |= unorm_code(texel.c[i], fields.width[i]) << fields.offset[i];
      }
    }
    if (of.format.bytes == 2) return set_value_at(to, ushort(code));
    return set_value_at(to, code);
  }
  for (uint i = 0; i < of.format.channels; ++i) {
    const float value = stored_at(of.format, texel, i);
    switch (of.format.encoding) {
      case E::kUnorm8:
        to[i] = (unsigned char)unorm_code(value, 8);
        break;
      case E::kSnorm8:
        to[i] = (unsigned char)snorm_code(value, 8);
        break;
      case E::kSrgb8:
        to[i] = (unsigned char)(i == 3 ? unorm_code(value, 8) : srgb_code(value));
        break;
      case E::kUnorm16:
        set_value_at(to + 2 * i, ushort(unorm_code(value, 16)));
        break;
      case E::kSnorm16:
        set_value_at(to + 2 * i, short(snorm_code(value, 16)));
        break;
      case E::kHalf:
        set_value_at(to + 2 * i, half(value));
        break;
      default:
        set_value_at(to + 4 * i, value);
        break;
    }
  }
}

MSL_TEXEL_FUNCTION Texel<uint> load_integer(const abi::Texture& of, const unsigned char* from) {
  using E = abi::TexelEncoding;
  if (of.format.encoding == E::kRgb10A2Uint) {
    const uint code = value_at<uint>(from);
    return {{code & 1023u, code >> 10 & 1023u, code >> 20 & 1023u, code >> 30}};
  }
  uint c[4] = {};
  for (uint i = 0; i < of.format.channels; ++i) {
    switch (of.format.encoding) {
      case E::kUint8:
        c[i] = from[i];
        break;
      case E::kSint8:
        c[i] = uint(int(value_at<signed char>(from + i)));
        break;
      case E::kUint16:
        c[i] = value_at<ushort>(from + 2 * i);
        break;
      case E::kSint16:
        c[i] = uint(int(value_at<short>(from + 2 * i)));
        break;
      default:
        c[i] = value_at<uint>(from + 4 * i);
        break;
    }
  }
  return in_order(of.format, c);
}

MSL_INLINE uint at_most(uint value, uint most) { return value < most ? value : most; }
MSL_INLINE uint within(uint value, int least, int most) {
  const int number = int(value);
  return uint(number < least ? least : number > most ? most : number);
}

MSL_TEXEL_FUNCTION void store_integer(const abi::Texture& of, unsigned char* to,
                                      const Texel<uint>& texel) {
  using E = abi::TexelEncoding;
  if (of.format.encoding == E::kRgb10A2Uint) {
    return set_value_at(to, at_most(texel.c[0], 1023) | at_most(texel.c[1], 1023) << 10 |
                                at_most(texel.c[2], 1023) << 20 | at_most(texel.c[3], 3) << 30);
  }
  for (uint i = 0; i < of.format.channels; ++i) {
    const uint value = stored_at(of.format, texel, i);
    switch (of.format.encoding) {
      case E::kUint8:
        to[i] = (unsigned char)at_most(value, 255);
        break;
      case E::kSint8:
        to[i] = (unsigned char)within(value, -128, 127);
        break;
      case E::kUint16:
        set_value_at(to + 2 * i, ushort(at_most(value, 65535)));
        break;
      case E::kSint16:
        set_value_at(to + 2 * i, ushort(within(value, -32768, 32767)));
        break;
      default:
        set_value_at(to + 4 * i, value);
        break;
    }
  }
}

template <class V>
MSL_INLINE Texel<V> load_texel(const abi::Texture& of, const abi::TextureLevel& level, uint x,
                               uint y, uint slice) {
  const unsigned char* from = texel_address(of, level, x, y, slice);
  if constexpr (same<V, float>) {
    return load_float(of, from);
  } else {
    return load_integer(of, from);
  }
}
template <class V>
MSL_INLINE void store_texel(const abi::Texture& of, const abi::TextureLevel& level, uint x, uint y,
                            uint slice, const Texel<V>& texel) {
  unsigned char* to = texel_address(of, level, x, y, slice);
  if constexpr (same<V, float>) {
    store_float(of, to, texel);
  } else {
    store_integer(of, to, texel);
  }
}

}  // namespace msl::msl_impl

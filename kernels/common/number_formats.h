// Numbers of 8 and 4 bits as weights are stored, and their scales: what the codes stand for. The
// small floats are those of the Open Compute Project (OFP8 1.0, MX 1.0).
#pragma once
#include <metal_stdlib>

namespace metalops {
namespace formats {

// The bits of 2^23. GPUs' instructions have room for one constant; that this is one is hidden from
// compilers, so that it stays in a register and the mask beside it need not be brought to one for
// every code. size: not negative.
inline uint exponent_of(int size) { return 0x4b000000u | static_cast<uint>(size) >> 31; }

// A format has: bits, of a code, and decode(code), its value, which float holds exactly.

struct int8 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) { return static_cast<float>(static_cast<char>(code)); }
};
struct int4 {
  static constant constexpr int bits = 4;
  static inline float decode(uint code) { return static_cast<float>(int(code ^ 8u) - 8); }
};

// Small floats are halves of another bias: by way of half, since GPUs may take a float that is no
// normal number for zero. sign: its bit. shift: to where a half has it but for the sign.
inline float small_float(uint code, uint sign, uint shift, float scale) {
  const float magnitude =
      static_cast<float>(metal::as_type<half>(static_cast<ushort>((code & (sign - 1)) << shift)));
  return ((code & sign) != 0 ? -magnitude : magnitude) * scale;
}

// The code of a magnitude, given by its bits as a float, in a format of MANTISSA bits and that
// bias, rounded to the nearest one, of two to the even one. Beyond the largest one it is counted
// on.
template <int MANTISSA, int BIAS>
inline uint small_code(uint magnitude) {
  // Where numbers are that have no more digits than those without an exponent of their own.
  constexpr uint last_digit = uint(127 - BIAS + 24 - MANTISSA) << 23;
  if (magnitude < uint(128 - BIAS) << 23) {
    const float sum = metal::as_type<float>(magnitude) + metal::as_type<float>(last_digit);
    return metal::as_type<uint>(sum) - last_digit;
  }
  const uint odd = magnitude >> (23 - MANTISSA) & 1;
  return (magnitude - (uint(127 - BIAS) << 23) + ((1u << (22 - MANTISSA)) - 1) + odd) >>
         (23 - MANTISSA);
}

// encode(x), where a format has it, is the code nearest to x, of two the even one, as torch's CPU
// casts have it.

// Without infinities: what is too large becomes the largest number.
struct e4m3 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) {
    // Of NaN too the sign.
    return (code & 0x7fu) == 0x7fu ? metal::as_type<float>(0x7ff00000u | (code & 0x80u) << 24)
                                   : small_float(code, 0x80u, 7, 0x1p8f);
  }
  static inline uint encode(float x) {
    const uint bits = metal::as_type<uint>(x);
    const uint magnitude = bits & 0x7fffffffu;
    const uint code =
        magnitude > 0x7f800000u ? 0x7fu : metal::min(small_code<3, 7>(magnitude), 0x7eu);
    return code | (bits >> 24 & 0x80u);
  }
};
struct e5m2 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) { return small_float(code, 0x80u, 8, 1.0f); }
  static inline uint encode(float x) {
    const uint bits = metal::as_type<uint>(x);
    const uint magnitude = bits & 0x7fffffffu;
    const uint code =
        magnitude > 0x7f800000u ? 0x7fu : metal::min(small_code<2, 15>(magnitude), 0x7cu);
    return code | (bits >> 24 & 0x80u);
  }
};

// Without negative zero, whose code is the only NaN: also of what is too large.
template <int MANTISSA, int BIAS>
struct fnuz {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) {
    const uint magnitude = code & 0x7fu;
    const float value =
        magnitude >> MANTISSA == 0
            ? static_cast<float>(magnitude) *
                  metal::as_type<float>(uint(128 - BIAS - MANTISSA) << 23)
            : metal::as_type<float>((magnitude << (23 - MANTISSA)) + (uint(127 - BIAS) << 23));
    return code == 0x80u ? NAN : (code & 0x80u) != 0 ? -value : value;
  }
  static inline uint encode(float x) {
    const uint bits = metal::as_type<uint>(x);
    // A power of two beyond the largest number.
    constexpr uint beyond = uint(127 - BIAS + (0x80 >> MANTISSA)) << 23;
    const uint code = small_code<MANTISSA, BIAS>(metal::min(bits & 0x7fffffffu, beyond));
    return code == 0 ? 0u : code | (bits >> 24 & 0x80u);
  }
};
typedef fnuz<3, 8> e4m3fnuz;
typedef fnuz<2, 16> e5m2fnuz;

struct e2m1 {
  static constant constexpr int bits = 4;
  static inline float decode(uint code) { return small_float(code, 8u, 9, 0x1p14f); }
  static inline uint encode(float x) {
    const uint sign = metal::as_type<uint>(x) >> 31 << 3;
    const float m = metal::abs(x);
    const uint upper = uint(m > 2.5f) + uint(m >= 3.5f) + uint(m > 5.0f);
    const uint lower = uint(m > 0.25f) + uint(m >= 0.75f) + uint(m > 1.25f) + uint(m >= 1.75f);
    return sign | (metal::isnan(x) ? 7u : upper + lower);
  }
};

// A scale that is a power of two; 255 is NaN.
struct e8m0 {
  static constant constexpr int bits = 8;
  uchar code;

  static inline float decode(uint code) {
    if (code == 255) return NAN;
    return metal::as_type<float>(code == 0 ? 0x00400000u : code << 23);
  }
  // Of magnitudes, to the even one being upwards but from 2^-127 on.
  static inline uint encode(float x) {
    const uint bits = metal::as_type<uint>(x);
    const uint exponent = bits >> 23 & 0xffu;
    const uint rest = bits & 0x7fffffu;
    const bool is_up = exponent < 255 && rest >= (exponent > 0 ? 0x400000u : 0x400001u);
    return exponent + (is_up ? 1u : 0u);
  }
};

// What a scale multiplies by.
template <typename T>
inline float scale_of(T scale) {
  return static_cast<float>(scale);
}
inline float scale_of(e8m0 scale) { return e8m0::decode(scale.code); }

}  // namespace formats
}  // namespace metalops

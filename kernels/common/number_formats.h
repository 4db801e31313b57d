// 8-bit and 4-bit number formats of quantised weights and their scales: decoding and encoding. The
// small floats are those of the Open Compute Project (OFP8 1.0, MX 1.0).
#pragma once
#include <metal_stdlib>

namespace metalops {
namespace formats {

// Returns the bits of 2^23 in a way that compilers cannot see to be constant. GPU instructions have
// room for one constant: this one stays in a register, so that a mask used with it can be the
// immediate and need not be loaded for every code. size: any non-negative number.
inline uint exponent_of(int size) { return 0x4b000000u | static_cast<uint>(size) >> 31; }

// Likewise any bits. exponent: the result of exponent_of().
inline uint kept(uint bits, uint exponent) { return exponent == 0x4b000000u ? bits : 1u; }

// A format has `bits`, the size of a code, and decode(code), its value, which float represents
// exactly.

struct int8 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) { return static_cast<float>(static_cast<char>(code)); }
};
struct int4 {
  static constant constexpr int bits = 4;
  static inline float decode(uint code) { return static_cast<float>(int(code ^ 8u) - 8); }
};

// Decodes a small float by way of half, which differs in the exponent's bias: GPUs may flush
// subnormal floats to zero. sign: the code's sign bit; shift: moves exponent and mantissa to where
// half has them.
inline float small_float(uint code, uint sign, uint shift, float scale) {
  const float magnitude =
      static_cast<float>(metal::as_type<half>(static_cast<ushort>((code & (sign - 1)) << shift)));
  return ((code & sign) != 0 ? -magnitude : magnitude) * scale;
}

// Returns the code of a magnitude (the bits of a float) in a format of MANTISSA bits and the given
// bias, rounded to nearest, ties to even. Codes continue past the largest number; callers clamp
// them.
template <int MANTISSA, int BIAS>
inline uint small_code(uint magnitude) {
  // The float whose last digit is the format's subnormal step: adding it rounds subnormals.
  constexpr uint last_digit = uint(127 - BIAS + 24 - MANTISSA) << 23;
  if (magnitude < uint(128 - BIAS) << 23) {
    const float sum = metal::as_type<float>(magnitude) + metal::as_type<float>(last_digit);
    return metal::as_type<uint>(sum) - last_digit;
  }
  const uint odd = magnitude >> (23 - MANTISSA) & 1;
  return (magnitude - (uint(127 - BIAS) << 23) + ((1u << (22 - MANTISSA)) - 1) + odd) >>
         (23 - MANTISSA);
}

// encode(x), if a format has it, returns the code nearest to x, ties to even, as torch's CPU casts
// do.

// A format without infinities: values out of range saturate.
struct e4m3 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) {
    // NaN keeps its sign.
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

// Formats without negative zero. Its code is the only NaN, and values out of range become NaN too.
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
    // The smallest power of two out of range; its code is that of NaN.
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
  // Returns the code of x's magnitude, rounded to nearest; ties go up, and so does all between
  // 2^-127 and 2^-126.
  static inline uint encode(float x) {
    const uint bits = metal::as_type<uint>(x);
    const uint exponent = bits >> 23 & 0xffu;
    const uint rest = bits & 0x7fffffu;
    const bool is_up = exponent < 255 && rest >= (exponent > 0 ? 0x400000u : 0x400001u);
    return exponent + (is_up ? 1u : 0u);
  }
};

// Returns the factor that a scale stands for.
template <typename T>
inline float scale_of(T scale) {
  return static_cast<float>(scale);
}
inline float scale_of(e8m0 scale) { return e8m0::decode(scale.code); }

}  // namespace formats
}  // namespace metalops

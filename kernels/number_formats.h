// Numbers of 8 and 4 bits as weights are stored, and their scales: what the codes stand for. The
// small floats are those of the Open Compute Project (OFP8 1.0, MX 1.0).
#pragma once
#include <metal_stdlib>

namespace metalops {
namespace formats {

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

struct e4m3 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) {
    return (code & 0x7fu) == 0x7fu ? NAN : small_float(code, 0x80u, 7, 0x1p8f);
  }
  // Of the nearest value, even codes winning ties; of the largest for those beyond it.
  static inline uint encode(float x) {
    const uint bits = metal::as_type<uint>(x);
    const uint sign = bits >> 31 << 7;
    const uint magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      return sign | 0x7fu;
    }
    if (magnitude < 0x3c800000u) {  // 2^-6: those below have steps of 2^-9
      return sign | static_cast<uint>(metal::rint(metal::as_type<float>(magnitude) * 512));
    }
    const uint rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return sign | metal::min((rounded >> 20) - (120u << 3), 0x7eu);
  }
};
struct e5m2 {
  static constant constexpr int bits = 8;
  static inline float decode(uint code) { return small_float(code, 0x80u, 8, 1.0f); }
};
struct e2m1 {
  static constant constexpr int bits = 4;
  static inline float decode(uint code) { return small_float(code, 8u, 9, 0x1p14f); }
  // As above.
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
  uchar code;
};

// What a scale multiplies by.
template <typename T>
inline float scale_of(T scale) {
  return static_cast<float>(scale);
}
inline float scale_of(e8m0 scale) {
  if (scale.code == 255) return NAN;
  return metal::as_type<float>(scale.code == 0 ? 0x00400000u : uint(scale.code) << 23);
}

}  // namespace formats
}  // namespace metalops

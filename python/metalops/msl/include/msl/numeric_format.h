// metal_packed_numeric: elements of 2, 4 and 8 bits for tensors, and their packing.
//
// A format is an element type without arithmetic: operations dequantise it. The first element of a
// byte is in its lowest bits. fp4 and fp8 are the OCP formats (OFP8 1.0, MX 1.0).
#pragma once

#include <msl/half.h>

namespace msl::metal {

struct int4b_format {};
struct uint4b_format {};
struct int2b_format {};
struct uint2b_format {};
struct metal_fp4_e2m1_format {};
struct metal_fp8_e4m3_format {};
struct metal_fp8_e5m2_format {};
struct metal_fp8_ue8m0_format {};

}  // namespace msl::metal

namespace msl::msl_impl {

// bits: of an element. decode(code): its value; exact in float. encode(value): the code of the
// nearest value, ties to even; too large values saturate, except that e5m2 has infinity.
template <class F>
struct Format {
  static constexpr bool exists = false;
};

template <int Bits, bool IsSigned>
struct IntegerFormat {
  static constexpr bool exists = true;
  static constexpr int bits = Bits;
  static MSL_INLINE constexpr float decode(uint code) {
    return float(IsSigned ? int(code << (32 - Bits)) >> (32 - Bits) : int(code));
  }
  static MSL_INLINE constexpr uint encode(float value) {
    constexpr float low = IsSigned ? -float(1 << (Bits - 1)) : 0.0f;
    constexpr float high = float((1 << (Bits - IsSigned)) - 1);
    const float kept = value > high ? high : value > low ? value : low;
    // Adding 1.5 * 2^23 rounds to an integer, ties to even.
    const int rounded = int((kept + 12582912.0f) - 12582912.0f);
    return uint(rounded) & ((1u << Bits) - 1u);
  }
};
template <>
struct Format<metal::int4b_format> : IntegerFormat<4, true> {};
template <>
struct Format<metal::uint4b_format> : IntegerFormat<4, false> {};
template <>
struct Format<metal::int2b_format> : IntegerFormat<2, true> {};
template <>
struct Format<metal::uint2b_format> : IntegerFormat<2, false> {};

// A sign, an exponent and a mantissa, with denormals. Max: the code of the largest finite number.
// Infinity, NaN: their codes; Max where there are none.
template <int Exponent, int Mantissa, uint Max, uint Infinity, uint Nan>
struct FloatFormat {
  static constexpr bool exists = true;
  static constexpr int bits = 1 + Exponent + Mantissa;
  static constexpr uint sign = 1u << (bits - 1);
  static constexpr int bias = (1 << (Exponent - 1)) - 1;

  static MSL_INLINE constexpr float decode(uint code) {
    const uint magnitude = code & (sign - 1);
    // The exponent has float's bias; the product is exact also for denormals.
    const float scale = bit_cast<float>(uint(127 + 127 - bias) << 23);
    const float number = bit_cast<float>(magnitude << (23 - Mantissa)) * scale;
    const bool is_finite = magnitude <= Max;
    const uint special = magnitude == Infinity ? 0x7f800000u : 0x7fc00000u;
    const uint value = is_finite ? bit_cast<uint>(number) : special;
    return bit_cast<float>(value | ((code & sign) != 0 ? 0x80000000u : 0u));
  }
  static MSL_INLINE constexpr uint encode(float value) {
    const uint whole = bit_cast<uint>(value);
    const uint minus = whole >> 31 != 0 ? sign : 0u;
    const uint magnitude = whole & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return minus | Nan;
    if (magnitude == 0x7f800000u) return minus | Infinity;
    // In units of the smallest denormal, to which floats below the normal numbers round.
    const float smallest_normal = bit_cast<float>(uint(128 - bias) << 23);
    uint code = 0;
    if (bit_cast<float>(magnitude) < smallest_normal) {
      const float unit = bit_cast<float>(uint(128 - bias - Mantissa) << 23);
      code = uint((bit_cast<float>(magnitude) / unit + 8388608.0f) - 8388608.0f);
    } else {
      const uint rounded =
          magnitude + (1u << (22 - Mantissa)) - 1u + ((magnitude >> (23 - Mantissa)) & 1u);
      code = (rounded >> (23 - Mantissa)) - (uint(127 - bias) << Mantissa);
    }
    return minus | (code <= Max ? code : Infinity != Max && Infinity != Nan ? Infinity : Max);
  }
};
template <>
struct Format<metal::metal_fp4_e2m1_format> : FloatFormat<2, 1, 7, 7, 7> {};
template <>
struct Format<metal::metal_fp8_e4m3_format> : FloatFormat<4, 3, 0x7e, 0x7e, 0x7f> {};
template <>
struct Format<metal::metal_fp8_e5m2_format> : FloatFormat<5, 2, 0x7b, 0x7c, 0x7e> {};

// A power of two; 255 is NaN.
template <>
struct Format<metal::metal_fp8_ue8m0_format> {
  static constexpr bool exists = true;
  static constexpr int bits = 8;
  static MSL_INLINE constexpr float decode(uint code) {
    if (code == 255) return bit_cast<float>(0x7fc00000u);
    return bit_cast<float>(code == 0 ? 0x00400000u : code << 23);
  }
  static MSL_INLINE constexpr uint encode(float value) {
    const uint whole = bit_cast<uint>(value);
    if (whole > 0x7f800000u) return 255;  // NaN or less than zero
    if (whole == 0x7f800000u) return 254;
    const uint rounded = whole + 0x3fffffu + ((whole >> 23) & 1u);
    return rounded >> 23 > 254 ? 254 : rounded >> 23;
  }
};

template <class F>
inline constexpr bool is_format = Format<metal::remove_cv_t<F>>::exists;

// Returns the code of element number `index` from `bytes` on.
template <class F>
MSL_INLINE constexpr uint packed_code(const uchar* bytes, long index) {
  constexpr int bits = Format<F>::bits;
  if constexpr (bits == 8) {
    return bytes[index];
  } else {
    constexpr int in_byte = 8 / bits;
    const uint byte = bytes[index / in_byte];
    return (byte >> (uint(index % in_byte) * bits)) & ((1u << bits) - 1u);
  }
}

}  // namespace msl::msl_impl

namespace msl::metal {

template <class T>
struct is_numeric_format : bool_constant<msl_impl::is_format<T>> {};
template <class T>
inline constexpr bool is_numeric_format_v = msl_impl::is_format<T>;

// N packed numbers of a format.
template <class F, size_t N>
struct packed_numeric_type {
  static_assert(msl_impl::is_format<F>, "packed_numeric_type: not a numeric format");
  static_assert(N * msl_impl::Format<F>::bits % 8 == 0,
                "packed_numeric_type: the elements must fill whole bytes");
  using format_type = F;
  using storage_type = array<uchar, N * msl_impl::Format<F>::bits / 8>;

  static MSL_INLINE constexpr size_t size() { return N; }
  MSL_INLINE constexpr storage_type& storage() { return storage_; }
  MSL_INLINE constexpr const storage_type& storage() const { return storage_; }

  template <class T>
  MSL_INLINE constexpr vec<T, int(N)> unpack() const {
    vec<T, int(N)> values;
    for (size_t i = 0; i < N; ++i) {
      values[i] =
          T(msl_impl::Format<F>::decode(msl_impl::packed_code<F>(storage_.data(), long(i))));
    }
    return values;
  }
  template <class T>
  static MSL_INLINE constexpr packed_numeric_type pack(const vec<T, int(N)>& values) {
    constexpr int bits = msl_impl::Format<F>::bits;
    packed_numeric_type packed = {};
    for (size_t i = 0; i < N; ++i) {
      const uint code = msl_impl::Format<F>::encode(float(values[i]));
      packed.storage_[i * bits / 8] |= uchar(code << (i * bits % 8));
    }
    return packed;
  }

  storage_type storage_;
};

}  // namespace msl::metal

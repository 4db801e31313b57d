// Samplers and their options. A sampler is one number (msl/texture_abi.h), whether the source
// declares it or the host binds it.
#pragma once

#include <msl/half.h>

namespace msl::metal {

enum class coord { normalized, pixel };
enum class address { clamp_to_edge, clamp_to_zero, clamp_to_border, repeat, mirrored_repeat };
enum class s_address { clamp_to_edge, clamp_to_zero, clamp_to_border, repeat, mirrored_repeat };
enum class t_address { clamp_to_edge, clamp_to_zero, clamp_to_border, repeat, mirrored_repeat };
enum class r_address { clamp_to_edge, clamp_to_zero, clamp_to_border, repeat, mirrored_repeat };
enum class filter { nearest, linear };
enum class mag_filter { nearest, linear };
enum class min_filter { nearest, linear };
enum class mip_filter { none, nearest, linear };
enum class compare_func {
  none,
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  always,
  never
};
enum class border_color { transparent_black, opaque_black, opaque_white };
struct max_anisotropy {
  int value;
  MSL_INLINE explicit constexpr max_anisotropy(int v) : value(v) {}
};
struct lod_clamp {
  float min, max;
  MSL_INLINE constexpr lod_clamp(float low, float high) : min(low), max(high) {}
};

}  // namespace msl::metal

namespace msl::msl_impl {

// The bits of a sampler without options: nearest texels of the first level, coordinates clamped to
// the edge, and any level of detail.
constexpr abi::u64 kPlainSampler =
    abi::u64(0x7c00) << abi::kMaxLod.offset | abi::u64(1) << abi::kMaxAnisotropy.offset;

MSL_INLINE constexpr unsigned sampler_field(abi::u64 bits, abi::SamplerField field) {
  return unsigned(bits >> field.offset) & ((1u << field.width) - 1);
}
MSL_INLINE constexpr abi::u64 with_field(abi::u64 bits, abi::SamplerField field, unsigned value) {
  const abi::u64 mask = ((abi::u64(1) << field.width) - 1) << field.offset;
  return (bits & ~mask) | (abi::u64(value) << field.offset & mask);
}
MSL_INLINE constexpr abi::u64 with_address(abi::u64 bits, int axis, unsigned mode) {
  return with_field(bits, {abi::kAddress.offset + 3 * unsigned(axis), abi::kAddress.width}, mode);
}

MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::coord o) {
  return with_field(bits, abi::kPixelCoordinates, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::address o) {
  return with_address(with_address(with_address(bits, 0, unsigned(o)), 1, unsigned(o)), 2,
                      unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::s_address o) {
  return with_address(bits, 0, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::t_address o) {
  return with_address(bits, 1, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::r_address o) {
  return with_address(bits, 2, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::filter o) {
  return with_field(with_field(bits, abi::kMagFilter, unsigned(o)), abi::kMinFilter, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::mag_filter o) {
  return with_field(bits, abi::kMagFilter, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::min_filter o) {
  return with_field(bits, abi::kMinFilter, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::mip_filter o) {
  return with_field(bits, abi::kMipFilter, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::compare_func o) {
  return with_field(bits, abi::kCompare, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::border_color o) {
  return with_field(bits, abi::kBorder, unsigned(o));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::max_anisotropy o) {
  return with_field(bits, abi::kMaxAnisotropy, unsigned(o.value));
}
MSL_INLINE constexpr abi::u64 with_option(abi::u64 bits, metal::lod_clamp o) {
  return with_field(with_field(bits, abi::kMinLod, bit_cast<ushort>(half(o.min))), abi::kMaxLod,
                    bit_cast<ushort>(half(o.max)));
}

}  // namespace msl::msl_impl

namespace msl::metal {

struct sampler {
  abi::u64 msl_bits;

  template <class... Options, class = decltype((msl_impl::with_option(0, *(Options*)0), ..., 0))>
  MSL_INLINE constexpr explicit sampler(Options... options) : msl_bits(msl_impl::kPlainSampler) {
    ((msl_bits = msl_impl::with_option(msl_bits, options)), ...);
  }
};

// Where a texture with several levels is sampled.
struct level {
  float value;
  MSL_INLINE explicit constexpr level(float lod) : value(lod) {}
};
struct bias {
  float value;
  MSL_INLINE explicit constexpr bias(float v) : value(v) {}
};
struct min_lod_clamp {
  float value;
  MSL_INLINE explicit constexpr min_lod_clamp(float lod) : value(lod) {}
};

}  // namespace msl::metal

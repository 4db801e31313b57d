// metal_pack: conversions between vectors and packed integers.
#pragma once

#include <msl/integer.h>

namespace msl::msl_impl {

// Returns the nearest of 2^bits - 1 equal steps from 0 to 1 (unorm), or of 2^(bits-1) - 1 from 0 to
// 1 and to -1 (snorm).
MSL_INLINE uint to_unorm(float x, uint bits) {
  return uint(rint(saturate(x) * float((1u << bits) - 1u)));
}
MSL_INLINE uint to_snorm(float x, uint bits) {
  const int value = int(rint(clamp(x, -1.0f, 1.0f) * float((1u << (bits - 1)) - 1u)));
  return uint(value) & ((1u << bits) - 1u);
}
MSL_INLINE float from_unorm(uint x, uint bits) {
  return float(x & ((1u << bits) - 1u)) / float((1u << bits) - 1u);
}
MSL_INLINE float from_snorm(uint x, uint bits) {
  const float value = float(metal::extract_bits(int(x), 0u, bits)) / float((1u << (bits - 1)) - 1u);
  return value < -1.0f ? -1.0f : value;
}
MSL_INLINE float to_srgb(float x) {
  return x <= 0.0031308f ? 12.92f * x : 1.055f * pow(x, 1.0f / 2.4f) - 0.055f;
}
MSL_INLINE float from_srgb(float x) {
  return x <= 0.04045f ? x / 12.92f : pow((x + 0.055f) / 1.055f, 2.4f);
}

}  // namespace msl::msl_impl

namespace msl::metal {

#define MSL_PACK(T)                                                                                \
  MSL_INLINE uint pack_##T##_to_unorm4x8(vec<T, 4> v) {                                            \
    return msl_impl::to_unorm(v.x, 8) | msl_impl::to_unorm(v.y, 8) << 8 |                          \
           msl_impl::to_unorm(v.z, 8) << 16 | msl_impl::to_unorm(v.w, 8) << 24;                    \
  }                                                                                                \
  MSL_INLINE uint pack_##T##_to_snorm4x8(vec<T, 4> v) {                                            \
    return msl_impl::to_snorm(v.x, 8) | msl_impl::to_snorm(v.y, 8) << 8 |                          \
           msl_impl::to_snorm(v.z, 8) << 16 | msl_impl::to_snorm(v.w, 8) << 24;                    \
  }                                                                                                \
  MSL_INLINE uint pack_##T##_to_srgb_unorm4x8(vec<T, 4> v) {                                       \
    return msl_impl::to_unorm(msl_impl::to_srgb(v.x), 8) |                                         \
           msl_impl::to_unorm(msl_impl::to_srgb(v.y), 8) << 8 |                                    \
           msl_impl::to_unorm(msl_impl::to_srgb(v.z), 8) << 16 | msl_impl::to_unorm(v.w, 8) << 24; \
  }                                                                                                \
  MSL_INLINE uint pack_##T##_to_unorm2x16(vec<T, 2> v) {                                           \
    return msl_impl::to_unorm(v.x, 16) | msl_impl::to_unorm(v.y, 16) << 16;                        \
  }                                                                                                \
  MSL_INLINE uint pack_##T##_to_snorm2x16(vec<T, 2> v) {                                           \
    return msl_impl::to_snorm(v.x, 16) | msl_impl::to_snorm(v.y, 16) << 16;                        \
  }                                                                                                \
  MSL_INLINE uint pack_##T##_to_unorm10a2(vec<T, 4> v) {                                           \
    return msl_impl::to_unorm(v.x, 10) | msl_impl::to_unorm(v.y, 10) << 10 |                       \
           msl_impl::to_unorm(v.z, 10) << 20 | msl_impl::to_unorm(v.w, 2) << 30;                   \
  }                                                                                                \
  MSL_INLINE ushort pack_##T##_to_unorm565(vec<T, 3> v) {                                          \
    return ushort(msl_impl::to_unorm(v.x, 5) | msl_impl::to_unorm(v.y, 6) << 5 |                   \
                  msl_impl::to_unorm(v.z, 5) << 11);                                               \
  }                                                                                                \
  MSL_INLINE vec<T, 4> unpack_unorm4x8_to_##T(uint x) {                                            \
    return vec<T, 4>(msl_impl::from_unorm(x, 8), msl_impl::from_unorm(x >> 8, 8),                  \
                     msl_impl::from_unorm(x >> 16, 8), msl_impl::from_unorm(x >> 24, 8));          \
  }                                                                                                \
  MSL_INLINE vec<T, 4> unpack_snorm4x8_to_##T(uint x) {                                            \
    return vec<T, 4>(msl_impl::from_snorm(x, 8), msl_impl::from_snorm(x >> 8, 8),                  \
                     msl_impl::from_snorm(x >> 16, 8), msl_impl::from_snorm(x >> 24, 8));          \
  }                                                                                                \
  MSL_INLINE vec<T, 4> unpack_unorm4x8_srgb_to_##T(uint x) {                                       \
    return vec<T, 4>(msl_impl::from_srgb(msl_impl::from_unorm(x, 8)),                              \
                     msl_impl::from_srgb(msl_impl::from_unorm(x >> 8, 8)),                         \
                     msl_impl::from_srgb(msl_impl::from_unorm(x >> 16, 8)),                        \
                     msl_impl::from_unorm(x >> 24, 8));                                            \
  }                                                                                                \
  MSL_INLINE vec<T, 2> unpack_unorm2x16_to_##T(uint x) {                                           \
    return vec<T, 2>(msl_impl::from_unorm(x, 16), msl_impl::from_unorm(x >> 16, 16));              \
  }                                                                                                \
  MSL_INLINE vec<T, 2> unpack_snorm2x16_to_##T(uint x) {                                           \
    return vec<T, 2>(msl_impl::from_snorm(x, 16), msl_impl::from_snorm(x >> 16, 16));              \
  }                                                                                                \
  MSL_INLINE vec<T, 4> unpack_unorm10a2_to_##T(uint x) {                                           \
    return vec<T, 4>(msl_impl::from_unorm(x, 10), msl_impl::from_unorm(x >> 10, 10),               \
                     msl_impl::from_unorm(x >> 20, 10), msl_impl::from_unorm(x >> 30, 2));         \
  }                                                                                                \
  MSL_INLINE vec<T, 3> unpack_unorm565_to_##T(ushort x) {                                          \
    return vec<T, 3>(msl_impl::from_unorm(x, 5), msl_impl::from_unorm(uint(x) >> 5, 6),            \
                     msl_impl::from_unorm(uint(x) >> 11, 5));                                      \
  }
MSL_PACK(float)
MSL_PACK(half)
#undef MSL_PACK

}  // namespace msl::metal

// Reports of sanitized kernels to the device about textures; no code in other kernels.
#pragma once

#include <msl/tensor_checks.h>
#include <msl/texel.h>

namespace msl::msl_impl {

// at: the texel; slice: its array element or face.
MSL_INLINE void report_texel_outside(const abi::Texture& of, const uint* at, uint slice) {
#if MSL_INSTRUMENTED
  using K = abi::TextureKind;
  const bool has_y = of.kind != K::k1d && of.kind != K::k1dArray && of.kind != K::kBuffer;
  const bool has_slice = of.kind == K::k1dArray || of.kind == K::k2dArray || of.kind == K::kCube ||
                         of.kind == K::kCubeArray;
  report_misuse(abi::Misuse::kTexelOutside, "texture", abi::i64(at[0]),
                has_y ? abi::i64(at[1]) : -1, of.kind == K::k3d ? abi::i64(at[2]) : -1,
                has_slice ? abi::i64(slice) : -1);
#endif
}
MSL_INLINE void check_level(const abi::Texture& of, uint level) {
#if MSL_INSTRUMENTED
  if (level >= of.level_count) {
    report_misuse(abi::Misuse::kLevelOutside, "texture", abi::i64(level), abi::i64(of.level_count),
                  0, 0);
  }
#endif
}
// T: of the texture's components.
template <class T>
MSL_INLINE void check_filter(abi::u64 sampler) {
#if MSL_INSTRUMENTED
  if (is_integer_scalar<T> && (sampler & 3) != 0) {
    report_misuse(abi::Misuse::kLinearInteger, "texture", 0, 0, 0, 0);
  }
#endif
}

}  // namespace msl::msl_impl

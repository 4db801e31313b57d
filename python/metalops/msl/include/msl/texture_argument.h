// Textures and samplers as arguments of kernels: what a kernel's parameter declares, and the handle
// made from the host's binding.
#pragma once

#include <msl/signature.h>
#include <msl/texture.h>

namespace msl::msl_impl {

template <class T>
constexpr abi::TextureArgument texture_argument(unsigned count) {
  using A = abi::TextureAccess;
  constexpr metal::access access = T::msl_access;
  return {T::msl_kind, texture_component<typename T::Component>(),
          access == metal::access::sample  ? A::kSample
          : access == metal::access::read  ? A::kRead
          : access == metal::access::write ? A::kWrite
                                           : A::kReadWrite,
          T::msl_is_depth, count};
}

// The texture type of a kernel's parameter, alone or as the element of an array.
template <class P>
struct TextureParameter {
  using Type = P;
  static constexpr unsigned count = 1;
};
template <class P>
struct TextureParameter<const P> : TextureParameter<P> {};
template <class T, size_t N>
struct TextureParameter<metal::array<T, N>> {
  using Type = metal::remove_cv_t<T>;
  static constexpr unsigned count = N;
};

template <class P>
inline constexpr abi::TextureArgument texture_argument_of =
    texture_argument<typename TextureParameter<P>::Type>(TextureParameter<P>::count);

template <class P>
MSL_INLINE metal::remove_cv_t<P> texture_of(const abi::Texture* const* bound) {
  metal::remove_cv_t<P> made = {};
  if constexpr (TextureParameter<P>::count == 1) {
    made.msl_texture = bound[0];
  } else {
    for (unsigned i = 0; i < TextureParameter<P>::count; ++i) {
      const_cast<typename TextureParameter<P>::Type&>(made[i]).msl_texture = bound[i];
    }
  }
  return made;
}
MSL_INLINE metal::sampler sampler_of(abi::u64 bits) {
  metal::sampler made;
  made.msl_bits = bits;
  return made;
}

}  // namespace msl::msl_impl

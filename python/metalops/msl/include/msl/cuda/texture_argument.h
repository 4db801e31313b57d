// Textures and samplers as arguments of kernels on NVIDIA's GPUs: one table comes with the launch.
//
// It begins with an entry of 8 bytes for each texture and sampler, in the order of the parameters
// (each texture of an array has its own): a sampler's bits, or how many bytes after the table's
// begin the abi::Texture is, of which only the levels that exist are there; 0 for a texture that a
// function constant switches off.
#pragma once

#include <msl/cuda/launch.h>
#include <msl/texture_argument.h>

namespace msl::abi {

// A kernel's parameter that is a texture or a sampler.
struct HandleArgument {
  u32 index;                // of the first texture, or of the sampler
  u32 is_on;                // 0 if a function constant switches it off
  TextureArgument texture;  // count: 0 for a sampler
};

}  // namespace msl::abi

namespace msl::msl_support {

// How many entries of the table a parameter has.
template <class P>
inline constexpr u32 entries_of = msl_impl::TextureParameter<P>::count;

template <class P>
inline constexpr abi::TextureArgument texture_argument = msl_impl::texture_argument_of<P>;
template <>
inline constexpr abi::TextureArgument texture_argument<metal::sampler> = {};

// entry: the first one of the parameter.
template <class P>
MSL_INLINE P handle(const Launch& launch, u32 entry) {
  const u8* table = address<const u8>(launch, abi::kHandleTable);
  const u64* entries = reinterpret_cast<const u64*>(table) + entry;
  if constexpr (msl_impl::same<P, metal::sampler>) {
    return msl_impl::sampler_of(*entries);
  } else {
    const abi::Texture* bound[entries_of<P>];
    for (u32 i = 0; i < entries_of<P>; ++i) {
      bound[i] =
          entries[i] == 0 ? nullptr : reinterpret_cast<const abi::Texture*>(table + entries[i]);
    }
    return msl_impl::texture_of<P>(bound);
  }
}

}  // namespace msl::msl_support

// Textures over tensors, for kernels that take textures.
#pragma once
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/util/ArrayRef.h>
#include <msl/abi.h>

#include <string>
#include <string_view>

#include <exec/exec.h>

namespace metalops {

// Returns true if a kernel takes a texture of a later index, and none of this one: nothing is
// bound.
bool skips_texture(const exec::Kernel& kernel, unsigned index);

// Returns the texture that is bound: the description of metalops.texture (an msl::abi::Texture
// without addresses, of which only the levels that exist are given) over the memory of its levels.
// Raises TypeError if the kernel's texture of that index has another kind or other components, or
// writes a format that kernels cannot write, RuntimeError if the kernel has no such texture, a
// level is not on mps, or its storage has become too small.
msl::abi::Texture as_texture(const exec::Kernel& kernel, unsigned index,
                             std::string_view description, c10::ArrayRef<at::Tensor> levels);

// Returns the same for a texture that kernels find in memory, as one of this declaration. `name`:
// of the argument, for errors.
constexpr auto kAnyComponent = static_cast<msl::abi::TextureComponent>(3);
msl::abi::Texture as_texture(const msl::abi::TextureArgument& wanted, const std::string& name,
                             std::string_view description, c10::ArrayRef<at::Tensor> levels);

// Bind to a kernel between its startEncoding and dispatch.
void set_texture(at::native::mps::MetalKernelFunction& kernel, unsigned index,
                 std::string_view description, c10::ArrayRef<at::Tensor> levels);
void set_sampler(at::native::mps::MetalKernelFunction& kernel, unsigned index, uint64_t sampler);

}  // namespace metalops

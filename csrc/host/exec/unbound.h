// Arguments to which nothing need be bound: those that a function constant switches off, and those
// that a kernel does not use. To use one is undefined in Metal. Here one that is switched off reads
// as zeros, and all other accesses end the launch with an error.
#pragma once

#include <deque>

#include <exec/exec.h>

namespace metalops::exec {

// Returns an address in memory of zeros that cannot be written and is larger than what indices of
// 32 bits reach in both directions; null if there is no address space for it.
void* memory_of_zeros();

// Return true for an address in this memory. Can be called by signal handlers.
bool is_memory_of_zeros(const void* address);
bool is_memory_of_nothing(const void* address);

// The launch with something bound to every argument that is switched off or not used. Under a
// sanitizer these remain null, so that it reports a use.
class WithUnbound {
 public:
  WithUnbound(const Kernel& kernel, const KernelNotes* notes, const Launch& launch);
  WithUnbound(const WithUnbound&) = delete;

  Launch launch;

 private:
  void bind_buffer(const msl::abi::Argument& argument, void* memory);
  void bind_textures(const msl::abi::Argument& argument);

  std::deque<msl::abi::Tensor> tensors_;
  std::deque<msl::abi::Texture> made_;
  const msl::abi::Texture* textures_[msl::abi::kMaxTextures]{};
  msl::abi::u64 samplers_[msl::abi::kMaxSamplers]{};
};

}  // namespace metalops::exec

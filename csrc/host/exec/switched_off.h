// Arguments that a function constant switches off. To use one is undefined in Metal; here it reads
// as zeros, and a write ends the launch with an error.
#pragma once

#include <deque>

#include <exec/exec.h>

namespace metalops::exec {

// Returns an address in memory of zeros that cannot be written and is larger than what indices of
// 32 bits reach in both directions; null if there is no address space for it.
void* memory_of_zeros();
// Returns true for an address in this memory. Can be called by signal handlers.
bool is_memory_of_zeros(const void* address);

// The launch with something bound to every argument that is switched off. Under a sanitizer these
// remain null, so that it reports a use.
class WithSwitchedOff {
 public:
  WithSwitchedOff(const Kernel& kernel, const KernelNotes& notes, const Launch& launch);
  WithSwitchedOff(const WithSwitchedOff&) = delete;

  Launch launch;

 private:
  void bind_textures(const msl::abi::Argument& argument);

  msl::abi::Tensor tensor_{};
  std::deque<msl::abi::Texture> made_;
  const msl::abi::Texture* textures_[msl::abi::kMaxTextures]{};
  msl::abi::u64 samplers_[msl::abi::kMaxSamplers]{};
};

}  // namespace metalops::exec

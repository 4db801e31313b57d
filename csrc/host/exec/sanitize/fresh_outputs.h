// Device memory that nothing has written since it was allocated, and what a sanitized launch leaves
// so of its outputs.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <exec/exec.h>

namespace metalops::exec {

// Fills an allocation with a pattern and remembers it, until it is freed; does nothing unless
// kernels are sanitized. Called by the allocator.
void note_allocation(void* memory, uint64_t bytes);
void note_free(const void* memory);

class FreshOutputs {
 public:
  // Looks which outputs of the launch lie in allocations that hold the pattern alone.
  void begin(const Kernel& kernel, const Launch& launch);
  void write(const void* address, uint64_t bytes) {
    for (Output& output : outputs_) {
      const uint64_t offset = uint64_t(static_cast<const uint8_t*>(address) - output.memory);
      if (offset < output.written.size()) note(output, offset, bytes);
    }
  }
  // Reports elements that hold the pattern still.
  void end();

 private:
  struct Output {
    uint32_t index;
    uint32_t element_bytes;
    const uint8_t* memory;
    std::vector<bool> written;  // for each byte
  };
  static void note(Output& output, uint64_t offset, uint64_t bytes);

  std::vector<Output> outputs_;
};

}  // namespace metalops::exec

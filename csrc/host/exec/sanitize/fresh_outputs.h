// Tracks device memory that nothing has written since it was allocated, and the elements of outputs
// that a sanitized launch leaves unwritten.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <exec/exec.h>

namespace metalops::exec {

// Fills an allocation with a pattern and records it until it is freed; does nothing unless kernels
// are sanitized. Called by the allocator.
void note_allocation(void* memory, uint64_t bytes);
void note_free(const void* memory);

class FreshOutputs {
 public:
  // Finds the outputs of the launch in allocations that hold only the pattern.
  void begin(const Kernel& kernel, const Launch& launch);
  void write(const void* address, uint64_t bytes) {
    for (Output& output : outputs_) {
      const uint64_t offset = uint64_t(static_cast<const uint8_t*>(address) - output.memory);
      if (offset < output.written.size()) note(output, offset, bytes);
    }
  }
  // Reports elements that still hold the pattern.
  void end();

 private:
  struct Output {
    uint32_t index;
    uint32_t element_bytes;
    const uint8_t* memory;
    std::vector<bool> written;  // one flag per byte
  };
  static void note(Output& output, uint64_t offset, uint64_t bytes);

  std::vector<Output> outputs_;
};

}  // namespace metalops::exec

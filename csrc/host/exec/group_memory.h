// The threadgroup memory of the group that a CPU thread runs.
#pragma once

#include <cstdint>
#include <cstring>

#include <exec/runtime.h>
#include <exec/unbound.h>

namespace metalops::exec {

class GroupMemory {
 public:
  // Assigns memory to the kernel's threadgroup variables and to the threadgroup arguments of the
  // launch. An argument without a length is switched off.
  void lay_out(const Kernel& kernel, const Launch& launch, msl::abi::Group& group) {
    group.static_memory = memory_;
    group.static_bytes = kernel.static_threadgroup_bytes + kAlignmentSlack;
    uint32_t used = (group.static_bytes + 127) / 128 * 128;
    for (uint32_t i = 0; i < kernel.argument_count; ++i) {
      const auto& argument = kernel.arguments[i];
      if (argument.kind != msl::abi::ArgumentKind::kThreadgroup) continue;
      const uint32_t bytes = launch.threadgroup_bytes[argument.index];
      group.dynamic_memory[argument.index] = bytes == 0 ? memory_of_zeros() : memory_ + used;
      used += (bytes + 127) / 128 * 128;
    }
    const bool any =
        used > (kAlignmentSlack + 127) / 128 * 128 || kernel.static_threadgroup_bytes != 0;
    bytes_ = any ? used : 0;
  }
  // Zeroes the memory before a threadgroup starts.
  void clear() { std::memset(memory_, 0, bytes_); }

 private:
  uint32_t bytes_ = 0;  // used by this kernel
  // Padding for the alignment of each block, in addition to Metal's limit.
  static constexpr uint32_t kAlignmentSlack = 256;
  alignas(256) uint8_t
      memory_[msl::abi::kMaxThreadgroupBytes + kAlignmentSlack + 128 * msl::abi::kMaxBuffers];
};

}  // namespace metalops::exec

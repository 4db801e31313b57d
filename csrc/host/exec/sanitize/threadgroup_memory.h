// Threadgroup memory of a sanitized launch: filled with a pattern when a group begins, with gaps
// between variables, and with a state for each byte: whether it belongs to a variable and has been
// written.
#pragma once

#include <cstdint>
#include <vector>

#include <exec/exec.h>

namespace metalops::exec {

// The content of memory that nothing has written: NaN in every floating-point type.
constexpr uint8_t kPoison = 0xff;

class ThreadgroupMemory {
 public:
  // A multiple of the page size.
  static constexpr uint32_t kBytes = 64 * 1024;

  // Fills in group.static_bytes, which does not depend on the address of the memory.
  void begin(const Kernel& kernel, const Launch& launch, msl::abi::Group& group);
  bool is_used() const { return used_ != 0; }
  // Makes the group use `memory`, of kBytes.
  void group_begins(uint8_t* memory, msl::abi::Group& group);
  void group_ends();
  // Implements Runtime::place_variable, with gaps between variables. Returns ~0 when no room is
  // left.
  uint32_t place(msl::abi::Group& group, uint32_t bytes, uint32_t alignment);

  bool contains(const void* address) const {
    return uint64_t(static_cast<const uint8_t*>(address) - memory_) < used_;
  }
  uint64_t offset(const void* address) const {
    return uint64_t(static_cast<const uint8_t*>(address) - memory_);
  }

  // Check accesses to memory that it contains.
  enum class Problem { kNone, kUnwritten, kOutside };
  Problem read(const void* address, uint64_t bytes) const;
  Problem write(const void* address, uint64_t bytes);

 private:
  enum State : uint8_t { kOutside, kUnwritten, kWritten };
  void use(uint32_t offset, uint32_t bytes);

  const Kernel* kernel_ = nullptr;
  const Launch* launch_ = nullptr;
  uint8_t* memory_ = nullptr;
  uint32_t used_ = 0;
  std::vector<State> state_;
};

}  // namespace metalops::exec

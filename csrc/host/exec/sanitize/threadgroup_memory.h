// The threadgroup memory of a sanitized launch: filled with a pattern when a group begins,
// variables apart from each other, and a note of each byte whether it belongs to a variable and was
// written.
#pragma once

#include <cstdint>
#include <vector>

#include <exec/exec.h>

namespace metalops::exec {

// What memory that nothing has written holds: not a number in every floating-point type.
constexpr uint8_t kPoison = 0xff;

class ThreadgroupMemory {
 public:
  // A multiple of the page size.
  static constexpr uint32_t kBytes = 64 * 1024;

  // Fills in what does not depend on the place of the memory: group.static_bytes.
  void begin(const Kernel& kernel, const Launch& launch, msl::abi::Group& group);
  bool is_used() const { return used_ != 0; }
  // Lets the group use `memory`, kBytes of it.
  void group_begins(uint8_t* memory, msl::abi::Group& group);
  void group_ends();
  // Runtime::place_variable, with room between variables. ~0 when there is none left.
  uint32_t place(msl::abi::Group& group, uint32_t bytes, uint32_t alignment);

  bool contains(const void* address) const {
    return uint64_t(static_cast<const uint8_t*>(address) - memory_) < used_;
  }
  uint64_t offset(const void* address) const {
    return uint64_t(static_cast<const uint8_t*>(address) - memory_);
  }

  // For accesses to memory that it contains.
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

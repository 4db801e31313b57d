// The call stacks of GPU threads for one CPU thread, as many as a threadgroup can have threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metalops::exec {

class FiberStacks {
 public:
  static constexpr size_t kMaxStacks = 1024;
  static constexpr size_t kStackBytes = 256 * 1024;

  FiberStacks();
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;

  // Releases all stacks. They keep their memory.
  void reset() {
    fresh_ = 0;
    free_count_ = 0;
  }
  uint32_t acquire() { return free_count_ != 0 ? free_[--free_count_] : take_fresh(); }
  void release(uint32_t index) { free_[free_count_++] = index; }

  uint32_t used() const { return fresh_; }
  bool contains(const void* address) const {
    return size_t(static_cast<const char*>(address) - region_) < region_bytes_;
  }
  void* bottom(uint32_t index) const;
  void* top(uint32_t index) const;
  // Returns true if a fault at this address is an overflow of one of the stacks.
  bool is_guard(const void* address) const;
  // Returns true if a stack used since the last call has overflowed without a fault.
  bool has_overflowed();
  // Rewrites the marks, after a fault.
  void mark_again();

 private:
  uint32_t take_fresh();

  char* region_;
  size_t region_bytes_;
  size_t slack_bytes_;
  size_t stride_;
  size_t block_stride_;
  uint32_t fresh_ = 0;      // stacks with a lower index were acquired since the last reset
  uint32_t marked_ = 0;     // stacks with a lower index have a mark at their end
  uint32_t most_used_ = 0;  // since has_overflowed()
  uint32_t free_count_ = 0;
  uint32_t free_[kMaxStacks];
};

}  // namespace metalops::exec

// Layout of fiber stacks in address space, and detection of overflows by guards and marks.
#include <exec/fiber/stacks.h>

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace metalops::exec {
namespace {

// Unused slack below every stack, and a guard region that faults below the lowest stack of each
// block of kStacksInBlock, wide enough that a function with a large frame does not step over it. A
// guard below each stack would cost two more of the 65,530 mappings that a process may have. An
// unbounded overflow reaches the guard, across the other stacks; a bounded one overwrites the mark
// at the end of its own stack.
constexpr size_t kSlackBytes = 64 * 1024;
constexpr size_t kGuardBytes = 1024 * 1024;
constexpr uint32_t kStacksInBlock = 32;
constexpr std::array<uint64_t, 8> kMark = {0x6d6574616c6f7073, 1, 2, 3, 4, 5, 6,
                                           0x656e646f66737461};
// Stack colouring: equally spaced stacks would keep their busiest words in the same few cache sets,
// which makes switching four times slower; so each begins a little lower than the previous one.
constexpr size_t kColours = 61;
constexpr size_t kColourBytes = 320;

}  // namespace

FiberStacks::FiberStacks() {
  const size_t page = sysconf(_SC_PAGESIZE);
  slack_bytes_ = std::max(kSlackBytes, page);
  stride_ = slack_bytes_ + kStackBytes + (kColours * kColourBytes + page - 1) / page * page;
  block_stride_ = kGuardBytes + kStacksInBlock * stride_;
  region_bytes_ = kMaxStacks / kStacksInBlock * block_stride_;
  // Reserves address space only: a stack gets memory when it is first used.
  void* region =
      mmap(nullptr, region_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(region != MAP_FAILED,
              "cannot reserve address space for the stacks of GPU threads: ", std::strerror(errno));
  region_ = static_cast<char*>(region);
  // One huge page would cover eight stacks of which a few kilobytes are used.
  madvise(region_, region_bytes_, MADV_NOHUGEPAGE);
}

FiberStacks::~FiberStacks() { munmap(region_, region_bytes_); }

void* FiberStacks::bottom(uint32_t index) const {
  return region_ + index / kStacksInBlock * block_stride_ + kGuardBytes +
         index % kStacksInBlock * stride_ + slack_bytes_;
}

void* FiberStacks::top(uint32_t index) const {
  return static_cast<char*>(bottom(index)) + stride_ - slack_bytes_ -
         (index % kColours) * kColourBytes;
}

bool FiberStacks::is_guard(const void* address) const {
  const size_t offset = size_t(static_cast<const char*>(address) - region_);
  return offset < region_bytes_ && offset % block_stride_ < kGuardBytes;
}

uint32_t FiberStacks::take_fresh() {
  const uint32_t index = fresh_++;
  if (index >= marked_) {
    if (index % kStacksInBlock == 0) {
      char* const begin = static_cast<char*>(bottom(index)) - slack_bytes_;
      const int result = mprotect(begin, kStacksInBlock * stride_, PROT_READ | PROT_WRITE);
      TORCH_CHECK(result == 0, "no memory for the stacks of GPU threads: ", std::strerror(errno));
    }
    std::memcpy(bottom(index), kMark.data(), sizeof(kMark));
    marked_ = index + 1;
  }
  most_used_ = std::max(most_used_, fresh_);
  return index;
}

bool FiberStacks::has_overflowed() {
  const uint32_t used = std::exchange(most_used_, 0);
  for (uint32_t index = 0; index < used; ++index) {
    if (std::memcmp(bottom(index), kMark.data(), sizeof(kMark)) != 0) {
      mark_again();
      return true;
    }
  }
  return false;
}

void FiberStacks::mark_again() {
  for (uint32_t index = 0; index < marked_; ++index) {
    std::memcpy(bottom(index), kMark.data(), sizeof(kMark));
  }
}

}  // namespace metalops::exec

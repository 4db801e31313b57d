#include "fiber_stacks.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace metalops::exec {
namespace {

// Below every stack lies memory that faults, wide enough that a function with a large frame does
// not step over it.
constexpr size_t kGuardBytes = 64 * 1024;
// Stacks at equal distances would keep their busiest words in the same few cache sets, which makes
// switching four times slower; so each begins a little lower than the last one.
constexpr size_t kColours = 61;
constexpr size_t kColourBytes = 320;

}  // namespace

FiberStacks::FiberStacks() {
  const size_t page = sysconf(_SC_PAGESIZE);
  guard_bytes_ = std::max(kGuardBytes, page);
  stride_ = guard_bytes_ + kStackBytes + (kColours * kColourBytes + page - 1) / page * page;
  // Address space only: a stack gets memory when it is first used.
  void* region = mmap(nullptr, stride_ * kMaxStacks, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(region != MAP_FAILED,
              "cannot reserve address space for the stacks of GPU threads: ", std::strerror(errno));
  region_ = static_cast<char*>(region);
  // One huge page would cover eight stacks of which a few kilobytes are used.
  madvise(region_, stride_ * kMaxStacks, MADV_NOHUGEPAGE);
}

FiberStacks::~FiberStacks() { munmap(region_, stride_ * kMaxStacks); }

void* FiberStacks::bottom(uint32_t index) const { return region_ + index * stride_ + guard_bytes_; }

void* FiberStacks::top(uint32_t index) const {
  return region_ + (index + 1) * stride_ - (index % kColours) * kColourBytes;
}

bool FiberStacks::is_guard(const void* address) const {
  const char* byte = static_cast<const char*>(address);
  if (byte < region_ || byte >= region_ + stride_ * kMaxStacks) return false;
  return (byte - region_) % stride_ < guard_bytes_;
}

uint32_t FiberStacks::take_fresh() {
  const uint32_t index = fresh_++;
  if (index >= committed_) {
    const int result = mprotect(bottom(index), stride_ - guard_bytes_, PROT_READ | PROT_WRITE);
    TORCH_CHECK(result == 0, "no memory for the stack of a GPU thread: ", std::strerror(errno));
    committed_ = index + 1;
  }
  return index;
}

}  // namespace metalops::exec

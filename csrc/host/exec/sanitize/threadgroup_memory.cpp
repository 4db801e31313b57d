// Layout and checks of threadgroup memory in sanitized launches.
#include <exec/sanitize/threadgroup_memory.h>

#include <algorithm>

#include <exec/sanitize/c_library.h>
#include <exec/sanitize/red_zones.h>

namespace metalops::exec {

using msl::abi::ArgumentKind;

namespace {

constexpr uint32_t kGap = 128;
constexpr uint32_t kMaxVariables = 64;  // the size of Group::offsets

uint32_t round_up(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

static_assert(ThreadgroupMemory::kBytes >= msl::abi::kMaxThreadgroupBytes +
                                               kMaxVariables * 2 * kGap +
                                               msl::abi::kMaxBuffers * 2 * kGap);

void ThreadgroupMemory::begin(const Kernel& kernel, const Launch& launch, msl::abi::Group& group) {
  kernel_ = &kernel;
  launch_ = &launch;
  memory_ = nullptr;
  const uint32_t bytes = kernel.static_threadgroup_bytes;
  // Each variable takes at least 16 of the bytes that the kernel declares.
  const uint32_t variables = std::min(kMaxVariables, bytes / 16);
  group.static_bytes = bytes + variables * 2 * kGap;
  used_ = round_up(group.static_bytes, kGap);
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind != ArgumentKind::kThreadgroup) continue;
    used_ += kGap + round_up(launch.threadgroup_bytes[argument.index], kGap);
  }
  if (used_ != 0) used_ += kGap;
  state_.resize(used_);
}

void ThreadgroupMemory::group_begins(uint8_t* memory, msl::abi::Group& group) {
  if (used_ == 0) return;
  memory_ = memory;
  std::fill(state_.begin(), state_.end(), kOutside);
  c_library::fill(memory_, kPoison, used_);
  poison(memory_, used_);
  group.static_memory = memory_;
  uint32_t next = round_up(group.static_bytes, kGap);
  for (uint32_t i = 0; i < kernel_->argument_count; ++i) {
    const auto& argument = kernel_->arguments[i];
    if (argument.kind != ArgumentKind::kThreadgroup) continue;
    next += kGap;
    const uint32_t bytes = launch_->threadgroup_bytes[argument.index];
    group.dynamic_memory[argument.index] = memory_ + next;
    use(next, bytes);
    next += round_up(bytes, kGap);
  }
}

void ThreadgroupMemory::group_ends() {
  if (used_ != 0) unpoison(memory_, used_);
}

uint32_t ThreadgroupMemory::place(msl::abi::Group& group, uint32_t bytes, uint32_t alignment) {
  const uint32_t start = round_up(group.static_used + kGap, alignment);
  if (start + bytes > group.static_bytes) return ~0u;
  group.static_used = start + bytes;
  use(start, bytes);
  return start;
}

void ThreadgroupMemory::use(uint32_t offset, uint32_t bytes) {
  unpoison(memory_ + offset, bytes);
  std::fill_n(state_.begin() + offset, bytes, kUnwritten);
}

ThreadgroupMemory::Problem ThreadgroupMemory::read(const void* address, uint64_t bytes) const {
  const uint64_t begin = offset(address);
  if (begin + bytes > used_) return Problem::kOutside;
  const auto first = state_.begin() + int64_t(begin);
  const auto last = first + int64_t(bytes);
  if (std::find(first, last, kOutside) != last) return Problem::kOutside;
  // Vectors of three elements are read as four, of which the last may never have been written;
  // structs have padding.
  if (bytes > 16) {
    return std::find(first, last, kWritten) == last ? Problem::kUnwritten : Problem::kNone;
  }
  const auto relevant = first + int64_t(std::max<uint64_t>(bytes * 3 / 4, 1));
  return std::find(first, relevant, kUnwritten) != relevant ? Problem::kUnwritten : Problem::kNone;
}

ThreadgroupMemory::Problem ThreadgroupMemory::write(const void* address, uint64_t bytes) {
  const uint64_t begin = offset(address);
  if (begin + bytes > used_) return Problem::kOutside;
  const auto first = state_.begin() + int64_t(begin);
  const auto last = first + int64_t(bytes);
  if (std::find(first, last, kOutside) != last) return Problem::kOutside;
  std::fill(first, last, kWritten);
  return Problem::kNone;
}

}  // namespace metalops::exec

// Fills allocations with a pattern and finds outputs that still hold it.
#include <exec/sanitize/fresh_outputs.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <sstream>

#include <exec/sanitize/c_library.h>
#include <exec/sanitize/findings.h>
#include <exec/sanitize/threadgroup_memory.h>
#include <locks.h>

namespace metalops::exec {
namespace {

// Larger allocations would commit memory that they do not use yet.
constexpr uint64_t kLargest = uint64_t{32} << 20;

class Allocations {
 public:
  bool any() const { return any_.load(std::memory_order_relaxed); }
  void add(void* memory, uint64_t bytes) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    any_ = true;
    bytes_[static_cast<uint8_t*>(memory)] = bytes;
  }
  void remove(const void* memory) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    bytes_.erase(static_cast<const uint8_t*>(memory));
  }
  // Returns true if an address lies in an allocation that nothing has written. An allocation is
  // forgotten once it has been written.
  bool is_fresh(const void* address) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    auto after = bytes_.upper_bound(static_cast<const uint8_t*>(address));
    if (after == bytes_.begin()) return false;
    const auto found = std::prev(after);
    const auto& [memory, bytes] = *found;
    if (static_cast<const uint8_t*>(address) >= memory + bytes) return false;
    const bool fresh = memory[0] == kPoison && std::memcmp(memory, memory + 1, bytes - 1) == 0;
    if (!fresh) bytes_.erase(found);
    return fresh;
  }

 private:
  std::atomic<bool> any_{false};  // true once there has been one
  ForkSafeMutex mutex_;
  std::map<const uint8_t*, uint64_t> bytes_;
};
Allocations& allocations = *new Allocations;

}  // namespace

void note_allocation(void* memory, uint64_t bytes) {
  if (sanitize_mode() == SanitizeMode::kOff || bytes > kLargest) return;
  c_library::fill(memory, kPoison, bytes);
  allocations.add(memory, bytes);
}

void note_free(const void* memory) {
  if (allocations.any()) allocations.remove(memory);
}

void FreshOutputs::begin(const Kernel& kernel, const Launch& launch) {
  outputs_.clear();
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind != msl::abi::ArgumentKind::kBuffer || argument.writable == 0) continue;
    const uint64_t bytes = launch.buffer_bytes[argument.index];
    const void* memory = launch.buffers[argument.index];
    if (memory == nullptr || bytes == 0 || bytes > kLargest || !allocations.is_fresh(memory)) {
      continue;
    }
    outputs_.push_back({uint32_t(argument.index), std::max(argument.element_bytes, 1u),
                        static_cast<const uint8_t*>(memory), std::vector<bool>(bytes)});
  }
}

void FreshOutputs::note(Output& output, uint64_t offset, uint64_t bytes) {
  const uint64_t end = std::min<uint64_t>(offset + bytes, output.written.size());
  std::fill(output.written.begin() + int64_t(offset), output.written.begin() + int64_t(end), true);
}

void FreshOutputs::end() {
  const SanitizedLaunch* const sanitized = SanitizedLaunch::current();
  for (const Output& output : outputs_) {
    const uint64_t elements = output.written.size() / output.element_bytes;
    uint64_t unwritten = 0, first = 0;
    for (uint64_t element = 0; element < elements; ++element) {
      bool written = false;
      for (uint64_t byte = element * output.element_bytes;
           byte < (element + 1) * output.element_bytes; ++byte) {
        // Writes of kernels that were not compiled with a sanitizer are only visible in memory.
        written |= output.written[byte] || output.memory[byte] != kPoison;
      }
      if (!written && unwritten++ == 0) first = element;
    }
    if (unwritten == 0) continue;
    std::ostringstream text;
    text << "{0}: output-not-written in kernel '" << sanitized->kernel().name << "': leaves "
         << unwritten << " of " << elements << " elements of "
         << sanitized->describe_buffer(output.index)
         << " unwritten, which nothing has written before: "
         << (unwritten > 1 ? "the first is element " : "element ") << first;
    // Reported at the kernel's entry.
    const auto* entry = reinterpret_cast<const char*>(sanitized->kernel().thread);
    add_finding({"output-not-written", std::move(text).str(), /*warning=*/true, {{entry + 1}}});
  }
  outputs_.clear();
}

}  // namespace metalops::exec

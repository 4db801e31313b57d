// Callbacks of AddressSanitizer and UndefinedBehaviorSanitizer, and the text of findings.
#include <exec/sanitize/address_reports.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <sstream>

#include <exec/sanitize/findings.h>

namespace metalops::exec {
namespace {

using msl::abi::kMaxBuffers;

struct Access {
  uintptr_t address;
  uintptr_t bytes;  // 0: not known
  bool write;
};

// The position of an access relative to a block of memory.
struct Distance {
  uint64_t bytes = ~uint64_t{0};
  std::string text;
};

Distance distance(const Access& access, const void* memory, uint64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t end = begin + bytes;
  if (access.address >= end) {
    const uint64_t past = access.address - end;
    return {past,
            past == 0 ? "just past the end of " : std::to_string(past) + " bytes past the end of "};
  }
  if (access.address < begin) {
    const uint64_t before = begin - access.address;
    return {before, std::to_string(before) + " bytes before the start of "};
  }
  return {0, access.address + access.bytes > end ? "over the end of " : "inside "};
}

std::string in_buffers(const Access& access) {
  const SanitizedLaunch& sanitized = *SanitizedLaunch::current();
  Distance nearest;
  unsigned index = 0;
  for (unsigned i = 0; i < kMaxBuffers; ++i) {
    const auto [begin, bytes] = sanitized.memory_of(i);
    if (begin == nullptr) continue;
    Distance here = distance(access, begin, bytes);
    if (here.bytes < nearest.bytes) {
      nearest = std::move(here);
      index = i;
    }
  }
  if (nearest.text.empty()) return "";
  return ", " + nearest.text + sanitized.describe_buffer(index) + " of " +
         std::to_string(sanitized.memory_of(index).second) + " bytes";
}

// Describes the threadgroup memory in or next to which an access lies; empty when there is none.
std::string in_threadgroup_memory(const Access& access, const Kernel& kernel) {
  if (running_thread.thread == nullptr) return "";
  const msl::abi::Group& group = *running_thread.thread->group;
  const auto within = [&](const void* memory, uint64_t bytes, uint64_t margin) {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    return memory != nullptr && access.address + margin >= begin &&
           access.address < begin + bytes + margin;
  };
  if (within(group.static_memory, group.static_bytes, 0)) {
    return ", outside of the kernel's threadgroup variables";
  }
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind != msl::abi::ArgumentKind::kThreadgroup) continue;
    const void* memory = group.dynamic_memory[argument.index];
    const uint64_t bytes = group.launch->threadgroup_bytes[argument.index];
    if (!within(memory, bytes, 64)) continue;
    return ", " + distance(access, memory, bytes).text + "threadgroup argument " +
           std::to_string(argument.index) + " ('" + argument.name + "') of " +
           std::to_string(bytes) + " bytes";
  }
  return "";
}

// Recognises an address that results from a negative index converted to unsigned 32 bits: returns
// the index and the buffer as text. Empty for other addresses.
std::string as_wrapped_index(uintptr_t address) {
  const SanitizedLaunch& sanitized = *SanitizedLaunch::current();
  const Kernel& kernel = sanitized.kernel();
  uint64_t least = 1 << 20;
  std::string text;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind != msl::abi::ArgumentKind::kBuffer || argument.element_bytes == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(sanitized.launch().buffers[argument.index]);
    const uintptr_t wrapped = begin + (uint64_t{argument.element_bytes} << 32);
    if (begin == 0 || address >= wrapped || wrapped - address >= least) continue;
    least = wrapped - address;
    const uint64_t elements = (least + argument.element_bytes - 1) / argument.element_bytes;
    text = ", which is element " + std::to_string((uint64_t{1} << 32) - elements) + " (-" +
           std::to_string(elements) + " in 32 bits) of " +
           sanitized.describe_buffer(unsigned(argument.index));
  }
  return text;
}

std::string describe_thread() {
  return running_thread.thread != nullptr ? "\n  " + describe(*running_thread.thread) : "";
}

void add(std::string kind, const std::string& what, Stack stack) {
  const SanitizedLaunch* const launch = SanitizedLaunch::current();
  if (running_thread.operation != nullptr) stack.push_back(running_thread.operation);
  add_finding(
      {kind,
       "{0}: " + kind + " in kernel '" + launch->kernel().name + "': " + what + describe_thread(),
       false,
       {std::move(stack)}});
}

std::string describe_access(const Access& access) {
  std::ostringstream text;
  text << (access.write ? "writes " : "reads ");
  if (access.bytes != 0) text << access.bytes << " bytes";
  return std::move(text).str();
}

void add_access(std::string kind, const Access& access, Stack stack) {
  std::string place = in_threadgroup_memory(access, SanitizedLaunch::current()->kernel());
  if (!place.empty()) {
    kind = "threadgroup-buffer-overflow";
  } else if (kind.find("stack") != std::string::npos || kind == "dynamic-stack-buffer-overflow") {
    place = ", outside of a variable of the thread";
  } else if (kind.find("global") != std::string::npos) {
    place = ", outside of a constant of the program";
  } else {
    place = in_buffers(access);
    // The red zones around tensors are ours.
    if (kind == "use-after-poison") kind = "heap-buffer-overflow";
  }
  add(std::move(kind), describe_access(access) + place, std::move(stack));
}

// ---- AddressSanitizer ---------------------------------------------------------------------------

void on_address_error(const char*) {
  if (SanitizedLaunch::current() == nullptr) return;
  static const auto get = [](const char* name) { return sanitizer_symbol<void* (*)()>(name); };
  static const auto pc = get("__asan_get_report_pc");
  static const auto frame = get("__asan_get_report_bp");
  static const auto address = get("__asan_get_report_address");
  static const auto is_write = sanitizer_symbol<int (*)()>("__asan_get_report_access_type");
  static const auto bytes = sanitizer_symbol<size_t (*)()>("__asan_get_report_access_size");
  static const auto description =
      sanitizer_symbol<const char* (*)()>("__asan_get_report_description");
  add_access(description(), {reinterpret_cast<uintptr_t>(address()), bytes(), is_write() != 0},
             stack_of(pc(), frame()));
}

// ---- UndefinedBehaviorSanitizer -----------------------------------------------------------------

// Removes the namespaces of the emitted code from type names.
std::string readable(std::string text) {
  for (const char* part : {"msl::metal::", "msl::msl_impl::", "msl::", "metal::"}) {
    for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, strlen(part));
  }
  return text;
}

void on_undefined(void* pc, void* frame) {
  if (SanitizedLaunch::current() == nullptr) return;
  QuietSanitizers::silence();
  static const auto get_report =
      sanitizer_symbol<void (*)(const char**, const char**, const char**, unsigned*, unsigned*,
                                char**)>("__ubsan_get_current_report_data");
  const char *kind = "", *message = "", *file = "";
  unsigned line = 0, column = 0;
  char* memory = nullptr;
  get_report(&kind, &message, &file, &line, &column, &memory);
  add(kind, readable(message), stack_of(pc, frame));
}

}  // namespace

AddressReports::AddressReports() {
  // Set on every call: the value is always the same.
  using SetCallback = void (*)(void (*)(const char*));
  if (const auto set = sanitizer_symbol<SetCallback>("__asan_set_error_report_callback")) {
    set(&on_address_error);
  }
  if (auto* hook = sanitizer_symbol<void (**)(void*, void*)>("metalops_on_undefined")) {
    *hook = &on_undefined;
  }
}

AddressReports::~AddressReports() {
  static const auto report_again = sanitizer_symbol<void (*)()>("metalops_report_again");
  if (report_again != nullptr) report_again();
}

// No process has memory there.
constexpr uintptr_t kFirstPage = 4096;

void add_fault(const void* instruction, const void* frame, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  // Other entries are return addresses, which lie after the instruction that is meant.
  const void* pc = static_cast<const char*>(instruction) + 1;
  std::ostringstream what;
  what << "uses address 0x" << std::hex << at << std::dec;
  // The compiler checks for null pointers, but not for elements behind them.
  const bool is_null = at < kFirstPage;
  what << (is_null ? ", near a null pointer" : as_wrapped_index(at));
  Stack stack = {pc};
  for (const void* caller : stack_of(pc, frame)) {
    if (caller != pc) stack.push_back(caller);
  }
  add(is_null ? "null-pointer-use" : "wild-address", what.str(), std::move(stack));
}

}  // namespace metalops::exec

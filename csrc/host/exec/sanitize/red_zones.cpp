// Poisons and unpoisons memory with AddressSanitizer's functions.
#include <exec/sanitize/red_zones.h>

#include <exec/sanitize/sanitizer_runtime.h>

namespace metalops::exec {
namespace {

using Mark = void (*)(const void volatile*, size_t);

Mark find(const char* name) { return sanitizer_symbol<Mark>(name); }

Mark mark_poisoned() {
  static const Mark mark = find("__asan_poison_memory_region");
  return mark;
}

}  // namespace

bool has_red_zones() { return mark_poisoned() != nullptr; }

void poison(const void* begin, size_t bytes) {
  if (const Mark mark = mark_poisoned(); mark != nullptr && bytes != 0) mark(begin, bytes);
}

void unpoison(const void* begin, size_t bytes) {
  static const Mark mark = find("__asan_unpoison_memory_region");
  if (mark != nullptr && bytes != 0) mark(begin, bytes);
}

}  // namespace metalops::exec

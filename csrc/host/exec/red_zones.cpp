// See red_zones.h.
#include "red_zones.h"

#include <dlfcn.h>

namespace metalops::exec {
namespace {

using Mark = void (*)(const void volatile*, size_t);

Mark find(const char* name) { return reinterpret_cast<Mark>(dlsym(RTLD_DEFAULT, name)); }

}  // namespace

void poison(const void* begin, size_t bytes) {
  static const Mark mark = find("__asan_poison_memory_region");
  if (mark != nullptr && bytes != 0) mark(begin, bytes);
}

void unpoison(const void* begin, size_t bytes) {
  static const Mark mark = find("__asan_unpoison_memory_region");
  if (mark != nullptr && bytes != 0) mark(begin, bytes);
}

}  // namespace metalops::exec

// Looks up the functions of the C library itself.
#include <exec/sanitize/c_library.h>

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace metalops::exec::c_library {
namespace {

template <class F>
F find(const char* name) {
  void* const library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  TORCH_INTERNAL_ASSERT(library != nullptr);
  return reinterpret_cast<F>(dlsym(library, name));
}

}  // namespace

void* move(void* to, const void* from, size_t bytes) {
  static const auto function = find<void* (*)(void*, const void*, size_t)>("memmove");
  return function(to, from, bytes);
}

void* fill(void* to, int byte, size_t bytes) {
  static const auto function = find<void* (*)(void*, int, size_t)>("memset");
  return function(to, byte, bytes);
}

}  // namespace metalops::exec::c_library

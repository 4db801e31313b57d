// The compiler's sanitizer runtimes in this process: where their functions are, and what they
// write.
#pragma once

namespace metalops::exec {

// A function or variable of a runtime or of the hooks that are preloaded with it (see
// python/metalops/msl/include/sanitizer_hooks.cpp); null where there is none.
template <typename T>
T sanitizer_symbol(const char* name);
void* find_sanitizer_symbol(const char* name);
template <typename T>
T sanitizer_symbol(const char* name) {
  return reinterpret_cast<T>(find_sanitizer_symbol(name));
}

// As long as it lives the runtimes do not write their reports to stderr: we read them.
class QuietSanitizers {
 public:
  QuietSanitizers();
  ~QuietSanitizers();
  QuietSanitizers(const QuietSanitizers&) = delete;

  // Once more: a runtime that sets itself up at its first report resets the others.
  static void silence();
};

}  // namespace metalops::exec

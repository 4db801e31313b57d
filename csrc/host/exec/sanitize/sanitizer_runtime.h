// The compiler's sanitizer runtimes in this process: their functions and their output.
#pragma once

namespace metalops::exec {

// Returns a function or variable of a runtime, or of the hooks that are preloaded with it (see
// python/metalops/msl/include/sanitizer_hooks.cpp); null if there is none.
template <typename T>
T sanitizer_symbol(const char* name);
void* find_sanitizer_symbol(const char* name);
template <typename T>
T sanitizer_symbol(const char* name) {
  return reinterpret_cast<T>(find_sanitizer_symbol(name));
}

// RAII: the runtimes do not write reports to stderr, because we read them.
class QuietSanitizers {
 public:
  QuietSanitizers();
  ~QuietSanitizers();
  QuietSanitizers(const QuietSanitizers&) = delete;

  // Called again later: a runtime that initialises at its first report resets the others.
  static void silence();
};

}  // namespace metalops::exec

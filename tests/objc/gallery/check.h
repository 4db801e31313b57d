// The tests of a gallery file. tests/objc/test_gallery.py finds them by the macro and calls them.
#pragma once
#include <exception>
#include <sstream>
#include <string>

namespace check {

inline std::string& failure() {
  static std::string text;
  return text;
}

// Returns null if a test passes, else what failed. The caller copies the text.
inline const char* run(void (*test)()) {
  failure().clear();
  try {
    test();
  } catch (const std::exception& e) {
    failure() = std::string("it raised: ") + e.what();
  }
  return failure().empty() ? nullptr : failure().c_str();
}

inline void fail(int line, const std::string& text) {
  if (failure().empty()) failure() = "line " + std::to_string(line) + ": " + text;
}

template <class A, class B>
void equal(int line, const char* what, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream text;
  text << what << " is " << a << ", not " << b;
  fail(line, text.str());
}

// Returns the message of what a call raises; "" if it raises nothing.
template <class F>
std::string raised(F call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace check

#define TEST(NAME)                                                  \
  static void NAME();                                               \
  extern "C" const char* test_##NAME() { return check::run(NAME); } \
  static void NAME()
#undef CHECK  // torch has one, too
#define CHECK(...)                                                            \
  do {                                                                        \
    if (!(__VA_ARGS__)) check::fail(__LINE__, #__VA_ARGS__ " does not hold"); \
  } while (0)
#define EQUAL(A, B) check::equal(__LINE__, #A, (A), (B))
// The call raises an error whose message has the text.
#define RAISES(TEXT, ...)                                                \
  do {                                                                   \
    const std::string message = check::raised([&] { __VA_ARGS__; });     \
    if (!check::has(message, TEXT)) {                                    \
      check::fail(__LINE__, #__VA_ARGS__ " raises \"" + message + "\""); \
    }                                                                    \
  } while (0)

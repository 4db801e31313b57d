// The Objective-C runtime and Foundation without torch, Python and Metal, in a program that runs
// the tests of the gallery that its arguments name, and prints the name of each and what failed.
// Built for another CPU by test_aarch64.py.
#include <Python.h>
#include <csrc/host/objc/dispatch.h>
#include <csrc/host/objc/runtime.h>
#include <csrc/validation/rules.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

// There is no Python in this program.
extern "C" {
int Py_IsInitialized() { return 0; }
int PyGILState_Check() { return 0; }
PyThreadState* PyEval_SaveThread() { std::abort(); }
void PyEval_RestoreThread(PyThreadState*) { std::abort(); }
}

// There are no command buffers to wait for, and nothing of Metal and torch to define.
namespace metalops::objc {

Waiting::Waiting() = default;
Waiting::~Waiting() = default;
void define_metal() {}
void connect_torch() {}

}  // namespace metalops::objc

int main(int count, char** names) {
  metalops::validation::set_outlet(
      {[](metalops::validation::Kind, const std::string& text) { throw std::runtime_error(text); },
       [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }});
  for (int i = 1; i < count; ++i) {
    const std::string name = std::string("test_") + names[i];
    const auto run = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, name.c_str()));
    const char* failure = run ? run() : "there is no such test";
    std::printf("%s: %s\n", names[i], failure ? failure : "passed");
    std::fflush(stdout);
  }
}

// Messages to Objective-C objects from C++: for what torch's classes lack, in files that compilers
// without Apple's SDK check, too (tests/macos/crosscheck.py), and that run against a stand-in of
// the runtime (tests/macos/test_textures.py).
#pragma once
#include <memory>

extern "C" {
void objc_msgSend();
void* objc_getClass(const char* name);
void* sel_registerName(const char* name);
}

namespace metalops::objective_c {

// The types are those of the method, of which none returns a structure.
template <class R, class... A>
R send(void* object, const char* selector, A... arguments) {
  return reinterpret_cast<R (*)(void*, void*, A...)>(&objc_msgSend)(
      object, sel_registerName(selector), arguments...);
}

struct Release {
  void operator()(void* object) const { send<void>(object, "release"); }
};
using Owned = std::unique_ptr<void, Release>;

inline Owned new_object(const char* class_name) {
  return Owned(send<void*>(objc_getClass(class_name), "new"));
}

}  // namespace metalops::objective_c

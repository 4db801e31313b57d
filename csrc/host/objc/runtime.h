// An Objective-C runtime for what clang compiles with -fobjc-runtime=gnustep-2.0, as far as host
// code of Metal programs uses one, and classes that are defined in C++.
//
// A tensor's memory is an object, too: on a Mac, storage().data() is an MTLBuffer, and programs
// send messages to it, retain it and put it into collections. Memory of the device begins at
// multiples of 64 bytes and objects of this runtime never do, so an address tells what it is.
#pragma once
#include <objc/runtime.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace metalops::objc {
struct Ivars;
struct MethodList;
struct DispatchTable;
struct Protocols;
struct Definition;
}  // namespace metalops::objc

// A class, as clang emits it. message_*.S knows the place of `table`.
struct objc_class {
  Class isa;
  Class super_class;
  const char* name;
  long version;
  unsigned long info;
  long instance_size;  // of a class of the program, before it is loaded: minus its own variables
  metalops::objc::Ivars* ivars;
  metalops::objc::MethodList* methods;
  metalops::objc::DispatchTable* table;
  IMP cxx_construct;
  IMP cxx_destruct;
  Class subclasses;
  Class sibling;
  metalops::objc::Protocols* protocols;
  const metalops::objc::Definition* definition;  // the runtime's own; clang leaves it null
  long abi_version;
  void* properties;
};

namespace metalops::objc {

// Device memory begins at multiples of this; objects do not.
constexpr uintptr_t kMemoryAlignment = 64;

// ---- classes that are defined in C++ ------------------------------------------------------------

// A method: its function takes self and the selector before its own arguments.
struct Method {
  template <class F>
  Method(const char* name, F function) : name(name), function(reinterpret_cast<void*>(+function)) {}
  const char* name;
  void* function;
};
using Methods = std::initializer_list<Method>;

// The symbols of a class, made by METALOPS_OBJC_CLASS.
struct ClassSymbols {
  Class cls;
  Class meta;
  const char* name;
};

// Instances of a class hold its state, a struct that derives from objc_object and that is
// constructed and destroyed as C++ objects are. A subclass has the state of its superclass or one
// that derives from it.
struct Definition {
  ClassSymbols symbols;
  Class super;
  size_t size;
  void (*construct)(id);
  void (*destroy)(id);
  std::vector<const char*> protocols;
};
void define(Definition definition, Methods methods, Methods class_methods);

template <class State>
void define(ClassSymbols symbols, Class super, Methods methods, Methods class_methods = {},
            std::vector<const char*> protocols = {}) {
  const auto construct = [](id self) {
    Class isa = self->isa;
    new (self) State();
    self->isa = isa;
  };
  const auto destroy = [](id self) { static_cast<State*>(self)->~State(); };
  define({symbols, super, sizeof(State), construct, destroy, std::move(protocols)}, methods,
         class_methods);
}

// runtime.cpp calls these once, when the library is loaded.
void define_foundation();
void define_metal();
// Tells torch's hooks about the library.
void connect_torch();

// ---- objects ------------------------------------------------------------------------------------

// A reference that is counted.
class Strong {
 public:
  Strong() = default;
  Strong(id object);  // NOLINT: as for a variable in Objective-C
  Strong(const Strong& other) : Strong(other.object_) {}
  Strong(Strong&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Strong& operator=(Strong other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Strong();
  operator id() const { return object_; }  // NOLINT
  id get() const { return object_; }
  // Takes over a reference that the caller has.
  static Strong taken(id object) {
    Strong result;
    result.object_ = object;
    return result;
  }

 private:
  id object_ = nullptr;
};

// Returns a new object, with one reference.
id allocate(Class cls);
template <class State>
State* make(Class cls) {
  return static_cast<State*>(allocate(cls));
}
// Hands a reference over to the pool of this thread; returns the object.
id autoreleased(id object);
// Destroys the state of an object and frees it: the dealloc of NSObject.
void destroy(id object);
// The number of references; a large one for what is not counted.
unsigned long references(id object);

// Memory that objects may be in: of size `bytes`, zeroed, not at a multiple of kMemoryAlignment.
void* allocate_memory(size_t bytes);
void free_memory(void* memory);

// Returns true for the memory of a tensor or of another allocation of the device.
bool is_memory(const void* address);
// The class that answers for such memory.
extern Class memory_class;

// Returns true for a small literal whose text is in the pointer itself.
inline bool is_tagged(const void* object) { return (reinterpret_cast<uintptr_t>(object) & 7) != 0; }
bool is_block(const void* object);
inline Class as_class(id object) { return reinterpret_cast<Class>(object); }
Class class_of(id object);
bool is_class(id object);
bool is_kind_of(id object, Class cls);
bool conforms_to(Class cls, const char* protocol);
// As a person would write it, for messages: "-[NSArray objectAtIndex:]".
std::string written(id receiver, SEL selector);

// ---- messages -----------------------------------------------------------------------------------

// Returns the method's function. Raises NotImplementedError, which is an NSException too, if there
// is none.
IMP lookup(id receiver, SEL selector);
bool responds_to(Class cls, SEL selector);
[[noreturn]] void unrecognised(id receiver, SEL selector);

template <class R = id, class... A>
R send(id receiver, const char* name, A... arguments) {
  const SEL selector = sel_registerName(name);
  const auto function = reinterpret_cast<R (*)(id, SEL, A...)>(lookup(receiver, selector));
  return function(receiver, selector, arguments...);
}

// ---- exceptions ---------------------------------------------------------------------------------

// Raise an NSException, which C++ code sees as the c10::Error that suits its name.
[[noreturn]] void raise(const char* name, const std::string& reason);
[[noreturn]] void throw_object(id object);

constexpr const char* kRangeException = "NSRangeException";
constexpr const char* kInvalidArgument = "NSInvalidArgumentException";

}  // namespace metalops::objc

// Defines the symbols through which clang refers to a class, and names for it.
#define METALOPS_OBJC_CLASS(NAME)                                                       \
  extern "C" {                                                                          \
  __attribute__((visibility("default"))) extern struct objc_class class_##NAME __asm__( \
      "._OBJC_CLASS_" #NAME);                                                           \
  struct objc_class class_##NAME{};                                                     \
  __attribute__((visibility("default"))) extern struct objc_class meta_##NAME __asm__(  \
      "._OBJC_METACLASS_" #NAME);                                                       \
  struct objc_class meta_##NAME{};                                                      \
  __attribute__((visibility("default"))) extern Class ref_##NAME __asm__(               \
      "._OBJC_REF_CLASS_" #NAME);                                                       \
  Class ref_##NAME = &class_##NAME;                                                     \
  }
// Declares a class of another file.
#define METALOPS_OBJC_DECLARE(NAME) \
  extern "C" struct objc_class class_##NAME __asm__("._OBJC_CLASS_" #NAME);
#define METALOPS_OBJC_SYMBOLS(NAME) \
  ::metalops::objc::ClassSymbols { &class_##NAME, &meta_##NAME, #NAME }

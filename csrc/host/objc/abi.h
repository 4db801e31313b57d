// The layout of what clang emits for Objective-C with the ABI gnustep-2.0, besides objc_class.
#pragma once
#include <objc/objc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

// In the program it has a name; once it is loaded, the number of that name.
struct objc_selector {
  union {
    const char* name;
    uintptr_t index;
  };
  const char* types;
};

namespace metalops::objc {

struct MethodEntry {
  IMP imp;
  SEL selector;
  const char* types;
};

struct MethodList {
  MethodList* next;
  int count;
  size_t entry_size;
  MethodEntry entries[];
};

struct Ivar {
  const char* name;
  const char* type;
  int* offset;
  uint32_t size;
  uint32_t flags;
};

struct Ivars {
  int count;
  size_t entry_size;
  Ivar entries[];
};

struct ProtocolObject;
struct Protocols {
  Protocols* next;
  size_t count;
  ProtocolObject* entries[];
};

struct ProtocolObject {
  Class isa;  // in the program: the version of the layout
  const char* name;
  Protocols* protocols;
  void* lists[8];  // of methods and properties
};

struct Category {
  const char* name;
  const char* class_name;
  MethodList* methods;
  MethodList* class_methods;
  Protocols* protocols;
};

// The functions of a class by the number of the selector, as far as they were looked up. Read
// without a lock; a larger table replaces it.
struct DispatchTable {
  size_t count;
  std::atomic<IMP> functions[];
};

// The argument that a program passes when it is loaded: a version, and where sections begin and
// end.
struct Image {
  uint64_t version;
  objc_selector *selectors, *selectors_end;
  Class *classes, *classes_end;
  Class *class_references, *class_references_end;
  Category *categories, *categories_end;
  ProtocolObject *protocols, *protocols_end;
  ProtocolObject **protocol_references, **protocol_references_end;
  void *class_aliases, *class_aliases_end;
  void *strings, *strings_end;
};

// Bits of objc_class::info; the first is clang's.
constexpr unsigned long kIsMetaclass = 1;
constexpr unsigned long kIsResolved = 1ul << 16;
constexpr unsigned long kIsInitialized = 1ul << 17;

}  // namespace metalops::objc

// Foundation's objects, for C++ code that makes and reads them.
#pragma once
#include <cstdarg>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <csrc/host/objc/runtime.h>

METALOPS_OBJC_DECLARE(NSObject)
METALOPS_OBJC_DECLARE(NSString)
METALOPS_OBJC_DECLARE(NSNumber)
METALOPS_OBJC_DECLARE(NSArray)
METALOPS_OBJC_DECLARE(NSDictionary)
METALOPS_OBJC_DECLARE(NSData)
METALOPS_OBJC_DECLARE(NSURL)
METALOPS_OBJC_DECLARE(NSError)
METALOPS_OBJC_DECLARE(NSException)
METALOPS_OBJC_DECLARE(NSBundle)

namespace metalops::objc {

using UInteger = unsigned long;
struct Range {
  UInteger location, length;
};

// The state of NSString and its subclasses, except literals. UTF-8.
struct String : objc_object {
  std::string text;
};

struct Number : objc_object {
  enum class Kind { kSigned, kUnsigned, kReal, kBool };
  Kind kind = Kind::kSigned;
  long long whole = 0;
  double real = 0;
};

struct ObjectHash {
  size_t operator()(const Strong& object) const;
};
struct ObjectEqual {
  bool operator()(const Strong& a, const Strong& b) const;
};

struct Array : objc_object {
  std::vector<Strong> items;
  unsigned long mutations = 0;
};
struct Dictionary : objc_object {
  std::unordered_map<Strong, Strong, ObjectHash, ObjectEqual> items;
  unsigned long mutations = 0;
};

struct Data : objc_object {
  std::string bytes;
};
struct Url : objc_object {
  std::string path;
};
// NSError has no name, NSException no code; an exception's domain is its name.
struct Error : objc_object {
  Strong domain;
  long code = 0;
  Strong reason;
  Strong info;
};

// All of these are autoreleased.
id string(const std::string& text, Class cls = &class_NSString);
id number(unsigned long value);
id array(const std::vector<id>& items);
id dictionary(const std::vector<std::pair<id, id>>& items);
id url(const std::string& path);
id error(const char* domain, long code, const std::string& message);
id exception(const char* name, const std::string& reason);

// Returns the text of an NSString; "" for nil. Raises NSInvalidArgumentException for other objects.
std::string text_of(id string);
// Returns what %@ prints: the object's description.
std::string describe(id object);
bool equal(id a, id b);
// Returns the argument with the conversions of NSString's formats replaced.
std::string format(id text, va_list arguments);

// Reads a file; returns false if it cannot be read.
bool read_file(const std::string& path, std::string& contents);
std::string folder_of(const std::string& path);
std::string join(const std::string& folder, const std::string& name);
bool exists(const std::string& path);
// The program that runs, and the program or library that has an address.
std::string executable();
std::string image_of(const void* address);

// Sets *out, if a caller gave a place, and returns nil.
id fail(id* out, id error);

// ---- properties, whose accessors are all alike --------------------------------------------------

// {"label", Accessors<&State::label>::get}, {"setLabel:", Accessors<&State::label>::set_copy}
template <auto member>
struct Accessors;
template <class State, class T, T State::* member>
  requires(!std::is_same_v<T, Strong>)
struct Accessors<member> {
  static T get(State* self, SEL) { return self->*member; }
  static void set(State* self, SEL, T value) { self->*member = value; }
};
template <class State, Strong State::* member>
struct Accessors<member> {
  static id get(State* self, SEL) { return (self->*member).get(); }
  static void set(State* self, SEL, id value) { self->*member = Strong(value); }
  static void set_copy(State* self, SEL, id value) {
    self->*member = Strong::taken(value != nullptr ? send(value, "copy") : nullptr);
  }
};

// The definitions of define_foundation(), in the order in which classes need one another.
void define_objects();
void define_strings();
void define_values();
void define_collections();
void define_data();
void define_errors();
void define_files();
void define_process();

}  // namespace metalops::objc

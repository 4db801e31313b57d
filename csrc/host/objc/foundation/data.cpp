// NSData and NSURL.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSData)
METALOPS_OBJC_CLASS(NSMutableData)
METALOPS_OBJC_CLASS(NSURL)

namespace metalops::objc {
namespace {

id data_of(std::string bytes, id cls) {
  auto* made = make<Data>(reinterpret_cast<Class>(cls));
  made->bytes = std::move(bytes);
  return autoreleased(made);
}

id data_of_file(const std::string& path, id cls) {
  std::string bytes;
  return read_file(path, bytes) ? data_of(std::move(bytes), cls) : nullptr;
}

// The bytes are copied: nobody sees whether they were.
id data_taken(id cls, char* bytes, UInteger length, bool frees) {
  id made = data_of(std::string(bytes, length), cls);
  if (frees) std::free(bytes);
  return made;
}

bool same(Data* self, SEL, id other) {
  return is_kind_of(other, &class_NSData) && self->bytes == static_cast<Data*>(other)->bytes;
}

std::string path_of(const std::string& text) {
  constexpr std::string_view kScheme = "file://";
  return text.starts_with(kScheme) ? text.substr(kScheme.size()) : text;
}

id by_part(Url* self, const char* method, id part) {
  return url(text_of(send(string(self->path), method, part)));
}

}  // namespace

id url(const std::string& path) {
  auto* made = make<Url>(&class_NSURL);
  made->path = path;
  return autoreleased(made);
}

void define_data() {
  define<Data>(
      METALOPS_OBJC_SYMBOLS(NSData), &class_NSObject,
      {
          {"initWithBytes:length:",
           [](Data* self, SEL, const char* bytes, UInteger length) -> id {
             self->bytes.assign(bytes, length);
             return self;
           }},
          {"length", [](Data* self, SEL) { return static_cast<UInteger>(self->bytes.size()); }},
          {"bytes", [](Data* self, SEL) -> const void* { return self->bytes.data(); }},
          {"getBytes:length:",
           [](Data* self, SEL, void* to, UInteger length) {
             std::memcpy(to, self->bytes.data(), std::min<UInteger>(length, self->bytes.size()));
           }},
          {"isEqual:", same},
          {"isEqualToData:", same},
          {"hash",
           [](Data* self, SEL) {
             return static_cast<UInteger>(std::hash<std::string>()(self->bytes));
           }},
          {"writeToFile:atomically:",
           [](Data* self, SEL, id path, bool) {
             std::ofstream file(text_of(path), std::ios::binary);
             file << self->bytes;
             return bool(file.flush());
           }},
          {"copy",
           [](Data* self, SEL) {
             const bool changes = is_kind_of(self, &class_NSMutableData);
             return objc_retain(changes ? data_of(self->bytes, reinterpret_cast<id>(&class_NSData))
                                        : self);
           }},
          {"mutableCopy",
           [](Data* self, SEL) {
             return objc_retain(data_of(self->bytes, reinterpret_cast<id>(&class_NSMutableData)));
           }},
          {"description",
           [](Data* self, SEL) {
             return string("{length = " + std::to_string(self->bytes.size()) + "}");
           }},
      },
      {
          {"data", [](id cls, SEL) { return data_of("", cls); }},
          {"dataWithBytes:length:",
           [](id cls, SEL, const char* bytes, UInteger length) {
             return data_of(std::string(bytes, length), cls);
           }},
          {"dataWithBytesNoCopy:length:",
           [](id cls, SEL, char* bytes, UInteger length) {
             return data_taken(cls, bytes, length, true);
           }},
          {"dataWithBytesNoCopy:length:freeWhenDone:",
           [](id cls, SEL, char* bytes, UInteger length, bool frees) {
             return data_taken(cls, bytes, length, frees);
           }},
          {"dataWithData:", [](id cls, SEL, Data* other) { return data_of(other->bytes, cls); }},
          {"dataWithContentsOfFile:",
           [](id cls, SEL, id path) { return data_of_file(text_of(path), cls); }},
          {"dataWithContentsOfURL:",
           [](id cls, SEL, Url* url) { return data_of_file(url->path, cls); }},
      },
      {"NSCopying", "NSMutableCopying"});

  define<Data>(
      METALOPS_OBJC_SYMBOLS(NSMutableData), &class_NSData,
      {
          {"mutableBytes", [](Data* self, SEL) -> void* { return self->bytes.data(); }},
          {"setLength:", [](Data* self, SEL, UInteger length) { self->bytes.resize(length); }},
          {"appendBytes:length:", [](Data* self, SEL, const char* bytes,
                                     UInteger length) { self->bytes.append(bytes, length); }},
          {"appendData:", [](Data* self, SEL, Data* other) { self->bytes += other->bytes; }},
      },
      {
          {"dataWithLength:",
           [](id cls, SEL, UInteger length) { return data_of(std::string(length, '\0'), cls); }},
          {"dataWithCapacity:", [](id cls, SEL, UInteger) { return data_of("", cls); }},
      });

  define<Url>(
      METALOPS_OBJC_SYMBOLS(NSURL), &class_NSObject,
      {
          {"initFileURLWithPath:",
           [](Url* self, SEL, id path) -> id {
             self->path = text_of(path);
             return self;
           }},
          {"path", [](Url* self, SEL) { return string(self->path); }},
          {"fileSystemRepresentation", [](Url* self, SEL) { return self->path.c_str(); }},
          {"absoluteString", [](Url* self, SEL) { return string("file://" + self->path); }},
          {"description", [](Url* self, SEL) { return string("file://" + self->path); }},
          {"isFileURL", [](Url*, SEL) { return true; }},
          {"lastPathComponent",
           [](Url* self, SEL) { return send(string(self->path), "lastPathComponent"); }},
          {"pathExtension",
           [](Url* self, SEL) { return send(string(self->path), "pathExtension"); }},
          {"URLByDeletingLastPathComponent",
           [](Url* self, SEL) { return url(folder_of(self->path)); }},
          {"URLByAppendingPathComponent:",
           [](Url* self, SEL, id part) {
             return by_part(self, "stringByAppendingPathComponent:", part);
           }},
          {"URLByAppendingPathExtension:",
           [](Url* self, SEL, id part) {
             return by_part(self, "stringByAppendingPathExtension:", part);
           }},
          {"checkResourceIsReachableAndReturnError:",
           [](Url* self, SEL, id* out) {
             if (out != nullptr) *out = nullptr;
             if (exists(self->path)) return true;
             fail(out, error("NSCocoaErrorDomain", 260,
                             "The file “" + self->path +
                                 "” couldn’t be opened because there is "
                                 "no such file."));
             return false;
           }},
          {"isEqual:",
           [](Url* self, SEL, id other) {
             return is_kind_of(other, &class_NSURL) && self->path == static_cast<Url*>(other)->path;
           }},
          {"hash", [](Url* self,
                      SEL) { return static_cast<UInteger>(std::hash<std::string>()(self->path)); }},
          {"copy", [](id self, SEL) { return objc_retain(self); }},
      },
      {
          {"fileURLWithPath:", [](id, SEL, id path) { return url(text_of(path)); }},
          {"fileURLWithPath:isDirectory:",
           [](id, SEL, id path, bool) { return url(text_of(path)); }},
          {"URLWithString:", [](id, SEL, id text) { return url(path_of(text_of(text))); }},
      },
      {"NSCopying"});
}

}  // namespace metalops::objc

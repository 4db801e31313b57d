// NSString: UTF-8 inside, UTF-16 where programs count characters.
#include <objc/runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSString)
METALOPS_OBJC_CLASS(NSMutableString)
METALOPS_OBJC_CLASS(NSConstantString)
METALOPS_OBJC_CLASS(NSTinyString)

namespace metalops::objc {
namespace {

// A literal, as clang emits it.
struct ConstantString : objc_object {
  uint32_t flags;   // 2: UTF-16
  uint32_t length;  // in characters
  uint32_t bytes;
  uint32_t hash;
  const void* data;
};
constexpr uint32_t kIsUtf16 = 2;

void append_utf8(std::string& text, uint32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xC0 | point >> 6);
    text += static_cast<char>(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    text += static_cast<char>(0xE0 | point >> 12);
    text += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (point & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | point >> 18);
    text += static_cast<char>(0x80 | (point >> 12 & 0x3F));
    text += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (point & 0x3F));
  }
}

std::string to_utf8(std::u16string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t point = text[i];
    const bool is_pair = (point & 0xFC00) == 0xD800 && i + 1 < text.size();
    if (is_pair) point = 0x10000 + ((point & 0x3FF) << 10) + (text[++i] & 0x3FF);
    append_utf8(result, point);
  }
  return result;
}

std::u16string to_utf16(std::string_view text) {
  std::u16string result;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
    uint32_t point = more == 0 ? first : first & (0x3F >> more);
    for (; more > 0 && i < text.size(); --more) {
      point = point << 6 | (static_cast<unsigned char>(text[i++]) & 0x3F);
    }
    if (point < 0x10000) {
      result += static_cast<char16_t>(point);
    } else {
      result += static_cast<char16_t>(0xD800 + ((point - 0x10000) >> 10));
      result += static_cast<char16_t>(0xDC00 + ((point - 0x10000) & 0x3FF));
    }
  }
  return result;
}

// A literal of up to eight ASCII characters, in a pointer: seven bits for each, from the top, their
// number and a tag.
std::string tiny_text(id string) {
  const auto bits = reinterpret_cast<uint64_t>(string);
  std::string text;
  for (size_t i = 0; i < (bits >> 3 & 0x1F); ++i) {
    text += static_cast<char>(bits >> (57 - 7 * i) & 0x7F);
  }
  return text;
}

std::string constant_text(const ConstantString* string) {
  const auto* data = static_cast<const char*>(string->data);
  if (string->flags != kIsUtf16) return {data, string->bytes};
  return to_utf8({reinterpret_cast<const char16_t*>(data), string->length});
}

// The part of a text; raises NSRangeException, as `method`.
id part_of(id self, SEL method, Range range) {
  const std::u16string text = to_utf16(text_of(self));
  if (range.location > text.size() || range.length > text.size() - range.location) {
    raise(kRangeException, written(self, method) + ": " + std::to_string(range.length) +
                               " characters at " + std::to_string(range.location) +
                               " are beyond the " + std::to_string(text.size()) + " of the string");
  }
  return string(to_utf8(std::u16string_view(text).substr(range.location, range.length)));
}

std::string last_component(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "" : "/";
  const size_t slash = path.rfind('/', end);
  return path.substr(slash == std::string::npos ? 0 : slash + 1, end - slash);
}
std::string extension_of(const std::string& path) {
  const std::string last = last_component(path);
  const size_t dot = last.rfind('.');
  return dot == std::string::npos || dot == 0 ? "" : last.substr(dot + 1);
}

long order(int compared) { return compared < 0 ? -1 : compared > 0; }

template <class T>
id from_bytes(String* self, const T* text) {
  if (text == nullptr) raise(kInvalidArgument, "NSString: the text is NULL");
  self->text = text;
  return self;
}

id from_file(const std::string& path, id* out, Class cls) {
  std::string text;
  if (out != nullptr) *out = nullptr;
  if (read_file(path, text)) return string(text, cls);
  constexpr long kNoSuchFile = 260;
  return fail(out, error("NSCocoaErrorDomain", kNoSuchFile,
                         "The file “" + path + "” couldn’t be opened: " + std::strerror(errno)));
}

// Variadic methods.
id init_with_format(String* self, SEL, id text, ...) {
  va_list arguments;
  va_start(arguments, text);
  self->text = format(text, arguments);
  va_end(arguments);
  return self;
}
id by_appending_format(id self, SEL, id text, ...) {
  va_list arguments;
  va_start(arguments, text);
  id result = string(text_of(self) + format(text, arguments));
  va_end(arguments);
  return result;
}
id with_format(id cls, SEL, id text, ...) {
  va_list arguments;
  va_start(arguments, text);
  id result = string(format(text, arguments), as_class(cls));
  va_end(arguments);
  return result;
}
void append_format(String* self, SEL, id text, ...) {
  va_list arguments;
  va_start(arguments, text);
  self->text += format(text, arguments);
  va_end(arguments);
}

template <class F>
std::string each_letter(std::string text, F change) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [&](unsigned char c) { return static_cast<char>(c < 0x80 ? change(c) : c); });
  return text;
}

id components(id self, id separator) {
  const std::string text = text_of(self), by = text_of(separator);
  std::vector<id> parts;
  size_t begin = 0;
  for (size_t next; !by.empty() && (next = text.find(by, begin)) != std::string::npos;) {
    parts.push_back(string(text.substr(begin, next - begin)));
    begin = next + by.size();
  }
  parts.push_back(string(text.substr(begin)));
  return array(parts);
}

id path_components(id self, SEL) {
  const std::string text = text_of(self);
  std::vector<id> parts;
  if (!text.empty() && text[0] == '/') parts.push_back(string("/"));
  for (size_t begin = text.find_first_not_of('/'); begin != std::string::npos;) {
    const size_t end = text.find('/', begin);
    parts.push_back(string(text.substr(begin, end - begin)));
    begin = text.find_first_not_of('/', end);
  }
  return array(parts);
}

id replaced(id self, SEL, id part, id other) {
  std::string text = text_of(self);
  const std::string from = text_of(part), to = text_of(other);
  for (size_t at = 0; !from.empty() && (at = text.find(from, at)) != std::string::npos;) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
  return string(text);
}

// Returns a pointer that lives as long as the string, or for literals in UTF-16 or a pointer, as
// long as the pool.
const char* utf8(id self, SEL) {
  const Class cls = class_of(self);
  const bool is_literal = cls == &class_NSTinyString || cls == &class_NSConstantString;
  return static_cast<String*>(is_literal ? string(text_of(self)) : self)->text.c_str();
}

}  // namespace

id string(const std::string& text, Class cls) {
  auto* made = make<String>(cls);
  made->text = text;
  return autoreleased(made);
}

std::string text_of(id object) {
  if (object == nullptr) return "";
  const Class cls = class_of(object);
  if (cls == &class_NSTinyString) return tiny_text(object);
  if (cls == &class_NSConstantString) return constant_text(static_cast<ConstantString*>(object));
  if (is_kind_of(object, &class_NSString)) return static_cast<String*>(object)->text;
  raise(kInvalidArgument, std::string("an NSString is expected, but this is of the class ") +
                              object_getClassName(object) + ": " + describe(object));
}

namespace {

// Prints one conversion, such as "%-8.3f".
template <class T>
std::string print(const std::string& conversion, T value) {
  const int length = std::snprintf(nullptr, 0, conversion.c_str(), value);
  std::string text(static_cast<size_t>(std::max(length, 0)) + 1, '\0');
  std::snprintf(text.data(), text.size(), conversion.c_str(), value);
  text.pop_back();
  return text;
}

}  // namespace

std::string format(id text, va_list arguments) {
  const std::string from = text_of(text);
  std::string result;
  va_list rest;
  va_copy(rest, arguments);
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t end = from.find_first_not_of("0123456789.-+ #*hlqzjtL", i + 1);
    if (from[i] != '%' || end == std::string::npos) {
      result += from[i];
      continue;
    }
    std::string conversion = from.substr(i, end - i + 1);
    for (size_t star; (star = conversion.find('*')) != std::string::npos;) {
      conversion.replace(star, 1, std::to_string(va_arg(rest, int)));
    }
    const size_t quad = conversion.find('q');  // a long long
    if (quad != std::string::npos) conversion.replace(quad, 1, "ll");
    const char kind = from[end];
    i = end;
    if (kind == '%') {
      result += '%';
    } else if (kind == '@') {
      conversion.back() = 's';
      result += print(conversion, describe(va_arg(rest, id)).c_str());
    } else if (kind == 's') {
      const char* value = va_arg(rest, const char*);
      result += print(conversion, value != nullptr ? value : "(null)");
    } else if (std::strchr("fFeEgGaA", kind) != nullptr) {
      if (conversion.find('L') != std::string::npos) {
        result += print(conversion, va_arg(rest, long double));
      } else {
        result += print(conversion, va_arg(rest, double));
      }
    } else if (kind == 'p') {
      result += print(conversion, va_arg(rest, void*));
    } else if (kind == 'C') {
      append_utf8(result, static_cast<uint32_t>(va_arg(rest, int)));
    } else if (std::strchr("diuxXoc", kind) != nullptr) {
      if (conversion.find_first_of("lzjt") != std::string::npos) {
        result += print(conversion, va_arg(rest, long long));
      } else {
        result += print(conversion, va_arg(rest, int));
      }
    } else {
      raise(kInvalidArgument, "the format \"" + from + "\" has the conversion \"" + conversion +
                                  "\", which the software Metal device does not have");
    }
  }
  va_end(rest);
  return result;
}

void define_strings() {
  define<String>(
      METALOPS_OBJC_SYMBOLS(NSString), &class_NSObject,
      {
          {"initWithString:",
           [](String* self, SEL, id other) -> id {
             self->text = text_of(other);
             return self;
           }},
          {"initWithUTF8String:",
           [](String* self, SEL, const char* text) { return from_bytes(self, text); }},
          {"initWithCString:encoding:",
           [](String* self, SEL, const char* text, UInteger) { return from_bytes(self, text); }},
          {"initWithBytes:length:encoding:",
           [](String* self, SEL, const char* bytes, UInteger length, UInteger) -> id {
             self->text.assign(bytes, length);
             return self;
           }},
          {"initWithBytesNoCopy:length:encoding:freeWhenDone:",
           [](String* self, SEL, char* bytes, UInteger length, UInteger, bool frees) -> id {
             self->text.assign(bytes, length);
             if (frees) std::free(bytes);
             return self;
           }},
          {"initWithData:encoding:",
           [](String* self, SEL, Data* data, UInteger) -> id {
             self->text = data->bytes;
             return self;
           }},
          {"initWithFormat:", init_with_format},
          {"initWithFormat:arguments:",
           [](String* self, SEL, id text, va_list arguments) -> id {
             self->text = format(text, arguments);
             return self;
           }},
          {"initWithContentsOfFile:encoding:error:",
           [](String* self, SEL, id path, UInteger, id* out) -> id {
             id read = from_file(text_of(path), out, &class_NSString);
             if (read != nullptr) self->text = text_of(read);
             if (read == nullptr) objc_release(self);
             return read != nullptr ? self : nullptr;
           }},
          {"UTF8String", utf8},
          {"fileSystemRepresentation", utf8},
          {"cStringUsingEncoding:",
           [](id self, SEL method, UInteger) { return utf8(self, method); }},
          {"getCString:maxLength:encoding:",
           [](id self, SEL, char* buffer, UInteger room, UInteger) {
             const std::string text = text_of(self);
             if (text.size() >= room) return false;
             std::memcpy(buffer, text.c_str(), text.size() + 1);
             return true;
           }},
          {"length",
           [](id self, SEL) { return static_cast<UInteger>(to_utf16(text_of(self)).size()); }},
          {"lengthOfBytesUsingEncoding:",
           [](id self, SEL, UInteger) { return static_cast<UInteger>(text_of(self).size()); }},
          {"maximumLengthOfBytesUsingEncoding:",
           [](id self, SEL, UInteger) { return static_cast<UInteger>(text_of(self).size()); }},
          {"characterAtIndex:",
           [](id self, SEL method, UInteger index) {
             const std::u16string one = to_utf16(text_of(part_of(self, method, {index, 1})));
             return static_cast<unsigned short>(one[0]);
           }},
          {"hash",
           [](id self, SEL) {
             return static_cast<UInteger>(std::hash<std::string>()(text_of(self)));
           }},
          {"isEqual:",
           [](id self, SEL, id other) {
             return is_kind_of(other, &class_NSString) && text_of(self) == text_of(other);
           }},
          {"isEqualToString:",
           [](id self, SEL, id other) {
             return other != nullptr && text_of(self) == text_of(other);
           }},
          {"hasPrefix:",
           [](id self, SEL, id other) { return text_of(self).starts_with(text_of(other)); }},
          {"hasSuffix:",
           [](id self, SEL, id other) { return text_of(self).ends_with(text_of(other)); }},
          {"containsString:",
           [](id self, SEL, id part) {
             return text_of(self).find(text_of(part)) != std::string::npos;
           }},
          {"rangeOfString:",
           [](id self, SEL, id part) {
             const std::u16string text = to_utf16(text_of(self)), wanted = to_utf16(text_of(part));
             const size_t at = text.find(wanted);
             if (wanted.empty() || at == std::u16string::npos) {
               return Range{static_cast<UInteger>(INTPTR_MAX), 0};
             }
             return Range{at, wanted.size()};
           }},
          {"compare:",
           [](id self, SEL, id other) { return order(text_of(self).compare(text_of(other))); }},
          {"caseInsensitiveCompare:",
           [](id self, SEL, id other) {
             const auto lower = [](id one) {
               return each_letter(text_of(one), [](int c) { return std::tolower(c); });
             };
             return order(lower(self).compare(lower(other)));
           }},
          {"stringByAppendingString:",
           [](id self, SEL, id other) { return string(text_of(self) + text_of(other)); }},
          {"stringByAppendingFormat:", by_appending_format},
          {"stringByReplacingOccurrencesOfString:withString:", replaced},
          {"substringToIndex:",
           [](id self, SEL method, UInteger end) { return part_of(self, method, {0, end}); }},
          {"substringFromIndex:",
           [](id self, SEL method, UInteger begin) {
             const UInteger length = to_utf16(text_of(self)).size();
             return part_of(self, method, {begin, begin <= length ? length - begin : 0});
           }},
          {"substringWithRange:",
           [](id self, SEL method, Range range) { return part_of(self, method, range); }},
          {"componentsSeparatedByString:",
           [](id self, SEL, id by) { return components(self, by); }},
          {"stringByAppendingPathComponent:",
           [](id self, SEL, id other) { return string(join(text_of(self), text_of(other))); }},
          {"stringByAppendingPathExtension:",
           [](id self, SEL, id other) { return string(text_of(self) + "." + text_of(other)); }},
          {"stringByDeletingLastPathComponent",
           [](id self, SEL) { return string(folder_of(text_of(self))); }},
          {"stringByDeletingPathExtension",
           [](id self, SEL) {
             const std::string text = text_of(self), extension = extension_of(text);
             const size_t dropped = extension.empty() ? 0 : extension.size() + 1;
             return string(text.substr(0, text.size() - dropped));
           }},
          {"stringByStandardizingPath",
           [](id self, SEL) {
             char* real = realpath(text_of(self).c_str(), nullptr);
             id result = string(real != nullptr ? real : text_of(self));
             std::free(real);
             return result;
           }},
          {"stringByExpandingTildeInPath",
           [](id self, SEL) {
             const std::string text = text_of(self);
             const char* home = std::getenv("HOME");
             const bool expands = home != nullptr && (text == "~" || text.starts_with("~/"));
             return string(expands ? home + text.substr(1) : text);
           }},
          {"lastPathComponent", [](id self, SEL) { return string(last_component(text_of(self))); }},
          {"pathExtension", [](id self, SEL) { return string(extension_of(text_of(self))); }},
          {"pathComponents", path_components},
          {"isAbsolutePath", [](id self, SEL) { return text_of(self).starts_with("/"); }},
          {"lowercaseString",
           [](id self, SEL) {
             return string(each_letter(text_of(self), [](int c) { return std::tolower(c); }));
           }},
          {"uppercaseString",
           [](id self, SEL) {
             return string(each_letter(text_of(self), [](int c) { return std::toupper(c); }));
           }},
          {"dataUsingEncoding:",
           [](id self, SEL, UInteger) -> id {
             auto* data = make<Data>(&class_NSData);
             data->bytes = text_of(self);
             return autoreleased(data);
           }},
          {"writeToFile:atomically:encoding:error:",
           [](id self, SEL, id path, bool, UInteger, id* out) {
             std::ofstream file(text_of(path), std::ios::binary);
             file << text_of(self);
             if (file.flush()) return true;
             fail(out, error("NSCocoaErrorDomain", 512,
                             "The file “" + text_of(path) + "” couldn’t be written"));
             return false;
           }},
          {"integerValue",
           [](id self, SEL) { return std::strtol(text_of(self).c_str(), nullptr, 10); }},
          {"intValue",
           [](id self, SEL) {
             return static_cast<int>(std::strtol(text_of(self).c_str(), nullptr, 10));
           }},
          {"longLongValue",
           [](id self, SEL) { return std::strtoll(text_of(self).c_str(), nullptr, 10); }},
          {"doubleValue", [](id self, SEL) { return std::strtod(text_of(self).c_str(), nullptr); }},
          {"floatValue", [](id self, SEL) { return std::strtof(text_of(self).c_str(), nullptr); }},
          {"boolValue",
           [](id self, SEL) {
             const std::string text = text_of(self);
             const size_t first = text.find_first_not_of(" +-0");
             return first != std::string::npos && std::strchr("YyTt123456789", text[first]);
           }},
          {"copy",
           [](id self, SEL) {
             const bool changes = is_kind_of(self, &class_NSMutableString);
             return objc_retain(changes ? string(text_of(self)) : self);
           }},
          {"mutableCopy",
           [](id self, SEL) { return objc_retain(string(text_of(self), &class_NSMutableString)); }},
          {"description", [](id self, SEL) { return self; }},
      },
      {
          {"string", [](id cls, SEL) { return string("", as_class(cls)); }},
          {"stringWithString:",
           [](id cls, SEL, id other) { return string(text_of(other), as_class(cls)); }},
          {"stringWithUTF8String:",
           [](id cls, SEL, const char* text) {
             if (text == nullptr)
               raise(kInvalidArgument, "+[NSString stringWithUTF8String:]: NULL");
             return string(text, as_class(cls));
           }},
          {"stringWithCString:",
           [](id cls, SEL, const char* text) { return string(text, as_class(cls)); }},
          {"stringWithCString:encoding:",
           [](id cls, SEL, const char* text, UInteger) { return string(text, as_class(cls)); }},
          {"stringWithFormat:", with_format},
          {"stringWithContentsOfFile:encoding:error:",
           [](id cls, SEL, id path, UInteger, id* out) {
             return from_file(text_of(path), out, as_class(cls));
           }},
          {"stringWithContentsOfURL:encoding:error:",
           [](id cls, SEL, Url* url, UInteger, id* out) {
             return from_file(url->path, out, as_class(cls));
           }},
          {"pathWithComponents:",
           [](id, SEL, Array* parts) {
             std::string path;
             for (id part : parts->items) path = join(path, text_of(part));
             return string(path);
           }},
      },
      {"NSCopying", "NSMutableCopying"});

  define<String>(
      METALOPS_OBJC_SYMBOLS(NSMutableString), &class_NSString,
      {
          {"initWithCapacity:", [](id self, SEL, UInteger) { return self; }},
          {"appendString:", [](String* self, SEL, id other) { self->text += text_of(other); }},
          {"appendFormat:", append_format},
          {"setString:", [](String* self, SEL, id other) { self->text = text_of(other); }},
      },
      {{"stringWithCapacity:", [](id cls, SEL, UInteger) { return string("", as_class(cls)); }}});

  define<objc_object>(METALOPS_OBJC_SYMBOLS(NSConstantString), &class_NSString,
                      {{"UTF8String", [](ConstantString* self, SEL method) {
                          return self->flags == kIsUtf16 ? utf8(self, method)
                                                         : static_cast<const char*>(self->data);
                        }}});
  define<objc_object>(METALOPS_OBJC_SYMBOLS(NSTinyString), &class_NSString, {});
}

}  // namespace metalops::objc

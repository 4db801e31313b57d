// NSNumber and NSNull.
#include <cstdio>
#include <functional>

#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSNumber)
METALOPS_OBJC_CLASS(NSNull)

namespace metalops::objc {
namespace {

using Kind = Number::Kind;

template <class T, Kind kind>
id make_number(id, SEL, T value) {
  auto* made = make<Number>(&class_NSNumber);
  made->kind = kind;
  made->whole = static_cast<long long>(value);
  made->real = static_cast<double>(value);
  return autoreleased(made);
}

template <class T>
T value_as(Number* self, SEL) {
  if (self->kind == Kind::kReal) return static_cast<T>(self->real);
  if (self->kind == Kind::kUnsigned) {
    return static_cast<T>(static_cast<unsigned long long>(self->whole));
  }
  return static_cast<T>(self->whole);
}

std::string text_of_number(const Number& number) {
  char text[64];
  switch (number.kind) {
    case Kind::kReal:
      // The fewest digits that give the same number, as Foundation prints it.
      for (int digits = 1; digits <= 17; ++digits) {
        std::snprintf(text, sizeof text, "%.*g", digits, number.real);
        if (std::strtod(text, nullptr) == number.real) break;
        const auto single = static_cast<float>(number.real);
        if (single == number.real && std::strtof(text, nullptr) == single) break;
      }
      break;
    case Kind::kUnsigned:
      std::snprintf(text, sizeof text, "%llu", static_cast<unsigned long long>(number.whole));
      break;
    default:
      std::snprintf(text, sizeof text, "%lld", number.whole);
  }
  return text;
}

template <class T>
long compare(T a, T b) {
  return a < b ? -1 : a > b;
}
long compare_numbers(const Number& a, const Number& b) {
  if (a.kind == Kind::kReal || b.kind == Kind::kReal) return compare(a.real, b.real);
  const auto whole = [](const Number& n) {
    return n.kind == Kind::kUnsigned ? __int128(static_cast<unsigned long long>(n.whole))
                                     : __int128(n.whole);
  };
  return compare(whole(a), whole(b));
}

bool equals(Number* self, SEL, id other) {
  return is_kind_of(other, &class_NSNumber) &&
         compare_numbers(*self, *static_cast<Number*>(other)) == 0;
}
id text(Number* self, SEL) { return string(text_of_number(*self)); }

}  // namespace

id number(unsigned long value) {
  return make_number<unsigned long, Kind::kUnsigned>(nullptr, nullptr, value);
}

void define_values() {
  define<Number>(
      METALOPS_OBJC_SYMBOLS(NSNumber), &class_NSObject,
      {
          {"charValue", value_as<char>},
          {"unsignedCharValue", value_as<unsigned char>},
          {"shortValue", value_as<short>},
          {"unsignedShortValue", value_as<unsigned short>},
          {"intValue", value_as<int>},
          {"unsignedIntValue", value_as<unsigned>},
          {"longValue", value_as<long>},
          {"unsignedLongValue", value_as<unsigned long>},
          {"longLongValue", value_as<long long>},
          {"unsignedLongLongValue", value_as<unsigned long long>},
          {"integerValue", value_as<long>},
          {"unsignedIntegerValue", value_as<unsigned long>},
          {"floatValue", value_as<float>},
          {"doubleValue", value_as<double>},
          {"boolValue", [](Number* self, SEL) { return self->whole != 0 || self->real != 0; }},
          {"compare:",
           [](Number* self, SEL, Number* other) { return compare_numbers(*self, *other); }},
          {"isEqual:", equals},
          {"isEqualToNumber:", equals},
          {"hash", [](Number* self,
                      SEL) { return static_cast<UInteger>(std::hash<double>()(self->real)); }},
          {"stringValue", text},
          {"description", text},
          {"copy", [](id self, SEL) { return objc_retain(self); }},
      },
      {
          {"numberWithChar:", make_number<char, Kind::kSigned>},
          {"numberWithUnsignedChar:", make_number<unsigned char, Kind::kUnsigned>},
          {"numberWithShort:", make_number<short, Kind::kSigned>},
          {"numberWithUnsignedShort:", make_number<unsigned short, Kind::kUnsigned>},
          {"numberWithInt:", make_number<int, Kind::kSigned>},
          {"numberWithUnsignedInt:", make_number<unsigned, Kind::kUnsigned>},
          {"numberWithLong:", make_number<long, Kind::kSigned>},
          {"numberWithUnsignedLong:", make_number<unsigned long, Kind::kUnsigned>},
          {"numberWithLongLong:", make_number<long long, Kind::kSigned>},
          {"numberWithUnsignedLongLong:", make_number<unsigned long long, Kind::kUnsigned>},
          {"numberWithInteger:", make_number<long, Kind::kSigned>},
          {"numberWithUnsignedInteger:", make_number<unsigned long, Kind::kUnsigned>},
          {"numberWithFloat:", make_number<float, Kind::kReal>},
          {"numberWithDouble:", make_number<double, Kind::kReal>},
          {"numberWithBool:", make_number<bool, Kind::kBool>},
      },
      {"NSCopying"});

  define<objc_object>(METALOPS_OBJC_SYMBOLS(NSNull), &class_NSObject,
                      {{"description", [](id, SEL) { return string("<null>"); }}},
                      {{"null", [](id, SEL) {
                          static id one = allocate(&class_NSNull);
                          return one;
                        }}});
}

}  // namespace metalops::objc

// NSObject, and the classes of pools and blocks.
#include <objc/runtime.h>

#include <sstream>

#include <csrc/host/objc/blocks.h>
#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSObject)
METALOPS_OBJC_CLASS(NSBlock)
METALOPS_OBJC_CLASS(NSAutoreleasePool)

namespace metalops::objc {
namespace {

struct Pool : objc_object {
  void* pool = objc_autoreleasePoolPush();
};
void drain(Pool* self, SEL) {
  objc_autoreleasePoolPop(self->pool);
  objc_release(self);
}

// Programs write copyWithZone: and send copy; classes of the library do it the other way round.
id copy(id self, SEL) {
  static const SEL with_zone = sel_registerName("copyWithZone:");
  if (!responds_to(class_of(self), with_zone)) unrecognised(self, with_zone);
  return send(self, "copyWithZone:", static_cast<void*>(nullptr));
}

}  // namespace

void define_objects() {
  define<objc_object>(
      METALOPS_OBJC_SYMBOLS(NSObject), nullptr,
      {
          {"init", [](id self, SEL) { return self; }},
          {"retain", [](id self, SEL) { return objc_retain(self); }},
          {"release", [](id self, SEL) { objc_release(self); }},
          {"autorelease", [](id self, SEL) { return objc_autorelease(self); }},
          {"retainCount", [](id self, SEL) { return references(self); }},
          {"dealloc", [](id self, SEL) { destroy(self); }},
          {"class", [](id self, SEL) { return class_of(self); }},
          {"superclass", [](id self, SEL) { return class_of(self)->super_class; }},
          {"self", [](id self, SEL) { return self; }},
          {"hash", [](id self, SEL) { return reinterpret_cast<UInteger>(self) >> 4; }},
          {"isEqual:", [](id self, SEL, id other) { return self == other; }},
          {"copy", copy},
          {"mutableCopy",
           [](id self, SEL) {
             return send(self, "mutableCopyWithZone:", static_cast<void*>(nullptr));
           }},
          {"isKindOfClass:", [](id self, SEL, Class cls) { return is_kind_of(self, cls); }},
          {"isMemberOfClass:", [](id self, SEL, Class cls) { return class_of(self) == cls; }},
          {"respondsToSelector:",
           [](id self, SEL, SEL wanted) { return responds_to(class_of(self), wanted); }},
          {"conformsToProtocol:",
           [](id self, SEL, Protocol* protocol) {
             return class_conformsToProtocol(class_of(self), protocol);
           }},
          {"doesNotRecognizeSelector:",
           [](id self, SEL, SEL wanted) { unrecognised(self, wanted); }},
          {"performSelector:",
           [](id self, SEL, SEL wanted) { return lookup(self, wanted)(self, wanted); }},
          {"performSelector:withObject:",
           [](id self, SEL, SEL wanted, id object) {
             const auto function = reinterpret_cast<id (*)(id, SEL, id)>(lookup(self, wanted));
             return function(self, wanted, object);
           }},
          {"performSelector:withObject:withObject:",
           [](id self, SEL, SEL wanted, id first, id second) {
             const auto function = reinterpret_cast<id (*)(id, SEL, id, id)>(lookup(self, wanted));
             return function(self, wanted, first, second);
           }},
          {"description",
           [](id self, SEL) {
             std::ostringstream text;
             text << '<' << class_getName(class_of(self)) << ": " << static_cast<void*>(self)
                  << '>';
             return string(is_class(self) ? class_getName(as_class(self)) : text.str());
           }},
          {"debugDescription", [](id self, SEL) { return send(self, "description"); }},
      },
      {
          {"alloc", [](id cls, SEL) { return allocate(as_class(cls)); }},
          {"allocWithZone:", [](id cls, SEL, void*) { return allocate(as_class(cls)); }},
          {"new", [](id cls, SEL) { return send(send(cls, "alloc"), "init"); }},
          {"class", [](id cls, SEL) { return cls; }},
          {"superclass", [](id cls, SEL) { return as_class(cls)->super_class; }},
          {"initialize", [](id, SEL) {}},
          {"copy", [](id cls, SEL) { return cls; }},
          {"isSubclassOfClass:",
           [](id cls, SEL, Class wanted) {
             Class one = as_class(cls);
             while (one != nullptr && one != wanted) one = one->super_class;
             return one != nullptr;
           }},
          {"conformsToProtocol:",
           [](id cls, SEL, Protocol* protocol) {
             return class_conformsToProtocol(as_class(cls), protocol);
           }},
          {"instancesRespondToSelector:",
           [](id cls, SEL, SEL wanted) { return responds_to(as_class(cls), wanted); }},
      },
      {"NSObject"});

  define<objc_object>(METALOPS_OBJC_SYMBOLS(NSBlock), &class_NSObject,
                      {{"copy", [](id self, SEL) { return static_cast<id>(_Block_copy(self)); }}});

  define<Pool>(METALOPS_OBJC_SYMBOLS(NSAutoreleasePool), &class_NSObject,
               {{"drain", drain}, {"release", drain}});
}

void define_foundation() {
  define_objects();
  define_strings();
  define_values();
  define_collections();
  define_data();
  define_errors();
  define_files();
  define_process();
}

std::string describe(id object) {
  return object == nullptr ? "(null)" : text_of(send(object, "description"));
}

bool equal(id a, id b) {
  return a == b || (a != nullptr && b != nullptr && send<bool>(a, "isEqual:", b));
}

}  // namespace metalops::objc

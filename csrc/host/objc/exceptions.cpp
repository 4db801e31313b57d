// @throw, @try and @catch. An exception of Objective-C is a C++ exception that carries the object,
// so that C++ and Python see its message, and C++ frames unwind.
#include <c10/util/Exception.h>

#include <cstring>
#include <typeinfo>

#include <csrc/host/objc/foundation.h>
#include <csrc/host/objc/runtime.h>

METALOPS_OBJC_DECLARE(NSException)

namespace metalops::objc {
namespace {

struct Thrown {
  Strong object;
};

// The C++ exception: a c10::Error, or the kind of it that tells the same.
template <class Error>
struct ThrownAs final : Error, Thrown {
  ThrownAs(id object, const std::string& message)
      : Error({"objc_exception_throw", __FILE__, __LINE__}, message), Thrown{Strong(object)} {}
};

// Returns the object of an exception that is in flight; null for any other exception.
template <class... Errors>
id carried(const std::type_info* type, void* exception) {
  id object = nullptr;
  ((*type == typeid(ThrownAs<Errors>)
        ? void(object = static_cast<ThrownAs<Errors>*>(exception)->object.get())
        : void()),
   ...);
  return object;
}

std::string message_of(id object) {
  if (!is_kind_of(object, &class_NSException)) return describe(object);
  return text_of(send(object, "name")) + ": " + text_of(send(object, "reason"));
}

}  // namespace

void throw_object(id object) {
  const std::string message = message_of(object);
  const bool named = is_kind_of(object, &class_NSException);
  const std::string name = named ? text_of(send(object, "name")) : "";
  if (name == kRangeException) throw ThrownAs<c10::IndexError>(object, message);
  if (name == kInvalidArgument) throw ThrownAs<c10::ValueError>(object, message);
  throw ThrownAs<c10::Error>(object, message);
}

void raise(const char* name, const std::string& reason) { throw_object(exception(name, reason)); }

void unrecognised(id receiver, SEL selector) {
  const std::string reason =
      written(receiver, selector) + ": the software Metal device does not have this method";
  // Programs may catch it as an NSException; Python sees what torch raises for what is missing.
  throw ThrownAs<c10::NotImplementedError>(exception(kInvalidArgument, reason), reason);
}

}  // namespace metalops::objc

// The types through which clang's tables of handlers refer to classes of Objective-C. The
// personality routine of C++ asks the type of a handler whether it catches what was thrown.
namespace gnustep::libobjc {

struct __attribute__((visibility("default"))) __objc_type_info : std::type_info {
  explicit __objc_type_info(const char* name) : std::type_info(name) {}
  bool __is_pointer_p() const override { return false; }
  bool __do_catch(const std::type_info* thrown, void** object, unsigned) const override {
    using namespace metalops::objc;
    const id carried_object =
        carried<c10::Error, c10::IndexError, c10::ValueError, c10::NotImplementedError>(thrown,
                                                                                        *object);
    if (carried_object == nullptr || !catches(carried_object)) return false;
    *object = carried_object;
    return true;
  }
  virtual bool catches(id object) const = 0;
};

// The type of @catch (id ...).
struct __attribute__((visibility("default"))) __objc_id_type_info final : __objc_type_info {
  __objc_id_type_info() : __objc_type_info("id") {}
  bool catches(id) const override { return true; }
};

// The type of @catch (Class* ...): clang emits the object, with the class's name.
struct __attribute__((visibility("default"))) __objc_class_type_info : __objc_type_info {
  using __objc_type_info::__objc_type_info;
  bool catches(id object) const override;
};
bool __objc_class_type_info::catches(id object) const {
  const Class cls = objc_lookUpClass(name());
  return cls != nullptr && metalops::objc::is_kind_of(object, cls);
}

}  // namespace gnustep::libobjc

extern "C" {

__attribute__((visibility("default"))) gnustep::libobjc::__objc_id_type_info __objc_id_type_info;

void objc_exception_throw(id object) { metalops::objc::throw_object(object); }
void objc_exception_rethrow(void*) { throw; }

int __gxx_personality_v0(int, int, uint64_t, void*, void*);
int __gcc_personality_v0(int, int, uint64_t, void*, void*);
int __gnustep_objcxx_personality_v0(int version, int actions, uint64_t kind, void* exception,
                                    void* context) {
  return __gxx_personality_v0(version, actions, kind, exception, context);
}
// The routine of functions in .m files: exceptions pass through them, and run what they clean up.
int __gnustep_objc_personality_v0(int version, int actions, uint64_t kind, void* exception,
                                  void* context) {
  return __gcc_personality_v0(version, actions, kind, exception, context);
}

void objc_enumerationMutation(id collection) {
  metalops::objc::raise("NSGenericException",
                        std::string(object_getClassName(collection)) +
                            ": the collection was changed while a for loop went through it");
}

}  // extern "C"

// NSError and NSException.
#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSError)
METALOPS_OBJC_CLASS(NSException)

// The constants of the headers: literals, which are there before any function of the library runs.
#define CONSTANT(NAME, TEXT)                                                                 \
  extern "C" __attribute__((visibility("default"))) const void* const NAME;                  \
  static struct {                                                                            \
    Class isa;                                                                               \
    uint32_t flags, length, bytes, hash;                                                     \
    const char* data;                                                                        \
  } literal_##NAME{&class_NSConstantString, 0, sizeof(TEXT) - 1, sizeof(TEXT) - 1, 0, TEXT}; \
  const void* const NAME = &literal_##NAME;

METALOPS_OBJC_DECLARE(NSConstantString)
CONSTANT(NSCocoaErrorDomain, "NSCocoaErrorDomain")
CONSTANT(NSPOSIXErrorDomain, "NSPOSIXErrorDomain")
CONSTANT(NSOSStatusErrorDomain, "NSOSStatusErrorDomain")
CONSTANT(NSUnderlyingErrorKey, "NSUnderlyingError")
CONSTANT(NSLocalizedDescriptionKey, "NSLocalizedDescription")
CONSTANT(NSLocalizedFailureReasonErrorKey, "NSLocalizedFailureReason")
CONSTANT(NSLocalizedRecoverySuggestionErrorKey, "NSLocalizedRecoverySuggestion")
CONSTANT(NSFilePathErrorKey, "NSFilePath")
CONSTANT(NSGenericException, "NSGenericException")
CONSTANT(NSRangeException, "NSRangeException")
CONSTANT(NSInvalidArgumentException, "NSInvalidArgumentException")
CONSTANT(NSInternalInconsistencyException, "NSInternalInconsistencyException")
CONSTANT(NSMallocException, "NSMallocException")
CONSTANT(NSFileType, "NSFileType")
CONSTANT(NSFileSize, "NSFileSize")
CONSTANT(NSFileTypeDirectory, "NSFileTypeDirectory")
CONSTANT(NSFileTypeRegular, "NSFileTypeRegular")
CONSTANT(NSFileTypeSymbolicLink, "NSFileTypeSymbolicLink")
CONSTANT(MTLLibraryErrorDomain, "MTLLibraryErrorDomain")
CONSTANT(MTLCaptureErrorDomain, "MTLCaptureErrorDomain")
CONSTANT(MTLCommonCounterTimestamp, "GPUTimestamp")
CONSTANT(MTLCommonCounterSetTimestamp, "timestamp")
CONSTANT(MTLCommandBufferErrorDomain, "MTLCommandBufferErrorDomain")

namespace metalops::objc {
namespace {

id entry(Error* self, const char* key) {
  return self->info.get() != nullptr ? send(self->info.get(), "objectForKey:", string(key))
                                     : nullptr;
}

std::string localized(Error* self) {
  if (id text = entry(self, "NSLocalizedDescription")) return text_of(text);
  return "The operation couldn’t be completed. (" + text_of(self->domain) + " error " +
         std::to_string(self->code) + ".)";
}

id init_error(Error* self, SEL, id domain, long code, id info) {
  self->domain = Strong(domain);
  self->code = code;
  self->info = Strong(info);
  return self;
}

id init_exception(Error* self, SEL, id name, id reason, id info) {
  self->domain = Strong(name);
  self->reason = Strong(reason);
  self->info = Strong(info);
  return self;
}

[[noreturn]] void raise_with_format(id, SEL, id name, id text, ...) {
  va_list arguments;
  va_start(arguments, text);
  const std::string reason = format(text, arguments);
  va_end(arguments);
  raise(text_of(name).c_str(), reason);
}

}  // namespace

id error(const char* domain, long code, const std::string& message) {
  return autoreleased(
      init_error(make<Error>(&class_NSError), nullptr, string(domain), code,
                 dictionary({{string("NSLocalizedDescription"), string(message)}})));
}

id exception(const char* name, const std::string& reason) {
  return autoreleased(init_exception(make<Error>(&class_NSException), nullptr, string(name),
                                     string(reason), nullptr));
}

id fail(id* out, id error) {
  if (out != nullptr) *out = error;
  return nullptr;
}

void define_errors() {
  define<Error>(
      METALOPS_OBJC_SYMBOLS(NSError), &class_NSObject,
      {
          {"initWithDomain:code:userInfo:", init_error},
          {"code", Accessors<&Error::code>::get},
          {"domain", Accessors<&Error::domain>::get},
          {"userInfo",
           [](Error* self, SEL) {
             return self->info.get() != nullptr ? self->info.get() : dictionary({});
           }},
          {"localizedDescription", [](Error* self, SEL) { return string(localized(self)); }},
          {"localizedFailureReason",
           [](Error* self, SEL) { return entry(self, "NSLocalizedFailureReason"); }},
          {"localizedRecoverySuggestion",
           [](Error* self, SEL) { return entry(self, "NSLocalizedRecoverySuggestion"); }},
          {"description",
           [](Error* self, SEL) {
             return string("Error Domain=" + text_of(self->domain) +
                           " Code=" + std::to_string(self->code) + " \"" + localized(self) + "\"");
           }},
          {"copy", [](id self, SEL) { return objc_retain(self); }},
      },
      {{"errorWithDomain:code:userInfo:",
        [](id cls, SEL method, id domain, long code, id info) {
          auto* made = make<Error>(reinterpret_cast<Class>(cls));
          return autoreleased(init_error(made, method, domain, code, info));
        }}},
      {"NSCopying"});

  define<Error>(METALOPS_OBJC_SYMBOLS(NSException), &class_NSObject,
                {
                    {"initWithName:reason:userInfo:", init_exception},
                    {"name", Accessors<&Error::domain>::get},
                    {"reason", Accessors<&Error::reason>::get},
                    {"userInfo", Accessors<&Error::info>::get},
                    {"description", Accessors<&Error::reason>::get},
                    {"raise", [](id self, SEL) { throw_object(self); }},
                    {"copy", [](id self, SEL) { return objc_retain(self); }},
                },
                {
                    {"exceptionWithName:reason:userInfo:",
                     [](id cls, SEL method, id name, id reason, id info) {
                       auto* made = make<Error>(reinterpret_cast<Class>(cls));
                       return autoreleased(init_exception(made, method, name, reason, info));
                     }},
                    {"raise:format:", raise_with_format},
                },
                {"NSCopying"});
}

}  // namespace metalops::objc

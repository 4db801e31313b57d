// Captures: a GPU trace document of a program is a trace of metalops (metalops/trace).
#include <c10/util/Exception.h>
#include <locks.h>
#include <metal/compile.h>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MTLCaptureManager)
METALOPS_OBJC_CLASS(MTLCaptureDescriptor)
METALOPS_OBJC_CLASS(MetalopsCaptureScope)

namespace metalops::objc {
namespace {

// MTLCaptureError
constexpr long kNoSupport = 1, kAlreadyCapturing = 2, kInvalidDescriptor = 3;
constexpr long kDocument = 2;  // MTLCaptureDestinationGPUTraceDocument

struct CaptureDescriptor : objc_object {
  Strong object, url;
  long destination = 1;  // MTLCaptureDestinationDeveloperTools
};
struct CaptureScope : objc_object {
  Strong label;
};
struct CaptureManager : objc_object {
  std::mutex mutex;
  std::atomic<bool> is_capturing{false};
  bool is_recording = false;
  std::string path;
  Strong scope;  // at whose begin the recording begins, if any
};

CaptureManager* manager() {
  static auto* one = make<CaptureManager>(&class_MTLCaptureManager);
  return one;
}

std::string begin_recording(CaptureManager* self) {
  const std::string problem = call_capture("begin_document", {self->path});
  self->is_recording = problem.empty();
  return problem;
}

void end_recording(CaptureManager* self) {
  if (!std::exchange(self->is_recording, false)) return;
  const std::string problem = call_capture("end_document", {});
  TORCH_CHECK(problem.empty(), "-[MTLCaptureManager stopCapture]: ", problem);
}

bool start(CaptureManager* self, SEL method, id descriptor, id* out) {
  auto* one = static_cast<CaptureDescriptor*>(
      checked(descriptor, &class_MTLCaptureDescriptor, "MTLCaptureDescriptor", self, method));
  if (out != nullptr) *out = nullptr;
  const auto refuse = [out](long code, const std::string& reason) {
    fail(out, error("MTLCaptureErrorDomain", code, reason));
    return false;
  };
  if (one->destination != kDocument) {
    return refuse(kNoSupport,
                  "There are no developer tools here; MTLCaptureDestinationGPUTraceDocument writes "
                  "a trace, which `python -m metalops replay` runs");
  }
  if (one->object.get() == nullptr || !is_kind_of(one->url, &class_NSURL)) {
    return refuse(kInvalidDescriptor, "A capture needs a captureObject and an outputURL");
  }
  const WithoutGil no_gil;  // a thread that has the mutex takes it
  std::lock_guard<std::mutex> lock(self->mutex);
  if (self->is_capturing) return refuse(kAlreadyCapturing, "A capture is running already");
  self->path = static_cast<Url*>(one->url.get())->path;
  self->scope = is_kind_of(one->object, &class_MetalopsCaptureScope) ? one->object : Strong();
  if (self->scope.get() == nullptr) {
    const std::string problem = begin_recording(self);
    if (!problem.empty()) return refuse(kInvalidDescriptor, problem);
  }
  self->is_capturing = true;
  return true;
}

void stop(CaptureManager* self, SEL) {
  const WithoutGil no_gil;
  std::lock_guard<std::mutex> lock(self->mutex);
  self->is_capturing = false;
  self->scope = Strong();
  end_recording(self);
}

void begin_scope(id scope, SEL method) {
  CaptureManager* one = manager();
  const WithoutGil no_gil;
  std::lock_guard<std::mutex> lock(one->mutex);
  if (!one->is_capturing || one->scope.get() != scope || one->is_recording) return;
  const std::string problem = begin_recording(one);
  TORCH_CHECK(problem.empty(), written(scope, method), ": ", problem);
}

void end_scope(id scope, SEL) {
  CaptureManager* one = manager();
  const WithoutGil no_gil;
  std::lock_guard<std::mutex> lock(one->mutex);
  if (one->scope.get() == scope) end_recording(one);
}

id new_scope(id, SEL, id) { return allocate(&class_MetalopsCaptureScope); }

}  // namespace

void define_captures() {
  using Descriptor = CaptureDescriptor;
  define<Descriptor>(METALOPS_OBJC_SYMBOLS(MTLCaptureDescriptor), &class_NSObject,
                     {
                         {"captureObject", Accessors<&Descriptor::object>::get},
                         {"setCaptureObject:", Accessors<&Descriptor::object>::set},
                         {"outputURL", Accessors<&Descriptor::url>::get},
                         {"setOutputURL:", Accessors<&Descriptor::url>::set_copy},
                         {"destination", Accessors<&Descriptor::destination>::get},
                         {"setDestination:", Accessors<&Descriptor::destination>::set},
                     });
  define<CaptureScope>(METALOPS_OBJC_SYMBOLS(MetalopsCaptureScope), &class_NSObject,
                       {
                           {"device", get_device},
                           {"label", Accessors<&CaptureScope::label>::get},
                           {"setLabel:", Accessors<&CaptureScope::label>::set_copy},
                           {"beginScope", begin_scope},
                           {"endScope", end_scope},
                       },
                       {}, {"MTLCaptureScope"});
  define<CaptureManager>(
      METALOPS_OBJC_SYMBOLS(MTLCaptureManager), &class_NSObject,
      {
          {"supportsDestination:", [](id, SEL, long where) { return where == kDocument; }},
          {"isCapturing", [](CaptureManager* self, SEL) { return self->is_capturing.load(); }},
          {"newCaptureScopeWithDevice:", new_scope},
          {"newCaptureScopeWithCommandQueue:", new_scope},
          {"startCaptureWithDescriptor:error:", start},
          {"stopCapture", stop},
      },
      {{"sharedCaptureManager", [](id, SEL) -> id { return manager(); }}});
}

}  // namespace metalops::objc

// torch's classes of the mps device whose members are Metal's objects: at::mps::MPSStream,
// MPSDevice and MPSProfiler, what torch::mps hands out, and the functions whose arguments are
// objects. torch's headers are read as C++ here, where objects are void*; the names that functions
// have in Objective-C are spelled out.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/mps/MPSDevice.h>
#include <ATen/mps/MPSProfiler.h>
#include <ATen/mps/MPSStream.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#undef nil

#include <device/objective_c.h>
#include <metal/error_buffer.h>
#include <metal/pipeline.h>
#include <metal/scalar_types.h>
#include <torch_internals.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <csrc/host/objc/metal.h>

namespace objc = metalops::objc;
namespace validation = metalops::validation;
using metalops::streams::Followers;
using objc::Strong;

namespace {

// The objects with which a thread encodes on the stream. On a Mac the stream has one command buffer
// and one encoder, which are used on its queue only. Here threads that break this rule do not
// disturb one another, as kernels take turns.
struct Encoding {
  Strong buffer;
  Strong encoder;
  Strong ended;  // the previous encoder, which a program may use by mistake

  objc::CommandBuffer* commands() const { return static_cast<objc::CommandBuffer*>(buffer.get()); }
};

id stream_queue() {
  static id queue = objc::new_command_queue(/*is_torchs=*/true);
  return queue;
}

Encoding& thread_encoding() {
  thread_local Encoding mine;
  return mine;
}
Encoding& encoding() {
  Encoding& mine = thread_encoding();
  if (mine.buffer.get() == nullptr) {
    mine.buffer = Strong::taken(objc::new_command_buffer(stream_queue()));
    mine.commands()->life.is_of_stream = true;
  }
  return mine;
}
Encoding* encoding_if_any() {
  return thread_encoding().buffer.get() != nullptr ? &thread_encoding() : nullptr;
}

id command_buffer() { return encoding().buffer; }

id compute_encoder() {
  Encoding& mine = encoding();
  if (mine.encoder.get() == nullptr) {
    auto& life = mine.commands()->life;
    life.torchs_encoder = nullptr;  // it is that one
    validation::check_encoding(life,
                               objc::call_of(mine.buffer, sel_registerName("commandEncoder")));
    mine.encoder = Strong::taken(objc::new_compute_encoder(mine.buffer, /*dispatch_type=*/0));
    objc::mark_as_torchs(mine.encoder);
  }
  return mine.encoder;
}

void end_kernel_coalescing(bool by_commit = false) {
  Encoding& mine = encoding();
  objc::torchs_encoder = nullptr;
  if (mine.encoder.get() == nullptr) return;
  // A program may have ended it.
  if (objc::is_open(mine.encoder)) objc::end_encoding(mine.encoder);
  if (by_commit) objc::cut(mine.encoder);
  mine.ended = std::exchange(mine.encoder, Strong());
}

// Follows torch, which on a Mac would encode an operator now, or wait for its stream.
void before_torchs_work(Followers::Work work) {
  if (objc::OwnWork::is_running()) return;
  if (encoding_if_any() != nullptr) validation::check_torchs_work(encoding().commands()->life);
  switch (work) {
    case Followers::Work::kLaunch:
      objc::torchs_encoder = "a kernel that torch launched";
      break;
    case Followers::Work::kOperator:
      // Some of torch's operators are kernels, others are graphs, which end the encoder.
      objc::torchs_encoder =
          validation::is_enabled() ? "an operator of torch, which may be a kernel" : nullptr;
      break;
    case Followers::Work::kWait:
      if (encoding_if_any() != nullptr) end_kernel_coalescing();
      objc::torchs_encoder = nullptr;
      break;
  }
}

void commit() {
  end_kernel_coalescing(/*by_commit=*/true);
  objc::commit_and_continue(encoding().commands());
}

void commit_and_wait() {
  end_kernel_coalescing(/*by_commit=*/true);
  Encoding& mine = encoding();
  const Strong buffer = mine.buffer;
  const SEL method = sel_registerName("commit");
  if (mine.commands()->status < objc::CommandBuffer::kCommitted) {
    objc::commit(buffer, buffer, method);
  }
  objc::wait_until_completed(buffer, buffer, sel_registerName("waitUntilCompleted"));
  mine.buffer = Strong();
}

id error_buffer() {
  static id buffer = objc::new_buffer_without_copy(metalops::error_buffer(),
                                                   metalops::error_buffer_bytes(), 0, nullptr);
  return buffer;
}

// Copies between buffers, in order with the stream.
void copy(id from, id to, size_t bytes, size_t from_offset, size_t to_offset) {
  if (bytes == 0) return;
  end_kernel_coalescing();
  const SEL method =
      sel_registerName("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:");
  id buffer = command_buffer();
  const objc::Place source = objc::place_of(from, buffer, method);
  const objc::Place target = objc::place_of(to, buffer, method);
  objc::check_range(source, from_offset, bytes, buffer, method);
  objc::check_range(target, to_offset, bytes, buffer, method);
  objc::encode_copy(encoding().commands(), source, from_offset, target, to_offset, bytes);
}

// Raises what Python shows as the exception of that kind.
void raise_violation(validation::Kind kind, const std::string& text) {
  TORCH_CHECK_VALUE(kind != validation::Kind::kValue, text);
  TORCH_CHECK_INDEX(kind != validation::Kind::kIndex, text);
  TORCH_CHECK(false, text);
}

}  // namespace

// Lets torch's hooks (csrc/host/device/hooks.cpp) call this library.
void objc::connect_torch() {
  metalops::device::objective_c = {
      // As on a Mac: an extension is likely to make an encoder of its own.
      +[]() -> void* {
        validation::check_taken("torch::mps::get_command_buffer()");
        end_kernel_coalescing();
        return command_buffer();
      },
      +[]() -> void* { return at::mps::getDefaultMPSStream()->queue(); },
      ::commit,
      ::commit_and_wait,
  };
  metalops::streams::followers.before_work = before_torchs_work;
  validation::set_on_stream_queue(
      [] { return objc::runs_on(at::mps::getDefaultMPSStream()->queue()); });
  validation::set_outlet({raise_violation, [](const std::string& text) { TORCH_WARN(text); }});
  const char* const text = std::getenv("METALOPS_VALIDATE");
  if (text == nullptr || std::strcmp(text, "1") != 0) return;
  validation::set_enabled(true);
  metalops::streams::followers.before_free = objc::wait_until_unused;
  metalops::exec::set_check_stream_order(true);
  metalops::streams::set_in_use();
}

// ---- at::mps ------------------------------------------------------------------------------------

namespace at::mps {

MPSStream::MPSStream(Stream stream) : _stream(stream) {
  _commandQueue = stream_queue();
  _serialQueue = dispatch_queue_create("metal gpu stream", nullptr);
}
MPSStream::~MPSStream() = default;
MPSCommandBuffer_t MPSStream::commandBuffer() {
  validation::check_taken("MPSStream::commandBuffer()");
  return command_buffer();
}
MTLComputeCommandEncoder_t MPSStream::commandEncoder() {
  validation::check_encoder_taken("MPSStream::commandEncoder()");
  return compute_encoder();
}
void MPSStream::endKernelCoalescing() { end_kernel_coalescing(); }
MTLDevice_t MPSStream::device() const { return objc::device(); }
MTLBuffer_t MPSStream::getErrorBuffer() { return error_buffer(); }
void MPSStream::checkLastError() { metalops::raise_reported_errors(); }

void MPSStream::synchronize(SyncType type) {
  switch (type) {
    case SyncType::NONE:
    case SyncType::COMMIT_ADAPTIVE:
      break;
    case SyncType::COMMIT:
    case SyncType::COMMIT_AND_CONTINUE:
      ::commit();
      break;
    case SyncType::COMMIT_AND_WAIT:
      ::commit_and_wait();
      checkLastError();
      break;
  }
}

// The stream of all threads. Which of torch's streams is current decides where kernels go, when
// they are launched.
MPSStream* MPSStreamImpl::_stream = nullptr;
MPSStream* MPSStreamImpl::getInstance() {
  static MPSStream* one = [] {
    const c10::Device device(c10::DeviceType::MPS, 0);
    return _stream = new MPSStream(Stream(Stream::UNSAFE, device, 0));
  }();
  return one;
}
MPSStream* getCurrentMPSStream() { return MPSStreamImpl::getInstance(); }
MPSStream* getDefaultMPSStream() { return MPSStreamImpl::getInstance(); }

MPSDevice::MPSDevice() : _mtl_device(objc::device()) {}
MPSDevice::~MPSDevice() = default;
MPSDevice* MPSDevice::getInstance() {
  static MPSDevice* one = new MPSDevice;
  return one;
}
std::string MPSDevice::getName() const { return objc::text_of(objc::send(objc::device(), "name")); }
unsigned MPSDevice::getCoreCount() const { return std::thread::hardware_concurrency(); }
bool is_available() { return true; }
bool is_apple_family_or_newer(AppleGPUFamily family) {
  return family <= AppleGPUFamily::APPLE_9_PLUS;
}
at::Allocator* GetMPSAllocator() { return c10::GetAllocator(c10::DeviceType::MPS); }
// The device follows the newest macOS version that torch checks for (hooks.cpp).
#if METALOPS_HAS_MACOS_13_OR_NEWER
bool MPSDevice::isMacOS13Plus(MacOSVersion) const { return true; }
bool is_macos_13_or_newer(MacOSVersion) { return true; }
#endif

// ---- the profiler: operations are numbered, nothing is logged

namespace Profiler {

MPSProfiler::MPSProfiler() : m_os_log_events(nullptr), m_os_log_intervals(nullptr) {}
MPSProfiler::~MPSProfiler() = default;
uint64_t MPSProfiler::beginProfileKernel(const void*, const std::string&, bool is_graph) {
  return is_graph ? ++m_graph_counter : ++m_kernel_counter;
}
uint64_t MPSProfiler::beginProfileKernel(const void*, const std::string&, const TensorList&) {
  return ++m_kernel_counter;
}
uint64_t MPSProfiler::beginProfileCopy(const void*, const void*, const OptionalTensorRef,
                                       const OptionalTensorRef, size_t, bool, bool) {
  return ++m_copy_counter;
}
uint64_t MPSProfiler::beginProfileCPUFallback(const std::string&, const TensorList&) {
  return ++m_cpu_fb_counter;
}
void MPSProfiler::beginProfileGPUInterval(const void*) {}
void MPSProfiler::endProfileCopy(uint64_t, SyncType) {}
void MPSProfiler::endProfileKernel(const void*, SyncType) {}
void MPSProfiler::endProfileCPUFallback(const std::string&) {}
void MPSProfiler::StartTrace(const std::string&, bool) {}
void MPSProfiler::StopTrace() {}
bool MPSProfiler::isCaptureEnabled() const { return false; }
bool MPSProfiler::isCapturing() const { return false; }
void MPSProfiler::startCapture(const std::string&, MPSStream*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The software Metal device has no GPU captures. metalops.trace records launches");
}
void MPSProfiler::stopCapture(MPSStream*) {}

}  // namespace Profiler

Profiler::MPSProfiler& getMPSProfiler() {
  static auto& one = *new Profiler::MPSProfiler;
  return one;
}

}  // namespace at::mps

// ---- functions whose arguments are objects ------------------------------------------------------

namespace {

using at::native::mps::MetalKernelFunction;
using at::native::mps::MetalShaderLibrary;

// The pipeline behind an object.
metalops::Pipeline* pipeline_of(void* state) {
  return static_cast<objc::PipelineState*>(state)->pipeline.get();
}

// The object for a pipeline of torch's classes, which lives as long as the process.
id state_of(metalops::Pipeline* pipeline) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<metalops::Pipeline*, id>;
  std::lock_guard<std::mutex> lock(mutex);
  id& state = known[pipeline];
  if (state == nullptr) {
    state = objc::new_pipeline_state(
        c10::intrusive_ptr<metalops::Pipeline>::unsafe_reclaim_from_nonowning(pipeline));
  }
  return state;
}

// Reaches a private member of torch's class: an explicit instantiation may name it.
using GetPipeline = std::pair<MTLComputePipelineState_t, MTLFunction_t> (MetalShaderLibrary::*)(
    MTLLibrary_t, const std::string&);
GetPipeline private_get_pipeline();
template <GetPipeline member>
struct Reach {
  friend GetPipeline private_get_pipeline() { return member; }
};
template struct Reach<&MetalShaderLibrary::getLibraryPipelineState>;

std::pair<void*, void*> pipeline_and_function(MetalShaderLibrary* self, id library,
                                              const std::string& name) {
  // A subclass in Objective-C may hand out a library of its own.
  if (library->isa == &class_MetalopsLibrary) {
    id function = objc::send(library, "newFunctionWithName:", objc::string(name));
    if (function == nullptr) metalops::throw_missing_kernel(name);
    return {objc::pipeline_of_function(function, nullptr), function};
  }
  const auto found = (self->*private_get_pipeline())(library, name);
  auto* pipeline = static_cast<metalops::Pipeline*>(found.first);
  id state = state_of(pipeline);
  static auto& mutex = *new std::mutex;
  static auto& functions = *new std::map<id, id>;
  std::lock_guard<std::mutex> lock(mutex);
  id& function = functions[state];
  if (function == nullptr) {
    auto* made = objc::make<objc::Function>(&class_MetalopsFunction);
    made->part = std::make_shared<objc::LibraryPart>(pipeline->library);
    made->described = pipeline->described;
    function = made;
  }
  return {state, function};
}

}  // namespace

extern "C" {

#define OBJC_NAME(NAME) __asm__(NAME)

// at::mps::dispatch_sync_with_rethrow(dispatch_queue_t, void (^)()). C++ exceptions cross
// dispatch_sync here.
void metalops_dispatch_sync_with_rethrow(dispatch_queue_t queue, dispatch_block_t block)
    OBJC_NAME("_ZN2at3mps26dispatch_sync_with_rethrowEP16dispatch_queue_sU13block_pointerFvvE");
void metalops_dispatch_sync_with_rethrow(dispatch_queue_t queue, dispatch_block_t block) {
  dispatch_sync(queue, block);
}

// MPSStream::copy(id<MTLBuffer>, id<MTLBuffer>, ...)
void metalops_stream_copy(at::mps::MPSStream* self, id from, id to, size_t bytes,
                          size_t from_offset, size_t to_offset, uint64_t, at::mps::SyncType type)
    OBJC_NAME(
        "_ZN2at3mps9MPSStream4copyEPU19objcproto9MTLBuffer11objc_objectS3_mmmmNS0_8SyncTypeE");
void metalops_stream_copy(at::mps::MPSStream* self, id from, id to, size_t bytes,
                          size_t from_offset, size_t to_offset, uint64_t, at::mps::SyncType type) {
  copy(from, to, bytes, from_offset, to_offset);
  self->synchronize(type);
}

// MPSStream::copy_and_sync(id<MTLBuffer>, id<MTLBuffer>, ...)
void metalops_stream_copy_and_sync(at::mps::MPSStream* self, id from, id to, size_t bytes,
                                   size_t from_offset, size_t to_offset, bool non_blocking,
                                   uint64_t)
    OBJC_NAME("_ZN2at3mps9MPSStream13copy_and_syncEPU19objcproto9MTLBuffer11objc_objectS3_mmmbm");
void metalops_stream_copy_and_sync(at::mps::MPSStream* self, id from, id to, size_t bytes,
                                   size_t from_offset, size_t to_offset, bool non_blocking,
                                   uint64_t) {
  copy(from, to, bytes, from_offset, to_offset);
  self->synchronize(non_blocking ? at::mps::SyncType::COMMIT : at::mps::SyncType::COMMIT_AND_WAIT);
}

// MPSStream::addCompletedHandler(void (^)(id<MTLCommandBuffer>))
void metalops_stream_add_handler(at::mps::MPSStream*, id block) OBJC_NAME(
    "_ZN2at3mps9MPSStream19addCompletedHandlerEU13block_pointerFvPU27objcproto16MTLCommandBuffer11"
    "objc_objectE");
void metalops_stream_add_handler(at::mps::MPSStream*, id block) {
  objc::send<void>(command_buffer(), "addCompletedHandler:", block);
}

// MetalShaderLibrary::getLibraryPipelineState(id<MTLLibrary>, const std::string&)
std::pair<void*, void*> metalops_library_pipeline(MetalShaderLibrary* self, id library,
                                                  const std::string& name)
    OBJC_NAME(
        "_ZN2at6native3mps18MetalShaderLibrary23getLibraryPipelineStateEPU21objcproto10MTLLibrary11"
        "objc_objectRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
std::pair<void*, void*> metalops_library_pipeline(MetalShaderLibrary* self, id library,
                                                  const std::string& name) {
  return pipeline_and_function(self, library, name);
}

// MetalKernelFunction(id<MTLComputePipelineState>, id<MTLFunction>)
void metalops_kernel_function(MetalKernelFunction* self, void* state, void*) OBJC_NAME(
    "_ZN2at6native3mps19MetalKernelFunctionC1EPU34objcproto23MTLComputePipelineState11objc_object"
    "PU22objcproto11MTLFunction11objc_object");
void metalops_kernel_function(MetalKernelFunction* self, void* state, void*) {
  new (self) MetalKernelFunction(pipeline_of(state), pipeline_of(state));
}

// MetalShaderLibrary::exec_unary_kernel_raw(name, id<MTLBuffer>, ...)
void metalops_unary_raw(MetalShaderLibrary* self, metalops::internals::KernelName name, id from,
                        uint32_t from_offset, c10::ScalarType from_type, id to, uint32_t to_offset,
                        c10::ScalarType to_type, uint32_t count, std::optional<uint32_t> threshold)
    OBJC_NAME(
        "_ZN2at6native3mps18MetalShaderLibrary21exec_unary_kernel_"
        "raw" METALOPS_RAW_KERNEL_IN_OBJECTIVE_C);
void metalops_unary_raw(MetalShaderLibrary* self, metalops::internals::KernelName name, id from,
                        uint32_t from_offset, c10::ScalarType from_type, id to, uint32_t to_offset,
                        c10::ScalarType to_type, uint32_t count,
                        std::optional<uint32_t> threshold) {
  const SEL method = sel_registerName("setBuffer:offset:atIndex:");
  const objc::Place source = objc::place_of(from, encoding().buffer, method);
  const objc::Place target = objc::place_of(to, encoding().buffer, method);
  self->exec_unary_kernel_raw(name, source.memory, from_offset, from_type, target.memory, to_offset,
                              to_type, count, threshold);
}

}  // extern "C"

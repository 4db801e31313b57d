// at::native::mps::MetalKernelFunction: one kernel, whose arguments are set one by one.
#include <ATen/core/TensorBase.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <metal/encoder.h>
#include <metal/error_buffer.h>
#include <metal/pipeline.h>
#include <metal/tensor_argument.h>
#include <metal/texture_argument.h>
#include <torch_internals.h>

namespace at::native::mps {
namespace {

namespace exec = metalops::exec;

using metalops::Encoder;
using metalops::Pipeline;

// The command block of this thread. On a Mac a block runs on the stream's serial queue and its
// kernels use the stream's one encoder: blocks do not nest, and a kernel is encoded from start to
// dispatch before the next one starts. Here each thread has its own encoder, so that one kernel
// object can serve several threads; launches take turns (Encoder::dispatch).
struct CommandBlock {
  const MetalKernelFunction* encoding = nullptr;
  const Pipeline* pipeline = nullptr;  // of that kernel
  std::optional<Encoder> encoder;
};
thread_local CommandBlock* block = nullptr;

// RAII: makes a block that of this thread, and restores the previous one.
class InBlock {
 public:
  explicit InBlock(CommandBlock* now) : before_(std::exchange(block, now)) {}
  ~InBlock() { block = before_; }
  InBlock(const InBlock&) = delete;

 private:
  CommandBlock* const before_;
};

Encoder& encoder_of(const MetalKernelFunction* function, const char* method) {
  TORCH_CHECK(block != nullptr && block->encoding == function, "MetalKernelFunction::", method,
              " must be called after this kernel's startEncoding, inside runCommandBlock");
  return *block->encoder;
}

void launch(Encoder& encoder, const Pipeline& pipeline, std::array<uint64_t, 3> threads,
            std::array<uint64_t, 3> group) {
  InBlock outside(nullptr);  // signal handlers that run meanwhile have blocks of their own
  encoder.set_threadgroup_bytes(pipeline.threadgroup_bytes);
  encoder.dispatch(pipeline.kernel(), threads, group);
}

const Pipeline& pipeline_of(MTLComputePipelineState_t state) {
  return *static_cast<const Pipeline*>(state);
}

}  // namespace

MetalKernelFunction::MetalKernelFunction(MTLComputePipelineState_t cps_, MTLFunction_t f_)
    : cps(cps_), func(f_) {
  metalops::internals::hold(static_cast<Pipeline*>(cps));
}

MetalKernelFunction::~MetalKernelFunction() {
  metalops::internals::release(static_cast<Pipeline*>(cps));
}

uint64_t MetalKernelFunction::getMaxThreadsPerThreadgroup() const {
  return pipeline_of(cps).described->max_threads_per_threadgroup;
}

uint64_t MetalKernelFunction::getThreadExecutionWidth() const { return msl::abi::kSimdWidth; }

uint64_t MetalKernelFunction::getStaticThreadGroupMemoryLength() const {
  return pipeline_of(cps).described->static_threadgroup_bytes;
}

void MetalKernelFunction::runCommandBlock(std::function<void(void)> f) {
  TORCH_CHECK(
      block == nullptr,
      "runCommandBlock was called inside another command block; on a Mac this blocks forever");
  CommandBlock mine;
  InBlock inside(&mine);
  f();
}

void MetalKernelFunction::startEncoding() {
  TORCH_CHECK(block != nullptr, "startEncoding must be called inside runCommandBlock");
  block->encoder.emplace();
  block->encoding = this;
  block->pipeline = &pipeline_of(cps);
}

void MetalKernelFunction::setArg(unsigned idx, const at::TensorBase& t) {
  Encoder& encoder = encoder_of(this, "setArg");
  const Pipeline& pipeline = pipeline_of(cps);
  if (C10_UNLIKELY(pipeline.takes_tensors)) {
    if (const auto* argument = metalops::tensor_argument(*pipeline.described, idx)) {
      encoder.set_handle(idx, metalops::as_argument(t, *argument, *pipeline.described), t);
      return;
    }
  }
  encoder.set_tensor(idx, t);
}

void MetalKernelFunction::setArg(unsigned idx, const void* ptr, uint64_t size) {
  Encoder& encoder = encoder_of(this, "setArg");
  const Pipeline& pipeline = pipeline_of(cps);
  TORCH_CHECK_TYPE(!pipeline.takes_tensors || !metalops::tensor_argument(*pipeline.described, idx),
                   "Metal kernel '", pipeline.described->name, "': buffer ", idx,
                   " takes a tensor, but was given ", size, " bytes");
  encoder.set_bytes(idx, ptr, size);
}

void MetalKernelFunction::setErrorBufferIndex(unsigned idx) {
  encoder_of(this, "setErrorBufferIndex")
      .set_buffer(idx, metalops::error_buffer(), metalops::error_buffer_bytes());
}

void MetalKernelFunction::dispatch(uint64_t length, std::optional<uint64_t> groupSize) {
  const uint64_t limit = getMaxThreadsPerThreadgroup();
  const uint64_t group = groupSize.value_or(std::min(length, limit));
  TORCH_CHECK_VALUE(group <= limit, "Threadgroup size exceeds ", limit, " limit");
  launch(encoder_of(this, "dispatch"), pipeline_of(cps), {length, 1, 1}, {group, 1, 1});
}

void MetalKernelFunction::dispatch(c10::ArrayRef<uint64_t> length,
                                   c10::OptionalArrayRef<uint64_t> groupSize) {
  TORCH_CHECK(!length.empty() && length.size() < 4,
              "Dispatch dimensions must be less than 3 and non-empty");
  TORCH_CHECK(!groupSize.has_value() || groupSize->size() == length.size(),
              "size and group_size must have same number of dimensions");
  const uint64_t limit = getMaxThreadsPerThreadgroup();
  std::array<uint64_t, 3> threads{1, 1, 1};
  std::array<uint64_t, 3> group{limit, 1, 1};
  std::copy(length.begin(), length.end(), threads.begin());
  if (groupSize.has_value()) {
    group = {1, 1, 1};
    std::copy(groupSize->begin(), groupSize->end(), group.begin());
  }
  // Divided rather than multiplied, so that huge sizes do not wrap around to an allowed one.
  const bool fits = group[0] <= limit && (group[0] == 0 || group[1] <= limit / group[0]) &&
                    (group[0] * group[1] == 0 || group[2] <= limit / (group[0] * group[1]));
  TORCH_CHECK_VALUE(fits, "Threadgroup size exceeds ", limit, " limit");
  launch(encoder_of(this, "dispatch"), pipeline_of(cps), threads, group);
}

}  // namespace at::native::mps

namespace metalops {

using at::native::mps::MetalKernelFunction;

void set_texture(MetalKernelFunction& kernel, unsigned index, std::string_view description,
                 c10::ArrayRef<at::Tensor> levels) {
  Encoder& encoder = at::native::mps::encoder_of(&kernel, "setTexture");
  const exec::Kernel& called = *at::native::mps::block->pipeline->described;
  if (skips_texture(called, index)) return;
  encoder.set_texture(index, as_texture(called, index, description, levels), levels);
}

void set_sampler(MetalKernelFunction& kernel, unsigned index, uint64_t sampler) {
  at::native::mps::encoder_of(&kernel, "setSamplerState").set_sampler(index, sampler);
}

void set_functions(const MetalKernelFunction& function, unsigned index,
                   const std::vector<std::string>& names) {
  using namespace at::native::mps;
  encoder_of(&function, "setFunctions").set_functions(index, names, block->pipeline->kernel());
}

}  // namespace metalops

namespace at::native::mps {

void* get_tensor_gpu_address(const at::TensorBase& t) {
  metalops::exec::note_address_taken(t.storage().data(), t.storage().nbytes());
  return const_cast<void*>(t.const_data_ptr());
}

}  // namespace at::native::mps

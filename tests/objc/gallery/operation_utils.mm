// torch's own ATen/native/mps/OperationUtils.h, unmodified: a MetalShaderLibrary whose kernels are
// encoded in Objective-C.  torch
#include <ATen/native/mps/OperationUtils.h>

#include "check.h"

using namespace at::native::mps;

static MetalShaderLibrary library(R"METAL(
#include <metal_stdlib>
using namespace metal;
kernel void axpy(device const float* x [[buffer(0)]], device const float* y [[buffer(1)]],
                 device float* out [[buffer(2)]], constant float& a [[buffer(3)]],
                 constant long* sizes [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  out[i] = a * x[i] + y[i] + float(sizes[0]);
}
)METAL");

static at::Tensor counting(int64_t count) {
  return at::arange(count, at::TensorOptions(at::kMPS).dtype(at::kFloat));
}

TEST(kernels_of_a_shader_library_are_encoded) {
  const at::Tensor x = counting(100).slice(0, 10), y = at::ones_like(x), out = at::empty_like(x);
  MPSStream* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^() {
    @autoreleasepool {
      id<MTLComputeCommandEncoder> encoder = stream->commandEncoder();
      auto state = library.getPipelineStateForFunc("axpy");
      getMPSProfiler().beginProfileKernel(state, "axpy", {x});
      [encoder setComputePipelineState:state];
      mtl_setArgs(encoder, x, y, out, 2.0, x.sizes());
      mtl_dispatch1DJob(encoder, state, x.numel());
      getMPSProfiler().endProfileKernel(state);
    }
  });
  CHECK(at::equal(out, at::add(at::add(at::mul(x, 2), y), 90)));
  EQUAL([library.getPipelineStateForFunc("axpy") maxTotalThreadsPerThreadgroup], 1024u);
  EQUAL(std::string([[library.getMTLFunction("axpy") name] UTF8String]), "axpy");
}

TEST(scalars_on_the_cpu_and_missing_tensors_are_bound) {
  const at::Tensor x = counting(4), out = at::empty_like(x);
  const at::Tensor a = at::scalar_tensor(3.0, at::kDouble);
  dispatch_sync_with_rethrow(getCurrentMPSStream()->queue(), ^() {
    id<MTLComputeCommandEncoder> encoder = getCurrentMPSStream()->commandEncoder();
    [encoder setComputePipelineState:library.getPipelineStateForFunc("axpy")];
    mtl_setArgs(encoder, x, x, out, a, x.sizes());
    mtl_dispatch1DJob(encoder, library.getPipelineStateForFunc("axpy"), 4);
    mtl_setArgs(encoder, std::optional<at::Tensor>());
  });
  CHECK(at::equal(out, at::add(at::mul(x, 4), 4)));
}

TEST(a_missing_kernel_is_an_error_with_a_suggestion) {
  RAISES("did you mean axpy?", library.getPipelineStateForFunc("axpi"));
}

TEST(kernel_functions_are_made_of_pipelines) {
  const at::Tensor x = counting(8), out = at::empty_like(x);
  MetalKernelFunction function(library.getPipelineStateForFunc("axpy"), nil);
  function.runCommandBlock([&] {
    function.startEncoding();
    function.setArg(0, x);
    function.setArg(1, x);
    function.setArg(2, out);
    function.setArg(3, 1.0f);
    function.setArg(4, x.sizes());
    function.dispatch(8);
  });
  CHECK(at::equal(out, at::add(at::mul(x, 2), 8)));
}

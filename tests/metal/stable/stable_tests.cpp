// An extension for torch's stable ABI with Metal kernels: it uses C functions and header-only
// classes of torch, and nothing of metalops.
#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <functional>

namespace {

using torch::stable::Tensor;

constexpr const char* kSource = R"METAL(
#include <metal_stdlib>
using namespace metal;
kernel void row_sums(device float* out [[buffer(0)]], constant float* x [[buffer(1)]],
                     constant long& columns [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                     uint lane [[thread_position_in_threadgroup]]) {
  float sum = 0;
  for (long i = lane; i < columns; i += 32) sum += x[row * columns + i];
  sum = simd_sum(sum);
  if (lane == 0) out[row] = sum;
}
)METAL";

AOTIMetalKernelFunctionHandle row_sums_kernel() {
  static const AOTIMetalKernelFunctionHandle kernel = [] {
    AOTIMetalShaderLibraryHandle library = nullptr;
    AOTIMetalKernelFunctionHandle function = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_mps_create_shader_library(kSource, &library));
    TORCH_ERROR_CODE_CHECK(aoti_torch_mps_get_kernel_function(library, "row_sums", &function));
    return function;
  }();
  return kernel;
}

Tensor row_sums(const Tensor& x) {
  STD_TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "row_sums: expected a contiguous matrix");
  Tensor out = torch::stable::new_empty(x, {x.size(0)});
  std::function<void(AOTIMetalKernelFunctionHandle)> encode =
      [&](AOTIMetalKernelFunctionHandle kernel) {
        TORCH_ERROR_CODE_CHECK(aoti_torch_mps_start_encoding(kernel));
        TORCH_ERROR_CODE_CHECK(aoti_torch_mps_set_arg_tensor(kernel, 0, out.get()));
        TORCH_ERROR_CODE_CHECK(aoti_torch_mps_set_arg_tensor(kernel, 1, x.get()));
        TORCH_ERROR_CODE_CHECK(aoti_torch_mps_set_arg_int(kernel, 2, x.size(1)));
        TORCH_ERROR_CODE_CHECK(
            aoti_torch_mps_dispatch_single_with_group_size(kernel, x.size(0) * 32, 32));
      };
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_mps_run_command_block(row_sums_kernel(), aoti_torch_mps_shared_callback, &encode));
  return out;
}

Tensor as_rows(const Tensor& x, int64_t length) {
  return torch::stable::view(x, {x.numel() / length, length});
}

}  // namespace

STABLE_TORCH_LIBRARY(metalops_stable_tests, m) {
  m.def("row_sums(Tensor x) -> Tensor");
  m.def("as_rows(Tensor(a) x, int length) -> Tensor(a)");
}
STABLE_TORCH_LIBRARY_IMPL(metalops_stable_tests, MPS, m) {
  m.impl("row_sums", TORCH_BOX(&row_sums));
  m.impl("as_rows", TORCH_BOX(&as_rows));
}

// Host side of kernels/quantized/quantized_matmul.metal: GEMV, skinny GEMM and tile GEMM with
// quantised weights.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/arguments.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/ops/quantized/quantized.h>
#include <csrc/plans/quantized/quantized.h>
#include <csrc/plans/quantized/quantized_arguments.h>
#include <metalops/library.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using metalops::MaybeTensor;

// Returns x W^T, (pairs, M, N), for x of sizes (matrices, M, K); or, without `transpose`, x W,
// (pairs, M, K), for x of sizes (matrices, M, N). packed: the rows of W, (matrices, N, bytes).
// left_index, right_index: the matrices of each pair; in order where absent.
Tensor quantized_matmul(const Tensor& x, const Tensor& packed, const Tensor& scales,
                        const MaybeTensor& biases, const MaybeTensor& bias,
                        const MaybeTensor& global_scale, const MaybeTensor& left_index,
                        const MaybeTensor& right_index, bool transpose, int64_t bits,
                        int64_t group_size, std::string_view mode) {
  constexpr const char* kName = "quantized_matmul";
  metalops::Operands of(kName);
  metalops::check_arguments(
      metalops::plans::check_quantized_matmul,
      {of(x, "x"),
       metalops::weight_operands(of, packed, scales, biases, global_scale, bits, group_size, mode),
       of(bias, "bias"), of(left_index, "lhs_indices"), of(right_index, "rhs_indices"), transpose});
  const auto weights = metalops::quantized_weights(kName, packed, scales, biases, global_scale,
                                                   bits, group_size, mode);
  const int64_t columns = transpose ? weights.layout.lines : weights.layout.inner;
  const int64_t pairs = left_index    ? left_index->numel()
                        : right_index ? right_index->numel()
                                      : x.size(0);
  const auto result = at::empty({pairs, x.size(1), columns}, x.options());
  if (result.numel() == 0) {
    return result;
  }
  if (x.size(2) == 0) {
    return bias ? result.copy_(bias->expand(result.sizes())) : result.zero_();
  }
  metalops::PlanRun run;
  metalops::plans::quantized_matmul(run.plan(),
                                    {.result = run.view(result),
                                     .x = run.view(x),
                                     .weights = metalops::views_of(run, weights),
                                     .bias = run.view(bias),
                                     .left_index = run.view(left_index),
                                     .right_index = run.view(right_index),
                                     .transpose = transpose},
                                    metalops::plan_device_of(kName));
  run.run();
  return result;
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  m.def("metalops::quantized_matmul(Tensor x, Tensor packed, Tensor scales, Tensor? biases, "
        "Tensor? bias, Tensor? global_scale, Tensor? left_index, Tensor? right_index, "
        "bool transpose, int bits, int group_size, str mode) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.impl("quantized_matmul", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(quantized_matmul)));
}

}  // namespace

// Host side of kernels/quantized/quantized_matmul.metal: GEMV, skinny GEMM and tile GEMM with
// quantised weights.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/ops/quantized/quantized.h>
#include <csrc/plans/quantized/quantized.h>
#include <metalops/checks.h>
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
  const auto type = x.scalar_type();
  metalops::check_metal_float(kName, type);
  metalops::check_same_device(kName, {{x, "x"},
                                      {packed, "packed"},
                                      {bias.value_or(x), "bias"},
                                      {left_index.value_or(x), "lhs_indices"},
                                      {right_index.value_or(x), "rhs_indices"}});
  TORCH_CHECK_VALUE(x.dim() == 3 && packed.dim() == 3, kName,
                    ": x and packed must have 3 dimensions, but have sizes ", x.sizes(), " and ",
                    packed.sizes());
  const auto weights = metalops::quantized_weights(kName, packed, scales, biases, global_scale,
                                                   bits, group_size, mode, type);
  const int64_t inner = transpose ? weights.layout.inner : weights.layout.lines;
  const int64_t columns = transpose ? weights.layout.lines : weights.layout.inner;
  TORCH_CHECK_VALUE(x.size(2) == inner, kName, ": rows of x must have ", inner,
                    " elements, but x has sizes ", x.sizes());
  TORCH_CHECK_VALUE(
      !bias || (bias->dim() == 1 && bias->size(0) == columns && bias->scalar_type() == type), kName,
      ": bias must be ", type, " of ", columns, " elements");
  const int64_t pairs = left_index    ? left_index->numel()
                        : right_index ? right_index->numel()
                                      : x.size(0);
  for (const auto* index : {&left_index, &right_index}) {
    TORCH_CHECK_VALUE(!*index || ((*index)->scalar_type() == at::kLong && (*index)->dim() == 1 &&
                                  (*index)->numel() == pairs),
                      kName, ": indices must be int64 and as many as each other, of one dimension");
  }
  // Without matrices, kernels have nothing to read instead for an index out of range.
  TORCH_CHECK(pairs == 0 || (x.size(0) > 0 && packed.size(0) > 0),
              "gather_quantized_matmul: no index is one of ", x.size(0), " matrices of x and ",
              packed.size(0), " of weights");
  TORCH_CHECK_VALUE((left_index || x.size(0) == pairs) && (right_index || packed.size(0) == pairs),
                    kName, ": there are ", x.size(0), " matrices of x and ", packed.size(0),
                    " of weights for ", pairs, " pairs");
  const auto result = at::empty({pairs, x.size(1), columns}, x.options());
  if (result.numel() == 0) {
    return result;
  }
  if (inner == 0) {
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
                                    metalops::plan_device());
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

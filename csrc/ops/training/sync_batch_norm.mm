// The parts of batch normalisation over the samples of several processes, of which
// torch.nn.SyncBatchNorm is made; stock MPS lacks them. They are composed of other operators.
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/outputs.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <tuple>
#include <vector>

namespace {

using at::Tensor;
using metalops::MaybeTensor;

void check_input(const char* name, const Tensor& input) {
  metalops::check_metal_float(name, input.scalar_type());
  TORCH_CHECK(input.dim() >= 2, name, ": input must have at least two dimensions, but has ",
              input.dim());
}

void check_channels(const char* name, const Tensor& values, const char* argument,
                    const Tensor& input) {
  TORCH_CHECK(values.numel() == input.size(1), name, ": ", argument, " should contain ",
              input.size(1), " elements not ", values.numel());
}

// Returns values of the channels as they are broadcast to the input, in float32.
Tensor of_channels(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> sizes(input.dim(), 1);
  sizes[1] = input.size(1);
  return values.to(at::kFloat).reshape(sizes);
}

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < input.dim(); ++i) {
    if (i != 1) dims.push_back(i);
  }
  return dims;
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  check_input("batch_norm_stats", input);
  auto [mean, variance] = at::batch_norm_update_stats(input.to(at::kFloat), {}, {}, 0.0);
  return {mean, variance.add_(eps).rsqrt_()};
}

Tensor normalised(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                  const Tensor& mean, const Tensor& invstd) {
  constexpr const char* kName = "batch_norm_elemt";
  check_input(kName, input);
  check_channels(kName, mean, "mean", input);
  check_channels(kName, invstd, "invstd", input);
  auto scale = invstd.to(at::kFloat);
  if (weight.has_value() && weight->defined()) {
    check_channels(kName, *weight, "weight", input);
    scale = scale * weight->to(at::kFloat);
  }
  auto result = (input.to(at::kFloat) - of_channels(mean, input)).mul_(of_channels(scale, input));
  if (bias.has_value() && bias->defined()) {
    check_channels(kName, *bias, "bias", input);
    result.add_(of_channels(*bias, input));
  }
  return result;
}

Tensor elemt(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
             const Tensor& mean, const Tensor& invstd, double /*eps*/) {
  return normalised(input, weight, bias, mean, invstd).to(input.scalar_type());
}

Tensor& elemt_out(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                  const Tensor& mean, const Tensor& invstd, double /*eps*/, Tensor& out) {
  const auto result = normalised(input, weight, bias, mean, invstd);
  metalops::resize_and_copy(result, out);
  return out;
}

void update(const MaybeTensor& average, const Tensor& value, double momentum) {
  if (average.has_value() && average->defined()) {
    average->mul_(1 - momentum).add_(value.to(average->scalar_type()), momentum);
  }
}

// mean, invstd: (processes, channels). counts: the numbers of elements of a channel. The variance
// of all is that within the processes and that of their means.
std::tuple<Tensor, Tensor> gather_with_counts(const Tensor& input, const Tensor& mean,
                                              const Tensor& invstd, const MaybeTensor& running_mean,
                                              const MaybeTensor& running_var, double momentum,
                                              double eps, const Tensor& counts) {
  constexpr const char* kName = "batch_norm_gather_stats_with_counts";
  check_input(kName, input);
  TORCH_CHECK(mean.dim() == 2 && mean.sizes() == invstd.sizes() && mean.size(1) == input.size(1),
              kName, ": mean and invstd must have the size (processes, ", input.size(1),
              "), but have ", mean.sizes(), " and ", invstd.sizes());
  TORCH_CHECK(counts.numel() == mean.size(0), kName, ": counts should contain ", mean.size(0),
              " elements not ", counts.numel());
  const auto parts = counts.to(at::kFloat).reshape({-1, 1});
  const auto total = parts.sum();
  const auto means = mean.to(at::kFloat);
  const auto variances = invstd.to(at::kFloat).square().reciprocal_().sub_(eps);
  const auto all = (means * parts).sum(0).div_(total);
  auto squares = ((means - all).square_().add_(variances)).mul_(parts).sum(0);
  update(running_mean, all, momentum);
  update(running_var, squares / (total - 1), momentum);
  return {all, squares.div_(total).add_(eps).rsqrt_()};
}

std::tuple<Tensor, Tensor> gather(const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                  const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                  double momentum, double eps, int64_t count) {
  TORCH_CHECK(mean.dim() == 2, "batch_norm_gather_stats: mean must have two dimensions, but has ",
              mean.dim());
  const auto counts =
      at::empty({mean.size(0)}, mean.options().dtype(at::kFloat)).fill_(static_cast<double>(count));
  return gather_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out,
                                                           const Tensor& input, const Tensor& mean,
                                                           const Tensor& invstd,
                                                           const MaybeTensor& weight, bool input_g,
                                                           bool weight_g, bool bias_g) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  check_input(kName, input);
  check_channels(kName, mean, "mean", input);
  TORCH_CHECK(grad_out.sizes() == input.sizes(), kName, ": grad_out must have the sizes ",
              input.sizes(), " of the input, but has ", grad_out.sizes());
  const auto dims = all_but_channels(input);
  const auto gradients = grad_out.to(at::kFloat);
  const auto sum = gradients.sum(dims);
  const auto product = (input.to(at::kFloat) - of_channels(mean, input)).mul_(gradients).sum(dims);
  const bool has_weight = weight.has_value() && weight->defined();
  const auto type = has_weight ? weight->scalar_type() : input.scalar_type();
  Tensor of_weight, of_bias;
  if (weight_g) of_weight = (product * invstd.to(at::kFloat)).to(type);
  if (bias_g) of_bias = sum.to(type, /*non_blocking=*/false, /*copy=*/true);
  return {input_g ? sum : Tensor(), input_g ? product : Tensor(), of_weight, of_bias};
}

Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                      const Tensor& invstd, const MaybeTensor& weight, const Tensor& sum_dy,
                      const Tensor& sum_dy_xmu, const Tensor& count) {
  constexpr const char* kName = "batch_norm_backward_elemt";
  check_input(kName, input);
  check_channels(kName, mean, "mean", input);
  TORCH_CHECK(grad_out.sizes() == input.sizes(), kName, ": grad_out must have the sizes ",
              input.sizes(), " of the input, but has ", grad_out.sizes());
  const auto total = count.to(at::kFloat).sum();
  const auto deviations = invstd.to(at::kFloat);
  const auto slope = (sum_dy_xmu.to(at::kFloat) / total).mul_(deviations).mul_(deviations);
  auto scale = deviations;
  if (weight.has_value() && weight->defined()) scale = scale * weight->to(at::kFloat);
  auto result =
      (input.to(at::kFloat) - of_channels(mean, input)).mul_(of_channels(slope, input)).neg_();
  result.add_(grad_out).sub_(of_channels(sum_dy.to(at::kFloat) / total, input));
  return result.mul_(of_channels(scale, input)).to(input.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("batch_norm_stats", stats);
  m.impl("batch_norm_elemt", elemt);
  m.impl("batch_norm_elemt.out", elemt_out);
  m.impl("batch_norm_gather_stats", gather);
  m.impl("batch_norm_gather_stats_with_counts", gather_with_counts);
  m.impl("batch_norm_backward_reduce", backward_reduce);
  m.impl("batch_norm_backward_elemt", backward_elemt);
}

}  // namespace

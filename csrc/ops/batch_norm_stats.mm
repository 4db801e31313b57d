// Host side of kernels/batch_norm_stats.metal: batch_norm_update_stats, which stock MPS lacks.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <kernels/batch_norm_stats.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <tuple>

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// The number of elements from one channel's average to the next one's.
int64_t check_average(const Tensor& average, const char* name, int64_t channels) {
  if (!average.defined()) {
    return 0;
  }
  TORCH_CHECK(average.dim() == 1 && average.numel() == channels, name, " should contain ", channels,
              " elements not ", average.numel());
  at::assert_no_internal_overlap(average);
  return average.stride(0);
}

std::tuple<Tensor, Tensor> update_stats(const Tensor& input, const MaybeTensor& maybe_running_mean,
                                        const MaybeTensor& maybe_running_var, double momentum) {
  constexpr const char* kName = "batch_norm_update_stats";
  const auto running_mean = maybe_running_mean.value_or(Tensor());
  const auto running_var = maybe_running_var.value_or(Tensor());
  metalops::check_same_device(
      kName, {{input, "input"}, {running_mean, "running_mean"}, {running_var, "running_var"}});
  const auto type = input.scalar_type();
  metalops::check_metal_float(kName, type);
  const bool mixed = at::native::is_mixed_type(input, running_mean, running_var);
  if (mixed) {
    at::native::check_mixed_data_type(input, running_mean, running_var);
  }
  const auto stats_type = mixed ? at::kFloat : type;
  for (const auto& average : {running_mean, running_var}) {
    TORCH_CHECK(!average.defined() || average.scalar_type() == stats_type, "expected scalar type ",
                stats_type, " but found ", average.scalar_type());
  }
  const auto channels = input.size(1);
  TORCH_CHECK(input.numel() != 0,
              "input tensor must have at least one element, but got input_sizes = ", input.sizes());

  metalops::BatchNormStatsParameters parameters{};
  parameters.running_mean_stride = check_average(running_mean, "running_mean", channels);
  parameters.running_var_stride = check_average(running_var, "running_var", channels);
  const auto samples = input.reshape({input.size(0), channels, -1});
  parameters.channels = channels;
  parameters.outer = samples.size(0);
  parameters.inner = samples.size(2);
  parameters.channel_stride = samples.stride(1);
  parameters.outer_stride = samples.stride(0);
  parameters.inner_stride = samples.stride(2);
  if (parameters.inner == 1 ||
      parameters.outer_stride == parameters.inner * parameters.inner_stride) {
    parameters.inner_stride =
        parameters.inner == 1 ? parameters.outer_stride : parameters.inner_stride;
    parameters.inner *= parameters.outer;
    parameters.outer = 1;
  }
  parameters.momentum = static_cast<float>(momentum);
  parameters.has_running_mean = running_mean.defined() ? 1 : 0;
  parameters.has_running_var = running_var.defined() ? 1 : 0;

  auto means = at::empty({channels}, input.options().dtype(stats_type));
  auto variances = at::empty_like(means);
  metalops::launch_reduction(
      metalops::library("batch_norm_stats"), "batch_norm_stats",
      metalops::KernelName(metalops::metal_type(type)) + "_" + metalops::metal_type(stats_type),
      channels, parameters.outer * parameters.inner, means, variances,
      running_mean.defined() ? running_mean : means, running_var.defined() ? running_var : means,
      samples, parameters);
  return {means, variances};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("batch_norm_update_stats", update_stats);
}

}  // namespace

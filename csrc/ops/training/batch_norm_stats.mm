// Host side of kernels/training/batch_norm_stats.metal: batch_norm_update_stats, which stock MPS
// lacks.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/training/batch_norm_stats.h>
#include <kernels/training/batch_norm_stats.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <algorithm>
#include <tuple>

namespace {

using at::Tensor;
using metalops::MaybeTensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("batch_norm_stats"); }

// Returns the stride of an average over the channels.
int64_t check_average(const Tensor& average, const char* name, int64_t channels) {
  if (!average.defined()) {
    return 0;
  }
  TORCH_CHECK(average.dim() == 1 && average.numel() == channels, name, " should contain ", channels,
              " elements not ", average.numel());
  at::assert_no_internal_overlap(average);
  return average.stride(0);
}

constexpr int64_t kMostThreads = 256;

// Returns the size of a threadgroup, in whole simdgroups, whose threads process `each` of `count`
// items.
int64_t threads_for(int64_t count, int64_t each) {
  int64_t threads = c10::metal::simdgroup_size;
  while (threads < kMostThreads && threads * each < count) {
    threads *= 2;
  }
  return threads;
}

// The moments of parts of each channel. Parts have `elements` elements; the last one has the rest.
struct Parts {
  Tensor moments;
  uint32_t count;
  uint32_t elements;
};

// Returns true if channels are reduced in parts. The kernels' indices have 32 bits; a single thread
// reduces channels of few elements.
bool in_parts(const Tensor& samples, const metalops::BatchNormStatsParameters& parameters) {
  return !metalops::a_thread_for_each_element() && samples.numel() <= metalops::kInt32Max &&
         parameters.outer * parameters.inner > 64;
}

bool whole_packs(int64_t stride) { return stride % metalops::kPack == 0; }

// Launches `groups` threadgroups of `threads` threads for each part. arguments: those of the kernel
// after the number of parts.
template <class... Arguments>
Parts launch_parts(const char* name, bool packs, const Tensor& samples,
                   const metalops::BatchNormStatsParameters& parameters, int64_t elements,
                   int64_t groups, int64_t threads, const Arguments&... arguments) {
  const auto count = c10::metal::ceil_div(parameters.outer * parameters.inner, elements);
  Parts parts{at::empty({parameters.channels, count, 4}, samples.options().dtype(at::kFloat)),
              static_cast<uint32_t>(count), static_cast<uint32_t>(elements)};
  metalops::launch_threadgroups(kernels(),
                                metalops::KernelName(name) + (packs ? "_packs_" : "_") +
                                    metalops::metal_type(samples.scalar_type()),
                                groups * count, threads, parts.moments, samples, parameters,
                                parts.count, arguments...);
  return parts;
}

Parts reduce_parts(const Tensor& samples, const metalops::BatchNormStatsParameters& parameters) {
  constexpr int64_t kElements = 16;      // of a thread, where channels are planes
  constexpr int64_t kMostAcross = 32;    // adjacent threads
  constexpr int64_t kManyGroups = 1024;  // enough for any GPU
  const auto length = parameters.outer * parameters.inner;
  const auto channels = parameters.channels;
  const bool aligned = metalops::begins_with_pack(samples) &&
                       (parameters.outer == 1 || whole_packs(parameters.outer_stride));
  if (parameters.inner_stride == 1 || parameters.channel_stride != 1) {
    const bool packs = aligned && parameters.inner_stride == 1 && whole_packs(parameters.inner) &&
                       (channels == 1 || whole_packs(parameters.channel_stride));
    const auto threads = threads_for(length, kElements);
    return launch_parts("batch_norm_stats_planes", packs, samples, parameters, threads * kElements,
                        channels, threads);
  }
  const bool packs = aligned && whole_packs(parameters.inner_stride) && whole_packs(channels);
  const auto lanes = channels / (packs ? metalops::kPack : 1);
  const auto columns = c10::metal::ceil_div(lanes, kMostAcross);
  const auto across = c10::metal::ceil_div(lanes, columns);
  const auto rows = kMostThreads / across;
  const auto most = std::max<int64_t>(kManyGroups / columns, 1);
  const auto elements = c10::metal::round_up(c10::metal::ceil_div(length, most), rows);
  return launch_parts("batch_norm_stats_adjacent", packs, samples, parameters, elements, columns,
                      rows * across, static_cast<uint32_t>(elements),
                      static_cast<uint32_t>(across));
}

}  // namespace

namespace metalops {

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, const Tensor& running_mean,
                                            const Tensor& running_var, double momentum,
                                            at::ScalarType stats_type) {
  const auto channels = input.size(1);
  TORCH_CHECK(input.numel() != 0,
              "input tensor must have at least one element, but got input_sizes = ", input.sizes());

  BatchNormStatsParameters parameters{};
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
  const auto& average = running_mean.defined() ? running_mean : means;
  const auto& variance_average = running_var.defined() ? running_var : means;
  if (in_parts(samples, parameters)) {
    const auto parts = reduce_parts(samples, parameters);
    launch_threadgroups(kernels(), typed_kernel("batch_norm_stats_combine_", stats_type), channels,
                        threads_for(parts.count, /*each=*/16), means, variances, average,
                        variance_average, parts.moments, parameters, parts.count, parts.elements);
  } else {
    launch_reduction(kernels(), "batch_norm_stats",
                     KernelName(metal_type(input.scalar_type())) + "_" + metal_type(stats_type),
                     channels, parameters.outer * parameters.inner, means, variances, average,
                     variance_average, samples, parameters);
  }
  return {means, variances};
}

}  // namespace metalops

namespace {

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
  return metalops::batch_norm_stats(input, running_mean, running_var, momentum, stats_type);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("batch_norm_update_stats", update_stats);
}

}  // namespace

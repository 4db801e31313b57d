// Host side of kernels/training/norm.metal: layer_norm, group_norm, rms_norm and batch_norm with
// their gradients, in the place of stock's while the fix "norm" is on. Inputs may have any strides,
// and parameters may be float where the input is half or bfloat. Statistics are float, as on CUDA.
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/training/batch_norm_stats.h>
#include <kernels/training/norm.h>
#include <metalops/checks.h>
#include <metalops/launch.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;
using metalops::is_given;
using metalops::MaybeTensor;
using metalops::NormChannelsParameters;
using metalops::NormRowsParameters;
using Tensors = std::tuple<Tensor, Tensor, Tensor>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("norm"); }

Tensor value_of(const MaybeTensor& tensor) {
  return is_given(tensor) ? tensor->contiguous() : Tensor();
}

// Returns the dtype of the parameters: the input's, or float.
at::ScalarType check_types(const char* name, const Tensor& input, const Tensor& weight,
                           const Tensor& bias, const Tensor& mean = {}, const Tensor& var = {}) {
  metalops::check_metal_float(name, input.scalar_type());
  if (!at::native::is_mixed_type(input, weight, bias, mean, var)) return input.scalar_type();
  at::native::check_mixed_data_type(input, weight, bias, mean, var);
  return at::kFloat;
}

void check_gradient(const char* name, const Tensor& grad_out, const Tensor& input) {
  TORCH_CHECK(grad_out.sizes() == input.sizes(), name, ": grad_out must have the sizes ",
              input.sizes(), " of the input, but has ", grad_out.sizes());
  TORCH_CHECK(grad_out.scalar_type() == input.scalar_type(), name,
              ": grad_out must have the dtype ", input.scalar_type(), " of the input, but has ",
              grad_out.scalar_type());
}

// Returns contiguous statistics in float.
Tensor stats_of(const char* name, const Tensor& stats, const char* argument, int64_t count) {
  TORCH_CHECK(stats.defined() && stats.numel() == count, name, ": ", argument, " must have ", count,
              " elements, but has ", stats.defined() ? stats.numel() : 0);
  return stats.to(at::kFloat).contiguous();
}

bool whole_packs(int64_t size) { return size % metalops::kPack == 0; }

bool begin_with_packs(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return !tensor.defined() || metalops::begins_with_pack(tensor);
  });
}

// Returns the tensor, or for an absent one another, which the kernels get and do not read.
const Tensor& or_other(const Tensor& tensor, const Tensor& other) {
  return tensor.defined() ? tensor : other;
}

// ---- rows ---------------------------------------------------------------------------------------

// Rows of `length` adjacent elements, of which each `inner` have the same parameters; `groups` rows
// have all of them.
struct Rows {
  int64_t count;
  int64_t length;
  int64_t inner = 1;
  int64_t groups = 1;
  bool is_centred = true;
};

NormRowsParameters parameters_of(const char* name, const Rows& rows, double eps,
                                 const Tensor& weight, const Tensor& bias, bool is_aligned) {
  constexpr int64_t kLargest = std::numeric_limits<uint32_t>::max() / 2;
  TORCH_CHECK(rows.length <= kLargest, name, ": a row of ", rows.length,
              " elements is too large for MPS");
  NormRowsParameters parameters{};
  parameters.rows = rows.count;
  parameters.length = static_cast<uint32_t>(rows.length);
  parameters.inner = static_cast<uint32_t>(rows.inner);
  parameters.channels = static_cast<uint32_t>(rows.length / std::max<int64_t>(rows.inner, 1));
  parameters.groups = static_cast<uint32_t>(rows.groups);
  parameters.eps = static_cast<float>(eps);
  parameters.is_centred = rows.is_centred ? 1 : 0;
  parameters.has_weight = weight.defined() ? 1 : 0;
  parameters.has_bias = bias.defined() ? 1 : 0;
  parameters.packs =
      is_aligned && whole_packs(rows.length) && (rows.inner == 1 || whole_packs(rows.inner)) ? 1
                                                                                             : 0;
  return parameters;
}

// Launches a kernel with a simdgroup for each row, or a threadgroup if rows are long.
template <class... Arguments>
void launch_rows(const char* suffix, const Tensor& input, at::ScalarType type, const Rows& rows,
                 const Arguments&... arguments) {
  constexpr int64_t kShort = 1024;
  constexpr int64_t kOfThread = 16;
  constexpr int64_t kMostThreads = 1024;
  constexpr int64_t kLargestGrid = (int64_t{1} << 32) - 1;
  int64_t threads = c10::metal::simdgroup_size;
  while (threads < kMostThreads && threads * kOfThread < rows.length) {
    threads *= 2;
  }
  const bool is_short = rows.length <= kShort || rows.count > kLargestGrid / threads;
  // Threads have registers for rows that are not longer.
  const bool are_kept =
      !metalops::a_thread_for_each_element() && rows.length <= kMostThreads * kOfThread;
  const auto name = metalops::KernelName(are_kept ? "norm_kept_" : "norm_") +
                    (is_short ? "short_rows" : "rows") + suffix +
                    metalops::metal_type(input.scalar_type()) + "_" + metalops::metal_type(type);
  if (is_short) {
    metalops::launch_simdgroups(kernels(), name, rows.count, arguments...);
  } else {
    metalops::launch_threadgroups(kernels(), name, rows.count, threads, arguments...);
  }
}

// Returns the result, of the input's shape and contiguous, the means and reciprocal deviations.
Tensors normalise_rows(const char* name, const Tensor& input, const Tensor& weight,
                       const Tensor& bias, at::ScalarType type, const Rows& rows, double eps) {
  auto out = at::empty(input.sizes(), input.options());
  auto means = at::empty({rows.count}, input.options().dtype(at::kFloat));
  auto rstds = at::empty_like(means);
  const auto parameters =
      parameters_of(name, rows, eps, weight, bias, begin_with_packs({input, weight, bias}));
  launch_rows("_", input, type, rows, out, means, rstds, input, or_other(weight, input),
              or_other(bias, input), parameters);
  return {out, means, rstds};
}

Tensor gradient_of_rows(const char* name, const Tensor& grad_out, const Tensor& input,
                        const Tensor& means, const Tensor& rstds, const Tensor& weight,
                        at::ScalarType type, const Rows& rows) {
  auto grad_input = at::empty(input.sizes(), input.options());
  const auto parameters =
      parameters_of(name, rows, 0.0, weight, {}, begin_with_packs({grad_out, input, weight}));
  launch_rows("_backward_", input, type, rows, grad_input, grad_out, input, means, rstds,
              or_other(weight, input), parameters);
  return grad_input;
}

// ---- sums of channels ---------------------------------------------------------------------------

// Gradients of the parameters, in their dtype, and the means of both sums in float.
struct ChannelSums {
  Tensor weight;
  Tensor bias;
  Tensor mean_gradients;
  Tensor mean_products;
};

// Returns the threads and the parts of a reduction of channels, so that there are enough
// threadgroups for any GPU, and enough elements for each of their threads.
metalops::NormParts divide(int64_t elements, int64_t columns, int64_t least) {
  constexpr int64_t kManyGroups = 512;
  const auto most = std::max<int64_t>(kManyGroups / columns, 1);
  const auto parts = std::clamp<int64_t>(elements / least, 1, most);
  const auto each = c10::metal::round_up(c10::metal::ceil_div(elements, parts), metalops::kPack);
  return {static_cast<uint32_t>(c10::metal::ceil_div(elements, each)), static_cast<uint32_t>(each),
          1};
}

ChannelSums sum_channels(const char* name, const Tensor& grad_out, const Tensor& input,
                         const Tensor& means, const Tensor& rstds, at::ScalarType type,
                         NormChannelsParameters parameters) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMostAcross = 32;
  constexpr int64_t kOfThread = 16;
  const auto channels = parameters.channels;
  const auto elements = parameters.outer * parameters.inner;
  TORCH_CHECK(elements <= std::numeric_limits<int32_t>::max(), name, ": a channel of ", elements,
              " elements is too large for MPS");
  const auto options = input.options();
  const bool is_empty = elements == 0 || channels == 0;
  const auto result = [&](at::ScalarType of) {
    return is_empty ? at::zeros({channels}, options.dtype(of))
                    : at::empty({channels}, options.dtype(of));
  };
  const ChannelSums sums{result(type), result(type), result(at::kFloat), result(at::kFloat)};
  if (is_empty) return sums;
  const bool aligned = begin_with_packs({grad_out, input});
  metalops::NormParts division;
  Tensor parts;
  const auto make_parts = [&] {
    parts = at::empty({channels, division.parts, 2}, options.dtype(at::kFloat));
  };
  if (parameters.inner != 1) {
    parameters.packs = aligned && whole_packs(parameters.inner) ? 1 : 0;
    division = divide(elements, channels, kThreads * kOfThread);
    make_parts();
    metalops::launch_threadgroups(kernels(), metalops::typed_kernel("norm_sums_of_planes_", input),
                                  channels * division.parts, kThreads, parts, grad_out, input,
                                  means, rstds, parameters, division);
  } else {
    const auto of_stats = parameters.channels_of_stats;
    const bool packs = aligned && whole_packs(channels) &&
                       (of_stats == 1 || whole_packs(of_stats) || of_stats >= channels);
    const auto lanes = channels / (packs ? metalops::kPack : 1);
    const auto columns = c10::metal::ceil_div(lanes, kMostAcross);
    const auto across = c10::metal::ceil_div(lanes, columns);
    const auto down = kThreads / across;
    division = divide(elements, columns, down * kOfThread);
    division.across = static_cast<uint32_t>(across);
    make_parts();
    metalops::launch_threadgroups(
        kernels(),
        metalops::typed_kernel(packs ? "norm_sums_of_columns_packs_" : "norm_sums_of_columns_",
                               input),
        columns * division.parts, down * across, parts, grad_out, input, means, rstds, parameters,
        division);
  }
  metalops::launch_simdgroups(kernels(), metalops::typed_kernel("norm_combine_", type), channels,
                              sums.mean_gradients, sums.mean_products, sums.weight, sums.bias,
                              parts, parameters, division);
  return sums;
}

// ---- layer_norm and rms_norm --------------------------------------------------------------------

std::vector<int64_t> sizes_of_stats(const Tensor& input, size_t normalised) {
  std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end());
  std::fill(sizes.end() - static_cast<int64_t>(normalised), sizes.end(), 1);
  return sizes;
}

Tensors layer_norm(const Tensor& input, at::IntArrayRef normalized_shape,
                   const MaybeTensor& maybe_weight, const MaybeTensor& maybe_bias, double eps) {
  constexpr const char* kName = "native_layer_norm";
  const auto weight = value_of(maybe_weight);
  const auto bias = value_of(maybe_bias);
  metalops::check_same_device(kName, {{input, "input"}, {weight, "weight"}, {bias, "bias"}});
  const auto [rows, length] =
      at::native::_check_layer_norm_inputs(input, normalized_shape, weight, bias);
  const auto type = check_types(kName, input, weight, bias);
  auto [out, means, rstds] =
      normalise_rows(kName, input.contiguous(), weight, bias, type, {rows, length}, eps);
  const auto sizes = sizes_of_stats(input, normalized_shape.size());
  return {out, means.view(sizes), rstds.view(sizes)};
}

// The gradients of layer_norm, and of rms_norm, which has no means.
Tensors layer_norm_gradients(const char* name, const Tensor& grad_out, const Tensor& input,
                             at::IntArrayRef normalized_shape, const Tensor& mean,
                             const Tensor& rstd, const Tensor& weight, const Tensor& bias,
                             const std::array<bool, 3>& mask, bool is_centred) {
  metalops::check_same_device(name, {{grad_out, "grad_out"},
                                     {input, "input"},
                                     {mean, "mean"},
                                     {rstd, "rstd"},
                                     {weight, "weight"}});
  const auto [rows, length] =
      at::native::_check_layer_norm_inputs(input, normalized_shape, weight, bias);
  const auto type = check_types(name, input, weight, bias);
  check_gradient(name, grad_out, input);
  const auto x = input.contiguous();
  const auto dy = grad_out.contiguous();
  const auto rstds = stats_of(name, rstd, "rstd", rows);
  const auto means = is_centred ? stats_of(name, mean, "mean", rows) : rstds;
  Tensors grads;
  if (mask[0]) {
    std::get<0>(grads) =
        gradient_of_rows(name, dy, x, means, rstds, weight, type, {rows, length, 1, 1, is_centred});
  }
  if (mask[1] || mask[2]) {
    NormChannelsParameters parameters{};
    parameters.outer = rows;
    parameters.channels = length;
    parameters.inner = 1;
    parameters.stats_of_outer = 1;
    parameters.channels_of_stats = std::max<int64_t>(length, 2);  // all have one, never each
    parameters.is_centred = is_centred ? 1 : 0;
    const auto sums = sum_channels(name, dy, x, means, rstds, type, parameters);
    if (mask[1]) std::get<1>(grads) = sums.weight.view(normalized_shape);
    if (mask[2]) std::get<2>(grads) = sums.bias.view(normalized_shape);
  }
  return grads;
}

Tensors layer_norm_backward(const Tensor& grad_out, const Tensor& input,
                            at::IntArrayRef normalized_shape, const Tensor& mean,
                            const Tensor& rstd, const MaybeTensor& weight, const MaybeTensor& bias,
                            std::array<bool, 3> mask) {
  return layer_norm_gradients("native_layer_norm_backward", grad_out, input, normalized_shape, mean,
                              rstd, value_of(weight), value_of(bias), mask, true);
}

// Without eps it is the machine epsilon of the input's dtype, as in torch.
std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef normalized_shape,
                                    const MaybeTensor& maybe_weight, std::optional<double> eps) {
  constexpr const char* kName = "_fused_rms_norm";
  const auto weight = value_of(maybe_weight);
  metalops::check_same_device(kName, {{input, "input"}, {weight, "weight"}});
  const auto [rows, length] =
      at::native::_check_layer_norm_inputs(input, normalized_shape, weight, {});
  const auto type = check_types(kName, input, weight, {});
  const double least = input.scalar_type() == at::kHalf       ? 0x1p-10
                       : input.scalar_type() == at::kBFloat16 ? 0x1p-7
                                                              : 0x1p-23;
  auto [out, means, rstds] = normalise_rows(kName, input.contiguous(), weight, {}, type,
                                            {rows, length, 1, 1, false}, eps.value_or(least));
  return {out, rstds.view(sizes_of_stats(input, normalized_shape.size()))};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out, const Tensor& input,
                                             at::IntArrayRef normalized_shape, const Tensor& rstd,
                                             const MaybeTensor& weight, std::array<bool, 2> mask) {
  auto [grad_input, grad_weight, none] =
      layer_norm_gradients("_fused_rms_norm_backward", grad_out, input, normalized_shape, rstd,
                           rstd, value_of(weight), {}, {mask[0], mask[1], false}, false);
  return {grad_input, grad_weight};
}

// ---- group_norm ---------------------------------------------------------------------------------

Rows check_groups(const char* name, const Tensor& input, const Tensor& weight, const Tensor& bias,
                  int64_t N, int64_t C, int64_t HxW, int64_t group) {
  TORCH_CHECK(group > 0, "Expected num groups to be greater than 0, got ", group);
  TORCH_CHECK(C % group == 0, "Expected number of channels in input to be divisible by ",
              "num_groups, but got input of shape ", input.sizes(), " and num_groups=", group);
  for (const auto& [tensor, argument] : {std::pair{weight, "weight"}, std::pair{bias, "bias"}}) {
    TORCH_CHECK(!tensor.defined() || (tensor.dim() == 1 && tensor.numel() == C), "Expected ",
                argument, " to be a vector of size equal to the number of ",
                "channels in input, but got ", argument, " of shape ", tensor.sizes(),
                " and input of shape ", input.sizes());
  }
  TORCH_CHECK(input.numel() == N * C * HxW, name, ": an input of the sizes ", input.sizes(),
              " does not have N * C * HxW = ", N, " * ", C, " * ", HxW, " elements");
  return {N * group, C / group * HxW, HxW, group};
}

Tensors group_norm(const Tensor& input, const MaybeTensor& maybe_weight,
                   const MaybeTensor& maybe_bias, int64_t N, int64_t C, int64_t HxW, int64_t group,
                   double eps) {
  constexpr const char* kName = "native_group_norm";
  const auto weight = value_of(maybe_weight);
  const auto bias = value_of(maybe_bias);
  metalops::check_same_device(kName, {{input, "input"}, {weight, "weight"}, {bias, "bias"}});
  const auto rows = check_groups(kName, input, weight, bias, N, C, HxW, group);
  const auto type = check_types(kName, input, weight, bias);
  auto [out, means, rstds] =
      normalise_rows(kName, input.contiguous(), weight, bias, type, rows, eps);
  return {out.contiguous(input.suggest_memory_format()), means.view({N, group}),
          rstds.view({N, group})};
}

Tensors group_norm_backward(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                            const Tensor& rstd, const MaybeTensor& maybe_weight, int64_t N,
                            int64_t C, int64_t HxW, int64_t group, std::array<bool, 3> mask) {
  constexpr const char* kName = "native_group_norm_backward";
  const auto weight = value_of(maybe_weight);
  metalops::check_same_device(kName, {{grad_out, "grad_out"},
                                      {input, "input"},
                                      {mean, "mean"},
                                      {rstd, "rstd"},
                                      {weight, "weight"}});
  const auto rows = check_groups(kName, input, weight, {}, N, C, HxW, group);
  const auto type = check_types(kName, input, weight, {});
  check_gradient(kName, grad_out, input);
  const auto x = input.contiguous();
  const auto dy = grad_out.contiguous();
  const auto means = stats_of(kName, mean, "mean", rows.count);
  const auto rstds = stats_of(kName, rstd, "rstd", rows.count);
  Tensors grads;
  if (mask[0]) {
    std::get<0>(grads) = gradient_of_rows(kName, dy, x, means, rstds, weight, type, rows)
                             .contiguous(input.suggest_memory_format());
  }
  if (mask[1] || mask[2]) {
    NormChannelsParameters parameters{};
    parameters.outer = N;
    parameters.channels = C;
    parameters.inner = HxW;
    parameters.stats_of_outer = group;
    parameters.channels_of_stats = C / group;
    parameters.is_centred = 1;
    const auto sums = sum_channels(kName, dy, x, means, rstds, type, parameters);
    if (mask[1]) std::get<1>(grads) = sums.weight;
    if (mask[2]) std::get<2>(grads) = sums.bias;
  }
  return grads;
}

// ---- batch_norm ---------------------------------------------------------------------------------

// An input's elements as [outer][channels][inner], in the order of its memory format.
struct Channels {
  Tensor input;
  at::MemoryFormat format;
  NormChannelsParameters parameters;
};

Channels channels_of(const char* name, const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, name, ": input must have at least two dimensions, but has ",
              input.dim());
  const auto format = input.suggest_memory_format();
  Channels of{input.contiguous(format), format, {}};
  const auto channels = input.size(1);
  const auto samples = input.size(0);
  const auto plane = input.numel() == 0 ? 0 : input.numel() / (samples * channels);
  const bool is_last = format != at::MemoryFormat::Contiguous;
  of.parameters.channels = channels;
  of.parameters.outer = is_last ? samples * plane : samples;
  of.parameters.inner = is_last ? 1 : plane;
  of.parameters.channels_of_stats = 1;
  return of;
}

void check_channels(const Tensor& values, const char* argument, int64_t channels) {
  TORCH_CHECK(!values.defined() || values.numel() == channels, argument, " should contain ",
              channels, " elements not ", values.numel());
}

// Launches a kernel with a thread for each element, or pack of them, or for several on a GPU.
template <class... Arguments>
void launch_elements(const char* suffix, const Channels& of, at::ScalarType type,
                     const Arguments&... arguments) {
  const auto& p = of.parameters;
  const bool is_one = metalops::a_thread_for_each_element();
  const auto width = p.packs != 0 ? metalops::kPack : 1;
  const auto columns = (p.inner == 1 ? p.channels : p.inner) / width;
  const auto samples = is_one ? p.outer : c10::metal::ceil_div(p.outer, metalops::kNormLines);
  const auto rows = p.inner == 1 ? samples : samples * p.channels;
  const auto name = metalops::KernelName(is_one ? "norm_channels" : "norm_several_channels") +
                    suffix + metalops::metal_type(of.input.scalar_type()) + "_" +
                    metalops::metal_type(type);
  metalops::launch_rows(kernels(), name, columns, rows, arguments...);
}

bool can_be_packs(const Channels& of, std::initializer_list<Tensor> tensors) {
  const auto& p = of.parameters;
  return begin_with_packs(tensors) && whole_packs(p.inner == 1 ? p.channels : p.inner);
}

// A copy in float of averages that are narrower, which kernels update and write_back() rounds.
Tensor widened(const Tensor& average) {
  return average.defined() ? average.to(at::kFloat) : average;
}
void write_back(const Tensor& average, const Tensor& wide) {
  if (average.defined() && !average.is_same(wide)) average.copy_(wide);
}

Tensors batch_norm(const char* name, const Tensor& input, const MaybeTensor& maybe_weight,
                   const MaybeTensor& maybe_bias, const Tensor& running_mean,
                   const Tensor& running_var, bool training, double momentum, double eps) {
  const auto weight = value_of(maybe_weight);
  const auto bias = value_of(maybe_bias);
  metalops::check_same_device(name, {{input, "input"},
                                     {weight, "weight"},
                                     {bias, "bias"},
                                     {running_mean, "running_mean"},
                                     {running_var, "running_var"}});
  const auto type = check_types(name, input, weight, bias, running_mean, running_var);
  auto of = channels_of(name, input);
  const auto channels = of.parameters.channels;
  check_channels(weight, "weight", channels);
  check_channels(bias, "bias", channels);
  check_channels(running_mean, "running_mean", channels);
  check_channels(running_var, "running_var", channels);
  TORCH_CHECK_VALUE(running_mean.defined() == running_var.defined(),
                    "running_mean and running_var must either both be None or neither be None");
  TORCH_CHECK(training || running_mean.defined(), name,
              ": running_mean and running_var must be given in evaluation");
  auto means = widened(running_mean);
  auto variances = widened(running_var);
  if (training) {
    const auto averages = std::pair(means, variances);
    std::tie(means, variances) =
        metalops::batch_norm_stats(of.input, averages.first, averages.second, momentum, at::kFloat);
    write_back(running_mean, averages.first);
    write_back(running_var, averages.second);
  }
  means = means.contiguous();
  variances = variances.contiguous();
  auto out = at::empty_like(of.input, of.input.options(), of.format);
  auto rstds = at::empty_like(means);
  auto& p = of.parameters;
  p.eps = static_cast<float>(eps);
  p.has_weight = weight.defined() ? 1 : 0;
  p.has_bias = bias.defined() ? 1 : 0;
  p.packs = can_be_packs(of, {of.input, means, weight, bias}) ? 1 : 0;
  metalops::launch_threads(kernels(), "norm_rstds", channels, rstds, variances, p);
  launch_elements("_", of, type, out, of.input, means, rstds, or_other(weight, of.input),
                  or_other(bias, of.input), p);
  if (training) return {out, means, rstds};
  const auto none = at::empty({0}, means.options());
  return {out, none, at::empty_like(none)};
}

Tensors native_batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                          const MaybeTensor& running_mean, const MaybeTensor& running_var,
                          bool training, double momentum, double eps) {
  return batch_norm("native_batch_norm", input, weight, bias, running_mean.value_or(Tensor()),
                    running_var.value_or(Tensor()), training, momentum, eps);
}

Tensors batch_norm_legit(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                         Tensor& running_mean, Tensor& running_var, bool training, double momentum,
                         double eps) {
  return batch_norm("_native_batch_norm_legit", input, weight, bias, running_mean, running_var,
                    training, momentum, eps);
}

Tensors batch_norm_no_stats(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                            bool training, double momentum, double eps) {
  return batch_norm("_native_batch_norm_legit", input, weight, bias, {}, {}, training, momentum,
                    eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_with_update(
    const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, Tensor& running_mean,
    Tensor& running_var, double momentum, double eps) {
  auto [out, mean, rstd] = batch_norm("_batch_norm_with_update", input, weight, bias, running_mean,
                                      running_var, true, momentum, eps);
  return {out, mean, rstd, at::empty({0}, input.options().dtype(at::kByte))};
}

using Outs = std::tuple<Tensor&, Tensor&, Tensor&>;

Outs write_outs(const Tensors& results, Tensor& out, Tensor& save_mean, Tensor& save_invstd) {
  metalops::resize_and_copy(std::get<0>(results), out);
  metalops::resize_and_copy(std::get<1>(results), save_mean);
  metalops::resize_and_copy(std::get<2>(results), save_invstd);
  return {out, save_mean, save_invstd};
}

Outs native_batch_norm_out(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                           const MaybeTensor& running_mean, const MaybeTensor& running_var,
                           bool training, double momentum, double eps, Tensor& out,
                           Tensor& save_mean, Tensor& save_invstd) {
  return write_outs(
      native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps),
      out, save_mean, save_invstd);
}

Outs batch_norm_legit_out(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                          Tensor& running_mean, Tensor& running_var, bool training, double momentum,
                          double eps, Tensor& out, Tensor& save_mean, Tensor& save_invstd) {
  return write_outs(
      batch_norm_legit(input, weight, bias, running_mean, running_var, training, momentum, eps),
      out, save_mean, save_invstd);
}

Outs batch_norm_no_stats_out(const Tensor& input, const MaybeTensor& weight,
                             const MaybeTensor& bias, bool training, double momentum, double eps,
                             Tensor& out, Tensor& save_mean, Tensor& save_invstd) {
  return write_outs(batch_norm_no_stats(input, weight, bias, training, momentum, eps), out,
                    save_mean, save_invstd);
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> batch_norm_with_update_out(
    const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, Tensor& running_mean,
    Tensor& running_var, double momentum, double eps, Tensor& out, Tensor& save_mean,
    Tensor& save_invstd, Tensor& reserve) {
  const auto [result, mean, rstd, reserved] =
      batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps);
  write_outs({result, mean, rstd}, out, save_mean, save_invstd);
  metalops::resize_and_copy(reserved, reserve);
  return {out, save_mean, save_invstd, reserve};
}

// In evaluation the statistics are the averages, which do not depend on the input.
Tensors batch_norm_gradients(const char* name, const Tensor& grad_out, const Tensor& input,
                             const Tensor& weight, const Tensor& running_mean,
                             const Tensor& running_var, const Tensor& save_mean,
                             const Tensor& save_invstd, bool training, double eps,
                             const std::array<bool, 3>& mask) {
  metalops::check_same_device(name, {{grad_out, "grad_out"},
                                     {input, "input"},
                                     {weight, "weight"},
                                     {running_mean, "running_mean"},
                                     {save_mean, "save_mean"}});
  const auto type = check_types(name, input, weight, {});
  check_gradient(name, grad_out, input);
  auto of = channels_of(name, input);
  auto& p = of.parameters;
  check_channels(weight, "weight", p.channels);
  const auto dy = grad_out.contiguous(of.format);
  const auto means = stats_of(name, training ? save_mean : running_mean,
                              training ? "save_mean" : "running_mean", p.channels);
  const auto rstds = training
                         ? stats_of(name, save_invstd, "save_invstd", p.channels)
                         : stats_of(name, running_var, "running_var", p.channels).add(eps).rsqrt_();
  p.is_centred = 1;
  Tensors grads;
  ChannelSums sums;
  if (training || mask[1] || mask[2]) {
    sums = sum_channels(name, dy, of.input, means, rstds, type, p);
    if (mask[1]) std::get<1>(grads) = sums.weight;
    if (mask[2]) std::get<2>(grads) = sums.bias;
  }
  if (mask[0]) {
    auto grad_input = at::empty_like(of.input, of.input.options(), of.format);
    p.is_centred = training ? 1 : 0;
    p.has_weight = weight.defined() ? 1 : 0;
    p.packs = can_be_packs(of, {of.input, dy, means, rstds, weight}) ? 1 : 0;
    launch_elements("_backward_", of, type, grad_input, dy, of.input, means, rstds,
                    or_other(weight, of.input), or_other(sums.mean_gradients, means),
                    or_other(sums.mean_products, means), p);
    std::get<0>(grads) = grad_input;
  }
  return grads;
}

Tensors native_batch_norm_backward(const Tensor& grad_out, const Tensor& input,
                                   const MaybeTensor& weight, const MaybeTensor& running_mean,
                                   const MaybeTensor& running_var, const MaybeTensor& save_mean,
                                   const MaybeTensor& save_invstd, bool training, double eps,
                                   std::array<bool, 3> mask) {
  return batch_norm_gradients("native_batch_norm_backward", grad_out, input, value_of(weight),
                              running_mean.value_or(Tensor()), running_var.value_or(Tensor()),
                              save_mean.value_or(Tensor()), save_invstd.value_or(Tensor()),
                              training, eps, mask);
}

Tensors batch_norm_backward(const Tensor& grad_out, const Tensor& input, const Tensor& weight,
                            const MaybeTensor& running_mean, const MaybeTensor& running_var,
                            const MaybeTensor& save_mean, const MaybeTensor& save_var, bool update,
                            double eps, std::array<bool, 3> mask, const Tensor& /*reserve*/) {
  return batch_norm_gradients("batch_norm_backward", grad_out, input, value_of(weight),
                              running_mean.value_or(Tensor()), running_var.value_or(Tensor()),
                              save_mean.value_or(Tensor()), save_var.value_or(Tensor()), update,
                              eps, mask);
}

const metalops::Fix kNorm("norm", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("native_layer_norm", layer_norm, reason);
  m.replace("native_layer_norm_backward", layer_norm_backward, reason);
  m.replace("_fused_rms_norm", rms_norm, reason);
  m.replace("_fused_rms_norm_backward", rms_norm_backward, reason);
  m.replace("native_group_norm", group_norm, reason);
  m.replace("native_group_norm_backward", group_norm_backward, reason);
  m.replace("native_batch_norm", native_batch_norm, reason);
  m.replace("native_batch_norm.out", native_batch_norm_out, reason);
  m.replace("native_batch_norm_backward", native_batch_norm_backward, reason);
  m.replace("_native_batch_norm_legit", batch_norm_legit, reason);
  m.replace("_native_batch_norm_legit.out", batch_norm_legit_out, reason);
  m.replace("_native_batch_norm_legit.no_stats", batch_norm_no_stats, reason);
  m.replace("_native_batch_norm_legit.no_stats_out", batch_norm_no_stats_out, reason);
  m.replace("_batch_norm_with_update", batch_norm_with_update, reason);
  m.replace("_batch_norm_with_update.out", batch_norm_with_update_out, reason);
  m.replace("batch_norm_backward", batch_norm_backward, reason);
});

}  // namespace

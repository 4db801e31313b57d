// See convolution_depthwise.h.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/spatial/convolution_depthwise.h>
#include <kernels/spatial/convolution_depthwise.h>
#include <metalops/launch.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace metalops::convolution {

using at::Tensor;

namespace {

constexpr int64_t kChannels = 4;  // of a pack

bool are_channels_last(const Tensor& tensor) { return tensor.size(1) > 1 && tensor.stride(1) == 1; }

// Returns true if channels can be loaded in packs.
bool has_packs(const Tensor& tensor) {
  return tensor.stride(1) == 1 && tensor.size(1) % kChannels == 0 &&
         tensor.storage_offset() % kChannels == 0 && tensor.stride(0) % kChannels == 0 &&
         tensor.stride(2) % kChannels == 0 && tensor.stride(3) % kChannels == 0 &&
         tensor.stride(4) % kChannels == 0;
}

void set_dims(int32_t (&to)[kConvolutionDims], const Dims& values) {
  std::copy(values.begin(), values.end(), to);
}

void set_strides(int32_t (&to)[4], int64_t channel, const Dims& strides) {
  to[0] = static_cast<int32_t>(channel);
  std::copy(strides.begin(), strides.end(), to + 1);
}

DepthwiseParameters parameters_of(const Tensor& result, const Tensor& input, const Taps& taps) {
  DepthwiseParameters p{};
  p.input_image = input.stride(0);
  p.result_image = result.stride(0);
  set_strides(p.input_strides, input.stride(1), strides_of(input, kOnes));
  p.images = static_cast<int32_t>(input.size(0));
  p.channels = static_cast<int32_t>(result.size(1));
  p.multiple = static_cast<int32_t>(result.size(1) / input.size(1));
  set_dims(p.count, taps.count);
  p.across = static_cast<int32_t>(ceil_div(taps.count[2], kDepthwisePixels));
  set_dims(p.filters, taps.filters);
  set_dims(p.first, taps.first);
  set_dims(p.step, taps.step);
  set_dims(p.move, taps.move);
  set_dims(p.limits, {input.size(2), input.size(3), input.size(4)});
  return p;
}

// Returns true if rows of three taps and adjacent results are adjacent elements of the input.
bool has_width_3(const Taps& taps) {
  return taps.filters[2] == 3 && taps.step[2] == 1 && std::abs(taps.move[2]) == 1;
}

// The kernels of convolution_depthwise_square.h: their kind, and a thread's pixels along the width.
struct Square {
  const char* kind = nullptr;
  int64_t pixels = 0;
};

// Returns true if elements of rows can be loaded in packs.
bool has_rows(const Tensor& tensor, int64_t pixels) {
  const auto is_multiple = [&](int64_t x) { return x % pixels == 0; };
  return tensor.stride(4) == 1 && is_multiple(tensor.size(4)) && is_multiple(tensor.stride(0)) &&
         is_multiple(tensor.stride(1)) && is_multiple(tensor.stride(2)) &&
         is_multiple(tensor.stride(3)) && is_multiple(tensor.storage_offset());
}

// Returns the kernels for filters of 3 x 3 whose taps and results are adjacent in the input, or
// none. are_packs: channels are.
Square square_of(const Tensor& result, const Tensor& input, const Taps& taps, bool are_packs) {
  // A thread computes so many elements that there are enough only of large images.
  constexpr int64_t kLeast = int64_t{1} << 21;
  const auto is_square = [&](int d) {
    return taps.filters[d] == 3 && taps.step[d] == 1 && std::abs(taps.move[d]) == 1 &&
           taps.result_step[d] == 1;
  };
  if (!is_square(1) || !is_square(2) || result.numel() < kLeast) {
    return {};
  }
  if (are_packs) {
    return {"packs_", 2};
  }
  const auto lowest = taps.first[2] + std::min<int64_t>(0, 2 * taps.move[2]);
  if (lowest != -1 || taps.result_first[2] != 0 || result.size(4) != input.size(4)) {
    return {};
  }
  for (const int64_t pixels : {8, 4}) {
    if (has_rows(result, pixels) && has_rows(input, pixels)) {
      return {pixels == 8 ? "rows8_" : "rows4_", pixels};
    }
  }
  return {};
}

void set_square(DepthwiseParameters& p, const Square& square) {
  p.across = static_cast<int32_t>(ceil_div(p.count[2], square.pixels));
  p.down = static_cast<int32_t>(ceil_div(p.count[1], kDepthwiseRows));
}

bool spans_int32(const Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * std::abs(tensor.stride(d));
  }
  return last < std::numeric_limits<int32_t>::max();
}

}  // namespace

bool is_depthwise(const Tensor& input, const Weight& weight, const Tensor& result, int64_t groups) {
  return groups > 1 && weight.in_channels == 1 && !a_thread_for_each_element() &&
         input.numel() > 0 && result.numel() > 0 && spans_int32(input) && spans_int32(result) &&
         spans_int32(weight.tensor);
}

void convolve_depthwise(const Tensor& result, const Tensor& input, const Weight& weight,
                        const Taps& taps, int64_t, const MaybeTensor& bias) {
  auto p = parameters_of(result, input, taps);
  set_strides(p.result_strides, result.stride(1), strides_of(result, taps.result_step));
  p.result_begin = offset_at(result, taps.result_first);
  p.has_bias = is_given(bias);
  // Channels of results in one dimension: of groups, or of all.
  auto by = weight.tensor.flatten(0, 1).unsqueeze(0);
  const bool are_packs = has_packs(result) && has_packs(input) && p.multiple == 1;
  if (are_packs && product(taps.filters) > 0) {
    by = packed(by, 1);
  }
  p.weight_begin = offset_at(by, taps.filter_first);
  set_strides(p.weight_strides, by.stride(1), strides_of(by, taps.filter_step));
  // A buffer that is written must not be another argument where kernels may assume so (CUDA).
  const auto added = p.has_bias ? bias->contiguous() : by;
  if (const auto square = square_of(result, input, taps, are_packs); square.kind != nullptr) {
    set_square(p, square);
    const auto channels = are_packs ? p.channels / kChannels : p.channels;
    launch_threads(library("convolution_depthwise"),
                   KernelName("convolution_depthwise_square_") + square.kind +
                       metal_type(result.scalar_type()),
                   p.images * product({taps.count[0], p.down, p.across}) * channels, result, input,
                   by, added, p);
    return;
  }
  const char* const kind = are_packs ? "packs_" : are_channels_last(input) ? "last_" : "";
  const char* const width =
      has_width_3(taps) && (are_packs || !are_channels_last(input)) ? "3_" : "";
  const auto threads = p.images * product({taps.count[0], taps.count[1], p.across}) *
                       (are_packs ? p.channels / kChannels : p.channels);
  launch_threads(
      library("convolution_depthwise"),
      KernelName("convolution_depthwise_") + kind + width + metal_type(result.scalar_type()),
      threads, result, input, by, added, p);
}

void convolve_depthwise_weight(const Tensor& result, const Tensor& input, const Tensor& outputs,
                               const Taps& taps) {
  auto p = parameters_of(outputs, input, taps);
  set_strides(p.result_strides, outputs.stride(1), strides_of(outputs, kOnes));
  set_strides(p.weight_strides, result.stride(0), strides_of(result, kOnes));
  constexpr int64_t kBusy = 2048;  // threadgroups
  const bool last = are_channels_last(input) && are_channels_last(outputs);
  const auto filters = product(taps.filters);
  auto& kernels = library("convolution_depthwise");
  const auto combine = [&](const Tensor& sums) {
    launch_threadgroups(kernels, typed_kernel("convolution_depthwise_combine_", result),
                        ceil_div(p.channels * filters, 32), kDepthwiseThreads, result, sums, p);
  };
  const bool are_packs = has_packs(outputs) && has_packs(input) && p.multiple == 1;
  const bool are_planes = filters == 9 && input.size(2) == 1 && outputs.size(2) == 1;
  const auto square = are_planes ? square_of(outputs, input, taps, are_packs) : Square{};
  if (square.kind != nullptr) {
    set_square(p, square);
    const auto channels = are_packs ? ceil_div(p.channels, 32 * kChannels) : p.channels;
    const auto turns = ceil_div(int64_t(p.images) * p.down * p.across,
                                are_packs ? kDepthwiseThreads / 32 : kDepthwiseThreads);
    const int64_t busy = are_packs ? 264 : 1056;
    p.splits = static_cast<int32_t>(std::max<int64_t>(std::min(busy / channels, turns), 1));
    const auto sums = at::empty({p.splits, p.channels, 9}, result.options().dtype(at::kFloat));
    launch_threadgroups(kernels,
                        KernelName("convolution_depthwise_square_weight_") + square.kind +
                            metal_type(result.scalar_type()),
                        channels * p.splits, kDepthwiseThreads, sums, input, outputs, p);
    combine(sums);
    return;
  }
  const auto channels = last ? ceil_div(p.channels, 32) : p.channels;
  const auto groups = channels * ceil_div(filters, kDepthwiseTaps);
  const auto rows = p.images * product({taps.count[0], taps.count[1], p.across});
  const auto turns = ceil_div(rows, last ? kDepthwiseThreads / 32 : kDepthwiseThreads);
  p.splits = static_cast<int32_t>(std::max<int64_t>(std::min(kBusy / groups, turns), 1));
  const auto sums = at::empty({p.splits, p.channels, filters}, result.options().dtype(at::kFloat));
  launch_threadgroups(kernels,
                      KernelName("convolution_depthwise_weight_") + (last ? "last_" : "") +
                          (has_width_3(taps) ? "3_" : "") + metal_type(result.scalar_type()),
                      groups * p.splits, kDepthwiseThreads, sums, input, outputs, p);
  combine(sums);
}

}  // namespace metalops::convolution

// Host side of kernels/spatial/convolution.metal: convolutions, transposed ones and their
// gradients, while the fix "convolution" is on. All of them are implicit GEMMs, as that file says.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/spatial/convolution_depthwise.h>
#include <csrc/ops/spatial/convolution_packed.h>
#include <kernels/spatial/convolution.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

namespace {

using at::IntArrayRef;
using at::Tensor;
using metalops::ConvolutionMoves;
using metalops::ConvolutionOperand;
using metalops::ConvolutionParameters;
using metalops::kConvolutionDims;
using metalops::MaybeTensor;
using metalops::convolution::Dims;
using metalops::convolution::Images;
using metalops::convolution::kOnes;
using metalops::convolution::offset_at;
using metalops::convolution::product;
using metalops::convolution::strides_of;
using metalops::convolution::Taps;
using metalops::convolution::Weight;

constexpr int64_t kMany = int64_t(1) << 30;  // elements of a launch, and of a coordinate

// ---- arguments ----------------------------------------------------------------------------------

// Returns the values for depth, height and width, of which those before `dims` are absent.
Dims dims_of(IntArrayRef values, int64_t dims, int64_t absent) {
  Dims all;
  all.fill(absent);
  for (int64_t d = 0; d < dims; ++d) {
    all[kConvolutionDims - dims + d] = values.size() == 1 ? values[0] : values[d];
  }
  return all;
}

// Returns a view with depth, height and width. Its strides are those of the elements in memory.
Tensor with_all_dims(Tensor tensor) {
  tensor = tensor.resolve_neg();
  while (tensor.dim() < 2 + kConvolutionDims) {
    tensor = tensor.unsqueeze(2);
  }
  return tensor;
}

struct Options {
  int64_t dims;
  Dims stride, padding, dilation;
  int64_t groups;
};

Options options_of(const char* name, const Tensor& input, const Tensor& weight, IntArrayRef padding,
                   IntArrayRef stride, IntArrayRef dilation, int64_t groups) {
  const int64_t dims = input.dim() - 2;
  metalops::check_same_device(name, {{input, "input"}, {weight, "weight"}});
  TORCH_CHECK(dims >= 1 && dims <= kConvolutionDims, name,
              ": expected an input of 3, 4 or 5 dimensions, but got sizes ", input.sizes());
  TORCH_CHECK(weight.dim() == input.dim(), name, ": expected a weight of ", input.dim(),
              " dimensions, but got sizes ", weight.sizes());
  metalops::check_metal_float(name, input.scalar_type());
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.toString(),
              ") and weight type (", weight.toString(), ") should be the same");
  TORCH_CHECK(groups > 0, name, ": expected groups to be positive, but got groups=", groups);
  const auto check = [&](IntArrayRef values, const char* argument, int64_t least) {
    TORCH_CHECK(values.size() == 1 || static_cast<int64_t>(values.size()) == dims, name,
                ": expected ", argument, " to have ", dims, " elements, but got ", values);
    for (const auto value : values) {
      TORCH_CHECK(value >= least && value < kMany, name, ": ", argument, "=", values,
                  " is out of range");
    }
  };
  check(stride, "stride", 1);
  check(padding, "padding", 0);
  check(dilation, "dilation", 1);
  for (const auto& tensor : {input, weight}) {
    for (const auto size : tensor.sizes()) {
      TORCH_CHECK(size < kMany, name, ": size ", size, " of ", tensor.sizes(), " is too large");
    }
  }
  return {dims, dims_of(stride, dims, 1), dims_of(padding, dims, 0), dims_of(dilation, dims, 1),
          groups};
}

at::MemoryFormat format_of(const Tensor& input, const Tensor& weight) {
  for (const auto& tensor : {input, weight}) {
    const auto format = tensor.suggest_memory_format();
    if (format != at::MemoryFormat::Contiguous) {
      return format;
    }
  }
  return at::MemoryFormat::Contiguous;
}

Tensor empty_result(IntArrayRef sizes, const Tensor& like, at::MemoryFormat format) {
  return at::empty(sizes, like.options(), format);
}

// ---- coordinates --------------------------------------------------------------------------------

bool is_channels_last(const Tensor& tensor) { return tensor.size(1) > 1 && tensor.stride(1) == 1; }

using Sizes = int32_t[metalops::kConvolutionDigits];
using Strides = int64_t[metalops::kConvolutionDigits];

// Sets the digits of a coordinate. outer: of channels or images, or 1 if the inner ones are given.
template <class Value>
void set_digits(Value (&digits)[metalops::kConvolutionDigits], int64_t outer, const Dims& dims,
                int64_t inner) {
  digits[0] = static_cast<Value>(outer);
  for (int d = 0; d < kConvolutionDims; ++d) {
    digits[1 + d] = static_cast<Value>(dims[d]);
  }
  digits[4] = static_cast<Value>(inner);
}

// Sets the digits of a coordinate of channels, which are the inner digit if they are adjacent in
// memory.
template <class Value>
void set_channels(Value (&digits)[metalops::kConvolutionDigits], int64_t channels, const Dims& dims,
                  bool are_last, Value other) {
  set_digits(digits, are_last ? other : channels, dims, are_last ? channels : other);
}

constexpr Dims kZeros{0, 0, 0};

void set_positions(ConvolutionMoves& moves, const Dims& steps) {
  for (int d = 0; d < kConvolutionDims; ++d) {
    moves.positions[d] = static_cast<int32_t>(steps[d]);
  }
}

// Bounds of an operand with padding, from the position `first` on.
void set_bounds(ConvolutionOperand& operand, const Tensor& tensor, const Dims& first) {
  operand.begin = offset_at(tensor, first);
  for (int d = 0; d < kConvolutionDims; ++d) {
    operand.first[d] = static_cast<int32_t>(first[d]);
    operand.limits[d] = static_cast<int32_t>(tensor.size(2 + d));
  }
}

void set_no_bounds(ConvolutionOperand& operand, int64_t begin) {
  operand.begin = begin;
  for (int d = 0; d < kConvolutionDims; ++d) {
    operand.limits[d] = std::numeric_limits<int32_t>::max();
  }
}

// Swaps rows and columns, that is the operands.
void transpose(ConvolutionParameters& p) {
  std::swap(p.left, p.right);
  std::swap(p.row_strides, p.column_strides);
  std::swap(p.row_sizes, p.column_sizes);
  std::swap(p.rows, p.columns);
  p.bias_of_rows = 1 - p.bias_of_rows;
}

// ---- launches -----------------------------------------------------------------------------------

struct Operands {
  const Tensor& left;
  const Tensor& right;
};

// Groups of fewer rows or columns are no work for tiles.
constexpr int32_t kFew = 8;
// Threadgroups that keep a GPU busy; K of a split is at least kLeastInner.
constexpr int64_t kBusy = 256;
constexpr int64_t kLeastInner = 512;

int64_t splits_of(int64_t tiles, int64_t inner) {
  return tiles == 0 ? 1 : std::max<int64_t>(std::min(kBusy / tiles, inner / kLeastInner), 1);
}

void launch_tiles(ConvolutionParameters& p, const Tensor& result, const Operands& operands,
                  const Tensor& bias) {
  constexpr int64_t kTile = metalops::kConvolutionTile;
  constexpr int64_t kThreads = metalops::kConvolutionSimdgroups * 32;
  auto& library = metalops::matmul_library("convolution");
  const int64_t tiles = (p.rows + kTile - 1) / kTile * ((p.columns + kTile - 1) / kTile) * p.groups;
  const int64_t splits = splits_of(tiles, p.inner);
  // Whole steps of K, which have 16 or 32 elements.
  const int64_t inner = ((p.inner + splits - 1) / splits + 31) / 32 * 32;
  p.splits = static_cast<int32_t>(inner == 0 ? 1 : (p.inner + inner - 1) / inner);
  p.inner_of_split = static_cast<int32_t>(inner);
  if (p.splits == 1) {
    metalops::launch_threadgroups(library, metalops::typed_kernel("convolution_tile_", result),
                                  tiles, kThreads, result, operands.left, operands.right, bias, p);
    return;
  }
  const int64_t elements = int64_t(p.rows) * p.columns;
  const auto sums = at::empty({p.splits, p.groups, elements}, result.options().dtype(at::kFloat));
  metalops::launch_threadgroups(library, metalops::typed_kernel("convolution_split_", result),
                                tiles * p.splits, kThreads, sums, operands.left, operands.right,
                                bias, p);
  metalops::launch_rows(library, metalops::typed_kernel("convolution_combine_", result), elements,
                        p.groups, result, sums, bias, p);
}

void launch(ConvolutionParameters& p, const Tensor& result, const Operands& operands,
            const Tensor& bias) {
  const int64_t elements = int64_t(p.rows) * p.columns;
  if (elements == 0) {
    return;
  }
  auto& library = metalops::matmul_library("convolution");
  if (std::min(p.rows, p.columns) >= kFew) {
    launch_tiles(p, result, operands, bias);
  } else if (elements * p.groups < p.inner) {
    metalops::launch_threadgroups(library, metalops::typed_kernel("convolution_reduce_", result),
                                  elements * p.groups, 32, result, operands.left, operands.right,
                                  bias, p);
  } else {
    metalops::launch_rows(library, metalops::typed_kernel("convolution_direct_", result), elements,
                          p.groups, result, operands.left, operands.right, bias, p);
  }
}

// ---- products -----------------------------------------------------------------------------------

// Writes the elements of `result` that the taps name.
void convolve(const Tensor& result, const Tensor& input, const Weight& weight, const Taps& taps,
              int64_t groups, const MaybeTensor& bias) {
  ConvolutionParameters p{};
  const bool are_last = is_channels_last(input);
  p.groups = static_cast<int32_t>(groups);
  p.rows = static_cast<int32_t>(input.size(0) * product(taps.count));
  p.columns = static_cast<int32_t>(weight.out_channels);
  const int64_t inner = weight.in_channels * product(taps.filters);
  TORCH_CHECK(inner < kMany, "convolution: a filter of ", inner, " elements is too large");
  p.inner = static_cast<int32_t>(inner);
  set_channels(p.inner_sizes, weight.in_channels, taps.filters, are_last, int32_t(1));

  set_digits(p.row_sizes, input.size(0), taps.count, 1);
  set_digits(p.left.line.strides, input.stride(0), strides_of(input, taps.step), 0);
  set_positions(p.left.line, taps.step);
  set_channels(p.left.inner.strides, input.stride(1), strides_of(input, taps.move), are_last,
               int64_t(0));
  set_positions(p.left.inner, taps.move);
  set_bounds(p.left, input, taps.first);
  p.left.group_stride = weight.in_channels * input.stride(1);

  const auto& w = weight.tensor;
  set_digits(p.column_sizes, weight.out_channels, kOnes, 1);
  set_digits(p.right.line.strides, w.stride(weight.out), kZeros, 0);
  set_channels(p.right.inner.strides, w.stride(weight.in), strides_of(w, taps.filter_step),
               are_last, int64_t(0));
  set_no_bounds(p.right, offset_at(w, taps.filter_first));
  p.right.group_stride = w.size(0) / groups * w.stride(0);

  set_digits(p.row_strides, result.stride(0), strides_of(result, taps.result_step), 0);
  set_digits(p.column_strides, result.stride(1), kZeros, 0);
  p.result_begin = offset_at(result, taps.result_first);
  p.result_group_stride = weight.out_channels * result.stride(1);
  p.has_bias = metalops::is_given(bias);
  if (!is_channels_last(result)) {
    transpose(p);  // adjacent pixels are adjacent columns
  }
  const bool is_weight_left = !is_channels_last(result);
  launch(p, result, is_weight_left ? Operands{w, input} : Operands{input, w},
         p.has_bias ? bias->contiguous() : result);
}

// Convolves as many images at a time as a launch can have.
void convolve_images(const Tensor& result, const Images& input, const Weight& weight,
                     const Taps& taps, int64_t groups, const MaybeTensor& bias) {
  TORCH_CHECK(product(taps.count) < kMany, "convolution: an image of sizes ",
              result.sizes().slice(2), " is too large");
  const int64_t elements = product(taps.count) * std::max<int64_t>(weight.out_channels, 1);
  if (elements == 0) {
    return;
  }
  const int64_t images = std::max<int64_t>(kMany / elements, 1);
  const auto convolves = input.are_packed ? metalops::convolution::convolve_packed
                         : metalops::convolution::is_depthwise(input.tensor, weight, result, groups)
                             ? metalops::convolution::convolve_depthwise
                             : convolve;
  for (int64_t begin = 0; begin < result.size(0); begin += images) {
    const int64_t count = std::min(images, result.size(0) - begin);
    convolves(result.narrow(0, begin, count), input.tensor.narrow(0, begin, count), weight, taps,
              groups, bias);
  }
}

// The taps of a convolution with these results and this weight.
Taps taps_of(const Tensor& result, const Tensor& weight, const Options& o) {
  Taps taps{};
  for (int d = 0; d < kConvolutionDims; ++d) {
    taps.first[d] = -o.padding[d];
    taps.count[d] = result.size(2 + d);
    taps.filters[d] = weight.size(2 + d);
  }
  taps.step = o.stride;
  taps.filter_step = kOnes;
  taps.move = o.dilation;
  taps.result_step = kOnes;
  return taps;
}

// result = input * weight, the weight of (out channels, in channels of a group, ...).
void convolve_forward(const Tensor& result, const Tensor& input, const Tensor& weight,
                      const Options& o, const MaybeTensor& bias) {
  const Taps taps = taps_of(result, weight, o);
  const Weight by{weight, 0, 1, weight.size(0) / o.groups, weight.size(1)};
  convolve_images(result, metalops::convolution::packed_if_it_pays(input, by, result, o.groups), by,
                  taps, o.groups, bias);
}

// Sets the taps of one dimension for positions whose remainder by the stride is r. Returns false if
// there are none.
//
// Position i = r + s t of the result has the terms of the outputs o with i = s o - padding +
// dilation k, that is of k = k0 + (s / g) q with g = gcd(dilation, s), and o = (r + padding -
// dilation k0) / s + t - (dilation / g) q.
bool set_remainder(Taps& taps, int d, int64_t r, int64_t size, int64_t filter, const Options& o) {
  const int64_t s = o.stride[d];
  const int64_t g = std::gcd(o.dilation[d], s);
  taps.result_first[d] = r;
  taps.result_step[d] = s;
  taps.count[d] = r < size ? (size - r + s - 1) / s : 0;
  taps.step[d] = 1;
  taps.filter_step[d] = s / g;
  taps.move[d] = -(o.dilation[d] / g);
  taps.filters[d] = 0;
  taps.filter_first[d] = 0;
  taps.first[d] = 0;
  for (int64_t k = 0; k < std::min(s / g, filter); ++k) {
    const int64_t distance = r + o.padding[d] - k * o.dilation[d];
    if (distance % s == 0) {
      taps.filter_first[d] = k;
      taps.filters[d] = (filter - k + s / g - 1) / (s / g);
      taps.first[d] = distance / s;
    }
  }
  return taps.count[d] > 0;
}

// The gradient of the convolution's input, which is the transposed convolution of the outputs.
void convolve_transposed(const Tensor& result, const Tensor& outputs, const Tensor& weight,
                         const Options& o) {
  const auto [depths, heights, widths] = o.stride;
  const Weight by{weight, 1, 0, weight.size(1), weight.size(0) / o.groups};
  const auto images = metalops::convolution::packed_if_it_pays(outputs, by, result, o.groups);
  Taps taps{};
  for (int64_t z = 0; z < depths; ++z) {
    if (!set_remainder(taps, 0, z, result.size(2), weight.size(2), o)) continue;
    for (int64_t y = 0; y < heights; ++y) {
      if (!set_remainder(taps, 1, y, result.size(3), weight.size(3), o)) continue;
      for (int64_t x = 0; x < widths; ++x) {
        if (!set_remainder(taps, 2, x, result.size(4), weight.size(4), o)) continue;
        convolve_images(result, images, by, taps, o.groups, std::nullopt);
      }
    }
  }
}

// The gradient of the weight: K are the pixels of all outputs.
void convolve_weight(const char* name, const Tensor& result, const Tensor& input,
                     const Tensor& outputs, const Options& o) {
  const Taps taps = taps_of(outputs, result, o);
  const Weight of{result, 0, 1, result.size(0) / o.groups, result.size(1)};
  if (metalops::convolution::is_depthwise(input, of, outputs, o.groups)) {
    metalops::convolution::convolve_depthwise_weight(result, input, outputs, taps);
    return;
  }
  if (metalops::convolution::convolve_weight_packed(result, input, outputs, taps, o.groups)) {
    return;
  }
  ConvolutionParameters p{};
  const Dims &pixels = taps.count, &filter = taps.filters;
  const int64_t inner = outputs.size(0) * product(pixels);
  const int64_t columns = result.size(1) * product(filter);
  TORCH_CHECK(inner < kMany && columns < kMany, name, ": outputs of sizes ", outputs.sizes(),
              " are too many for the gradient of the weight");
  p.groups = static_cast<int32_t>(o.groups);
  p.rows = static_cast<int32_t>(result.size(0) / o.groups);
  p.columns = static_cast<int32_t>(columns);
  p.inner = static_cast<int32_t>(inner);
  set_digits(p.inner_sizes, outputs.size(0), pixels, 1);

  set_digits(p.row_sizes, p.rows, kOnes, 1);
  set_digits(p.left.line.strides, outputs.stride(1), kZeros, 0);
  set_digits(p.left.inner.strides, outputs.stride(0), strides_of(outputs, kOnes), 0);
  set_no_bounds(p.left, 0);
  p.left.group_stride = p.rows * outputs.stride(1);

  const bool are_last = is_channels_last(result);
  set_channels(p.column_sizes, result.size(1), filter, are_last, int32_t(1));
  set_channels(p.right.line.strides, input.stride(1), strides_of(input, o.dilation), are_last,
               int64_t(0));
  set_positions(p.right.line, o.dilation);
  set_digits(p.right.inner.strides, input.stride(0), strides_of(input, o.stride), 0);
  set_positions(p.right.inner, o.stride);
  set_bounds(p.right, input, taps.first);
  p.right.group_stride = result.size(1) * input.stride(1);

  set_digits(p.row_strides, result.stride(0), kZeros, 0);
  set_channels(p.column_strides, result.stride(1), strides_of(result, kOnes), are_last, int64_t(0));
  p.result_group_stride = p.rows * result.stride(0);
  launch(p, result, {outputs, input}, result);
}

// Sizes as in torch's errors: "3 x 15".
std::string sizes_in_words(IntArrayRef sizes) {
  std::string words;
  for (const auto size : sizes) {
    words += (words.empty() ? "" : " x ") + std::to_string(size);
  }
  return words;
}

// Elements that the filter covers along dimension 2 + d of its weight.
int64_t filter_extent(const Tensor& weight, int64_t d, const Options& o) {
  return o.dilation[kConvolutionDims - o.dims + d] * (weight.size(2 + d) - 1) + 1;
}

// ---- operators ----------------------------------------------------------------------------------

void check_channels(const Tensor& input, const Tensor& weight, int64_t expected) {
  TORCH_CHECK(input.size(1) == expected, "Given weight of size ", weight.sizes(),
              ", expected input", input.sizes(), " to have ", expected, " channels, but got ",
              input.size(1), " channels instead");
}

void check_divides(const char* name, const Tensor& weight, int64_t groups) {
  TORCH_CHECK(weight.size(0) % groups == 0, name, ": expected weight of sizes ", weight.sizes(),
              " at dimension 0 to be divisible by groups=", groups);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias,
                   IntArrayRef padding, IntArrayRef stride, IntArrayRef dilation, int64_t groups) {
  constexpr const char* kName = "_mps_convolution";
  const auto o = options_of(kName, input, weight, padding, stride, dilation, groups);
  check_divides(kName, weight, groups);
  check_channels(input, weight, weight.size(1) * groups);
  if (metalops::is_given(bias)) {
    metalops::check_same_device(kName, {{input, "input"}, {*bias, "bias"}});
    TORCH_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0), "Given weight of size ",
                weight.sizes(), ", expected bias to be 1-dimensional with ", weight.size(0),
                " elements, but got bias of size ", bias->sizes(), " instead");
    TORCH_CHECK(bias->scalar_type() == input.scalar_type(), "Input type (", input.toString(),
                ") and bias type (", bias->toString(), ") should be the same");
  }
  at::DimVector sizes{input.size(0), weight.size(0)};
  for (int64_t d = 0; d < o.dims; ++d) {
    const int64_t at = kConvolutionDims - o.dims + d;
    const int64_t padded = input.size(2 + d) + 2 * o.padding[at];
    const int64_t filter = filter_extent(weight, d, o);
    TORCH_CHECK(padded >= filter, "Calculated padded input size per channel: ", padded,
                ". Kernel size: ", filter, ". Kernel size can't be greater than actual input size");
    sizes.push_back((padded - filter) / o.stride[at] + 1);
  }
  const auto result = empty_result(sizes, input, format_of(input, weight));
  convolve_forward(with_all_dims(result), with_all_dims(input), with_all_dims(weight), o, bias);
  return result;
}

// Checks that `outputs` are those of a convolution of `input`, which has `more` elements behind
// those that it needs.
void check_outputs(const char* name, const Tensor& outputs, const Tensor& input,
                   const Tensor& weight, const Options& o, const Dims& more) {
  TORCH_CHECK(outputs.dim() == input.dim() && outputs.size(0) == input.size(0) &&
                  outputs.size(1) == weight.size(0) && outputs.scalar_type() == input.scalar_type(),
              name, ": gradients of sizes ", outputs.sizes(), " and type ", outputs.scalar_type(),
              " do not match an input of sizes ", input.sizes(), " and type ", input.scalar_type(),
              " and a weight of sizes ", weight.sizes());
  for (int64_t d = 0; d < o.dims; ++d) {
    const int64_t at = kConvolutionDims - o.dims + d;
    const int64_t filter = filter_extent(weight, d, o);
    const int64_t expected =
        (input.size(2 + d) - more[at] + 2 * o.padding[at] - filter) / o.stride[at] + 1;
    TORCH_CHECK(outputs.size(2 + d) == expected, name, ": expected ", expected,
                " elements along dimension ", 2 + d, " of gradients of sizes ", outputs.sizes());
  }
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& input, const Tensor& grad_output, const Tensor& weight, IntArrayRef padding,
    IntArrayRef stride, IntArrayRef dilation, int64_t groups, std::array<bool, 3> output_mask) {
  constexpr const char* kName = "mps_convolution_backward";
  const auto o = options_of(kName, input, weight, padding, stride, dilation, groups);
  check_divides(kName, weight, groups);
  check_channels(input, weight, weight.size(1) * groups);
  check_outputs(kName, grad_output, input, weight, o, kZeros);
  const auto format = format_of(input, weight);
  const auto gradients = with_all_dims(grad_output);
  Tensor grad_input, grad_weight;
  if (output_mask[0]) {
    grad_input = empty_result(input.sizes(), input, format);
    convolve_transposed(with_all_dims(grad_input), gradients, with_all_dims(weight), o);
  }
  if (output_mask[1]) {
    grad_weight = empty_result(weight.sizes(), weight, format);
    convolve_weight(kName, with_all_dims(grad_weight), with_all_dims(input), gradients, o);
  }
  return {grad_input, grad_weight, Tensor()};  // torch sums the gradient of the bias itself
}

Tensor convolution_transpose(const Tensor& self, const Tensor& weight, IntArrayRef padding,
                             IntArrayRef output_padding, IntArrayRef stride, IntArrayRef dilation,
                             int64_t groups) {
  constexpr const char* kName = "_mps_convolution_transpose";
  const auto o = options_of(kName, self, weight, padding, stride, dilation, groups);
  check_divides(kName, weight, groups);
  check_channels(self, weight, weight.size(0));
  const auto more = dims_of(output_padding, o.dims, 0);
  at::DimVector sizes{self.size(0), weight.size(1) * groups};
  for (int64_t d = 0; d < o.dims; ++d) {
    const int64_t at = kConvolutionDims - o.dims + d;
    sizes.push_back((self.size(2 + d) - 1) * o.stride[at] - 2 * o.padding[at] +
                    filter_extent(weight, d, o) + more[at]);
  }
  const auto of_channel = IntArrayRef(sizes).slice(2);
  TORCH_CHECK(std::all_of(of_channel.begin(), of_channel.end(), [](int64_t x) { return x > 0; }),
              "Given input size per channel: (", sizes_in_words(self.sizes().slice(2)),
              "). Calculated output size per channel: (", sizes_in_words(of_channel),
              "). Output size is too small");
  const auto result = empty_result(sizes, self, format_of(self, weight));
  convolve_transposed(with_all_dims(result), with_all_dims(self), with_all_dims(weight), o);
  return result;
}

std::tuple<Tensor, Tensor> convolution_transpose_backward(
    const Tensor& self, const Tensor& grad_output, const Tensor& weight, IntArrayRef padding,
    IntArrayRef output_padding, IntArrayRef stride, IntArrayRef dilation, int64_t groups,
    std::array<bool, 2> output_mask) {
  constexpr const char* kName = "mps_convolution_transpose_backward";
  const auto o = options_of(kName, grad_output, weight, padding, stride, dilation, groups);
  check_divides(kName, weight, groups);
  check_channels(grad_output, weight, weight.size(1) * groups);
  check_outputs(kName, self, grad_output, weight, o, dims_of(output_padding, o.dims, 0));
  const auto format = format_of(self, weight);
  const auto gradients = with_all_dims(grad_output);
  Tensor grad_input, grad_weight;
  if (output_mask[0]) {
    grad_input = empty_result(self.sizes(), self, format);
    convolve_forward(with_all_dims(grad_input), gradients, with_all_dims(weight), o, std::nullopt);
  }
  if (output_mask[1]) {
    grad_weight = empty_result(weight.sizes(), weight, format);
    convolve_weight(kName, with_all_dims(grad_weight), gradients, with_all_dims(self), o);
  }
  return {grad_input, grad_weight};
}

const metalops::Fix kConvolution("convolution", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("_mps_convolution", convolution, reason);
  m.replace("_mps_convolution_transpose", convolution_transpose, reason);
  m.replace("mps_convolution_backward", convolution_backward, reason);
  m.replace("mps_convolution_transpose_backward", convolution_transpose_backward, reason);
});

}  // namespace

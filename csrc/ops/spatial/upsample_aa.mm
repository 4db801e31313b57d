// Host side of kernels/spatial/upsample_aa.metal: _upsample_lanczos2d_aa and its gradient, and the
// gradients of _upsample_bilinear2d_aa and _upsample_bicubic2d_aa, which stock MPS lacks.
// torch.nn.functional.interpolate(..., antialias=True) calls these.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_upsample_bicubic2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_bilinear2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_lanczos2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_lanczos2d_aa_meta.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/spatial/upsample_aa.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>
#include <metalops/sym_ints.h>
#include <metalops/torch_internals.h>
#include <metalops/views.h>

#include <algorithm>
#include <cmath>

namespace {

using at::Tensor;
using metalops::AntialiasFilter;
using metalops::AxisParameters;
using MaybeScale = std::optional<double>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("upsample_aa"); }

// ---- tables of weights --------------------------------------------------------------------------

struct Table {
  Tensor weights;
  Tensor windows;
  int64_t inputs;
  int64_t outputs;
  int64_t taps;
};

Table empty_table(int64_t inputs, int64_t outputs, int64_t taps, const at::TensorOptions& options) {
  return {at::empty({outputs, taps}, options.dtype(at::kFloat)),
          at::empty({outputs, 2}, options.dtype(at::kLong)), inputs, outputs, taps};
}

// Returns the number of input pixels per output pixel, as torch computes it. factor: the scale that
// the user states.
double scale_of(int64_t inputs, int64_t outputs, bool align_corners, MaybeScale factor) {
  // Larger than any image; the weights do not change beyond it.
  constexpr double kMost = 1099511627776.0;  // 2^40
  const auto count = [](int64_t n) { return static_cast<double>(n); };
  if (align_corners) {
    return outputs > 1 ? count(inputs - 1) / count(outputs - 1) : 0.0;
  }
  const bool given = factor.has_value() && *factor > 0;
  return std::min(given ? 1.0 / *factor : count(inputs) / count(outputs), kMost);
}

// An axis of the image, and the filter along it.
struct Axis {
  AxisParameters parameters;
  double scale;
  double support;
};

Axis make_axis(int64_t inputs, int64_t outputs, bool align_corners, MaybeScale factor,
               AntialiasFilter filter) {
  const double half_width = filter == metalops::kBilinear  ? 1.0
                            : filter == metalops::kBicubic ? 2.0
                                                           : 3.0;
  const auto scale = scale_of(inputs, outputs, align_corners, factor);
  // The filter is as wide as pixels of the coarser image.
  const auto stretch = std::max(scale, 1.0);
  const auto support = half_width * stretch;
  const auto taps = static_cast<int64_t>(2 * std::ceil(support) + 1);
  return {{inputs, outputs, std::min(taps, inputs), metalops::split(scale),
           static_cast<float>(support), static_cast<float>(1 / stretch), filter},
          scale,
          support};
}

Table weights(const Axis& axis, const at::TensorOptions& options) {
  const auto& parameters = axis.parameters;
  auto table = empty_table(parameters.inputs, parameters.outputs, parameters.taps, options);
  metalops::launch_threads(kernels(), "upsample_aa_weights", parameters.outputs, table.weights,
                           table.windows, parameters);
  return table;
}

// Returns the weights of the gradient: those of pixels of the forward output, for each pixel of the
// forward input.
Table transposed_weights(const Axis& axis, const at::TensorOptions& options) {
  const auto& parameters = axis.parameters;
  const auto original = weights(axis, options);
  // The centres of the windows that contain a pixel are at most this far apart.
  const auto span = 2 * axis.support + 1;
  const auto most = static_cast<double>(parameters.outputs);
  const auto taps = static_cast<int64_t>(std::min(most, std::floor(span / axis.scale) + 2));
  auto table = empty_table(parameters.outputs, parameters.inputs, taps, options);
  metalops::launch_threads(kernels(), "upsample_aa_transposed_weights", parameters.inputs,
                           table.weights, table.windows, original.weights, original.windows,
                           parameters, taps);
  return table;
}

// ---- resizing -----------------------------------------------------------------------------------

constexpr int64_t kHeight = 2;
constexpr int64_t kWidth = 3;

// Resizes one dimension of `input`, which is dense in the memory format, as `output` is.
void resize_dimension(const Tensor& output, const Tensor& input, int64_t dimension,
                      const Table& table, at::MemoryFormat format) {
  // The strides of dense tensors, also where dimensions of size 1 have others.
  const auto stride = [&](int64_t d) {
    const bool channels_last = format == at::MemoryFormat::ChannelsLast;
    const auto channels = channels_last ? input.size(1) : 1;
    return d == kWidth ? channels : input.size(kWidth) * channels;
  };
  const auto inner = stride(dimension);
  const auto rows = input.numel() / (table.inputs * inner);
  const metalops::ResizeParameters parameters{rows, table.inputs, table.outputs, inner, table.taps};
  // A thread for each block of elements, either along `inner` or along `rows`.
  const auto blocks = [](int64_t n) {
    return c10::metal::ceil_div<int64_t>(n, metalops::kResizeBlock);
  };
  const bool across_rows = inner < metalops::kResizeBlock;
  const auto grid_columns = table.outputs * (across_rows ? inner : blocks(inner));
  const auto grid_rows = across_rows ? blocks(rows) : rows;
  TORCH_CHECK(std::max(grid_columns, grid_rows) <= UINT32_MAX, "resizing tensors of ",
              input.numel(), " elements is not supported");
  if (output.scalar_type() == at::kByte) {
    const auto fixed = at::empty(table.weights.sizes(), table.weights.options().dtype(at::kShort));
    const auto precision = at::empty({1}, table.weights.options().dtype(at::kInt));
    constexpr uint64_t kThreads = 256;
    metalops::launch_threadgroups(kernels(), "upsample_aa_fixed_point_weights", 1, kThreads, fixed,
                                  precision, table.weights, table.weights.numel());
    metalops::launch_rows(kernels(), "upsample_aa_resize_bytes", grid_columns, grid_rows, output,
                          input, fixed, table.windows, parameters, precision);
    return;
  }
  const auto name = metalops::typed_kernel("upsample_aa_resize_", output, input);
  metalops::launch_rows(kernels(), name, grid_columns, grid_rows, output, input, table.weights,
                        table.windows, parameters);
}

// The intermediate image between both dimensions is float, except that of bytes.
at::ScalarType type_between(at::ScalarType type) { return type == at::kByte ? type : at::kFloat; }

void resize_both(const Tensor& out, const Tensor& input, const Table& height, const Table& width) {
  const auto format = input.suggest_memory_format();
  const auto type = type_between(input.scalar_type());
  const auto between = at::empty({input.size(0), input.size(1), input.size(kHeight), width.outputs},
                                 input.options().dtype(type).memory_format(format));
  resize_dimension(between, input.contiguous(format), kWidth, width, format);
  const auto write = [&](const Tensor& result) {
    resize_dimension(result, between, kHeight, height, format);
  };
  metalops::write_contiguous(out, write, format);
}

void check_overlap(const Tensor& out, const Tensor& input) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, input);
}

void check_dtype(const char* name, const Tensor& tensor, bool bytes) {
  const auto type = tensor.scalar_type();
  metalops::check_dtype(metalops::is_metal_float(type) || (bytes && type == at::kByte), name, type);
}

// ---- operators ----------------------------------------------------------------------------------

Tensor& lanczos_out(const Tensor& self, at::IntArrayRef output_size, bool align_corners,
                    MaybeScale scales_h, MaybeScale scales_w, Tensor& out) {
  constexpr const char* kName = "_upsample_lanczos2d_aa";
  metalops::check_same_device(kName, {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured__upsample_lanczos2d_aa>(out).meta(
      self, output_size, align_corners, scales_h, scales_w);
  check_dtype(kName, self, /*bytes=*/true);
  check_overlap(out, self);
  const auto table = [&](int64_t dimension, MaybeScale factor) {
    return weights(make_axis(self.size(dimension), out.size(dimension), align_corners, factor,
                             metalops::kLanczos),
                   self.options());
  };
  if (out.numel() == 0) {
    return out;
  }
  // A dimension that keeps its size is not resized, whatever its scale.
  const bool resized_h = self.size(kHeight) != out.size(kHeight);
  const bool resized_w = self.size(kWidth) != out.size(kWidth);
  if (resized_h && resized_w) {
    resize_both(out, self, table(kHeight, scales_h), table(kWidth, scales_w));
  } else if (resized_h || resized_w) {
    const auto format = self.suggest_memory_format();
    const auto dimension = resized_h ? kHeight : kWidth;
    const auto write = [&](const Tensor& result) {
      resize_dimension(result, self.contiguous(format), dimension,
                       table(dimension, resized_h ? scales_h : scales_w), format);
    };
    metalops::write_contiguous(out, write, format);
  } else {
    out.copy_(self);
  }
  return out;
}

constexpr char kBilinearBackward[] = "_upsample_bilinear2d_aa_backward";
constexpr char kBicubicBackward[] = "_upsample_bicubic2d_aa_backward";
constexpr char kLanczosBackward[] = "_upsample_lanczos2d_aa_backward";

template <class Meta, AntialiasFilter kFilter, const char* kName>
Tensor& backward_out(const Tensor& grad_output, at::IntArrayRef output_size,
                     at::IntArrayRef input_size, bool align_corners, MaybeScale scales_h,
                     MaybeScale scales_w, Tensor& grad_input) {
  metalops::check_same_device(kName, {{grad_input, "grad_input"}, {grad_output, "grad_output"}});
  metalops::StructuredOut<Meta>(grad_input)
      .meta(grad_output, output_size, input_size, align_corners, scales_h, scales_w);
  check_dtype(kName, grad_output, /*bytes=*/false);
  check_overlap(grad_input, grad_output);
  if (grad_output.numel() == 0) {
    return grad_input;
  }
  const auto table = [&](int64_t dimension, MaybeScale factor) {
    return transposed_weights(make_axis(grad_input.size(dimension), grad_output.size(dimension),
                                        align_corners, factor, kFilter),
                              grad_output.options());
  };
  resize_both(grad_input, grad_output, table(kHeight, scales_h), table(kWidth, scales_w));
  return grad_input;
}

// The gradient keeps the memory format, as torch.compile assumes; torch's own meta function in C++
// would make it contiguous.
Tensor lanczos_backward(const Tensor& grad_output, at::IntArrayRef output_size,
                        at::IntArrayRef input_size, bool align_corners, MaybeScale scales_h,
                        MaybeScale scales_w) {
  using Meta = at::meta::structured__upsample_lanczos2d_aa_backward;
  auto grad_input = at::empty({0}, grad_output.options());
  metalops::StructuredOut<Meta>(grad_input)
      .meta(grad_output, output_size, input_size, align_corners, scales_h, scales_w);
  metalops::internals::set_memory_format(grad_input, grad_output.suggest_memory_format());
  return backward_out<Meta, metalops::kLanczos, kLanczosBackward>(
      grad_output, output_size, input_size, align_corners, scales_h, scales_w, grad_input);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_upsample_lanczos2d_aa.out", metalops::with_sym_ints<lanczos_out>);
  m.impl("_upsample_lanczos2d_aa_backward", metalops::with_sym_ints<lanczos_backward>);
  m.impl("_upsample_lanczos2d_aa_backward.grad_input",
         metalops::with_sym_ints<backward_out<at::meta::structured__upsample_lanczos2d_aa_backward,
                                              metalops::kLanczos, kLanczosBackward>>);
  m.impl("_upsample_bilinear2d_aa_backward.grad_input",
         metalops::with_sym_ints<backward_out<at::meta::structured__upsample_bilinear2d_aa_backward,
                                              metalops::kBilinear, kBilinearBackward>>);
  m.impl("_upsample_bicubic2d_aa_backward.grad_input",
         metalops::with_sym_ints<backward_out<at::meta::structured__upsample_bicubic2d_aa_backward,
                                              metalops::kBicubic, kBicubicBackward>>);
}

}  // namespace

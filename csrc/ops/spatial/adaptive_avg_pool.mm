// Host side of kernels/spatial/adaptive_avg_pool.metal: adaptive_avg_pool3d, which stock MPS lacks,
// and adaptive_avg_pool2d for the sizes that it refuses, those that do not divide each other. The
// one-dimensional operator and interpolate(mode="area") call these.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/spatial/pooling.h>
#include <kernels/spatial/adaptive_avg_pool.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/sym_ints.h>
#include <metalops/views.h>

namespace {

using at::IntArrayRef;
using at::Tensor;
using metalops::AdaptiveAvgPoolParameters;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("adaptive_avg_pool"); }

// The differences between the operators of two and of three dimensions.
struct Dimensions {
  int64_t count;
  const char* name;
  const char* backward_name;
  const char* dtype_name;  // name in errors about dtypes
  const char* backward_dtype_name;
};

constexpr Dimensions kTwo{2, "adaptive_avg_pool2d", "adaptive_avg_pool2d_backward",
                          "adaptive_avg_pool2d", "adaptive_avg_pool2d_backward"};
constexpr Dimensions kThree{3, "adaptive_avg_pool3d", "adaptive_avg_pool3d_backward",
                            "adaptive_avg_pool3d_cpu", "adaptive_avg_pool3d_backward_cpu"};

// Returns the memory format of the result. In three dimensions torch supports contiguous only.
at::MemoryFormat memory_format(const Dimensions& dimensions, const Tensor& input) {
  return dimensions.count == 2 ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

void check_dtype(const char* name, at::ScalarType type) { metalops::check_metal_float(name, type); }

void check_sizes(const Dimensions& dimensions, const Tensor& input, IntArrayRef output_size) {
  const auto count = dimensions.count;
  TORCH_CHECK(static_cast<int64_t>(output_size.size()) == count, dimensions.name,
              ": output_size must be ", count);
  metalops::check_not_empty(dimensions.name, "input", input);
  TORCH_CHECK(input.dim() == count + 1 || input.dim() == count + 2, dimensions.name,
              "(): Expected ", count + 1, "D or ", count + 2, "D tensor, but got ", input.sizes());
}

Tensor windows_of(const metalops::PoolingSizes& sizes, const Tensor& like) {
  return metalops::pooling_table(kernels(), "adaptive_windows", sizes, sizes, at::kLong, like);
}

Tensor shares_of(const metalops::PoolingSizes& sizes, const Tensor& like) {
  return metalops::pooling_table(kernels(), "adaptive_avg_pool_shares", sizes, sizes, at::kFloat,
                                 like);
}

// Launches kernel NAME, which computes `result` from `source`.
template <class... Tables>
void launch(const metalops::KernelName& name, const metalops::PoolingSizes& sizes,
            const Tensor& result, const Tensor& source, at::MemoryFormat format,
            const Tables&... tables) {
  if (result.numel() == 0) {
    return;
  }
  const bool channels_last = format == at::MemoryFormat::ChannelsLast;
  const uint64_t columns = result.size(channels_last ? 1 : -1);
  const uint64_t rows = result.size(channels_last ? -1 : -2);
  metalops::launch_grid(
      kernels(),
      name + (channels_last ? "_channels_last_" : "_") + metalops::metal_type(result.scalar_type()),
      {columns, rows, result.numel() / (columns * rows)}, result, source.contiguous(format),
      tables..., AdaptiveAvgPoolParameters{sizes, static_cast<uint32_t>(columns)});
}

Tensor& forward_out(const Dimensions& dimensions, const Tensor& self, IntArrayRef output_size,
                    Tensor& out) {
  metalops::check_same_device(dimensions.name, {{out, "out"}, {self, "self"}});
  check_sizes(dimensions, self, output_size);
  TORCH_CHECK(self.dtype() == out.dtype(), "expected dtype ", self.dtype(),
              " for `output` but got dtype ", out.dtype());
  check_dtype(dimensions.dtype_name, self.scalar_type());
  const auto format = memory_format(dimensions, self);
  const auto sizes = metalops::pooled_sizes(self, output_size);
  if (at::native::resize_output(out, sizes)) {
    out.resize_(sizes, format);
  }
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const auto pooling =
      metalops::pooling_sizes(metalops::last_sizes(self, dimensions.count), output_size);
  const auto write = [&](const Tensor& result) {
    launch("adaptive_avg_pool", pooling, result, self, format, windows_of(pooling, self));
  };
  metalops::write_contiguous(out, write, format);
  return out;
}

Tensor forward(const Dimensions& dimensions, const Tensor& self, IntArrayRef output_size) {
  auto out = at::empty({0}, self.options());
  return forward_out(dimensions, self, output_size, out);
}

Tensor& backward_out(const Dimensions& dimensions, const Tensor& grad_output, const Tensor& self,
                     Tensor& grad_input) {
  const auto* name = dimensions.backward_name;
  metalops::check_same_device(
      name, {{grad_input, "grad_input"}, {grad_output, "grad_output"}, {self, "self"}});
  metalops::check_not_empty(name, "grad_output", grad_output);
  TORCH_CHECK(grad_output.dim() == self.dim(), name, ": Expected dimensions ", self.dim(),
              " for `grad_output` but got dimensions ", grad_output.dim());
  const auto output_size = metalops::last_sizes(grad_output, dimensions.count);
  check_sizes(dimensions, self, output_size);
  metalops::check_planes(name, grad_output, self, output_size);
  check_dtype(dimensions.backward_dtype_name, self.scalar_type());
  for (const auto& tensor : {grad_output, grad_input}) {
    TORCH_CHECK(tensor.scalar_type() == self.scalar_type(), "expected scalar type ",
                self.scalar_type(), " but found ", tensor.scalar_type());
  }
  const auto format = memory_format(dimensions, self);
  if (at::native::resize_output(grad_input, self.sizes())) {
    grad_input.resize_(self.sizes(), format);
  }
  at::assert_no_internal_overlap(grad_input);
  at::assert_no_overlap(grad_input, grad_output);
  const auto pooling =
      metalops::pooling_sizes(output_size, metalops::last_sizes(self, dimensions.count));
  const auto write = [&](const Tensor& result) {
    launch("adaptive_avg_pool_backward", pooling, result, grad_output, format,
           windows_of(pooling, self), shares_of(metalops::backward(pooling), self));
  };
  metalops::write_contiguous(grad_input, write, format);
  return grad_input;
}

Tensor backward(const Dimensions& dimensions, const Tensor& grad_output, const Tensor& self) {
  auto grad_input = at::empty({0}, self.options());
  return backward_out(dimensions, grad_output, self, grad_input);
}

// ---- three dimensions ---------------------------------------------------------------------------

Tensor& pool3d_out(const Tensor& self, IntArrayRef output_size, Tensor& out) {
  return forward_out(kThree, self, output_size, out);
}

Tensor pool3d(const Tensor& self, IntArrayRef output_size) {
  return forward(kThree, self, output_size);
}

Tensor& pool3d_backward_out(const Tensor& grad_output, const Tensor& self, Tensor& grad_input) {
  return backward_out(kThree, grad_output, self, grad_input);
}

Tensor pool3d_backward(const Tensor& grad_output, const Tensor& self) {
  return backward(kThree, grad_output, self);
}

// ---- two dimensions -----------------------------------------------------------------------------

// Returns true if stock MPS raises NotImplementedError: it pools with one window size and one
// stride, and divides by the sizes.
bool stock_lacks(const Tensor& self, IntArrayRef output_size) {
  if (self.dim() < 3 || output_size.size() != 2 || self.size(-2) == 0 || self.size(-1) == 0) {
    return false;
  }
  const auto divides = [](IntArrayRef small, IntArrayRef large) {
    return small[0] != 0 && small[1] != 0 && large[0] % small[0] == 0 && large[1] % small[1] == 0;
  };
  const auto input_size = metalops::last_sizes(self, 2);
  return !divides(output_size, input_size) &&
         !(input_size[0] < output_size[0] && divides(input_size, output_size));
}

struct Stock {
  metalops::StockKernel pool{"aten::_adaptive_avg_pool2d", ""};
  metalops::StockKernel pool_out{"aten::adaptive_avg_pool2d", "out"};
  metalops::StockKernel backward{"aten::_adaptive_avg_pool2d_backward", ""};
};

const Stock& stock() {
  static const Stock kernels;
  return kernels;
}

Tensor& pool2d_out(const Tensor& self, IntArrayRef output_size, Tensor& out) {
  if (stock_lacks(self, output_size)) {
    return forward_out(kTwo, self, output_size, out);
  }
  stock().pool_out(self, output_size, out);
  return out;
}

Tensor pool2d(const Tensor& self, IntArrayRef output_size) {
  return stock_lacks(self, output_size) ? forward(kTwo, self, output_size)
                                        : stock().pool(self, output_size);
}

Tensor pool2d_backward(const Tensor& grad_output, const Tensor& self) {
  const bool dimensions = grad_output.dim() >= 2;
  return dimensions && stock_lacks(self, metalops::last_sizes(grad_output, 2))
             ? backward(kTwo, grad_output, self)
             : stock().backward(grad_output, self);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("adaptive_avg_pool3d.out", metalops::with_sym_ints<pool3d_out>);
  m.impl("_adaptive_avg_pool3d", metalops::with_sym_ints<pool3d>);
  m.impl("adaptive_avg_pool3d_backward.grad_input", pool3d_backward_out);
  m.impl("_adaptive_avg_pool3d_backward", pool3d_backward);
  stock();  // before our kernel replaces it
  constexpr auto kReason = "refuses output sizes that do not divide those of the input";
  m.replace("adaptive_avg_pool2d.out", metalops::with_sym_ints<pool2d_out>, kReason);
  m.replace("_adaptive_avg_pool2d", metalops::with_sym_ints<pool2d>, kReason);
  m.replace("_adaptive_avg_pool2d_backward", pool2d_backward, kReason);
}

}  // namespace

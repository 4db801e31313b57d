// Host side of kernels/spatial/fractional_max_pool.metal: fractional_max_pool2d,
// fractional_max_pool3d and their gradients, which stock MPS lacks.
#include <ATen/native/FractionalMaxPooling.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fractional_max_pool2d_backward_meta.h>
#include <ATen/ops/fractional_max_pool2d_meta.h>
#include <ATen/ops/fractional_max_pool3d_meta.h>
#include <csrc/ops/spatial/max_pooling.h>
#include <kernels/spatial/fractional_max_pool.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <tuple>

namespace {

using at::IntArrayRef;
using at::Tensor;
using metalops::FractionalMaxPoolParameters;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("fractional_max_pool"); }

// Returns the parameters of the forward direction.
FractionalMaxPoolParameters parameters_of(const Tensor& input, IntArrayRef kernel_size,
                                          IntArrayRef output_size) {
  const auto dimensions = output_size.size();
  TORCH_CHECK(kernel_size.size() == dimensions, "fractional_max_pool", dimensions,
              "d: kernel_size must have ", dimensions, " elements, but it is ", kernel_size);
  FractionalMaxPoolParameters parameters{};
  parameters.sizes = metalops::pooling_sizes(metalops::last_sizes(input, dimensions), output_size);
  parameters.samples = dimensions;
  parameters.dimensions = static_cast<int64_t>(dimensions);
  for (uint32_t i = 0; i < 3; ++i) {
    const int64_t source = parameters.sizes.source[i];
    const int64_t result = parameters.sizes.result[i];
    const int64_t window = i + dimensions < 3 ? 1 : kernel_size[i + dimensions - 3];
    TORCH_CHECK(window > 0, "fractional_max_pool", dimensions,
                "d: expected a kernel_size of at least 1, but got ", kernel_size);
    TORCH_CHECK(result + window - 1 <= source, "fractional_max_pool", dimensions, "d: kernel_size ",
                kernel_size, " and output_size ", output_size,
                " are too large for an input of sizes ", input.sizes());
    parameters.window[i] = static_cast<uint32_t>(window);
    parameters.step[i] =
        result > 1 ? static_cast<float>(source - window) / static_cast<float>(result - 1) : 0;
    // In two dimensions torch uses the first sample for the width.
    parameters.sample_for[i] = dimensions == 3 ? i : 2 - i;
  }
  return parameters;
}

// Returns the kernel for these windows: a specialised one for square windows in planes with 32-bit
// indices, if there is one.
metalops::KernelName kernel_for(const FractionalMaxPoolParameters& parameters) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto* window = parameters.window;
  const auto* source = parameters.sizes.source;
  const metalops::KernelName name("fractional_max_pool_");
  if (parameters.dimensions != 2 || window[1] != window[2] || window[1] < 2 || window[1] > 3 ||
      int64_t{source[1]} * source[2] >= kMost) {
    return name;
  }
  return name + (window[1] == 2 ? "squares_2_" : "squares_3_");
}

// Computes the pooling. random_samples: one for each plane and dimension, possibly of more images
// than the input has.
void pool(const Tensor& self, IntArrayRef kernel_size, IntArrayRef output_size,
          const Tensor& random_samples, const Tensor& output, const Tensor& indices) {
  const auto parameters = parameters_of(self, kernel_size, output_size);
  const auto type = metalops::metal_type(self.scalar_type());
  const auto* sizes = parameters.sizes.result;
  const int64_t entries = int64_t{sizes[0]} + sizes[1] + sizes[2];
  const auto write = [&](const Tensor& result, const Tensor& result_indices) {
    if (result.numel() == 0) {
      return;
    }
    const auto planes = result.numel() / (int64_t{sizes[0]} * sizes[1] * sizes[2]);
    const auto starts = at::empty({planes, entries}, result.options().dtype(at::kInt));
    metalops::launch_rows(kernels(), metalops::KernelName("fractional_max_pool_starts_") + type,
                          entries, planes, starts, random_samples.contiguous(), parameters,
                          metalops::kErrorBuffer);
    metalops::launch_planes(kernels(), kernel_for(parameters) + type, result, result,
                            result_indices, self.contiguous(), starts, parameters);
  };
  metalops::write_maxima(self, output, indices, write);
}

void pool_backward(const char* name, const Tensor& grad_output, const Tensor& self,
                   IntArrayRef kernel_size, IntArrayRef output_size, const Tensor& indices,
                   const Tensor& grad_input) {
  TORCH_CHECK(grad_output.scalar_type() == self.scalar_type(), "expected scalar type ",
              self.scalar_type(), " but found ", grad_output.scalar_type());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type Long but found ",
              indices.scalar_type());
  metalops::check_planes(name, grad_output, self, output_size);
  auto parameters = parameters_of(self, kernel_size, output_size);
  parameters.sizes = metalops::backward(parameters.sizes);
  const auto table = metalops::pooling_table(kernels(), "fractional_max_pool_windows",
                                             parameters.sizes, parameters, at::kLong, self);
  metalops::max_pool_backward(kernels(), "fractional_max_pool_check_indices", parameters.sizes,
                              grad_output, indices, grad_input, table, parameters.dimensions);
}

// ---- two dimensions -----------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> pool2d_out(const Tensor& self, IntArrayRef kernel_size,
                                        IntArrayRef output_size, const Tensor& random_samples,
                                        Tensor& output, Tensor& indices) {
  metalops::check_same_device("fractional_max_pool2d", {{output, "output"},
                                                        {indices, "indices"},
                                                        {self, "self"},
                                                        {random_samples, "random_samples"}});
  metalops::StructuredOut<at::meta::structured_fractional_max_pool2d> outputs(output, indices);
  outputs.meta(self, kernel_size, output_size, random_samples);
  at::native::fractional_max_pool_check_shape<2>(self, random_samples);
  metalops::check_pooled_dtype("fractional_max_pool2d_out_frame", self.scalar_type());
  pool(self, kernel_size, output_size, random_samples, output, indices);
  return {output, indices};
}

Tensor& pool2d_backward_out(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size,
                            IntArrayRef output_size, const Tensor& indices, Tensor& grad_input) {
  constexpr const char* kName = "fractional_max_pool2d_backward";
  metalops::check_same_device(kName, {{grad_input, "grad_input"},
                                      {grad_output, "grad_output"},
                                      {self, "self"},
                                      {indices, "indices"}});
  metalops::StructuredOut<at::meta::structured_fractional_max_pool2d_backward> outputs(grad_input);
  outputs.meta(grad_output, self, kernel_size, output_size, indices);
  TORCH_CHECK(indices.sizes() == grad_output.sizes(), kName, "(): indices sizes unexpected");
  metalops::check_pooled_dtype("fractional_max_pool2d_backward_out_frame", self.scalar_type());
  pool_backward(kName, grad_output, self, kernel_size, output_size, indices, grad_input);
  return grad_input;
}

// ---- three dimensions ---------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> pool3d_out(const Tensor& self, IntArrayRef kernel_size,
                                        IntArrayRef output_size, const Tensor& random_samples,
                                        Tensor& output, Tensor& indices) {
  metalops::check_same_device("fractional_max_pool3d", {{output, "output"},
                                                        {indices, "indices"},
                                                        {self, "self"},
                                                        {random_samples, "random_samples"}});
  metalops::StructuredOut<at::meta::structured_fractional_max_pool3d> outputs(output, indices);
  outputs.meta(self, kernel_size, output_size, random_samples);
  at::native::fractional_max_pool_check_shape<3>(self, random_samples);
  metalops::check_pooled_dtype("fractional_max_pool3d_out_frame", self.scalar_type());
  pool(self, kernel_size, output_size, random_samples, output, indices);
  return {output, indices};
}

// torch has no meta function for this operator.
Tensor& pool3d_backward_out(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size,
                            IntArrayRef output_size, const Tensor& indices, Tensor& grad_input) {
  constexpr const char* kName = "fractional_max_pool3d_backward_out";
  constexpr const char* kDimensions[] = {"time", "height", "width"};
  metalops::check_same_device("fractional_max_pool3d_backward", {{grad_input, "grad_input"},
                                                                 {grad_output, "grad_output"},
                                                                 {self, "self"},
                                                                 {indices, "indices"}});
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5, kName,
              "(): Expected 4D or 5D tensor, but got: ", self.sizes());
  const auto first = self.dim() - 3;
  for (int64_t i = 0; i < 3; ++i) {
    const bool fits = output_size.size() == 3 && first + i < grad_output.dim() &&
                      output_size[i] == grad_output.size(first + i);
    TORCH_CHECK(fits, kName, "(): gradOutput ", kDimensions[i], " unexpected");
  }
  TORCH_CHECK(indices.sizes() == grad_output.sizes(), kName, "(): indices sizes unexpected");
  metalops::check_pooled_dtype("fractional_max_pool3d_backward_out_frame", self.scalar_type());
  TORCH_CHECK(grad_input.scalar_type() == self.scalar_type(), "expected scalar type ",
              self.scalar_type(), " but found ", grad_input.scalar_type());
  at::native::resize_output(grad_input, self.sizes());
  pool_backward(kName, grad_output, self, kernel_size, output_size, indices, grad_input);
  return grad_input;
}

Tensor pool3d_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size,
                       IntArrayRef output_size, const Tensor& indices) {
  auto grad_input = at::empty({0}, self.options());
  return pool3d_backward_out(grad_output, self, kernel_size, output_size, indices, grad_input);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("fractional_max_pool2d.output", pool2d_out);
  m.impl("fractional_max_pool2d_backward.grad_input", pool2d_backward_out);
  m.impl("fractional_max_pool3d.output", pool3d_out);
  m.impl("fractional_max_pool3d_backward.grad_input", pool3d_backward_out);
  m.impl("fractional_max_pool3d_backward", pool3d_backward);
}

}  // namespace

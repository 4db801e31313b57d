// Host side of kernels/spatial/adaptive_max_pool.metal: adaptive_max_pool3d and its gradient, which
// stock MPS lacks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_max_pool3d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool3d_meta.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/spatial/max_pooling.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <tuple>

namespace {

using at::IntArrayRef;
using at::Tensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("adaptive_max_pool"); }

Tensor windows_of(const metalops::PoolingSizes& sizes, const Tensor& like) {
  return metalops::pooling_table(kernels(), "adaptive_windows", sizes, sizes, at::kLong, like);
}

std::tuple<Tensor&, Tensor&> pool_out(const Tensor& self, IntArrayRef output_size, Tensor& out,
                                      Tensor& indices) {
  metalops::check_same_device("adaptive_max_pool3d",
                              {{out, "out"}, {indices, "indices"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_adaptive_max_pool3d> outputs(out, indices);
  outputs.meta(self, output_size);
  metalops::check_pooled_dtype("adaptive_max_pool3d_cpu", self.scalar_type());
  const auto sizes = metalops::pooling_sizes(metalops::last_sizes(self, 3), output_size);
  const auto write = [&](const Tensor& result, const Tensor& result_indices) {
    metalops::launch_planes(kernels(), metalops::typed_kernel("adaptive_max_pool_", self), result,
                            result, result_indices, self.contiguous(), windows_of(sizes, self),
                            sizes);
  };
  metalops::write_maxima(self, out, indices, write);
  return {out, indices};
}

Tensor& pool_backward_out(const Tensor& grad_output, const Tensor& self, const Tensor& indices,
                          Tensor& grad_input) {
  constexpr const char* kName = "adaptive_max_pool3d_backward";
  metalops::check_same_device(kName, {{grad_input, "grad_input"},
                                      {grad_output, "grad_output"},
                                      {self, "self"},
                                      {indices, "indices"}});
  metalops::StructuredOut<at::meta::structured_adaptive_max_pool3d_backward> outputs(grad_input);
  outputs.meta(grad_output, self, indices);
  TORCH_CHECK(grad_output.dtype() == self.dtype(), "expected dtype ", self.dtype(),
              " for `gradOutput` but got dtype ", grad_output.dtype());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type Long but found ",
              indices.scalar_type());
  TORCH_CHECK(indices.dim() == self.dim(), "expected dimensions ", self.dim(),
              " for `indices` but got dimensions ", indices.dim());
  TORCH_CHECK(grad_output.sizes() == indices.sizes(), "expected sizes ", indices.sizes(),
              " for `gradOutput` but got sizes ", grad_output.sizes());
  const auto output_size = metalops::last_sizes(grad_output, 3);
  metalops::check_planes(kName, grad_output, self, output_size);
  metalops::check_pooled_dtype(kName, self.scalar_type());
  const auto sizes = metalops::pooling_sizes(output_size, metalops::last_sizes(self, 3));
  metalops::max_pool_backward(kernels(), "adaptive_max_pool_check_indices", sizes, grad_output,
                              indices, grad_input, windows_of(sizes, self));
  return grad_input;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("adaptive_max_pool3d.out", pool_out);
  m.impl("adaptive_max_pool3d_backward.grad_input", pool_backward_out);
}

}  // namespace

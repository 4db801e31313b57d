// Host side of kernels/spatial/adaptive_max_pool.metal: adaptive_max_pool3d and its gradient, which
// stock MPS lacks, and those of two dimensions, while the fix "adaptive_max_pool" is on.
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_max_pool2d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool2d_meta.h>
#include <ATen/ops/adaptive_max_pool3d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool3d_meta.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/fixes.h>
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

// The operators of two dimensions and of three. Names in errors are those of torch's CPU operators.
struct Pool2d {
  using Meta = at::meta::structured_adaptive_max_pool2d;
  using BackwardMeta = at::meta::structured_adaptive_max_pool2d_backward;
  static constexpr int64_t dims = 2;
  static constexpr const char* name = "adaptive_max_pool2d";
  static constexpr const char* forward = "adaptive_max_pool2d";
  static constexpr const char* backward = "adaptive_max_pool2d_backward";
};

struct Pool3d {
  using Meta = at::meta::structured_adaptive_max_pool3d;
  using BackwardMeta = at::meta::structured_adaptive_max_pool3d_backward;
  static constexpr int64_t dims = 3;
  static constexpr const char* name = "adaptive_max_pool3d";
  static constexpr const char* forward = "adaptive_max_pool3d_cpu";
  static constexpr const char* backward = "adaptive_max_pool3d_backward";
};

template <class Pool>
std::tuple<Tensor&, Tensor&> pool_out(const Tensor& self, IntArrayRef output_size, Tensor& out,
                                      Tensor& indices) {
  metalops::check_same_device(Pool::name, {{out, "out"}, {indices, "indices"}, {self, "self"}});
  metalops::StructuredOut<typename Pool::Meta> outputs(out, indices);
  outputs.meta(self, output_size);
  metalops::check_pooled_dtype(Pool::forward, self.scalar_type());
  const auto sizes = metalops::pooling_sizes(metalops::last_sizes(self, Pool::dims), output_size);
  const auto write = [&](const Tensor& result, const Tensor& result_indices) {
    metalops::launch_planes(kernels(), metalops::typed_kernel("adaptive_max_pool_", self), result,
                            result, result_indices, self.contiguous(), windows_of(sizes, self),
                            sizes);
  };
  metalops::write_maxima(self, out, indices, write);
  return {out, indices};
}

template <class Pool>
Tensor& pool_backward_out(const Tensor& grad_output, const Tensor& self, const Tensor& indices,
                          Tensor& grad_input) {
  metalops::check_same_device(Pool::backward, {{grad_input, "grad_input"},
                                               {grad_output, "grad_output"},
                                               {self, "self"},
                                               {indices, "indices"}});
  metalops::StructuredOut<typename Pool::BackwardMeta> outputs(grad_input);
  outputs.meta(grad_output, self, indices);
  TORCH_CHECK(grad_output.dtype() == self.dtype(), "expected dtype ", self.dtype(),
              " for `gradOutput` but got dtype ", grad_output.dtype());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type Long but found ",
              indices.scalar_type());
  TORCH_CHECK(indices.dim() == self.dim(), "expected dimensions ", self.dim(),
              " for `indices` but got dimensions ", indices.dim());
  TORCH_CHECK(grad_output.sizes() == indices.sizes(), "expected sizes ", indices.sizes(),
              " for `gradOutput` but got sizes ", grad_output.sizes());
  const auto output_size = metalops::last_sizes(grad_output, Pool::dims);
  metalops::check_planes(Pool::backward, grad_output, self, output_size);
  metalops::check_pooled_dtype(Pool::backward, self.scalar_type());
  const auto sizes = metalops::pooling_sizes(output_size, metalops::last_sizes(self, Pool::dims));
  metalops::max_pool_backward(kernels(), "adaptive_max_pool_check_indices", sizes, grad_output,
                              indices, grad_input, windows_of(sizes, self));
  return grad_input;
}

std::tuple<Tensor, Tensor> pool2d(const Tensor& self, IntArrayRef output_size) {
  auto out = at::empty({0}, self.options());
  auto indices = at::empty({0}, self.options().dtype(at::kLong));
  pool_out<Pool2d>(self, output_size, out, indices);
  return {out, indices};
}

Tensor pool2d_backward(const Tensor& grad_output, const Tensor& self, const Tensor& indices) {
  auto grad_input = at::empty({0}, self.options());
  return pool_backward_out<Pool2d>(grad_output, self, indices, grad_input);
}

const metalops::Fix kAdaptiveMaxPool("adaptive_max_pool", [](metalops::AtenKernels& m,
                                                             const char* reason) {
  m.replace("adaptive_max_pool2d", pool2d, reason);
  m.replace("adaptive_max_pool2d.out", pool_out<Pool2d>, reason);
  m.replace("adaptive_max_pool2d_backward", pool2d_backward, reason);
  m.replace("adaptive_max_pool2d_backward.grad_input", pool_backward_out<Pool2d>, reason);
});

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("adaptive_max_pool3d.out", pool_out<Pool3d>);
  m.impl("adaptive_max_pool3d_backward.grad_input", pool_backward_out<Pool3d>);
}

}  // namespace

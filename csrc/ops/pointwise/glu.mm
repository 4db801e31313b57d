// Host side of kernels/pointwise/glu.metal: glu_jvp and glu_backward_jvp, which stock MPS lacks,
// and thereby forward-mode differentiation of glu and of its gradient.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <kernels/pointwise/glu.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/views.h>

#include <initializer_list>

namespace {

using at::Tensor;
using metalops::NamedTensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("glu"); }

// Checks the arguments. halves: tensors of the result's sizes; wholes: tensors of x's sizes, the
// first of them x.
void check(const char* name, std::initializer_list<NamedTensor> halves,
           std::initializer_list<NamedTensor> wholes, int64_t dim) {
  const auto& x = wholes.begin()->tensor;
  const auto type = x.scalar_type();
  metalops::check_metal_float(name, type);
  TORCH_CHECK(x.size(dim) % 2 == 0, "Halving dimension must be even, but dimension ", dim,
              " is size ", x.size(dim));
  auto half = x.sizes().vec();
  half[dim] /= 2;
  const auto check_one = [&](const NamedTensor& one, c10::IntArrayRef sizes) {
    TORCH_CHECK(one.tensor.scalar_type() == type, "Found dtype ", one.tensor.scalar_type(),
                " but expected ", type);
    TORCH_CHECK(one.tensor.sizes() == sizes, name, ": expected ", one.name, " to have sizes ",
                sizes, ", but it has ", one.tensor.sizes());
  };
  for (const auto& one : halves) {
    check_one(one, half);
  }
  for (const auto& one : wholes) {
    check_one(one, x.sizes());
  }
}

// Launches a kernel. x: contiguous.
template <class... Arguments>
void launch(const char* name, const Tensor& x, int64_t dim, const Arguments&... arguments) {
  const metalops::GluParameters parameters{x.size(dim) / 2 * x.stride(dim)};
  const auto rows = x.numel() == 0 ? 0 : x.numel() / (2 * parameters.half_size);
  metalops::launch_rows(kernels(),
                        metalops::KernelName(name) + "_" + metalops::metal_type(x.scalar_type()),
                        parameters.half_size, rows, arguments..., parameters);
}

Tensor glu_jvp(const Tensor& glu, const Tensor& x, const Tensor& dx, int64_t dim) {
  metalops::check_same_device("glu_jvp", {{glu, "glu"}, {x, "x"}, {dx, "dx"}});
  dim = at::maybe_wrap_dim(dim, x.dim());
  check("glu_jvp", {{glu, "glu"}}, {{x, "x"}, {dx, "dx"}}, dim);
  const auto whole = x.contiguous();
  const auto tangent = at::empty(glu.sizes(), glu.options());
  launch("glu_jvp", whole, dim, tangent, glu.contiguous(), whole, dx.contiguous());
  return metalops::laid_out_like(glu, tangent);
}

Tensor glu_backward_jvp(const Tensor& grad_x, const Tensor& grad_glu, const Tensor& x,
                        const Tensor& dgrad_glu, const Tensor& dx, int64_t dim) {
  metalops::check_same_device(
      "glu_backward_jvp",
      {{grad_x, "grad_x"}, {grad_glu, "grad_glu"}, {x, "x"}, {dgrad_glu, "dgrad_glu"}, {dx, "dx"}});
  dim = at::maybe_wrap_dim(dim, x.dim());
  check("glu_backward_jvp", {{grad_glu, "grad_glu"}, {dgrad_glu, "dgrad_glu"}},
        {{x, "x"}, {dx, "dx"}, {grad_x, "grad_x"}}, dim);
  const auto whole = x.contiguous();
  const auto tangent = at::empty(x.sizes(), x.options());
  launch("glu_backward_jvp", whole, dim, tangent, grad_glu.contiguous(), whole,
         dgrad_glu.contiguous(), dx.contiguous());
  return metalops::laid_out_like(grad_x, tangent);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("glu_jvp", glu_jvp);
  m.impl("glu_backward_jvp", glu_backward_jvp);
}

}  // namespace

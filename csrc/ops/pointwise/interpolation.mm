// Host side of kernels/pointwise/interpolation.metal: fused multiply-add and clamped linear
// interpolation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/where.h>
#include <metalops/elementwise_launch.h>
#include <metalops/library.h>
#include <metalops/pointwise.h>

#include <vector>

namespace {

using at::TensorIteratorBase;
using metalops::launch_backward;
using metalops::pointwise::define;
using metalops::pointwise::define_backward;
using metalops::pointwise::Integers;
using Scalars = c10::ArrayRef<c10::Scalar>;
using Gradients = std::vector<at::Tensor>;

metalops::Library& kernels() { return metalops::library("interpolation"); }

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  define_backward(
      m, "metalops::fma_backward(Tensor grad_output, Tensor a, Tensor b) -> (Tensor, Tensor)",
      {.launch = [](TensorIteratorBase& iter,
                    Scalars scalars) { launch_backward(kernels(), iter, "fma_backward", scalars); },
       .formula = [](at::TensorList x, Scalars) { return Gradients{x[0] * x[2], x[0] * x[1]}; }});
  define_backward(m,
                  "metalops::lerp_clamped_backward(Tensor grad_output, Tensor a, Tensor b, Tensor "
                  "w) -> (Tensor, Tensor, Tensor)",
                  {.launch =
                       [](TensorIteratorBase& iter, Scalars scalars) {
                         launch_backward(kernels(), iter, "lerp_clamped_backward", scalars);
                       },
                   .formula =
                       [](at::TensorList x, Scalars) {
                         const auto& grad = x[0];
                         const auto weight = at::clamp(x[3], 0, 1);
                         const auto inside = (x[3] >= 0).logical_and(x[3] <= 1);
                         return Gradients{grad * (1 - weight), grad * weight,
                                          at::where(inside, grad * (x[2] - x[1]), 0)};
                       }});

  define(m, "metalops::fma(Tensor a, Tensor b, Tensor c) -> Tensor",
         {.launch = [](TensorIteratorBase& iter,
                       Scalars) { kernels().exec_ternary_kernel(iter, "fma"); },
          .integers = Integers::kStay,
          .backward = "fma_backward"});
  define(m, "metalops::lerp_clamped(Tensor a, Tensor b, Tensor w) -> Tensor",
         {.launch = [](TensorIteratorBase& iter,
                       Scalars) { kernels().exec_ternary_kernel(iter, "lerp_clamped"); },
          .integers = Integers::kStay,
          .backward = "lerp_clamped_backward"});
}

}  // namespace

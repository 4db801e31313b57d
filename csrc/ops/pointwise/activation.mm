// Host side of kernels/pointwise/activation.metal: activations of one input.
#include <ATen/TensorOperators.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <metalops/library.h>
#include <metalops/pointwise.h>

#include <cmath>
#include <vector>

#include <csrc/ops/common/gelu.h>

namespace {

using at::TensorIteratorBase;
using metalops::pointwise::define;
using metalops::pointwise::define_backward;
using metalops::pointwise::Integers;
using Scalars = c10::ArrayRef<c10::Scalar>;
using Gradients = std::vector<at::Tensor>;

metalops::Library& kernels() { return metalops::library("activation"); }

void softcap(TensorIteratorBase& iter, Scalars scalars) {
  const auto cap = scalars[0].toDouble();
  TORCH_CHECK_VALUE(std::isfinite(cap) && cap != 0,
                    "softcap: cap must be a finite number other than 0, but got ", cap);
  kernels().exec_unary_kernel(iter, "softcap", scalars[0], at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  // Backward functions are defined first: the definition of an operator looks them up.
  define_backward(
      m, "metalops::gelu_new_backward(Tensor grad_output, Tensor self) -> Tensor",
      {.launch = [](TensorIteratorBase& iter,
                    Scalars) { kernels().exec_binary_kernel(iter, "gelu_new_backward"); },
       .formula = [](at::TensorList x,
                     Scalars) { return Gradients{x[0] * gelu_tanh(x[1]).derivative}; }});
  define_backward(
      m, "metalops::gelu_quick_backward(Tensor grad_output, Tensor self) -> Tensor",
      {.launch = [](TensorIteratorBase& iter,
                    Scalars) { kernels().exec_binary_kernel(iter, "gelu_quick_backward"); },
       .formula =
           [](at::TensorList x, Scalars) {
             const auto s = at::sigmoid(1.702 * x[1]);
             return Gradients{x[0] * (s + 1.702 * x[1] * s * (1 - s))};
           }});
  define_backward(
      m, "metalops::relu_squared_backward(Tensor grad_output, Tensor self) -> Tensor",
      {.launch = [](TensorIteratorBase& iter,
                    Scalars) { kernels().exec_binary_kernel(iter, "relu_squared_backward"); },
       .formula = [](at::TensorList x, Scalars) { return Gradients{2 * x[0] * at::relu(x[1])}; }});
  define_backward(
      m, "metalops::softcap_backward(Tensor grad_output, Tensor self, float cap) -> Tensor",
      {.launch =
           [](TensorIteratorBase& iter, Scalars scalars) {
             kernels().exec_binary_kernel(iter, "softcap_backward", scalars[0], at::kFloat);
           },
       .formula =
           [](at::TensorList x, Scalars scalars) {
             const auto t = at::tanh(x[1] / scalars[0]);
             return Gradients{x[0] * (1 - t * t)};
           }});

  define(m, "metalops::gelu_new(Tensor self) -> Tensor",
         {.launch = [](TensorIteratorBase& iter,
                       Scalars) { kernels().exec_unary_kernel(iter, "gelu_new"); },
          .backward = "gelu_new_backward"});
  define(m, "metalops::gelu_fast(Tensor self) -> Tensor",
         {.launch = [](TensorIteratorBase& iter,
                       Scalars) { kernels().exec_unary_kernel(iter, "gelu_fast"); },
          .backward = "gelu_new_backward"});
  define(m, "metalops::gelu_quick(Tensor self) -> Tensor",
         {.launch = [](TensorIteratorBase& iter,
                       Scalars) { kernels().exec_unary_kernel(iter, "gelu_quick"); },
          .backward = "gelu_quick_backward"});
  define(m, "metalops::relu_squared(Tensor self) -> Tensor",
         {.launch = [](TensorIteratorBase& iter,
                       Scalars) { kernels().exec_unary_kernel(iter, "relu_squared"); },
          .integers = Integers::kStay,
          .backward = "relu_squared_backward"});
  define(m, "metalops::softcap(Tensor self, float cap) -> Tensor",
         {.launch = softcap, .backward = "softcap_backward"});
}

}  // namespace

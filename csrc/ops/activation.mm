// Host side of kernels/activation.metal: activations of one input.
#include <metalops/library.h>
#include <metalops/pointwise.h>

#include <cmath>

namespace {

using at::TensorIteratorBase;
using metalops::pointwise::define;
using metalops::pointwise::define_backward;
using metalops::pointwise::Integers;
using Scalars = c10::ArrayRef<c10::Scalar>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("activation"); }

void softcap(TensorIteratorBase& iter, Scalars scalars) {
  const auto cap = scalars[0].toDouble();
  TORCH_CHECK_VALUE(std::isfinite(cap) && cap != 0,
                    "softcap: cap must be a finite number other than 0, but got ", cap);
  kernels().exec_unary_kernel(iter, "softcap", scalars[0], at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  // Backward functions first: the definition of an operator looks for its own.
  define_backward(m, "metalops::gelu_new_backward(Tensor grad_output, Tensor self) -> Tensor",
                  {.launch = [](TensorIteratorBase& iter, Scalars) {
                    kernels().exec_binary_kernel(iter, "gelu_new_backward");
                  }});
  define_backward(m, "metalops::gelu_quick_backward(Tensor grad_output, Tensor self) -> Tensor",
                  {.launch = [](TensorIteratorBase& iter, Scalars) {
                    kernels().exec_binary_kernel(iter, "gelu_quick_backward");
                  }});
  define_backward(m, "metalops::relu_squared_backward(Tensor grad_output, Tensor self) -> Tensor",
                  {.launch = [](TensorIteratorBase& iter, Scalars) {
                    kernels().exec_binary_kernel(iter, "relu_squared_backward");
                  }});
  define_backward(
      m, "metalops::softcap_backward(Tensor grad_output, Tensor self, float cap) -> Tensor",
      {.launch = [](TensorIteratorBase& iter, Scalars scalars) {
        kernels().exec_binary_kernel(iter, "softcap_backward", scalars[0], at::kFloat);
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

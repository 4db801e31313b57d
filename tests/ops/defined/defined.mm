// Operators of every kind that <metalops/pointwise.h> defines, with nothing in Python.
#include <ATen/TensorIterator.h>
#include <metalops/elementwise_launch.h>
#include <metalops/library.h>
#include <metalops/pointwise.h>

using metalops::pointwise::define;
using metalops::pointwise::define_backward;
using metalops::pointwise::Dtypes;
using metalops::pointwise::Halves;
using metalops::pointwise::Integers;
using metalops::pointwise::Result;

namespace {

metalops::Library& kernels() { return metalops::library("defined"); }

Dtypes complex64() { return Dtypes().set(static_cast<size_t>(at::kComplexFloat)); }

}  // namespace

TORCH_LIBRARY(defined, m) {
  define_backward(
      m, "defined::lisht_backward(Tensor grad_output, Tensor self) -> Tensor",
      {.launch = [](auto& iter, auto) { kernels().exec_binary_kernel(iter, "lisht_backward"); }});
  define(m, "defined::lisht(Tensor self) -> Tensor",
         {.launch = [](auto& iter, auto) { kernels().exec_unary_kernel(iter, "lisht"); },
          .backward = "lisht_backward"});

  define_backward(
      m, "defined::scaled_backward(Tensor grad_output, Tensor self, float scale) -> Tensor",
      {.launch = [](auto& iter, auto scalars) {
        kernels().exec_binary_kernel(iter, "scaled_backward", scalars[0], at::kFloat);
      }});
  define(m, "defined::scaled(Tensor self, float scale=2.0) -> Tensor",
         {.launch =
              [](auto& iter, auto scalars) {
                kernels().exec_unary_kernel(iter, "scaled", scalars[0], at::kFloat);
              },
          .backward = "scaled_backward"});

  define_backward(m,
                  "defined::mixed_backward(Tensor grad_output, Tensor self, Tensor other, float "
                  "weight) -> (Tensor, Tensor)",
                  {.launch = [](auto& iter, auto scalars) {
                    metalops::launch_backward(kernels(), iter, "mixed_backward", scalars);
                  }});
  // A number between the operands.
  define(m, "defined::mixed(Tensor self, float weight, Tensor other) -> Tensor",
         {.launch =
              [](auto& iter, auto scalars) {
                kernels().exec_binary_kernel(iter, "mixed", scalars[0], at::kFloat);
              },
          .backward = "mixed_backward",
          .uniform = true});

  define_backward(m,
                  "defined::halved_backward(Tensor grad_output, Tensor self, float weight) -> "
                  "Tensor",
                  {.launch =
                       [](auto& iter, auto scalars) {
                         metalops::launch_backward(kernels(), iter, "mixed_backward", scalars);
                       },
                   .halves = Halves::kFirstSecond});
  define(m, "defined::halved(Tensor self, float weight) -> Tensor",
         {.launch =
              [](auto& iter, auto scalars) {
                kernels().exec_binary_kernel(iter, "mixed", scalars[0], at::kFloat);
              },
          .halves = Halves::kFirstSecond,
          .backward = "halved_backward"});

  define(m, "defined::doubled(Tensor self) -> Tensor",
         {.launch = [](auto& iter, auto) { kernels().exec_unary_kernel(iter, "doubled"); },
          .integers = Integers::kStay});
  define(m, "defined::larger(Tensor self, Tensor other) -> Tensor",
         {.launch = [](auto& iter, auto) { kernels().exec_binary_kernel(iter, "larger"); },
          .result = Result::kBool,
          .uniform = true});
  define(m, "defined::magnitude(Tensor self) -> Tensor",
         {.launch = [](auto& iter, auto) { kernels().exec_unary_kernel(iter, "magnitude"); },
          .result = Result::kReal,
          .dtypes = complex64()});

  define_backward(
      m, "defined::squared_backward(Tensor grad_output, Tensor self) -> Tensor",
      {.launch = [](auto& iter, auto) { kernels().exec_binary_kernel(iter, "squared_backward"); },
       .dtypes = complex64()});
  define(m, "defined::squared(Tensor self) -> Tensor",
         {.launch = [](auto& iter, auto) { kernels().exec_unary_kernel(iter, "squared"); },
          .backward = "squared_backward",
          .dtypes = complex64()});
}

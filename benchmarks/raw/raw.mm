// The operators metalops_raw::* of benchmarks/run.py, with out= only.
#include <ATen/TensorIterator.h>
#include <metalops/library.h>
#include <torch/library.h>

namespace {

template <const char* name>
at::Tensor& unary(const at::Tensor& self, at::Tensor& out) {
  auto iterator = at::TensorIterator::unary_op(out, self);
  metalops::library("raw").exec_unary_kernel(iterator, name);
  return out;
}

at::Tensor& add(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  auto iterator = at::TensorIterator::borrowing_binary_op(out, self, other);
  metalops::library("raw").exec_binary_kernel(iterator, "add");
  return out;
}

constexpr char kExp[] = "exp";
constexpr char kSigmoid[] = "sigmoid";
constexpr char kSin[] = "sin";
constexpr char kTanh[] = "tanh";

}  // namespace

TORCH_LIBRARY(metalops_raw, m) {
  m.def("add(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("exp(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("sigmoid(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("sin(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("tanh(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(metalops_raw, MPS, m) {
  m.impl("add", add);
  m.impl("exp", unary<kExp>);
  m.impl("sigmoid", unary<kSigmoid>);
  m.impl("sin", unary<kSin>);
  m.impl("tanh", unary<kTanh>);
}

// Activations fused with the operator before them, which stock MPS lacks: _add_relu
// (kernels/pointwise/fused_activation.metal) and _addmm_activation (two stock MPS operators in
// sequence).
#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

namespace {

using at::Scalar;
using at::Tensor;

void add_relu_kernel(at::TensorIteratorBase& iter, const Scalar& alpha) {
  const auto type = iter.common_dtype();
  const bool is_integer = at::isIntegralType(type, /*includeBool=*/false) && at::isSignedType(type);
  metalops::check_dtype(is_integer || at::isFloatingType(type), "add_relu", type);
  metalops::library("fused_activation")
      .exec_binary_kernel(iter, "add_relu", alpha, is_integer ? at::kLong : at::kFloat);
}

Tensor add_relu(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  Tensor result;
  auto iter = at::TensorIterator::binary_op(result, self, other);
  add_relu_kernel(iter, alpha);
  return iter.output();
}

Tensor& add_relu_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  auto iter = at::TensorIterator::binary_op(out, self, other);
  if (out.scalar_type() == iter.common_dtype()) {
    add_relu_kernel(iter, alpha);
    return out;
  }
  return out.copy_(add_relu(self, other, alpha));
}

Tensor& add_relu_(Tensor& self, const Tensor& other, const Scalar& alpha) {
  return add_relu_out(self, other, alpha, self);
}

Tensor add_relu_scalar(const Tensor& self, const Scalar& other, const Scalar& alpha) {
  return add_relu(self, at::native::wrapped_scalar_tensor(other), alpha);
}

Tensor& add_relu_scalar_(Tensor& self, const Scalar& other, const Scalar& alpha) {
  return add_relu_out(self, at::native::wrapped_scalar_tensor(other), alpha, self);
}

Tensor& addmm_activation_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                             const Scalar& beta, const Scalar& alpha, bool use_gelu, Tensor& out) {
  at::addmm_out(out, self, mat1, mat2, beta, alpha);
  return use_gelu ? at::gelu_(out) : at::relu_(out);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_add_relu.Tensor", add_relu);
  m.impl("_add_relu.out", add_relu_out);
  m.impl("_add_relu_.Tensor", add_relu_);
  m.impl("_add_relu.Scalar", add_relu_scalar);
  m.impl("_add_relu_.Scalar", add_relu_scalar_);
  m.impl("_addmm_activation.out", addmm_activation_out);
}

}  // namespace

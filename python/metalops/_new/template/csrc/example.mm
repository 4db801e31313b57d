// The operators of metal_example on the mps device. Objective-C++ on macOS, C++ elsewhere.
#include <ATen/TensorIterator.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <ATen/ops/empty.h>
#include <metalops/library.h>
#include <torch/library.h>

#include <limits>

#include "../kernels/example.h"

namespace {

metalops::Library& kernels() { return metalops::library("example"); }

at::Tensor softsign(const at::Tensor& self) {
  at::Tensor result;
  auto iterator = at::TensorIterator::unary_float_op(result, self);
  kernels().exec_unary_kernel(iterator, "softsign");
  return iterator.output();
}

at::Tensor squared_difference(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor result;
  auto iterator = at::TensorIterator::borrowing_binary_op(result, self, other);
  kernels().exec_binary_kernel(iterator, "squared_difference");
  return iterator.output();
}

const char* metal_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float";
    case at::kHalf:
      return "half";
    case at::kBFloat16:
      return "bfloat";
    default:
      TORCH_CHECK_TYPE(false, "row_max_abs is not implemented for ", type);
  }
}

// The kernel reads the matrix through its strides, so any view of two dimensions will do.
at::Tensor row_max_abs(const at::Tensor& matrix) {
  TORCH_CHECK(matrix.dim() == 2, "row_max_abs expects a matrix, got ", matrix.dim(), " dimensions");
  TORCH_CHECK(matrix.numel() <= std::numeric_limits<unsigned>::max(),
              "row_max_abs: the matrix is too large");
  const auto kernel =
      kernels().getKernelFunction(std::string("row_max_abs_") + metal_type(matrix.scalar_type()));
  auto result = at::empty({matrix.size(0)}, matrix.options());
  if (result.numel() == 0) {
    return result;
  }
  const RowParams params{static_cast<unsigned>(matrix.size(1)),
                         static_cast<unsigned>(matrix.stride(0)),
                         static_cast<unsigned>(matrix.stride(1))};
  kernel->runCommandBlock([&] {
    kernel->startEncoding();
    kernel->setArg(0, result);
    kernel->setArg(1, matrix);
    kernel->setArg(2, params);
    kernel->dispatch(static_cast<uint64_t>(result.numel()) * kThreads, kThreads);
  });
  return result;
}

}  // namespace

TORCH_LIBRARY(metal_example, m) {
  m.def("softsign(Tensor self) -> Tensor");
  m.def("squared_difference(Tensor self, Tensor other) -> Tensor");
  m.def("row_max_abs(Tensor matrix) -> Tensor");
}

TORCH_LIBRARY_IMPL(metal_example, MPS, m) {
  m.impl("softsign", softsign);
  m.impl("squared_difference", squared_difference);
  m.impl("row_max_abs", row_max_abs);
}

// Host side of kernels/pointwise/polynomial.metal: orthogonal polynomials that stock MPS lacks.
#include <ATen/ops/empty.h>
#include <ATen/ops/special_laguerre_polynomial_l_meta.h>
#include <ATen/ops/special_legendre_polynomial_p_meta.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

namespace {

// Returns the dtype of the kernels' results: they compute float for integers, whatever torch's
// default dtype is.
at::ScalarType natural_dtype(const at::TensorIteratorBase& iter) {
  const bool integers = at::isIntegralType(iter.dtype(1), /*includeBool=*/true) &&
                        at::isIntegralType(iter.dtype(2), /*includeBool=*/true);
  return integers ? at::kFloat : iter.common_dtype();
}

template <class Meta>
at::Tensor& polynomial_out(const char* name, const at::Tensor& x, const at::Tensor& n,
                           at::Tensor& out) {
  metalops::StructuredOut<Meta> iter(out);
  iter.meta(x, n);
  metalops::check_not_complex(name, iter.common_dtype());
  const auto natural = natural_dtype(iter);
  auto& library = metalops::library("polynomial");
  if (out.scalar_type() == natural) {
    library.exec_binary_kernel(iter, name);
    return out;
  }
  auto computed = at::empty(out.sizes(), out.options().dtype(natural));
  metalops::StructuredOut<Meta> natural_iter(computed);
  natural_iter.meta(x, n);
  library.exec_binary_kernel(natural_iter, name);
  return out.copy_(computed);
}

at::Tensor& laguerre_polynomial_l_out(const at::Tensor& x, const at::Tensor& n, at::Tensor& out) {
  return polynomial_out<at::meta::structured_special_laguerre_polynomial_l>(
      "special_laguerre_polynomial_l", x, n, out);
}

at::Tensor& legendre_polynomial_p_out(const at::Tensor& x, const at::Tensor& n, at::Tensor& out) {
  return polynomial_out<at::meta::structured_special_legendre_polynomial_p>(
      "special_legendre_polynomial_p", x, n, out);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("special_laguerre_polynomial_l.out", laguerre_polynomial_l_out);
  m.impl("special_legendre_polynomial_p.out", legendre_polynomial_p_out);
}

}  // namespace

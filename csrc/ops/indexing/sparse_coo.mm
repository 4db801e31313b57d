// Operators on sparse COO tensors that stock MPS lacks: matrices of diagonals, products that stay
// sparse, and the gradient of relu. They are composed of operators on indices and values and have
// no kernel.
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/sspaddmm_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/unique_consecutive.h>
#include <metalops/checks.h>
#include <metalops/stock.h>

#include <algorithm>

namespace {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;

// Returns a sparse tensor of values and their options, without checking the indices.
Tensor sparse(const Tensor& indices, const Tensor& values, IntArrayRef sizes,
              std::optional<bool> is_coalesced = std::nullopt) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse),
                                       is_coalesced);
}

// Copies a result to an `out` of any size, which may be an argument of the call, too: its old
// elements are not needed any more.
Tensor& write(const Tensor& result, Tensor& out) {
  out.sparse_resize_and_clear_(result.sizes(), result.sparse_dim(), result.dense_dim());
  return out.copy_(result);
}

// ---- matrices of diagonals ----------------------------------------------------------------------

// Returns a matrix with these diagonals. diagonals: (d, n) or (n); offsets: (d) or a scalar.
// Element j of a diagonal is in column j.
Tensor spdiags(const Tensor& diagonals, const Tensor& offsets, IntArrayRef shape,
               std::optional<at::Layout> layout) {
  metalops::check_same_device("_spdiags", {{diagonals, "diagonals"}, {offsets, "offsets"}});
  const auto values = diagonals.dim() == 1 ? diagonals.unsqueeze(0) : diagonals;
  TORCH_CHECK(values.dim() == 2, "Diagonals must be vector or matrix");
  TORCH_CHECK(shape.size() == 2, "Output shape must be 2d");
  const auto places = offsets.dim() == 0 ? offsets.unsqueeze(0) : offsets;
  TORCH_CHECK(places.dim() == 1, "Offsets must be scalar or vector");
  TORCH_CHECK(values.size(0) == places.size(0), "Number of diagonals (", values.size(0),
              ") does not match the number of offsets (", places.size(0), ")");
  const auto wanted = layout.value_or(at::kSparse);
  TORCH_CHECK(wanted == at::kSparse || wanted == at::kSparseCsc || wanted == at::kSparseCsr,
              "Only output layouts (", at::kSparse, ", ", at::kSparseCsc, ", ", at::kSparseCsr,
              ") are supported, got ", wanted);
  TORCH_CHECK(places.scalar_type() == at::kLong, "Offset Tensor must have dtype Long but got ",
              places.scalar_type());
  TORCH_CHECK(std::get<0>(at::_unique(places)).size(0) == places.size(0),
              "Offset tensor contains duplicate values");
  TORCH_CHECK(shape[0] >= 0 && shape[1] >= 0,
              "Trying to create tensor with negative dimension: ", shape);

  const auto columns = at::arange(std::min(values.size(1), shape[1]), places.options());
  const auto rows = columns.sub(places.unsqueeze(1));
  const auto inside = rows.ge(0).logical_and_(rows.lt(shape[0])).nonzero().t();
  const auto result = sparse(at::stack({rows.index({inside[0], inside[1]}), inside[1]}),
                             values.index({inside[0], inside[1]}), shape);
  // torch has no compressed tensors on mps and raises an error here.
  return wanted == at::kSparse ? result : result.to_sparse(wanted);
}

// ---- products -----------------------------------------------------------------------------------

void check_layout(const char* name, const Tensor& tensor, const char* argument, at::Layout layout) {
  TORCH_CHECK(tensor.layout() == layout, name, ": expected '", argument, "' to have ",
              layout == at::kSparse ? "sparse" : "strided", " layout, got '", argument,
              "' with layout ", tensor.layout());
}

void check_matrix(const char* name, const Tensor& tensor, int number) {
  TORCH_CHECK(tensor.sparse_dim() == 2, name, ": Argument #", number, ": matrices expected, got ",
              tensor.sparse_dim(), "D tensor");
  TORCH_CHECK(tensor.dense_dim() == 0, name, ": Argument #", number,
              ": scalar values expected, got ", tensor.dense_dim(), "D values");
}

void check_size(const char* name, const Tensor& tensor, int number, int64_t dim, int64_t size) {
  TORCH_CHECK(tensor.size(dim) == size, name, ": Argument #", number, ": Expected dim ", dim,
              " size ", size, ", got ", tensor.size(dim));
}

void check_factors(const char* name, const Tensor& mat1, const Tensor& mat2) {
  metalops::check_same_device(name, {{mat1, "mat1"}, {mat2, "mat2"}});
  check_layout(name, mat1, "mat1", at::kSparse);
  check_layout(name, mat2, "mat2", at::kStrided);
  check_matrix(name, mat1, 2);
  TORCH_CHECK(mat2.dim() == 2, name, ": Argument #3: matrices expected, got ", mat2.dim(),
              "D tensor");
  check_size(name, mat2, 3, 0, mat1.size(1));
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type(), "expected scalar type ", mat1.scalar_type(),
              " but found ", mat2.scalar_type());
}

void check_out(const char* name, const Tensor& result, const Tensor& out) {
  metalops::check_same_device(name, {{result, "result"}, {out, "out"}});
  check_layout(name, out, "out", at::kSparse);
  TORCH_CHECK(result.scalar_type() == out.scalar_type(), "dtype of values (", result.scalar_type(),
              ") must match dtype of sparse tensor (", out.scalar_type(), ")");
}

// The rows of a product that belong to rows of mat1 with elements; all others are zero.
struct Rows {
  Tensor indices;  // (rows), ascending
  Tensor values;   // (rows, columns of mat2)
};

Rows product_of_rows(const Tensor& mat1, const Tensor& mat2) {
  const auto coalesced = mat1.coalesce();
  const auto indices = coalesced.indices();
  const auto [rows, places, counts] = at::unique_consecutive(indices[0], /*return_inverse=*/true);
  const auto with_elements = sparse(at::stack({places, indices[1]}), coalesced.values(),
                                    {rows.size(0), mat1.size(1)}, /*is_coalesced=*/true);
  return {rows, at::mm(with_elements, mat2)};
}

// Returns a product with one sparse and one dense dimension.
Tensor hybrid_product(const Tensor& mat1, const Tensor& mat2) {
  check_factors("hspmm", mat1, mat2);
  const auto [rows, values] = product_of_rows(mat1, mat2);
  return sparse(rows.unsqueeze(0), values, {mat1.size(0), mat2.size(1)}, /*is_coalesced=*/true);
}

Tensor& hybrid_product_out(const Tensor& mat1, const Tensor& mat2, Tensor& out) {
  check_factors("hspmm", mat1, mat2);
  check_out("hspmm", mat1, out);
  return write(hybrid_product(mat1, mat2), out);
}

// Computes beta self + alpha mat1 mat2. The result has the elements of self, followed by all
// elements of those rows of the product that belong to rows of mat1 with elements.
Tensor& sspaddmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha, Tensor& out) {
  constexpr const char* kName = "sspaddmm";
  metalops::check_same_device(kName, {{self, "self"}, {mat1, "mat1"}});
  check_layout(kName, self, "self", at::kSparse);
  check_factors(kName, mat1, mat2);
  check_out(kName, mat1, out);
  const auto columns = mat2.size(1);
  // smm passes its empty result as `self`.
  const bool is_empty = self.is_same(out) && beta.equal(0.0);
  if (!is_empty) {
    check_matrix(kName, self, 1);
    check_size(kName, self, 1, 0, mat1.size(0));
    check_size(kName, self, 1, 1, columns);
  }

  const auto [rows, products] = product_of_rows(mat1, mat2);
  if (!alpha.equal(1)) {
    products.mul_(alpha);
  }
  const auto count = rows.size(0);
  auto indices = at::stack({rows.unsqueeze(1).expand({count, columns}).reshape(-1),
                            at::arange(columns, rows.options()).repeat(count)});
  auto values = products.reshape(-1);
  if (!is_empty) {
    const auto coalesced = self.coalesce();
    const auto added = coalesced.values().to(values.scalar_type(), false, /*copy=*/true);
    if (added.numel() != 0) {
      added.mul_(beta);
    }
    indices = at::cat({coalesced.indices(), indices}, 1);
    values = at::cat({added, values});
  }
  return write(sparse(indices, values, {mat1.size(0), columns}), out);
}

Tensor& addmm_(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
               const Scalar& alpha) {
  constexpr const char* kName = "addmm_sparse_dense";
  check_layout(kName, self, "t", at::kStrided);
  check_layout(kName, mat1, "mat1", at::kSparse);
  check_layout(kName, mat2, "mat2", at::kStrided);
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2, "addmm: matrices expected, got ",
              self.dim() == 2 ? mat2.dim() : self.dim(), "D tensor");
  for (const int64_t dim : {0, 1}) {
    const auto size = dim == 0 ? mat1.size(0) : mat2.size(1);
    TORCH_CHECK(self.size(dim) == size, "addmm: Argument #1 (t): Expected dim ", dim, " size ",
                size, ", got ", self.size(dim));
  }
  return at::addmm_out(self, self, mat1, mat2, beta, alpha);
}

// ---- the gradient of relu -----------------------------------------------------------------------

// Returns the gradient at the elements of self.
Tensor relu_gradient(const Tensor& grad_output, const Tensor& self, const Scalar& threshold) {
  constexpr const char* kName = "threshold_backward";
  check_layout(kName, grad_output, "grad_output", at::kSparse);
  check_layout(kName, self, "self", at::kSparse);
  const auto of_self = self.coalesce();
  const auto gradient = grad_output.sparse_mask(of_self);
  return sparse(of_self.indices().clone(),
                at::threshold_backward(gradient.values(), of_self.values(), threshold),
                self.sizes(), /*is_coalesced=*/true);
}

Tensor& relu_gradient_out(const Tensor& grad_output, const Tensor& self, const Scalar& threshold,
                          Tensor& grad_input) {
  check_layout("threshold_backward", grad_input, "grad_input", at::kSparse);
  return write(relu_gradient(grad_output, self, threshold), grad_input);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_spdiags", spdiags);
  m.impl("sspaddmm.out", TORCH_FN(at::native::_sspaddmm_out_only_sparse));  // which it says
}

TORCH_LIBRARY_IMPL(aten, SparseMPS, library) {
  metalops::AtenKernels m(library, c10::DispatchKey::SparseMPS);
  m.impl("sspaddmm.out", sspaddmm_out);
  m.impl("hspmm", hybrid_product);
  m.impl("hspmm.out", hybrid_product_out);
  m.impl("addmm_", addmm_);
  m.impl("threshold_backward", relu_gradient);
  m.impl("threshold_backward.grad_input", relu_gradient_out);
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_));
  m.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
}

}  // namespace

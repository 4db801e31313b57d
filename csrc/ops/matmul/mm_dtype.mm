// mm, bmm, addmm and baddbmm of half-precision operands with out_dtype, which stock MPS lacks.
// float32 results are not rounded to half precision on the way.
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <csrc/ops/matmul/gemm.h>
#include <metalops/checks.h>
#include <metalops/stock.h>

#include <optional>

namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;

bool is_widened(const Tensor& left, ScalarType type) {
  return type == at::kFloat &&
         (left.scalar_type() == at::kHalf || left.scalar_type() == at::kBFloat16);
}

void check_dtypes(const char* name, const Tensor& left, const Tensor& right, ScalarType type) {
  metalops::check_same_device(name, {{left, "self"}, {right, "mat2"}});
  TORCH_CHECK(left.scalar_type() == right.scalar_type(), "input dtypes must be the same, but got ",
              left.scalar_type(), " and ", right.scalar_type());
  TORCH_CHECK(type == left.scalar_type() || is_widened(left, type),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

void prepare_out(Tensor& out, ScalarType type, at::IntArrayRef sizes) {
  TORCH_CHECK(out.scalar_type() == type,
              "out_dtype must be the same as the dtype of the provided out tensor");
  at::native::resize_output(out, sizes);
}

// ---- mm and bmm ---------------------------------------------------------------------------------

void check_mm(const Tensor& self, const Tensor& mat2, ScalarType type) {
  check_dtypes("mm", self, mat2, type);
  TORCH_CHECK(self.dim() == 2, "self must be a matrix");
  TORCH_CHECK(mat2.dim() == 2, "mat2 must be a matrix");
  TORCH_CHECK(self.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              self.size(0), "x", self.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
}

Tensor& mm_out(const Tensor& self, const Tensor& mat2, ScalarType type, Tensor& out) {
  check_mm(self, mat2, type);
  prepare_out(out, type, {self.size(0), mat2.size(1)});
  if (!is_widened(self, type)) {
    return at::mm_out(out, self, mat2);
  }
  metalops::gemm("mm", out, self, mat2, std::nullopt);
  return out;
}

Tensor mm(const Tensor& self, const Tensor& mat2, ScalarType type) {
  check_mm(self, mat2, type);
  auto out = at::empty({self.size(0), mat2.size(1)}, self.options().dtype(type));
  return mm_out(self, mat2, type, out);
}

void check_bmm(const Tensor& self, const Tensor& mat2, ScalarType type) {
  check_dtypes("bmm", self, mat2, type);
  TORCH_CHECK(self.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(mat2.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(mat2.size(0) == self.size(0) && mat2.size(1) == self.size(2),
              "Expected size for first two dimensions of batch2 tensor to be: [", self.size(0),
              ", ", self.size(2), "] but got: [", mat2.size(0), ", ", mat2.size(1), "].");
}

at::DimVector sizes_of_bmm(const Tensor& self, const Tensor& mat2) {
  return {self.size(0), self.size(1), mat2.size(2)};
}

Tensor& bmm_out(const Tensor& self, const Tensor& mat2, ScalarType type, Tensor& out) {
  check_bmm(self, mat2, type);
  prepare_out(out, type, sizes_of_bmm(self, mat2));
  if (!is_widened(self, type)) {
    return at::bmm_out(out, self, mat2);
  }
  metalops::gemm("bmm", out, self, mat2, std::nullopt);
  return out;
}

Tensor bmm(const Tensor& self, const Tensor& mat2, ScalarType type) {
  check_bmm(self, mat2, type);
  auto out = at::empty(sizes_of_bmm(self, mat2), self.options().dtype(type));
  return bmm_out(self, mat2, type, out);
}

// ---- addmm and baddbmm --------------------------------------------------------------------------

void check_added(const char* name, const Tensor& self, const Tensor& left, ScalarType type) {
  metalops::check_same_device(name, {{self, "self"}, {left, "mat1"}});
  TORCH_CHECK(self.scalar_type() == type || self.scalar_type() == left.scalar_type(),
              "self dtype must match either out_dtype or mat1 dtype");
}

Tensor& addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, ScalarType type,
                  const Scalar& beta, const Scalar& alpha, Tensor& out) {
  check_mm(mat1, mat2, type);
  check_added("addmm", self, mat1, type);
  const at::DimVector sizes{mat1.size(0), mat2.size(1)};
  const auto added = *at::expand_size(self, sizes, "addmm");
  prepare_out(out, type, sizes);
  if (!is_widened(mat1, type)) {
    return at::addmm_out(out, self, mat1, mat2, beta, alpha);
  }
  metalops::gemm("addmm", out, mat1, mat2, metalops::GemmAdded{added, beta, alpha});
  return out;
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, ScalarType type,
             const Scalar& beta, const Scalar& alpha) {
  check_mm(mat1, mat2, type);
  auto out = at::empty({mat1.size(0), mat2.size(1)}, mat1.options().dtype(type));
  return addmm_out(self, mat1, mat2, type, beta, alpha, out);
}

Tensor& baddbmm_out(const Tensor& self, const Tensor& batch1, const Tensor& batch2, ScalarType type,
                    const Scalar& beta, const Scalar& alpha, Tensor& out) {
  check_bmm(batch1, batch2, type);
  check_added("baddbmm", self, batch1, type);
  const auto sizes = sizes_of_bmm(batch1, batch2);
  const auto added = *at::expand_size(self, sizes, "baddbmm");
  prepare_out(out, type, sizes);
  if (!is_widened(batch1, type)) {
    return at::baddbmm_out(out, self, batch1, batch2, beta, alpha);
  }
  metalops::gemm("baddbmm", out, batch1, batch2, metalops::GemmAdded{added, beta, alpha});
  return out;
}

Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, ScalarType type,
               const Scalar& beta, const Scalar& alpha) {
  check_bmm(batch1, batch2, type);
  auto out = at::empty(sizes_of_bmm(batch1, batch2), batch1.options().dtype(type));
  return baddbmm_out(self, batch1, batch2, type, beta, alpha, out);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("mm.dtype", mm);
  m.impl("mm.dtype_out", mm_out);
  m.impl("bmm.dtype", bmm);
  m.impl("bmm.dtype_out", bmm_out);
  m.impl("addmm.dtype", addmm);
  m.impl("addmm.dtype_out", addmm_out);
  m.impl("baddbmm.dtype", baddbmm);
  m.impl("baddbmm.dtype_out", baddbmm_out);
}

}  // namespace

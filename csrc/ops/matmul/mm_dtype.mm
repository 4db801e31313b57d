// Host side of kernels/matmul/mm_dtype.metal: mm, bmm, addmm and baddbmm of half-precision operands
// with out_dtype, which stock MPS lacks. float32 results are not rounded to half precision on the
// way.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/matmul/operand.h>
#include <kernels/matmul/mm_dtype.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <optional>

namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;

// The addend of a product.
struct Added {
  const Tensor& tensor;
  const Scalar& beta;
  const Scalar& alpha;
};

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

// Computes the GEMMs. result: float32, contiguous. left: (B, M, K); right: (B, K, N). Neither the
// result nor K is empty.
void multiply(const char* name, const Tensor& result, const Tensor& left, const Tensor& right,
              const std::optional<Added>& added) {
  const auto a = metalops::product_operands(left);
  const auto b = metalops::product_operands(right.transpose(1, 2));
  Tensor addend = result;
  if (added) {
    addend = added->tensor.to(at::kFloat).expand(result.sizes());
  }
  const metalops::WideProductParameters parameters{
      .left_stride = a.first.stride,
      .right_stride = b.first.stride,
      .left_step = a.step,
      .right_step = b.step,
      .added_strides = {addend.stride(0), addend.stride(1), addend.stride(2)},
      .rows = metalops::product_size(name, a.first.lines, "self"),
      .columns = metalops::product_size(name, b.first.lines, "mat2"),
      .inner = metalops::product_size(name, a.first.inner, "the inner dimension"),
      .alpha = added ? added->alpha.to<float>() : 1.0f,
      .beta = added ? added->beta.to<float>() : 0.0f,
      .left_transposed = a.first.is_transposed,
      .right_transposed = b.first.is_transposed,
      .adds = added && added->beta.to<float>() != 0.0f};
  const bool is_small = parameters.rows <= 32;
  const auto groups =
      static_cast<uint64_t>(result.size(0)) *
      static_cast<uint64_t>(c10::metal::ceil_div(parameters.rows, is_small ? 16 : 64)) *
      static_cast<uint64_t>(c10::metal::ceil_div(parameters.columns, 64));
  metalops::launch_threadgroups(
      metalops::matmul_library("mm_dtype"),
      metalops::KernelName("mm_dtype_") + (is_small ? "small_" : "large_") +
          metalops::metal_type(left.scalar_type()),
      groups, /*size=*/128, result, a.first.tensor, b.first.tensor, addend, parameters);
}

// Writes the product to `out`, which has its sizes.
void run(const char* name, Tensor& out, const Tensor& left, const Tensor& right,
         const std::optional<Added>& added) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, left);
  at::assert_no_overlap(out, right);
  if (out.numel() == 0) {
    return;
  }
  const auto as_batch = [](const Tensor& x) { return x.dim() == 2 ? x.unsqueeze(0) : x; };
  const bool is_direct = out.is_contiguous() && !(added && added->tensor.is_alias_of(out));
  metalops::write_through(out, is_direct, out.scalar_type(), [&](const Tensor& result) {
    multiply(name, as_batch(result), as_batch(left), as_batch(right), added);
  });
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
  run("mm", out, self, mat2, std::nullopt);
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
  run("bmm", out, self, mat2, std::nullopt);
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
  run("addmm", out, mat1, mat2, Added{added, beta, alpha});
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
  run("baddbmm", out, batch1, batch2, Added{added, beta, alpha});
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

// Host side of kernels/matmul/int_mm.metal: _int_mm, which stock MPS lacks.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <csrc/ops/matmul/operand.h>
#include <kernels/matmul/int_mm.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>
#include <metalops/stock.h>
#include <metalops/views.h>

namespace {

using at::Tensor;

// The operator's name in messages, which are those of torch's CPU operator.
constexpr const char* kName = "int_mm_out_cpu";

void check_int_mm(const Tensor& self, const Tensor& mat2, const Tensor& result) {
  metalops::check_same_device("_int_mm", {{result, "result"}, {self, "self"}, {mat2, "mat2"}});
  TORCH_CHECK(self.dim() == 2, kName, ": Expected self to be of dimension 2 but got ", self.dim());
  TORCH_CHECK(mat2.dim() == 2, kName, ": Expected mat2 to be of dimension 2 but got ", mat2.dim());
  TORCH_CHECK(self.scalar_type() == at::kChar || self.scalar_type() == at::kByte, kName,
              ": Expected self dtype to be int8 or uint8 but got ", self.dtype());
  TORCH_CHECK(mat2.scalar_type() == at::kChar, kName,
              ": Expected mat2 dtype to be of type int8 but got ", mat2.dtype());
  TORCH_CHECK(self.size(1) == mat2.size(0), kName,
              ": self.size(1) needs to match mat2.size(0) but got ", self.size(1), " and ",
              mat2.size(0));
  TORCH_CHECK(result.scalar_type() == at::kInt, kName,
              ": Expected result dtype to be of type kInt but got ", result.dtype());
  TORCH_CHECK(result.dim() == 2, kName, ": Expected result to be of dimension 2 but got ",
              result.dim());
  TORCH_CHECK(result.size(0) == self.size(0), kName, ": Expected result.size(0) to be ",
              self.size(0), " but got ", result.size(0));
  TORCH_CHECK(result.size(1) == mat2.size(1), kName, ": Expected result.size(1) to be ",
              mat2.size(1), " but got ", result.size(1));
  at::assert_no_internal_overlap(result);
  at::assert_no_overlap(result, self);
  at::assert_no_overlap(result, mat2);
}

// A kernel, and the rows of its threadgroup's tile.
struct Tile {
  const char* kernel;
  int rows;
};
Tile tile_for(int64_t rows) {
  return rows <= 32   ? Tile{"int_mm_small", 16}
         : rows <= 64 ? Tile{"int_mm_medium", 64}
                      : Tile{"int_mm_large", 128};
}

// Computes the GEMM. result: contiguous. uint8 is converted to int8 by subtracting 128, and 128
// times the sum of each column of mat2 is added again.
void multiply(const Tensor& result, const Tensor& self, const Tensor& mat2) {
  const bool is_unsigned = self.scalar_type() == at::kByte;
  const auto a =
      metalops::product_operand(is_unsigned ? self.bitwise_xor(128).view(at::kChar) : self);
  const auto b = metalops::product_operand(mat2.t());
  const auto offsets = is_unsigned ? mat2.sum(0, false, at::kInt).mul_(128) : result;
  const metalops::IntProductParameters parameters{
      .left_stride = a.stride,
      .right_stride = b.stride,
      .rows = metalops::product_size(kName, a.lines, "self"),
      .columns = metalops::product_size(kName, b.lines, "mat2"),
      .inner = metalops::product_size(kName, a.inner, "the inner dimension"),
      .left_transposed = a.is_transposed,
      .right_transposed = b.is_transposed,
      .has_offsets = is_unsigned};
  const auto [kernel, rows] = tile_for(a.lines);
  const auto groups = static_cast<uint64_t>(c10::metal::ceil_div(parameters.rows, rows)) *
                      static_cast<uint64_t>(c10::metal::ceil_div(parameters.columns, 64));
  metalops::launch_threadgroups(metalops::matmul_library("int_mm"), kernel, groups, /*size=*/128,
                                result, a.tensor, b.tensor, offsets, parameters);
}

Tensor& int_mm_out(const Tensor& self, const Tensor& mat2, Tensor& result) {
  check_int_mm(self, mat2, result);
  if (result.numel() == 0) {
    return result;
  }
  if (self.size(1) == 0) {
    return result.zero_();
  }
  metalops::write_contiguous(result, [&](const Tensor& dense) { multiply(dense, self, mat2); });
  return result;
}

Tensor int_mm(const Tensor& self, const Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2, kName, ": Expected self to be of dimension 2 but got ", self.dim());
  TORCH_CHECK(mat2.dim() == 2, kName, ": Expected mat2 to be of dimension 2 but got ", mat2.dim());
  auto result = at::empty({self.size(0), mat2.size(1)}, self.options().dtype(at::kInt));
  return int_mm_out(self, mat2, result);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_int_mm", int_mm);
  m.impl("_int_mm.out", int_mm_out);
}

}  // namespace

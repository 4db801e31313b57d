// Host side of kernels/matmul/grouped_mm.metal: _grouped_mm, a grouped GEMM. torch runs one GEMM
// for each group, after the host has waited for the groups' ends.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/matmul/operand.h>
#include <kernels/matmul/grouped_mm.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <optional>

#include <csrc/ops/matmul/grouped.h>

namespace {

using at::ScalarType;
using at::Tensor;
using metalops::Grouped;
using metalops::MaybeTensor;

constexpr const char* kName = "_grouped_mm";

metalops::ProductOperands operands(const Tensor& matrices) {
  return matrices.dim() == 3
             ? metalops::product_operands(matrices)
             : metalops::ProductOperands{metalops::product_operand(matrices), /*step=*/0};
}

// Launches the GEMM. Neither out nor K is empty.
void multiply(const Tensor& out, const Tensor& self, const Tensor& mat2, const MaybeTensor& offs) {
  const auto a = operands(self);
  const auto b = operands(mat2.transpose(-2, -1));
  const auto grouped = metalops::grouped_dimension(self, mat2);
  const auto groups = offs ? offs->size(0) : self.size(0);
  const metalops::GroupedProductParameters parameters{
      .left_stride = a.first.stride,
      .right_stride = b.first.stride,
      .result_stride = out.stride(-2),
      .left_step = a.step,
      .right_step = b.step,
      .result_step = out.dim() == 3 ? out.stride(0) : 0,
      .groups = metalops::product_size(kName, groups, "offs"),
      .rows = metalops::product_size(kName, a.first.lines, "mat_a"),
      .columns = metalops::product_size(kName, b.first.lines, "mat_b"),
      .inner = metalops::product_size(kName, a.first.inner, "the contraction dimension"),
      .grouped = grouped,
      .left_transposed = a.first.is_transposed,
      .right_transposed = b.first.is_transposed};
  const bool is_small =
      parameters.rows <= 32 || (grouped == Grouped::kRows && parameters.rows / groups <= 32);
  metalops::launch_threadgroups(
      metalops::matmul_library("grouped_mm"),
      metalops::KernelName("grouped_mm_") + (is_small ? "small_" : "large_") +
          metalops::metal_type(out.scalar_type()),
      metalops::tiles_of_groups(parameters, is_small ? 16 : 64, 64), /*size=*/128, out,
      a.first.tensor, b.first.tensor, offs.value_or(out), parameters);
}

Tensor grouped_mm(const Tensor& self, const Tensor& mat2, const MaybeTensor& given_offs,
                  const MaybeTensor& bias, std::optional<ScalarType> out_dtype) {
  metalops::check_same_device(
      kName, {{self, "self"}, {mat2, "mat2"}, {given_offs.value_or(self), "offs"}});
  // torch 2.14 refuses offsets with gaps.
  const auto offs = given_offs ? MaybeTensor(given_offs->contiguous()) : std::nullopt;
  at::native::_grouped_mm_validate_inputs(self, mat2, offs, bias, out_dtype);
  const auto type = at::native::_resolve_grouped_mm_out_dtype(self, mat2, out_dtype);
  metalops::check_inner_sizes(self, mat2);
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(),
              "expected m1 and m2 to have the same dtype, but got: ", self.scalar_type(),
              " != ", mat2.scalar_type());
  const auto out = at::native::create_grouped_gemm_output_tensor(self, mat2, offs, type);
  if (out.numel() == 0) {
    return out;
  }
  if (self.numel() == 0 || mat2.numel() == 0) {
    return out.zero_();
  }
  multiply(out, self, mat2, offs);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_grouped_mm", grouped_mm);
}

}  // namespace

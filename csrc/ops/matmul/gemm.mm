// Host side of kernels/matmul/gemm.metal.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/matmul/gemm.h>
#include <csrc/ops/matmul/operand.h>
#include <kernels/matmul/gemm.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>

namespace metalops {

bool has_gemm(at::ScalarType type) {
  return is_metal_float(type) || type == at::kComplexFloat || type == at::kComplexHalf ||
         at::isIntegralType(type, /*includeBool=*/false);
}

namespace {

// A kernel, the sides of its threadgroup's tile, and the threadgroup's size.
struct GemmKernel {
  KernelName name;
  int rows;
  int columns;
  uint64_t threads;
};

GemmKernel kernel_of_gemm(const GemmParameters& p, at::ScalarType type, at::ScalarType result) {
  if (!is_metal_float(type)) {
    return {KernelName("gemm_scalars_") + metal_type(type), 32, 32, 256};
  }
  const auto types = KernelName(metal_type(type)) + "_" + metal_type(result);
  if (p.rows == 1 && !p.left_transposed && !p.right_transposed) {
    return {KernelName("gemm_row_") + types, 1, 16, 128};
  }
  if (p.rows <= 32) {
    return {KernelName("gemm_small_") + types, 16, 64, 128};
  }
  return {KernelName("gemm_large_") + types, 64, 64, 128};
}

void set_factors(GemmParameters& p, const GemmAdded& added, at::ScalarType type) {
  if (at::isIntegralType(type, /*includeBool=*/false)) {
    p.integer_alpha = added.alpha.to<int64_t>();
    p.integer_beta = added.beta.to<int64_t>();
    p.adds = p.integer_beta != 0;
    return;
  }
  const auto alpha = added.alpha.to<c10::complex<double>>();
  const auto beta = added.beta.to<c10::complex<double>>();
  p.alpha[0] = static_cast<float>(alpha.real());
  p.alpha[1] = static_cast<float>(alpha.imag());
  p.beta[0] = static_cast<float>(beta.real());
  p.beta[1] = static_cast<float>(beta.imag());
  p.adds = beta != c10::complex<double>(0.0);
}

// Computes the GEMMs. result: contiguous, not empty.
void launch_gemm(const char* name, const at::Tensor& result, const at::Tensor& left,
                 const at::Tensor& right, const std::optional<GemmAdded>& added) {
  const auto a = product_operands(left);
  const auto b = product_operands(right.transpose(1, 2));
  const auto addend =
      added ? added->tensor.to(result.scalar_type()).expand(result.sizes()) : result;
  GemmParameters parameters{.left_stride = a.first.stride,
                            .right_stride = b.first.stride,
                            .left_step = a.step,
                            .right_step = b.step,
                            .added_strides = {addend.stride(0), addend.stride(1), addend.stride(2)},
                            .integer_alpha = 1,
                            .integer_beta = 0,
                            .alpha = {1.0f, 0.0f},
                            .beta = {0.0f, 0.0f},
                            .rows = product_size(name, a.first.lines, "self"),
                            .columns = product_size(name, b.first.lines, "mat2"),
                            .inner = product_size(name, a.first.inner, "the inner dimension"),
                            .left_transposed = a.first.is_transposed,
                            .right_transposed = b.first.is_transposed,
                            .adds = false};
  if (added) {
    set_factors(parameters, *added, left.scalar_type());
  }
  const auto kernel = kernel_of_gemm(parameters, left.scalar_type(), result.scalar_type());
  const auto groups =
      static_cast<uint64_t>(result.size(0)) *
      static_cast<uint64_t>(c10::metal::ceil_div(parameters.rows, kernel.rows)) *
      static_cast<uint64_t>(c10::metal::ceil_div(parameters.columns, kernel.columns));
  launch_threadgroups(matmul_library("gemm"), kernel.name, groups, kernel.threads, result,
                      a.first.tensor, b.first.tensor, addend, parameters);
}

at::Tensor gemm_operand(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg(); }

}  // namespace

void gemm(const char* name, const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
          const std::optional<GemmAdded>& added) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, left);
  at::assert_no_overlap(out, right);
  if (out.numel() == 0) {
    return;
  }
  const auto batch = [](const at::Tensor& x) { return x.dim() == 2 ? x.unsqueeze(0) : x; };
  const bool is_direct = out.is_contiguous() && !out.is_conj() && !out.is_neg() &&
                         !(added && added->tensor.is_alias_of(out));
  write_through(out, is_direct, out.scalar_type(), [&](const at::Tensor& result) {
    const auto a = batch(gemm_operand(left));
    const auto b = batch(gemm_operand(right));
    const auto c = added ? batch(gemm_operand(added->tensor)) : at::Tensor();
    const auto sum = added ? std::optional(GemmAdded{c, added->beta, added->alpha}) : std::nullopt;
    if (b.size(2) == 1 && a.size(1) != 1) {
      // A column is computed as a row, whose kernel reads the matrix once.
      const auto turned = added ? c.transpose(1, 2) : c;
      launch_gemm(name, batch(result).transpose(1, 2), b.transpose(1, 2), a.transpose(1, 2),
                  added ? std::optional(GemmAdded{turned, added->beta, added->alpha}) : sum);
    } else {
      launch_gemm(name, batch(result), a, b, sum);
    }
  });
}

}  // namespace metalops

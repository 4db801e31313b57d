// Host side of kernels/linalg/qr.metal: QR factorisation (xGEQRF), and products with Q (xORMQR,
// xORGQR).
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr_meta.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/linalg/qr.h>
#include <metalops/checks.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>

namespace {

using at::Tensor;

void check(const char* kernel, const char* name, const Tensor& a) {
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, kernel, type);
  TORCH_CHECK(a.size(-1) <= metalops::kInt32Max && a.size(-2) <= metalops::kInt32Max &&
                  at::native::batchCount(a) <= metalops::kInt32Max,
              name, ": matrices of ", a.sizes(), " are too large for MPS");
}

// Returns memory for matrices of contiguous columns.
Tensor empty_by_columns(const Tensor& like) {
  return at::empty(like.mT().sizes(), like.options()).mT();
}

// Returns the elements that belong to each matrix as (batch, length), contiguous.
Tensor batch_of_vectors(const Tensor& vectors) {
  int64_t batch = 1;
  for (const auto size : vectors.sizes().slice(0, vectors.dim() - 1)) batch *= size;
  return vectors.contiguous().view({batch, vectors.size(-1)});
}

// ---- geqrf --------------------------------------------------------------------------------------

Tensor empty_taus(const Tensor& a) {
  auto sizes = a.sizes().slice(0, a.dim() - 1).vec();
  sizes.back() = std::min(a.size(-2), a.size(-1));
  return at::empty(sizes, a.options());
}

std::tuple<Tensor, Tensor> geqrf_of(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  check("geqrf_mps", "torch.geqrf", input);
  auto a = empty_by_columns(input);
  auto taus = empty_taus(a);
  metalops::PlanRun run;
  metalops::plans::qr_factor(run.plan(),
                             {.factors = run.view(metalops::as_batch(a)),
                              .taus = run.view(batch_of_vectors(taus)),
                              .a = run.view(metalops::as_batch(input.resolve_neg()))},
                             metalops::plan_device());
  run.run();
  return {std::move(a), std::move(taus)};
}

std::tuple<Tensor&, Tensor&> geqrf_out(const Tensor& input, Tensor& a, Tensor& tau) {
  constexpr const char* kName = "torch.geqrf";
  at::native::checkSameDevice(kName, a, input, "a");
  at::native::checkSameDevice(kName, tau, input, "tau");
  at::native::checkLinalgCompatibleDtype(kName, a, input, "a");
  at::native::checkLinalgCompatibleDtype(kName, tau, input, "tau");
  const auto [factors, taus] = geqrf_of(input);
  metalops::write_output(factors, a);
  metalops::write_output(taus, tau);
  return std::forward_as_tuple(a, tau);
}

// ---- householder_product ------------------------------------------------------------------------

// geqrf of tensors without values, for which torch has no meta function. (Without it, tracing runs
// the operator on zeros, where it may.)
std::tuple<Tensor, Tensor> geqrf_of_meta(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  auto sizes = input.sym_sizes().vec();
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  const auto a = at::empty_symint(sizes, input.options()).mT();
  sizes.pop_back();
  sizes.back() = input.sym_size(-1).min(input.sym_size(-2));
  return {a, at::empty_symint(sizes, input.options())};
}

Tensor householder_product_of(const Tensor& input, const Tensor& tau) {
  constexpr const char* kName = "torch.linalg.householder_product";
  TORCH_CHECK(input.dim() >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(input.size(-2) >= input.size(-1), kName,
              ": input.shape[-2] must be greater than or equal to input.shape[-1]");
  TORCH_CHECK(input.size(-1) >= tau.size(-1), kName,
              ": input.shape[-1] must be greater than or equal to tau.shape[-1]");
  TORCH_CHECK(input.dim() - tau.dim() == 1, kName,
              ": Expected tau to have one dimension less than input, but got tau.ndim equal to ",
              tau.dim(), " and input.ndim is equal to ", input.dim());
  const auto batch_of_tau = tau.sizes().slice(0, tau.dim() - 1);
  TORCH_CHECK(batch_of_tau.equals(input.sizes().slice(0, input.dim() - 2)), kName,
              ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ",
              batch_of_tau);
  TORCH_CHECK(tau.scalar_type() == input.scalar_type(), kName, ": tau dtype ", tau.scalar_type(),
              " does not match input dtype ", input.scalar_type());
  at::native::checkSameDevice(kName, tau, input, "tau");
  check("orgqr_mps", kName, input);
  auto result = empty_by_columns(input);
  metalops::PlanRun run;
  metalops::plans::qr_form(run.plan(),
                           {.q = run.view(metalops::as_batch(result)),
                            .reflectors = run.view(metalops::as_batch(input.resolve_neg())),
                            .taus = run.view(batch_of_vectors(tau))},
                           metalops::plan_device());
  run.run();
  return result;
}

Tensor& householder_product_out(const Tensor& input, const Tensor& tau, Tensor& out) {
  constexpr const char* kName = "torch.linalg.householder_product";
  at::native::checkSameDevice(kName, out, input);
  at::native::checkLinalgCompatibleDtype(kName, out, input);
  metalops::write_output(householder_product_of(input, tau), out);
  return out;
}

// ---- ormqr --------------------------------------------------------------------------------------

void check_ormqr(const Tensor& input, const Tensor& tau, const Tensor& other, bool left) {
  constexpr const char* kName = "torch.ormqr";
  TORCH_CHECK(input.dim() >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(other.dim() >= 2, kName, ": other must have at least 2 dimensions.");
  const int64_t side = left ? -2 : -1;
  TORCH_CHECK(other.size(side) == input.size(-2), kName, ": other.shape[", side,
              "] must be equal to input.shape[-2]");
  TORCH_CHECK(tau.size(-1) == std::min(other.size(side), input.size(-1)), kName,
              ": tau.shape[-1] must be equal to min(other.shape[", side, "], input.shape[-1])");
  TORCH_CHECK(input.dim() - tau.dim() == 1, kName,
              ": Expected tau to have one dimension less than input, but got tau.ndim equal to ",
              tau.dim(), " and input.ndim is equal to ", input.dim());
  TORCH_CHECK(
      input.dim() == other.dim(), kName,
      ": Expected other to have the same number of dimensions as input, but got other.ndim equal "
      "to ",
      other.dim(), " and input.ndim is equal to ", input.dim());
  const auto batch = input.sizes().slice(0, input.dim() - 2);
  const auto batch_of_tau = tau.sizes().slice(0, tau.dim() - 1);
  TORCH_CHECK(batch_of_tau.equals(batch), kName,
              ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ",
              batch_of_tau);
  const auto batch_of_other = other.sizes().slice(0, other.dim() - 2);
  TORCH_CHECK(batch_of_other.equals(batch), kName,
              ": Expected batch dimensions of other to be equal to input.shape[:-2], but got ",
              batch_of_other);
  TORCH_CHECK(tau.scalar_type() == input.scalar_type(), kName,
              ": Expected input and tau to have the same dtype, but input has dtype",
              input.scalar_type(), " and tau has dtype ", tau.scalar_type());
  TORCH_CHECK(other.scalar_type() == input.scalar_type(), kName,
              ": Expected input and other to have the same dtype, but input has dtype",
              input.scalar_type(), " and other has dtype ", other.scalar_type());
  at::native::checkSameDevice(kName, tau, input, "tau");
  at::native::checkSameDevice(kName, other, input, "other");
  check("ormqr_mps", kName, input);
  check("ormqr_mps", kName, other);
}

Tensor ormqr_of(const Tensor& input, const Tensor& tau, const Tensor& other, bool left,
                bool transpose) {
  check_ormqr(input, tau, other, left);
  auto result = at::native::cloneBatchedColumnMajor(other);
  if (result.numel() == 0 || tau.numel() == 0) {
    return result;
  }
  const auto reflectors =
      input.mT().is_contiguous() ? input : at::native::cloneBatchedColumnMajor(input);
  metalops::PlanRun run;
  metalops::plans::qr_multiply(run.plan(),
                               {.c = run.view(metalops::as_batch(result)),
                                .reflectors = run.view(metalops::as_batch(reflectors)),
                                .taus = run.view(batch_of_vectors(tau)),
                                .left = left,
                                .is_adjoint = transpose},
                               metalops::plan_device());
  run.run();
  return result;
}

Tensor& ormqr_out(const Tensor& input, const Tensor& tau, const Tensor& other, bool left,
                  bool transpose, Tensor& out) {
  check_ormqr(input, tau, other, left);
  TORCH_CHECK(out.scalar_type() == input.scalar_type(),
              "torch.ormqr: Expected input and result to have the same dtype, but input has dtype",
              input.scalar_type(), " and result has dtype ", out.scalar_type());
  at::native::checkSameDevice("torch.ormqr", out, input);
  metalops::write_output(ormqr_of(input, tau, other, left, transpose), out);
  return out;
}

// ---- qr -----------------------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> qr_out(const Tensor& input, c10::string_view mode, Tensor& q_out,
                                    Tensor& r_out) {
  metalops::StructuredOut<at::meta::structured_linalg_qr> call(q_out, r_out);
  call.meta(input, mode);
  check("geqrf_mps", "linalg.qr", input);
  metalops::write_batch(call.output(1), [&](const Tensor& r) {
    metalops::PlanRun run;
    const auto q = mode == "r" ? Tensor() : metalops::as_batch(call.output(0));
    metalops::plans::qr(run.plan(),
                        {.q = run.view(q),
                         .r = run.view(r),
                         .a = run.view(metalops::as_batch(input.resolve_neg()))},
                        metalops::plan_device());
    run.run();
  });
  call.write_back();
  return std::forward_as_tuple(q_out, r_out);
}

std::tuple<Tensor, Tensor> qr_of(const Tensor& input, c10::string_view mode) {
  auto q = at::empty({0}, input.options());
  auto r = at::empty({0}, input.options());
  qr_out(input, mode, q, r);
  return {std::move(q), std::move(r)};
}

constexpr const char* kComplex = "refuses complex matrices";
constexpr const char* kReason =
    "is for float32, of at most 512 columns, and works on matrices as wide as they are high";
constexpr const char* kSlow = "makes matrices as wide as they are high, one for each reflector";

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.replace("geqrf", geqrf_of, kComplex);
  m.replace("geqrf.a", geqrf_out, kComplex);
  m.impl("ormqr", ormqr_of);
  m.impl("ormqr.out", ormqr_out);
  m.replace("linalg_householder_product", householder_product_of, kSlow);
  m.replace("linalg_householder_product.out", householder_product_out, kSlow);
  m.replace("linalg_qr", qr_of, kReason);
  m.replace("linalg_qr.out", qr_out, kReason);
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  metalops::AtenKernels m(library, c10::DispatchKey::Meta);
  m.impl("geqrf", geqrf_of_meta);
}

}  // namespace

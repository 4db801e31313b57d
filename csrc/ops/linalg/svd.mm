// Host side of kernels/linalg/svd.metal: singular values and vectors.
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/_linalg_svd_meta.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/linalg/svd.h>
#include <metalops/checks.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <limits>
#include <optional>
#include <tuple>

namespace {

using at::Tensor;

std::tuple<Tensor&, Tensor&, Tensor&> svd_out(const Tensor& a, bool full_matrices, bool compute_uv,
                                              std::optional<c10::string_view> driver, Tensor& u,
                                              Tensor& values, Tensor& v_adjoint) {
  metalops::check_same_device("_linalg_svd",
                              {{a, "A"}, {u, "U"}, {values, "S"}, {v_adjoint, "Vh"}});
  metalops::StructuredOut<at::meta::structured__linalg_svd> call(u, values, v_adjoint);
  call.meta(a, full_matrices, compute_uv, driver);
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, "linalg_svd_mps", type);
  if (a.numel() == 0) {
    if (compute_uv && full_matrices) {
      for (const auto index : {0, 2}) {
        call.output(index).zero_();
        call.output(index).diagonal(0, -2, -1).fill_(1);
      }
    }
    call.write_back();
    return std::forward_as_tuple(u, values, v_adjoint);
  }
  TORCH_CHECK(!driver.has_value(),
              "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with "
              "cuSOLVER backend.");
  const auto m = a.size(-2);
  const auto n = a.size(-1);
  const auto matrices = a.resolve_neg().reshape({-1, m, n});
  TORCH_CHECK(matrices.size(0) <= std::numeric_limits<uint32_t>::max(),
              "linalg.svd: ", matrices.size(0), " matrices are too many for MPS");
  const auto infos = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  metalops::PlanRun run;
  const auto vectors = [&](const Tensor& x) {
    return run.batch_view(compute_uv ? x : Tensor(), 2);
  };
  metalops::plans::svd(run.plan(),
                       {.u = vectors(call.output(0)),
                        .values = run.batch_view(call.output(1), 1),
                        .v_adjoint = vectors(call.output(2)),
                        .infos = run.batch_view(infos, 0),
                        .a = run.view(matrices)},
                       metalops::plan_device());
  run.run();
  call.write_back();
  at::_linalg_check_errors(infos, "linalg.svd", a.dim() == 2);
  return std::forward_as_tuple(u, values, v_adjoint);
}

std::tuple<Tensor, Tensor, Tensor> svd_of(const Tensor& a, bool full_matrices, bool compute_uv,
                                          std::optional<c10::string_view> driver) {
  auto u = at::empty({0}, a.options());
  auto values = at::empty({0}, a.options().dtype(c10::toRealValueType(a.scalar_type())));
  auto v_adjoint = at::empty({0}, a.options());
  svd_out(a, full_matrices, compute_uv, driver, u, values, v_adjoint);
  return {std::move(u), std::move(values), std::move(v_adjoint)};
}

// The compositions of torch itself, for gradients to flow through.
std::tuple<Tensor, Tensor, Tensor> composed_svd(const Tensor& a, bool full_matrices,
                                                std::optional<c10::string_view> driver) {
  return at::_linalg_svd(a, full_matrices, true, driver);
}

std::tuple<Tensor&, Tensor&, Tensor&> composed_svd_out(const Tensor& a, bool full_matrices,
                                                       std::optional<c10::string_view> driver,
                                                       Tensor& u, Tensor& values,
                                                       Tensor& v_adjoint) {
  return at::_linalg_svd_out(u, values, v_adjoint, a, full_matrices, true, driver);
}

constexpr const char* kReason = "copies matrices to the CPU, and gradients only flow by a warning";

void register_compositions(metalops::AtenKernels m) {
  m.replace("linalg_svd", composed_svd, kReason);
  m.replace("linalg_svd.U", composed_svd_out, kReason);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  constexpr auto kOnCpu =
      "computes on the CPU what does not fit into a threadgroup's memory; the U of small singular "
      "values is not orthogonal";
  m.replace("_linalg_svd", svd_of, kOnCpu);
  m.replace("_linalg_svd.U", svd_out, kOnCpu);
  register_compositions(m);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, library) {
  register_compositions(metalops::AtenKernels(library, c10::DispatchKey::AutogradMPS));
}

}  // namespace

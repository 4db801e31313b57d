// Host side of kernels/linalg/eig.metal and eig_large.metal: eigenvalues and eigenvectors of
// general matrices.
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/linalg/eig.h>
#include <csrc/plans/linalg/eig_large.h>
#include <kernels/linalg/eig.h>
#include <kernels/linalg/eig_large.h>
#include <metalops/checks.h>
#include <metalops/stock.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace {

using at::Tensor;
namespace plans = metalops::plans;

// Waits for a sweep, and returns how many windows the next one has: the most of any matrix. Returns
// -1 if all eigenvalues are known.
int64_t windows_of(const Tensor& sweeps) {
  const auto known = sweeps.cpu();
  const auto* const states =
      reinterpret_cast<const metalops::SchurSweeps*>(known.const_data_ptr<int32_t>());
  int64_t windows = 0;
  bool is_done = true;
  for (int64_t i = 0; i < sweeps.size(0); ++i) {
    windows = std::max<int64_t>(windows, states[i].windows);
    is_done = is_done && states[i].high < 0;
  }
  return is_done ? -1 : windows;
}

// Computes eigenvalues and eigenvectors of matrices of any size, sweep after sweep. The arguments
// are those of find_eigenvalues().
void find_of_large(const Tensor& a, const Tensor& values, const Tensor& vectors,
                   const Tensor& infos) {
  metalops::PlanRun reduction;
  plans::eig_large_reduce(reduction.plan(),
                          {.infos = reduction.batch_view(infos, 0),
                           .a = reduction.view(a),
                           .with_vectors = vectors.defined()},
                          metalops::plan_device());
  reduction.run();
  const auto tensors = reduction.results();
  const auto state = [&](metalops::PlanRun& run) {
    return plans::EigLargeState{.h = run.view(tensors[0]),
                                .scales = run.view(tensors[1]),
                                .exponents = run.view(tensors[2]),
                                .sweeps = run.view(tensors[3]),
                                .transformations = run.view(tensors[4]),
                                .shifts = run.view(tensors[5]),
                                .q = vectors.defined() ? run.view(tensors[6]) : plans::View{}};
  };
  int64_t windows = 0;
  while (windows >= 0) {
    metalops::PlanRun sweep;
    plans::eig_large_sweep(
        sweep.plan(),
        {.state = state(sweep), .infos = sweep.batch_view(infos, 0), .windows = windows},
        metalops::plan_device());
    sweep.run();
    windows = windows_of(tensors[3]);
  }
  metalops::PlanRun results;
  plans::eig_large_results(results.plan(),
                           {.values = results.batch_view(values, 1),
                            .vectors = results.batch_view(vectors, 2),
                            .state = state(results)},
                           metalops::plan_device());
  results.run();
}

// Computes eigenvalues and eigenvectors. a: (batch, n, n); values: (*, n); vectors: (*, n, n) of
// contiguous columns, or undefined if they are not wanted; infos: (*).
void find_eigenvalues(const Tensor& a, const Tensor& values, const Tensor& vectors,
                      const Tensor& infos) {
  if (plans::is_large_for_eig(a.size(-1))) {
    find_of_large(a, values, vectors, infos);
    return;
  }
  metalops::PlanRun run;
  plans::eig(run.plan(),
             {.values = run.batch_view(values, 1),
              .vectors = run.batch_view(vectors, 2),
              .infos = run.batch_view(infos, 0),
              .a = run.view(a)},
             metalops::plan_device());
  run.run();
}

// Returns the eigenvalues, and the eigenvectors if they are wanted, else an empty tensor. name:
// torch's internal name of the operator, which its messages have.
std::pair<Tensor, Tensor> results_of(const Tensor& a, bool with_vectors, const char* name) {
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, "linalg_eig_mps", type);
  const auto n = a.size(-1);
  const auto options = a.options().dtype(at::kComplexFloat);
  auto values = at::empty(a.sizes().slice(0, a.dim() - 1), options);
  auto vectors = with_vectors ? at::empty(a.sizes(), options).mT() : at::empty({0}, options);
  if (a.numel() == 0) {
    return {values, vectors};
  }
  const auto matrices = a.resolve_neg().reshape({-1, n, n});
  TORCH_CHECK(matrices.size(0) <= std::numeric_limits<uint32_t>::max(), name, ": ",
              matrices.size(0), " matrices are too many for MPS");
  const auto infos = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  find_eigenvalues(matrices, values, with_vectors ? vectors : Tensor(), infos);
  const auto known = infos.cpu();
  TORCH_CHECK(!at::eq(known, metalops::kEigNotFinite).any().item<bool>(), name,
              ": input tensor should not contain infs or NaNs.");
  at::_linalg_check_errors(known, name, a.dim() == 2);
  return {values, vectors};
}

std::tuple<Tensor, Tensor> eig_of(const Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eig");
  at::toComplexType(self.scalar_type());  // raises for integers
  auto [values, vectors] = results_of(self, true, "torch.linalg.eig");
  return {std::move(values), std::move(vectors)};
}

std::tuple<Tensor&, Tensor&> eig_out(const Tensor& self, Tensor& values, Tensor& vectors) {
  constexpr const char* kName = "torch.linalg.eig";
  at::native::squareCheckInputs(self, "linalg.eig");
  const auto type = at::toComplexType(self.scalar_type());
  at::native::checkLinalgCompatibleDtype(kName, values.scalar_type(), type, "eigenvalues");
  at::native::checkLinalgCompatibleDtype(kName, vectors.scalar_type(), type, "eigenvectors");
  at::native::checkSameDevice(kName, values, self, "eigenvalues");
  at::native::checkSameDevice(kName, vectors, self, "eigenvectors");
  const auto [values_of_it, vectors_of_it] = results_of(self, true, kName);
  metalops::write_output(values_of_it, values);
  metalops::write_output(vectors_of_it, vectors);
  return {values, vectors};
}

Tensor eigvals_of(const Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eigvals");
  at::toComplexType(self.scalar_type());
  return results_of(self, false, "torch.linalg.eigvals").first;
}

Tensor& eigvals_out(const Tensor& self, Tensor& out) {
  constexpr const char* kName = "torch.linalg.eigvals";
  at::native::squareCheckInputs(self, "linalg.eigvals");
  const auto type = at::toComplexType(self.scalar_type());
  at::native::checkLinalgCompatibleDtype(kName, out.scalar_type(), type, "eigenvalues");
  at::native::checkSameDevice(kName, out, self, "eigenvalues");
  metalops::write_output(results_of(self, false, kName).first, out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("linalg_eig", eig_of);
  m.impl("linalg_eig.out", eig_out);
  m.impl("_linalg_eigvals", eigvals_of);
  m.impl("linalg_eigvals.out", eigvals_out);
}

}  // namespace

#include <csrc/plans/linalg/blocked_reduction.h>
#include <csrc/plans/linalg/eig_large.h>
#include <csrc/plans/linalg/hessenberg.h>
#include <csrc/plans/linalg/squares.h>
#include <kernels/linalg/eig_large.h>

#include <algorithm>

namespace metalops::plans {

namespace {

SchurParameters schur_parameters(const EigLargeState& state) {
  const auto& h = state.h;
  return {static_cast<int32_t>(h.size(1)), static_cast<int32_t>(h.size(2) * size_of(h.type) / 16),
          static_cast<bool>(state.q), 0, 0};
}

// Applies the transformations of windows to the rest of the matrices, and to Q.
void apply_windows(Plan& plan, const EigLargeState& state) {
  const auto& h = state.h;
  const auto groups = kSchurBlocks * ceil_div(h.size(1), int64_t{kSchurRows});
  plan.launch("eig_large", Name("eig_large_schur_apply_") + h.type,
              grid_of_threadgroups(groups * h.size(0), kSchurRows), h, state.q ? state.q : h,
              state.sweeps, state.transformations, schur_parameters(state));
}

// Computes the eigenvectors of the Schur form, in launches of some milliseconds each.
void substitute(Plan& plan, const EigLargeState& state, const View& vectors) {
  constexpr int64_t kMostProducts = int64_t{1} << 31;
  const auto& h = state.h;
  const auto batch = h.size(0);
  const auto n = h.size(1);
  const auto count = std::clamp<int64_t>(kMostProducts / std::max<int64_t>(n * n * batch, 1), 1, n);
  auto p = schur_parameters(state);
  for (int64_t first = 0; first < n; first += count) {
    p.first = static_cast<int32_t>(first);
    p.count = static_cast<int32_t>(std::min(count, n - first));
    plan.launch("eig_large", Name("eig_large_back_substitute_") + h.type,
                grid_of_threadgroups(batch * p.count, 32), vectors, h, p);
  }
}

}  // namespace

void eig_large_reduce(Plan& plan, const EigLargeReduce& call, const Device&) {
  constexpr int64_t kSweepInts = sizeof(SchurSweeps) / sizeof(int32_t);
  constexpr int64_t kSweepsOfRow = 30;  // after which the iteration has failed
  const auto a = plan.resolved(call.a);
  const auto batch = a.size(0);
  const auto n = a.size(1);
  const auto reduced = hessenberg(plan, a, squares_of(a, /*is_upper=*/false, call.with_vectors),
                                  call.with_vectors, call.infos);
  const auto sweeps = plan.zeros(Type::kInt, {batch, kSweepInts});
  plan.fill(sweeps.narrow(1, 1, 1), static_cast<double>(n - 1));
  plan.fill(sweeps.narrow(1, 2, 1), static_cast<double>(kSweepsOfRow * n));
  const int64_t window = a.type == Type::kComplexFloat ? kComplexSchurWindow : kSchurWindow;
  plan.add_result(reduced.h);
  plan.add_result(reduced.scales);
  plan.add_result(reduced.exponents);
  plan.add_result(sweeps);
  plan.add_result(plan.allocate(a.type, {batch, window, window}));
  plan.add_result(plan.allocate(Type::kFloat, {batch, kMostBulges, 4}));
  if (reduced.q) {
    plan.add_result(reduced.q);
  }
}

void eig_large_sweep(Plan& plan, const EigLargeSweep& call, const Device&) {
  const auto& state = call.state;
  const auto& [h, scales, exponents, sweeps, transformations, shifts, q] = state;
  const auto batch = h.size(0);
  const auto p = schur_parameters(state);
  // At most one simdgroup per bulge. Simdgroups cost the software device time, which matters less
  // beside the GEMMs the larger the matrix is.
  const auto chasing = std::clamp<int64_t>(h.size(1) / 128, 2, kMostBulges);
  for (int64_t i = 0; i < call.windows; ++i) {
    plan.launch("eig_large", Name("eig_large_schur_chase_") + h.type,
                grid_of_threadgroups(batch, 32 * chasing), sweeps, h, transformations, shifts, p);
    apply_windows(plan, state);
  }
  plan.launch("eig_large", Name("eig_large_schur_finish_") + h.type,
              grid_of_threadgroups(batch, 32), sweeps, h, transformations, call.infos, p);
  apply_windows(plan, state);
  plan.launch("eig_large", Name("eig_large_schur_begin_") + h.type, grid_of_threadgroups(batch, 32),
              sweeps, shifts, h, transformations, call.infos, p);
  apply_windows(plan, state);
}

void eig_large_results(Plan& plan, const EigLargeResults& call, const Device&) {
  const auto& state = call.state;
  const auto& h = state.h;
  const auto batch = h.size(0);
  const auto n = h.size(1);
  const auto p = schur_parameters(state);
  plan.launch("eig_large", Name("eig_large_values_") + h.type, grid_of_elements(n, batch, 1),
              call.values, h, state.exponents, p);
  if (!state.q) {
    return;
  }
  // The eigenvectors are products of the eigenvectors of the Schur form (`factors`) and the rows
  // of Q, as real matrices.
  const bool is_complex = h.type == Type::kComplexFloat;
  const auto rows = real_form(plan, state.q);
  const auto of_form = plan.allocate(h.type, {batch, is_complex ? n : 2 * n, h.size(2)});
  substitute(plan, state, of_form);
  const auto factors = of_form.narrow(2, 0, n).real_parts();
  const auto balanced = plan.allocate(rows.type, {batch, factors.size(1), rows.size(2)});
  plan.product(balanced, factors, rows, /*alpha=*/1, /*beta=*/0);
  plan.launch("eig_large", Name("eig_large_vectors_") + h.type, grid_of_elements(n * 32, batch, 1),
              call.vectors, balanced, h, state.scales, p);
}

}  // namespace metalops::plans

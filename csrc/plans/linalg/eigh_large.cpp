#include <csrc/plans/linalg/blocked_reduction.h>
#include <csrc/plans/linalg/eigh_large.h>
#include <csrc/plans/linalg/eigh_merge.h>

namespace metalops::plans {

namespace {

constexpr const char* kHermitian = "Hermitian_";
constexpr int32_t kEighNotFinite = 1;  // the info

// Reduces matrices to tridiagonal ones. matrices: scaled copies, by columns.
void tridiagonalise(Plan& plan, const BlockedReduction& reduction, const View& matrices,
                    const View& diagonals, const View& off_diagonals) {
  ColumnSteps steps(plan, reduction, /*kinds=*/2);
  const auto batch = reduction.batch;
  const int64_t panel{kReductionPanel};
  const auto panels = reduction.zero_panels(plan);
  const auto reduce_column = [&] {
    plan.launch("eigh_large", Name("eigh_large_column_") + reduction.type,
                grid_of_threadgroups(batch, steps.threads), matrices, reduction.reflectors, panels,
                steps.products, steps.overlaps, diagonals, off_diagonals, reduction.taus, steps.p);
  };
  steps.for_each(
      [&] {
        steps.p.from = steps.p.column + 1;
        reduce_column();
        if (!steps.is_last()) {
          steps.multiply(matrices, steps.p.from, reduction.reflectors, panels,
                         2 * steps.in_panel());
        }
      },
      [&](int64_t start, int64_t end) {
        reduce_column();
        // The rank-2k update of xHETRD, A -= V W^H + W V^H.
        const auto v = reduction.reflectors.narrow(1, start, panel);
        subtract_products(plan, matrices, end, {v, panels}, {panels, v});
      });
}

}  // namespace

void eigh_of_large(Plan& plan, const Eigh& call, const View& a,
                   const SquaresParameters& parameters) {
  const auto n = a.size(1);
  const BlockedReduction reduction(plan, a, parameters, kHermitian, /*sides=*/1, n - 1, call.infos,
                                   kEighNotFinite);
  const auto diagonals = plan.allocate(Type::kFloat, {a.size(0), n});
  const auto off_diagonals = plan.zeros(Type::kFloat, {a.size(0), n});
  {
    const Plan::Scope scope(plan);
    tridiagonalise(plan, reduction, reduction.load(plan, a, parameters, kHermitian), diagonals,
                   off_diagonals);
  }
  const auto found = eigh_of_tridiagonal(plan, diagonals, off_diagonals, parameters.with_vectors);
  const auto ranks = reduction.store_values(plan, call.values, found.values, "ascending");
  if (call.vectors) {
    plan.copy(call.vectors,
              reduction.ordered_vectors(plan, found.vectors, ranks).narrow(2, 0, n).mT());
  }
}

}  // namespace metalops::plans

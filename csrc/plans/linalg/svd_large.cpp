#include <csrc/plans/linalg/blocked_reduction.h>
#include <csrc/plans/linalg/svd_large.h>
#include <csrc/plans/linalg/svd_merge.h>

#include <array>

namespace metalops::plans {

namespace {

constexpr int32_t kSvdNotFinite = -4;  // the info, as LAPACK's xGESDD has it

using Sides = std::array<View, 2>;

// Returns the halves of (2 * batch, ...).
Sides sides_of(const View& both) {
  const auto batch = both.size(0) / 2;
  return {both.narrow(0, 0, batch), both.narrow(0, batch, batch)};
}

// Reduces matrices to bidiagonal ones, (2 * batch, n): the diagonals and the superdiagonals. Side 0
// is A's, with reflectors V and products X of the panel; side 1 is that of its adjoint, with U and
// Y.
void bidiagonalise(Plan& plan, const BlockedReduction& reduction, const Sides& matrices,
                   const Sides& bidiagonals) {
  const auto batch = reduction.batch;
  const int64_t panel{kReductionPanel};
  const auto vectors = sides_of(reduction.reflectors);
  const auto scales = sides_of(reduction.taus);
  const auto panels = sides_of(reduction.zero_panels(plan));
  ColumnSteps steps(plan, reduction, /*kinds=*/2);
  auto& p = steps.p;
  const auto reduce_column = [&](int64_t side) {
    plan.launch("svd_large", Name("svd_large_column_") + reduction.type,
                grid_of_threadgroups(batch, steps.threads), matrices[side], vectors[side],
                panels[side], steps.products, steps.overlaps, bidiagonals[side], scales[side],
                vectors[1 - side], panels[1 - side], scales[1 - side], p);
  };
  // Multiplies with the last reflector of this side.
  const auto multiply = [&](int64_t side) {
    steps.multiply(matrices[1 - side], p.from, vectors[side], panels[side],
                   2 * steps.in_panel() + side);
  };
  steps.for_each(
      [&] {
        p.from = p.column;
        reduce_column(0);
        if (!steps.is_last()) {
          multiply(0);
          p.from = p.column + 1;
          reduce_column(1);
          multiply(1);
        }
      },
      [&](int64_t start, int64_t end) {
        reduce_column(0);
        const auto v = vectors[0].narrow(1, start, panel);
        const auto u = vectors[1].narrow(1, start, panel);
        subtract_products(plan, matrices[0], end, {v, panels[0]}, {panels[1], u});
        subtract_products(plan, matrices[1], end, {panels[1], u}, {v, panels[0]});
      });
}

}  // namespace

void svd_of_large(Plan& plan, const Svd& call, const View& a, const SquaresParameters& parameters) {
  const auto batch = a.size(0);
  const auto n = a.size(1);
  const BlockedReduction reduction(plan, a, parameters, "General_", /*sides=*/2, n, call.infos,
                                   kSvdNotFinite);
  const auto bidiagonals = plan.zeros(Type::kFloat, {2, batch, n});
  {
    const Plan::Scope scope(plan);
    bidiagonalise(plan, reduction,
                  {reduction.load(plan, a, parameters, "General_"),
                   reduction.load(plan, a, parameters, "Adjoint_")},
                  {bidiagonals.narrow(0, 0, 1), bidiagonals.narrow(0, 1, 1)});
  }
  const auto found = svd_of_bidiagonal(plan, bidiagonals, parameters.with_vectors);
  const auto ranks = reduction.store_values(plan, call.values, found.values, "descending");
  if (call.u) {
    const auto [lefts, rights] =
        sides_of(reduction.ordered_vectors(plan, found.vectors, ranks).narrow(2, 0, n));
    plan.copy(call.u, lefts.mT());
    plan.copy(call.v_adjoint, rights.mT().mH());
  }
}

}  // namespace metalops::plans

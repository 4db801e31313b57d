#include <csrc/plans/linalg/blocked_reduction.h>
#include <csrc/plans/linalg/hessenberg.h>
#include <kernels/linalg/eig.h>

#include <utility>

namespace metalops::plans {

namespace {

constexpr const char* kGeneral = "General_";

struct HessenbergReduction : BlockedReduction {
  HessenbergReduction(Plan& plan, const View& a, const SquaresParameters& parameters,
                      const View& infos)
      : BlockedReduction(plan, a, parameters, kGeneral, 1, a.size(1), infos, kEigNotFinite),
        plan(plan),
        parameters(parameters),
        matrices(load(plan, a, parameters, kGeneral)),
        scales(plan.allocate(infos.type, {batch, n})) {}

  void balance() const {
    constexpr int kSteps = 16;
    const Plan::Scope scope(plan);
    const auto of_columns = static_cast<int32_t>(stride);
    const auto shifts = plan.allocate(infos.type, {batch});
    const auto levels = plan.allocate(infos.type, {batch, n, 2});
    auto known = plan.zeros(infos.type, {batch, n});
    auto next = scales;
    for (int step = 0; step < kSteps; ++step) {
      plan.launch("hessenberg", Name("hessenberg_balance_") + type, grid_of_elements(n, batch, 1),
                  next, levels, known, matrices, parameters, of_columns);
      std::swap(known, next);
    }
    static_assert(kSteps % 2 == 0, "the last step read `scales`, of which its levels are");
    plan.launch("hessenberg", "hessenberg_accept", grid_of_threadgroups(batch, 32), scales, shifts,
                exponents, levels, parameters);
    plan.launch("hessenberg", Name("hessenberg_scale_") + type, grid_of_elements(stride, n, batch),
                matrices, scales, shifts, parameters, of_columns);
  }

  void reduce() const {
    const Plan::Scope scope(plan);
    ColumnSteps steps(plan, *this, 1);
    const int64_t panel{kReductionPanel};
    const auto panels = zero_panels(plan);
    const auto t = plan.allocate(type, {batch, panel, panel});
    const auto reduce_column = [&] {
      plan.launch("hessenberg", Name("hessenberg_column_") + type,
                  grid_of_threadgroups(batch, steps.threads), matrices, reflectors, panels,
                  steps.products, steps.overlaps, t, taus, steps.p);
    };
    steps.for_each(
        [&] {
          steps.p.from = steps.p.column + 1;
          reduce_column();
          steps.multiply(matrices, 0, reflectors, panels, steps.in_panel());
        },
        [&](int64_t start, int64_t end) {
          reduce_column();
          update(panels, start, end);
        });
  }

  // A -= Y V^H, then A -= V T^H V^H A, in the columns from `from` on.
  void update(const View& panels, int64_t start, int64_t from) const {
    const auto v = reflectors.narrow(1, start, kReductionPanel);
    const auto columns = matrices.narrow(1, from, n - from);
    {
      const Plan::Scope scope(plan);
      const auto factors = conjugate_factors(plan, v.narrow(2, from, n - from));
      plan.product(columns.real_parts(), factors, real_form(plan, panels), /*alpha=*/-1,
                   /*beta=*/1);
    }
    apply_block_reflector(plan, columns, reflectors, taus, start, /*is_adjoint=*/true);
  }

  // Returns Q.
  View product() const {
    const auto q = plan.allocate(type, {batch, n, row});
    plan.fill_identity(q);
    multiply_by_q(plan, q, reflectors, taus);
    return q;
  }

  Plan& plan;
  SquaresParameters parameters;
  View matrices;
  View scales;
};

}  // namespace

Hessenberg hessenberg(Plan& plan, const View& a, const SquaresParameters& parameters, bool with_q,
                      const View& infos) {
  const HessenbergReduction reduction(plan, a, parameters, infos);
  reduction.balance();
  reduction.reduce();
  return {reduction.matrices, with_q ? reduction.product() : View{}, reduction.scales,
          reduction.exponents};
}

}  // namespace metalops::plans

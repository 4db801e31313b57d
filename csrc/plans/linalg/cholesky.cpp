#include <csrc/plans/linalg/cholesky.h>
#include <csrc/plans/linalg/matrices.h>
#include <csrc/plans/linalg/triangular.h>
#include <kernels/linalg/cholesky.h>

#include <algorithm>

namespace metalops::plans {

namespace {

CholeskyParameters cholesky_parameters(const View& matrices, int64_t first, int64_t rows) {
  const auto pack = pack_of(matrices);
  return {matrices.stride(1) / pack, matrices.stride(0) / pack, static_cast<uint32_t>(first),
          static_cast<uint32_t>(rows)};
}

// Factors `rows` rows from `first` on, in place: they become rows of U, in all columns. The
// products of the rows above have been subtracted from them. matrices: (batch, n, n) of
// padded_rows(). infos: (batch), zero where nothing has failed so far.
void factor_rows(Plan& plan, const Device& device, const View& matrices, const View& infos,
                 int64_t first, int64_t rows) {
  constexpr int64_t kManyMatrices = 16;  // a GPU works on several of them at a time anyway
  const auto n = matrices.size(1);
  const auto own = matrices.narrow(1, first, rows);
  if (rows <= int64_t{kCholeskyBlockRows}) {
    const uint64_t threads = matrices.size(0) < kManyMatrices ? 64 : 32;
    plan.launch("cholesky", Name("cholesky_block_") + matrices.type,
                grid_of_threadgroups(matrices.size(0), threads), matrices, infos,
                cholesky_parameters(matrices, first, rows));
    const auto end = first + rows;
    solve_triangular(plan, own.narrow(2, first, rows).mH(), {.is_upper = false},
                     own.narrow(2, end, n - end), device);
    return;
  }
  const auto half = round_up(rows / 2, int64_t{kCholeskyBlockRows});
  const auto middle = first + half;
  const auto known = own.narrow(1, 0, half).narrow(2, middle, n - middle);
  factor_rows(plan, device, matrices, infos, first, half);
  plan.product(own.narrow(1, half, rows - half).narrow(2, middle, n - middle),
               known.narrow(2, 0, rows - half).mH(), known, /*alpha=*/-1, /*beta=*/1);
  factor_rows(plan, device, matrices, infos, middle, rows - half);
}

// Matrices that are factored by panels whose columns are in registers.
struct PanelFactorisation {
  Plan& plan;
  View factors;   // (batch, n, n), zeros at first: becomes U
  View matrices;  // likewise, A, which is changed
  View infos;     // (batch), zeros

  // Factors `rows` rows from `first` on. The products of the rows above have been subtracted from
  // them.
  void factor(int64_t first, int64_t rows) const {
    const auto most =
        int64_t{matrices.type == Type::kFloat ? kCholeskyPanelRows : kComplexCholeskyPanelRows};
    if (rows <= most) {
      launch(first, rows);
      return;
    }
    const auto n = matrices.size(1);
    const auto half = round_up(rows / 2, most);
    const auto middle = first + half;
    const auto known = factors.narrow(1, first, half).narrow(2, middle, n - middle);
    factor(first, half);
    plan.product(matrices.narrow(1, middle, rows - half).narrow(2, middle, n - middle),
                 known.narrow(2, 0, rows - half).mH(), known, /*alpha=*/-1, /*beta=*/1);
    factor(middle, rows - half);
  }

 private:
  void launch(int64_t first, int64_t rows) const {
    const auto columns = matrices.size(1) - first;
    const auto of_block = round_up(rows, 32);
    const auto others = std::min(round_up(columns - rows, 32), int64_t{kCholeskyPanelColumns});
    const auto groups = others == 0 ? 1 : ceil_div(columns - rows, others);
    plan.launch("cholesky", Name("cholesky_panel_") + (rows <= 32 ? "32_" : "64_") + matrices.type,
                grid_of_threadgroups(groups * matrices.size(0), of_block + others), factors, infos,
                matrices,
                CholeskyPanelParameters{matrices.stride(1), matrices.stride(0), to_uint32(first),
                                        to_uint32(rows), to_uint32(columns), to_uint32(groups),
                                        to_uint32(of_block), /*padding=*/0});
  }
};

// Factors matrices on a GPU. A CPU's threads have too few registers for columns of panels.
void factor_by_panels(Plan& plan, const Cholesky& call, const Device& device) {
  const auto n = call.a.size(1);
  const auto matrices = padded_rows(plan, call.upper ? call.a : call.a.mH());
  const auto factors =
      plan.zeros(matrices.type, {matrices.size(0), n, matrices.stride(1)}).narrow(2, 0, n);
  plan.fill(call.infos, 0);
  in_launches(matrices.size(0), steps_of_panel(n, n), device, [&](int64_t first, int64_t count) {
    const auto own = [&](const View& x) { return x.narrow(0, first, count); };
    PanelFactorisation{plan, own(factors), own(matrices), own(call.infos)}.factor(0, n);
  });
  plan.copy(call.factors, call.upper ? factors : factors.mH());
}

}  // namespace

void cholesky(Plan& plan, const Cholesky& call, const Device& device) {
  if (fits_lanes(call.a)) {
    small_matrices(plan, device, "cholesky", call.factors, call.a,
                   call.upper ? SmallMatricesMode::kUpper : SmallMatricesMode::kPlain,
                   /*is_transposed=*/!call.upper, call.infos);
    return;
  }
  if (!device.a_thread_for_each_element) {
    factor_by_panels(plan, call, device);
    return;
  }
  const auto n = call.a.size(1);
  const auto matrices = padded_rows(plan, call.upper ? call.a : call.a.mH());
  plan.fill(call.infos, 0);
  in_launches(matrices.size(0), steps_of_panel(n, n), device, [&](int64_t first, int64_t count) {
    factor_rows(plan, device, matrices.narrow(0, first, count), call.infos.narrow(0, first, count),
                0, n);
  });
  plan.launch("cholesky", Name("cholesky_clear_lower_") + matrices.type,
              grid_of_elements(ceil_div(n, pack_of(matrices)), n, matrices.size(0)), matrices,
              cholesky_parameters(matrices, 0, n));
  plan.copy(call.factors, call.upper ? matrices : matrices.mH());
}

}  // namespace metalops::plans

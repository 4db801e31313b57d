#include <csrc/plans/linalg/cholesky.h>
#include <csrc/plans/linalg/matrices.h>
#include <csrc/plans/linalg/triangular.h>
#include <kernels/linalg/cholesky.h>

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

}  // namespace

void cholesky(Plan& plan, const Cholesky& call, const Device& device) {
  if (fits_lanes(call.a)) {
    small_matrices(plan, device, "cholesky", call.factors, call.a,
                   call.upper ? SmallMatricesMode::kUpper : SmallMatricesMode::kPlain,
                   /*is_transposed=*/!call.upper, call.infos);
    return;
  }
  const auto n = call.a.size(1);
  const auto matrices = padded_rows(plan, call.upper ? call.a : call.a.mH());
  plan.fill(call.infos, 0);
  in_launches(matrices.size(0), steps_of_panel(n, n), device, [&](int64_t first, int64_t count) {
    factor_rows(plan, device, matrices.narrow(0, first, count),
                call.infos.narrow(0, first, count), 0, n);
  });
  plan.launch("cholesky", Name("cholesky_clear_lower_") + matrices.type,
              grid_of_elements(ceil_div(n, pack_of(matrices)), n, matrices.size(0)), matrices,
              cholesky_parameters(matrices, 0, n));
  plan.copy(call.factors, call.upper ? matrices : matrices.mH());
}

}  // namespace metalops::plans

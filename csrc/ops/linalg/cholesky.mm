// Host side of kernels/linalg/cholesky.metal: Cholesky factorisation A = U^H U of matrices of any
// size, recursive as LAPACK's xPOTRF2 until a kernel factors a block of rows, and the solutions and
// inverses computed from it.
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex_meta.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/cholesky.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>
#include <metalops/views.h>

#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>
#include <csrc/ops/linalg/triangular.h>

namespace {

using at::Tensor;
using metalops::SmallMatricesMode;

constexpr metalops::Triangle kLower{/*is_upper=*/false};
constexpr metalops::Triangle kUpper{/*is_upper=*/true};

metalops::CholeskyParameters parameters_of(const Tensor& matrices, int64_t first, int64_t rows) {
  const auto pack = metalops::pack_of(matrices);
  return {matrices.stride(1) / pack, matrices.stride(0) / pack, static_cast<uint32_t>(first),
          static_cast<uint32_t>(rows)};
}

// Factors `rows` rows from `first` on, in place: they become rows of U, in all columns. The
// products of the rows above have been subtracted from them. matrices: (batch, n, n) of
// padded_rows(). infos: (batch), zero where nothing has failed so far.
void factor(const Tensor& matrices, const Tensor& infos, int64_t first, int64_t rows) {
  constexpr int64_t kManyMatrices = 16;  // a GPU works on several of them at a time anyway
  const auto n = matrices.size(1);
  const auto own = matrices.narrow(1, first, rows);
  if (rows <= metalops::kCholeskyBlockRows) {
    const uint64_t threads = matrices.size(0) < kManyMatrices ? 64 : 32;
    metalops::launch_threadgroups(
        metalops::library("cholesky"), metalops::typed_kernel("cholesky_block_", matrices),
        matrices.size(0), threads, matrices, infos, parameters_of(matrices, first, rows));
    const auto end = first + rows;
    metalops::solve_triangular_(own.narrow(2, first, rows).mH(), kLower,
                                own.narrow(2, end, n - end));
    return;
  }
  const auto half = c10::metal::round_up(rows / 2, int64_t{metalops::kCholeskyBlockRows});
  const auto middle = first + half;
  const auto known = own.narrow(1, 0, half).narrow(2, middle, n - middle);
  factor(matrices, infos, first, half);
  own.narrow(1, half, rows - half)
      .narrow(2, middle, n - middle)
      .sub_(at::bmm(known.narrow(2, 0, rows - half).mH(), known));
  factor(matrices, infos, middle, rows - half);
}

// Writes the factors to `result` and the infos to `infos`, which have the sizes of `a` and of its
// batch, and any strides.
void factor_to(const Tensor& a, bool upper, const Tensor& result, const Tensor& infos) {
  if (a.numel() != 0 && metalops::fits_lanes(a)) {
    metalops::write_contiguous(infos, [&](const Tensor& own_infos) {
      metalops::launch_small_matrices("cholesky", result, a,
                                      upper ? SmallMatricesMode::kUpper : SmallMatricesMode::kPlain,
                                      /*is_transposed=*/!upper, own_infos);
    });
    return;
  }
  const auto own_infos = at::zeros(infos.sizes(), infos.options());
  if (a.numel() != 0) {
    const auto n = a.size(-1);
    const auto matrices = metalops::padded_rows(upper ? a : a.mH());
    const auto infos_of_batch = own_infos.view({-1});
    const auto steps = metalops::steps_of_panel(n, n);
    metalops::in_launches(matrices.size(0), steps, [&](int64_t first, int64_t count) {
      factor(matrices.narrow(0, first, count), infos_of_batch.narrow(0, first, count), 0, n);
    });
    const auto pack = metalops::pack_of(matrices);
    metalops::launch_grid(metalops::library("cholesky"),
                          metalops::typed_kernel("cholesky_clear_lower_", matrices),
                          {static_cast<uint64_t>(c10::metal::ceil_div(n, pack)),
                           static_cast<uint64_t>(n), static_cast<uint64_t>(matrices.size(0))},
                          matrices, parameters_of(matrices, 0, n));
    const auto factors = matrices.view(a.sizes());
    result.copy_(upper ? factors : factors.mH());
  }
  infos.copy_(own_infos);
}

void check_type(const char* name, const Tensor& a) {
  at::native::checkFloatingOrComplex(a, name, /*allow_low_precision_dtypes=*/false);
}

Tensor with_columns_together(const Tensor& like) {
  return at::empty(like.mT().sizes(), like.options()).mT();
}

std::tuple<Tensor&, Tensor&> cholesky_ex_out(const Tensor& self, bool upper, bool check_errors,
                                             Tensor& L, Tensor& info) {
  metalops::check_same_device("linalg_cholesky_ex", {{L, "L"}, {info, "info"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_linalg_cholesky_ex>(L, info).meta(self, upper,
                                                                                 check_errors);
  check_type("linalg.cholesky_ex", self);
  factor_to(self, upper, L, info);
  if (check_errors) {
    at::_linalg_check_errors(info, "linalg.cholesky_ex", self.dim() == 2);
  }
  return {L, info};
}

std::tuple<Tensor, Tensor> cholesky_ex(const Tensor& self, bool upper, bool check_errors) {
  auto factors = at::empty({0}, self.options());
  auto infos = at::empty({0}, self.options().dtype(at::kInt));
  cholesky_ex_out(self, upper, check_errors, factors, infos);
  return {factors, infos};
}

Tensor factored(const Tensor& self, bool upper) {
  constexpr const char* kName = "cholesky";
  if (self.numel() == 0) {
    return at::empty_like(self, at::MemoryFormat::Contiguous);
  }
  at::native::squareCheckInputs(self, kName);
  check_type(kName, self);
  const auto result = with_columns_together(self);
  const auto infos =
      at::empty(self.sizes().slice(0, self.dim() - 2), self.options().dtype(at::kInt));
  factor_to(self, upper, result, infos);
  at::_linalg_check_errors(infos, kName, self.dim() == 2);
  return result;
}

Tensor& copied(const char* name, const Tensor& result, Tensor& out) {
  metalops::check_same_device(name, {{out, "out"}, {result, "self"}});
  at::native::checkLinalgCompatibleDtype(name, out, result);
  metalops::resize_and_copy(result, out);
  return out;
}

Tensor& factored_out(const Tensor& self, bool upper, Tensor& out) {
  return copied("cholesky", factored(self, upper), out);
}

// Solves L L^H X = B in place. x: (batch, n, columns) of padded_rows(). lower: (batch, n, n).
void solve_with_factor(const Tensor& lower, const Tensor& x) {
  metalops::solve_triangular_(lower, kLower, x);
  metalops::solve_triangular_(lower.mH(), kUpper, x);
}

Tensor inverse_of_factored(const Tensor& self, bool upper) {
  constexpr const char* kName = "cholesky_inverse";
  at::native::squareCheckInputs(self, kName);
  check_type(kName, self);
  const auto result = with_columns_together(self);
  if (result.numel() != 0) {
    const auto batch = metalops::as_batch(self.resolve_neg());
    const auto identity = at::eye(self.size(-1), self.options()).expand(batch.sizes());
    const auto x = metalops::padded_rows(identity);
    metalops::solve_triangular_(upper ? batch.mH() : batch, kLower, x);
    result.copy_(at::bmm(x.mH(), x).view(self.sizes()));
  }
  return result;
}

Tensor& inverse_of_factored_out(const Tensor& self, bool upper, Tensor& out) {
  return copied("cholesky_inverse", inverse_of_factored(self, upper), out);
}

// Solves A X = B with the factor A. Both arguments have the same batch: torch broadcasts them
// before.
Tensor solved(const Tensor& self, const Tensor& A, bool upper) {
  check_type("cholesky_solve", A);
  const auto result = with_columns_together(self);
  if (result.numel() != 0) {
    const auto batch = metalops::as_batch(A.resolve_neg());
    const auto x = metalops::padded_rows(self);
    solve_with_factor(upper ? batch.mH() : batch, x);
    result.copy_(x.view(self.sizes()));
  }
  return result;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  constexpr const char* kReason =
      "takes complex matrices for real ones or refuses them, and small pivots for larger ones";
  metalops::AtenKernels m(library);
  m.replace("linalg_cholesky_ex", cholesky_ex, kReason);
  m.replace("linalg_cholesky_ex.L", cholesky_ex_out, kReason);
  m.replace("cholesky", factored, kReason);
  m.replace("cholesky.out", factored_out, kReason);
  m.replace("cholesky_inverse", inverse_of_factored, kReason);
  m.replace("cholesky_inverse.out", inverse_of_factored_out, kReason);
  m.replace("_cholesky_solve_helper", solved, kReason);
}

}  // namespace

// Host side of kernels/linalg/cholesky.metal: Cholesky factorisation A = U^H U of matrices of any
// size, and the solutions and inverses computed from it.
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
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/linalg/cholesky.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>
#include <metalops/views.h>

#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>
#include <csrc/ops/linalg/triangular.h>

namespace {

using at::Tensor;

constexpr metalops::Triangle kLower{/*is_upper=*/false};
constexpr metalops::Triangle kUpper{/*is_upper=*/true};

// Writes the factors to `result` and the infos to `infos`, which have the sizes of `a` and of its
// batch, and any strides.
void factor_to(const Tensor& a, bool upper, const Tensor& result, const Tensor& infos) {
  metalops::write_contiguous(infos, [&](const Tensor& own_infos) {
    if (a.numel() == 0) {
      own_infos.zero_();
      return;
    }
    metalops::write_batch(result, [&](const Tensor& factors) {
      metalops::PlanRun run;
      metalops::plans::cholesky(run.plan(),
                                {.factors = run.view(factors),
                                 .infos = run.batch_view(own_infos, 0),
                                 .a = run.view(metalops::as_batch(a.resolve_neg())),
                                 .upper = upper},
                                metalops::plan_device());
      run.run();
    });
  });
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

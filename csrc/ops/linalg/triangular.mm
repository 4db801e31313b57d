// Host side of kernels/linalg/triangular.metal: triangular systems (xTRSM) of any size.
#include <csrc/ops/linalg/triangular.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/triangular_solve_meta.h>
#include <csrc/ops/common/run_plan.h>
#include <kernels/linalg/triangular.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>

void metalops::solve_triangular_(const at::Tensor& a, Triangle triangle, const at::Tensor& x) {
  PlanRun run;
  plans::solve_triangular(run.plan(), run.view(a), triangle, run.view(x), plan_device());
  run.run();
}

namespace {

using at::Tensor;

// Solves A X = B, or X A = B if not `left`, and writes X to `result`, of the sizes of B. A and B
// are broadcast.
void solve(const Tensor& a, const Tensor& b, bool left, metalops::Triangle triangle,
           const Tensor& result) {
  if (result.numel() == 0) {
    return;
  }
  // X A = B is A^T X^T = B^T.
  triangle.is_upper = triangle.is_upper == left;
  if (metalops::fits_thread(a)) {
    const auto mode = (triangle.is_upper ? metalops::kUpperTriangle : 0) |
                      (triangle.is_unit ? metalops::kUnitTriangle : 0);
    metalops::launch_small_systems("triangular", "triangular", result, a, /*is_transposed=*/!left,
                                   /*is_conjugated=*/false, b, left, mode);
    return;
  }
  const auto x = metalops::padded_rows(left ? b : b.mT());
  const auto matrices = metalops::as_batch(a.resolve_neg());
  metalops::solve_triangular_(left ? matrices : matrices.mT(), triangle, x);
  (left ? result : result.mT()).copy_(x.view((left ? b : b.mT()).sizes()));
}

Tensor& solve_triangular_out(const Tensor& self, const Tensor& B, bool upper, bool left,
                             bool unitriangular, Tensor& out) {
  constexpr const char* kName = "linalg.solve_triangular";
  metalops::check_same_device(kName, {{out, "out"}, {self, "A"}, {B, "B"}});
  at::native::checkInputsSolver(self, B, left, kName);
  at::native::checkFloatingOrComplex(self, kName, /*allow_low_precision_dtypes=*/false);
  TORCH_CHECK(self.scalar_type() == B.scalar_type(), kName,
              ": Expected A and B to have the same dtype, but found A of type ", self.scalar_type(),
              " and B of type ", B.scalar_type(), " instead");
  TORCH_CHECK(out.scalar_type() == B.scalar_type(), kName, ": Expected out of dtype ",
              B.scalar_type(), ", but got ", out.scalar_type());
  const auto [b, a] = at::native::_linalg_broadcast_batch_dims(B, self, /*name=*/nullptr);
  // As in torch, the result is stored by columns unless that would have cost a copy of A.
  if (a.mT().is_contiguous() && a.is_conj()) {
    at::native::resize_output(out, b.sizes());
  } else if (at::native::resize_output_check(out, b.sizes())) {
    out.resize_(b.mT().sizes(), at::MemoryFormat::Contiguous);
    out.transpose_(-2, -1);
  }
  solve(a, b, left, {upper, unitriangular}, out);
  return out;
}

Tensor solve_triangular(const Tensor& self, const Tensor& B, bool upper, bool left,
                        bool unitriangular) {
  auto out = at::empty({0}, self.options());
  return solve_triangular_out(self, B, upper, left, unitriangular, out);
}

std::tuple<Tensor&, Tensor&> triangular_solve_out(const Tensor& self, const Tensor& A, bool upper,
                                                  bool transpose, bool unitriangular, Tensor& X,
                                                  Tensor& M) {
  constexpr const char* kName = "triangular_solve";
  metalops::check_same_device(kName, {{X, "X"}, {M, "M"}, {self, "self"}, {A, "A"}});
  metalops::StructuredOut<at::meta::structured_triangular_solve> call(X, M);
  call.meta(self, A, upper, transpose, unitriangular);
  at::native::checkFloatingOrComplex(A, kName, /*allow_low_precision_dtypes=*/false);
  const auto a = A.expand(call.output(1).sizes());
  const auto b = self.expand(call.output(0).sizes());
  solve(transpose ? a.mT() : a, b, /*left=*/true, {upper != transpose, unitriangular},
        call.output(0));
  call.output(1).copy_(a);
  call.write_back();
  return {X, M};
}

std::tuple<Tensor, Tensor> triangular_solve(const Tensor& self, const Tensor& A, bool upper,
                                            bool transpose, bool unitriangular) {
  auto x = at::empty({0}, self.options());
  auto m = at::empty({0}, A.options());
  triangular_solve_out(self, A, upper, transpose, unitriangular, x, m);
  return {x, m};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  constexpr const char* kReason =
      "refuses complex matrices, and takes the number of matrices from one of its arguments";
  metalops::AtenKernels m(library);
  m.replace("linalg_solve_triangular", solve_triangular, kReason);
  m.replace("linalg_solve_triangular.out", solve_triangular_out, kReason);
  m.replace("triangular_solve", triangular_solve, kReason);
  m.replace("triangular_solve.X", triangular_solve_out, kReason);
}

}  // namespace

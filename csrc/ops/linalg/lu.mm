// Host side of kernels/linalg/lu.metal: LU factorisation with partial pivoting, and the solutions,
// inverses and determinants computed from it.
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_det_meta.h>
#include <ATen/ops/_linalg_slogdet_meta.h>
#include <ATen/ops/_linalg_solve_ex_meta.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_inv_ex_meta.h>
#include <ATen/ops/linalg_lu_factor_ex_meta.h>
#include <ATen/ops/linalg_lu_meta.h>
#include <ATen/ops/linalg_lu_solve_meta.h>
#include <ATen/ops/lu_unpack.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/plans/linalg/lu.h>
#include <kernels/linalg/lu.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/structured.h>
#include <metalops/views.h>

#include <algorithm>
#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>
#include <csrc/ops/linalg/triangular.h>

namespace {

using at::Tensor;
using metalops::KernelName;

// Factors a. The outputs have their sizes and any strides.
void factor_to(const Tensor& a, bool is_pivoted, const Tensor& factors, const Tensor& pivots,
               const Tensor& infos) {
  metalops::write_contiguous(infos, [&](const Tensor& own_infos) {
    if (a.numel() == 0) {
      own_infos.zero_();
      return;
    }
    metalops::write_contiguous(pivots, [&](const Tensor& own_pivots) {
      metalops::write_batch(factors, [&](const Tensor& own_factors) {
        metalops::PlanRun run;
        metalops::plans::lu_factor(run.plan(),
                                   {.factors = run.view(own_factors),
                                    .pivots = run.batch_view(own_pivots, 1),
                                    .infos = run.batch_view(own_infos, 0),
                                    .a = run.view(metalops::as_batch(a.resolve_neg())),
                                    .is_pivoted = is_pivoted},
                                   metalops::plan_device());
        run.run();
      });
    });
  });
}

// Solves A X = B, or X A = B if not `left`, with A or its adjoint. Writes X to `result`, which has
// the broadcast sizes and any strides.
void solve_to(const Tensor& factors, const Tensor& pivots, const Tensor& b, bool left, bool adjoint,
              const Tensor& result) {
  if (result.numel() == 0) {
    return;
  }
  const auto n = factors.size(-1);
  const auto right = b.expand(result.sizes());
  const auto own_pivots = metalops::broadcast_batch(pivots, result, {n}).contiguous();
  const bool is_transposed = left == adjoint;  // X A = B is the transpose of A^T X^T = B^T
  if (metalops::fits_thread(factors)) {
    metalops::launch_small_systems("lu", "lu_solve", result, factors, is_transposed, adjoint, right,
                                   left, is_transposed ? metalops::kLuTransposed : 0, own_pivots,
                                   metalops::kErrorBuffer);
    return;
  }
  const auto resolved = factors.resolve_neg();
  const auto a = metalops::broadcast_batch(adjoint ? resolved.conj() : resolved, result, {n, n});
  const auto of_left = left ? right : right.mT();
  metalops::write_batch(left ? result : result.mT(), [&](const Tensor& x) {
    metalops::PlanRun run;
    metalops::plans::lu_solve(run.plan(),
                              {.x = run.view(x),
                               .factors = run.view(a),
                               .pivots = run.view(own_pivots),
                               .b = run.view(metalops::as_batch(of_left.resolve_neg())),
                               .is_transposed = is_transposed},
                              metalops::plan_device());
    run.run();
  });
}

// Returns A or, because det(A^T) = det(A), A^T, whichever torch's derivatives of determinants
// expect the factors of: the one that is stored by columns.
Tensor by_columns(const Tensor& a) { return a.is_contiguous() && !a.is_complex() ? a.mT() : a; }

// Launches kernel "lu_determinant" or "lu_log_determinant", which writes `results`, contiguous.
template <class... Results>
void launch_determinants(const char* kernel, const Tensor& factors, const Tensor& pivots,
                         const Results&... results) {
  constexpr int64_t kMostOfThread = 64;
  const auto matrices = metalops::as_batch(factors);
  // Matrices without elements have no memory: their stride must be 0.
  const metalops::LuDeterminantParameters p{
      matrices.numel() == 0 ? 0 : matrices.stride(0), matrices.stride(1) + matrices.stride(2),
      static_cast<uint32_t>(matrices.size(0)), static_cast<uint32_t>(matrices.size(1))};
  const auto own_pivots = pivots.contiguous();
  auto& library = metalops::library("lu");
  const auto type = metalops::metal_type(factors.scalar_type());
  if (matrices.size(1) <= kMostOfThread) {
    metalops::launch_threads(library, KernelName(kernel) + "_thread_" + type, matrices.size(0),
                             results..., matrices, own_pivots, p);
  } else {
    metalops::launch_simdgroups(library, KernelName(kernel) + "_simdgroup_" + type,
                                matrices.size(0), results..., matrices, own_pivots, p);
  }
}

void check_type(const char* name, const Tensor& a) {
  at::native::checkFloatingOrComplex(a, name, /*allow_low_precision_dtypes=*/false);
}

std::tuple<Tensor&, Tensor&, Tensor&> lu_factor_ex_out(const Tensor& A, bool pivot,
                                                       bool check_errors, Tensor& LU,
                                                       Tensor& pivots, Tensor& info) {
  metalops::check_same_device("linalg_lu_factor_ex",
                              {{LU, "LU"}, {pivots, "pivots"}, {info, "info"}, {A, "A"}});
  metalops::StructuredOut<at::meta::structured_linalg_lu_factor_ex> call(LU, pivots, info);
  call.meta(A, pivot, check_errors);
  check_type("torch.linalg.lu_factor_ex", A);
  factor_to(A, pivot, LU, pivots, info);
  if (check_errors) {
    at::_linalg_check_errors(info, "torch.linalg.lu_factor_ex", A.dim() == 2);
  }
  return {LU, pivots, info};
}

std::tuple<Tensor&, Tensor&, Tensor&> lu_out(const Tensor& A, bool pivot, Tensor& P, Tensor& L,
                                             Tensor& U) {
  metalops::check_same_device("linalg_lu", {{P, "P"}, {L, "L"}, {U, "U"}, {A, "A"}});
  metalops::StructuredOut<at::meta::structured_linalg_lu> call(P, L, U);
  call.meta(A, pivot);
  check_type("linalg.lu", A);
  const auto sizes = A.sizes();
  const auto integers = A.options().dtype(at::kInt);
  auto pivot_sizes = sizes.slice(0, A.dim() - 1).vec();
  pivot_sizes.back() = std::min(A.size(-2), A.size(-1));
  const auto factors = at::empty(sizes, A.options());
  const auto pivots = at::empty(pivot_sizes, integers);
  factor_to(A, pivot, factors, pivots, at::empty(sizes.slice(0, A.dim() - 2), integers));
  at::lu_unpack_out(P, L, U, factors, pivots, /*unpack_data=*/true, /*unpack_pivots=*/pivot);
  return {P, L, U};
}

Tensor& lu_solve_out(const Tensor& LU, const Tensor& pivots, const Tensor& B, bool left,
                     bool adjoint, Tensor& out) {
  metalops::check_same_device("linalg_lu_solve",
                              {{out, "out"}, {LU, "LU"}, {pivots, "pivots"}, {B, "B"}});
  metalops::StructuredOut<at::meta::structured_linalg_lu_solve> call(out);
  call.meta(LU, pivots, B, left, adjoint);
  check_type("torch.linalg.lu_solve", LU);
  solve_to(LU, pivots, B, left, adjoint, call.output(0));
  call.write_back();
  return out;
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> solve_ex_out(const Tensor& A, const Tensor& B,
                                                            bool left, bool check_errors,
                                                            Tensor& result, Tensor& LU,
                                                            Tensor& pivots, Tensor& info) {
  metalops::check_same_device(
      "_linalg_solve_ex",
      {{result, "result"}, {LU, "LU"}, {pivots, "pivots"}, {info, "info"}, {A, "A"}, {B, "B"}});
  metalops::StructuredOut<at::meta::structured__linalg_solve_ex> call(result, LU, pivots, info);
  call.meta(A, B, left, check_errors);
  check_type("linalg.solve", A);
  factor_to(A, /*is_pivoted=*/true, LU, pivots, info);
  const bool is_vector = at::native::linalg_solve_is_vector_rhs(A, B);
  solve_to(LU, pivots, is_vector ? B.unsqueeze(-1) : B, left, /*adjoint=*/false,
           is_vector ? result.unsqueeze(-1) : result);
  if (check_errors) {
    at::_linalg_check_errors(info, "torch.linalg.solve_ex", A.dim() == 2);
  }
  return {result, LU, pivots, info};
}

std::tuple<Tensor&, Tensor&> inv_ex_out(const Tensor& A, bool check_errors, Tensor& inverse,
                                        Tensor& info) {
  metalops::check_same_device("linalg_inv_ex", {{inverse, "inverse"}, {info, "info"}, {A, "A"}});
  metalops::StructuredOut<at::meta::structured_linalg_inv_ex> call(inverse, info);
  call.meta(A, check_errors);
  const auto n = A.size(-1);
  const auto factors = at::empty(A.sizes(), A.options());
  const auto pivots = at::empty(A.sizes().slice(0, A.dim() - 1), info.options());
  factor_to(A, /*is_pivoted=*/true, factors, pivots, call.output(1));
  solve_to(factors, pivots, at::eye(n, A.options()), /*left=*/true, /*adjoint=*/false,
           call.output(0));
  call.write_back();
  if (check_errors) {
    at::_linalg_check_errors(info, "linalg.inv_ex", A.dim() == 2);
  }
  return {inverse, info};
}

std::tuple<Tensor&, Tensor&, Tensor&> det_out(const Tensor& A, Tensor& result, Tensor& LU,
                                              Tensor& pivots) {
  metalops::check_same_device("_linalg_det",
                              {{result, "result"}, {LU, "LU"}, {pivots, "pivots"}, {A, "A"}});
  metalops::StructuredOut<at::meta::structured__linalg_det> call(result, LU, pivots);
  call.meta(A);
  check_type("linalg.det", A);
  const auto infos = at::empty(result.sizes(), pivots.options());
  factor_to(by_columns(A), /*is_pivoted=*/true, call.output(1), call.output(2), infos);
  metalops::write_contiguous(call.output(0), [&](const Tensor& determinants) {
    launch_determinants("lu_determinant", call.output(1), call.output(2), determinants);
  });
  call.write_back();
  return {result, LU, pivots};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> slogdet_out(const Tensor& A, Tensor& sign,
                                                           Tensor& logabsdet, Tensor& LU,
                                                           Tensor& pivots) {
  metalops::check_same_device(
      "_linalg_slogdet",
      {{sign, "sign"}, {logabsdet, "logabsdet"}, {LU, "LU"}, {pivots, "pivots"}, {A, "A"}});
  metalops::StructuredOut<at::meta::structured__linalg_slogdet> call(sign, logabsdet, LU, pivots);
  call.meta(A);
  check_type("linalg.slogdet", A);
  const auto infos = at::empty(sign.sizes(), pivots.options());
  factor_to(by_columns(A), /*is_pivoted=*/true, call.output(2), call.output(3), infos);
  metalops::write_contiguous(call.output(0), [&](const Tensor& signs) {
    metalops::write_contiguous(call.output(1), [&](const Tensor& logarithms) {
      launch_determinants("lu_log_determinant", call.output(2), call.output(3), signs, logarithms);
    });
  });
  call.write_back();
  return {sign, logabsdet, LU, pivots};
}

// The functional overloads. torch generates those of operators without a kernel, and calls the .out
// overloads in them.
Tensor none(const Tensor& like) { return at::empty({0}, like.options()); }
Tensor no_integers(const Tensor& like) { return at::empty({0}, like.options().dtype(at::kInt)); }

// Gives matrices strides of columns, as fake tensors have them; torch's meta functions make rows
// contiguous on MPS.
void lay_out_by_columns(const Tensor& matrices) {
  const auto sizes = matrices.sizes();
  matrices.as_strided_(sizes,
                       at::native::batched_matrix_contiguous_strides(sizes, /*f_contig=*/true));
}

std::tuple<Tensor, Tensor, Tensor> lu_factor_ex(const Tensor& A, bool pivot, bool check_errors) {
  auto factors = at::empty(A.sizes(), A.options());
  auto pivots = no_integers(A);
  auto infos = no_integers(A);
  lay_out_by_columns(factors);
  lu_factor_ex_out(A, pivot, check_errors, factors, pivots, infos);
  return {factors, pivots, infos};
}

std::tuple<Tensor, Tensor, Tensor> lu(const Tensor& A, bool pivot) {
  auto p = none(A);
  auto l = none(A);
  auto u = none(A);
  lu_out(A, pivot, p, l, u);
  return {p, l, u};
}

Tensor lu_solve(const Tensor& LU, const Tensor& pivots, const Tensor& B, bool left, bool adjoint) {
  auto out = none(LU);
  return lu_solve_out(LU, pivots, B, left, adjoint, out);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> solve_ex(const Tensor& A, const Tensor& B, bool left,
                                                    bool check_errors) {
  auto result = none(A);
  auto factors = none(A);
  auto pivots = no_integers(A);
  auto infos = no_integers(A);
  metalops::StructuredOut<at::meta::structured__linalg_solve_ex>(result, factors, pivots, infos)
      .meta(A, B, left, check_errors);
  lay_out_by_columns(factors);
  if (left) {
    lay_out_by_columns(result);
  }
  solve_ex_out(A, B, left, check_errors, result, factors, pivots, infos);
  return {result, factors, pivots, infos};
}

std::tuple<Tensor, Tensor> inv_ex(const Tensor& A, bool check_errors) {
  auto inverse = none(A);
  auto infos = no_integers(A);
  inv_ex_out(A, check_errors, inverse, infos);
  return {inverse, infos};
}

std::tuple<Tensor, Tensor, Tensor> det(const Tensor& A) {
  auto result = none(A);
  auto factors = none(A);
  auto pivots = no_integers(A);
  det_out(A, result, factors, pivots);
  return {result, factors, pivots};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> slogdet(const Tensor& A) {
  auto sign = none(A);
  auto logarithm = at::empty({0}, A.options().dtype(c10::toRealValueType(A.scalar_type())));
  auto factors = none(A);
  auto pivots = no_integers(A);
  slogdet_out(A, sign, logarithm, factors, pivots);
  return {sign, logarithm, factors, pivots};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  constexpr const char* kReason =
      "refuses complex matrices, is wrong for some of more than 128 rows, says not which pivot is "
      "zero, and takes one matrix after the other";
  metalops::AtenKernels m(library);
  m.replace("linalg_lu_factor_ex", lu_factor_ex, kReason);
  m.replace("linalg_lu_factor_ex.out", lu_factor_ex_out, kReason);
  m.replace("linalg_lu", lu, kReason);
  m.replace("linalg_lu.out", lu_out, kReason);
  m.replace("linalg_lu_solve", lu_solve, kReason);
  m.replace("linalg_lu_solve.out", lu_solve_out, kReason);
  m.replace("_linalg_solve_ex", solve_ex, kReason);
  m.replace("_linalg_solve_ex.result", solve_ex_out, kReason);
  m.replace("linalg_inv_ex", inv_ex, kReason);
  m.replace("linalg_inv_ex.inverse", inv_ex_out, kReason);
  m.replace("_linalg_det", det, kReason);
  m.replace("_linalg_det.result", det_out, kReason);
  m.replace("_linalg_slogdet", slogdet, kReason);
  m.replace("_linalg_slogdet.sign", slogdet_out, kReason);
}

}  // namespace

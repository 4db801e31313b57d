#include <csrc/plans/linalg/qr.h>
#include <csrc/plans/linalg/squares.h>
#include <csrc/plans/linalg/svd.h>
#include <csrc/plans/linalg/svd_large.h>

#include <algorithm>

namespace metalops::plans {

namespace {

// Computes the SVD of square matrices.
void svd_of_squares(Plan& plan, const Svd& call, const Device& device) {
  const auto a = plan.resolved(call.a);
  const auto n = a.size(1);
  const bool is_complex = a.type == Type::kComplexFloat;
  const auto classes = is_complex ? SquareClasses{"svd", 48, "_simdgroup_48_", 2}
                                  : SquareClasses{"svd", 64, "_simdgroup_64_", 2};
  const auto p = squares_of(a, /*is_upper=*/false, static_cast<bool>(call.u));
  if (n > classes.most) {
    svd_of_large(plan, call, a, p);
  } else if (n <= kMostOfThread) {
    launch_squares(plan, device, classes, a.type, p, call.values, call.u, call.v_adjoint,
                   call.infos, a);
  } else {
    // V, if it does not fit into threadgroup memory: padded columns, as in
    // kernels/linalg/svd.metal.
    View kept;
    if (n > 32 && call.u) {
      const auto packs = is_complex ? classes.most / 2 : classes.most / 4;
      const auto matrices = std::min(a.size(0), classes.a_launch(n, device));
      kept = plan.allocate(Type::kFloat, {matrices * classes.most * (packs + 1) * 4});
    }
    launch_squares(plan, device, classes, a.type, p, call.values, call.u, call.v_adjoint,
                   call.infos, a, kept);
  }
}

// Makes vectors, (batch, rows, columns), identity matrices with their leading block replaced.
void extend(Plan& plan, const View& vectors, const View& block) {
  const auto k = block.size(1);
  plan.fill_identity(vectors);
  plan.copy(vectors.narrow(1, 0, k).narrow(2, 0, k), block);
}

// Computes the SVD of matrices that are not square from that of R of the QR factorisation, U = Q
// U_R, or, of wide ones, of their adjoints: A = R^H Q^H.
void svd_of_rectangles(Plan& plan, const Svd& call, const Device& device) {
  const bool is_wide = call.a.size(1) < call.a.size(2);
  const auto tall = is_wide ? call.a.mH() : call.a;
  const auto batch = tall.size(0);
  const auto k = tall.size(2);
  const auto squares = [&] { return plan.allocate(tall.type, {batch, k, k}).mT(); };
  const auto factors = plan.allocate(tall.type, {batch, k, tall.size(1)}).mT();
  const auto taus = plan.allocate(tall.type, {batch, k});
  qr_factor(plan, {.factors = factors, .taus = taus, .a = tall}, device);
  const auto r = squares();
  qr_upper(plan, r, factors);
  auto of_r = call;
  of_r.a = is_wide ? r.mH() : r;
  const auto& vectors = is_wide ? call.v_adjoint : call.u;
  auto& vectors_of_r = is_wide ? of_r.v_adjoint : of_r.u;
  if (vectors) {
    vectors_of_r = squares();
  }
  svd_of_squares(plan, of_r, device);
  if (vectors) {
    extend(plan, vectors, vectors_of_r);
    qr_multiply(plan,
                {.c = vectors,
                 .reflectors = factors,
                 .taus = taus,
                 .left = !is_wide,
                 .is_adjoint = is_wide},
                device);
  }
}

}  // namespace

void svd(Plan& plan, const Svd& call, const Device& device) {
  if (call.a.size(1) == call.a.size(2)) {
    svd_of_squares(plan, call, device);
  } else {
    svd_of_rectangles(plan, call, device);
  }
}

}  // namespace metalops::plans

// Host side of kernels/linalg/triangular.metal: triangular systems (xTRSM) of any size, halved
// until a kernel solves them; the off-diagonal blocks are GEMMs.
#include <csrc/ops/linalg/triangular.h>

#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/triangular_solve_meta.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/triangular.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>

namespace metalops {
namespace {

void launch_triangle(const at::Tensor& a, Triangle triangle, const at::Tensor& x) {
  const auto n = a.size(1);
  const auto pack = pack_of(x);
  TriangularParameters p{};
  p.matrix_row_stride = a.stride(1);
  p.matrix_column_stride = a.stride(2);
  p.matrix_batch_stride = a.stride(0);
  p.columns_row_stride = x.stride(1) / pack;
  p.columns_batch_stride = x.stride(0) / pack;
  if (triangle.is_upper) {
    p.matrix_start = (n - 1) * (p.matrix_row_stride + p.matrix_column_stride);
    p.columns_start = (n - 1) * p.columns_row_stride;
    p.matrix_row_stride *= -1;
    p.matrix_column_stride *= -1;
    p.columns_row_stride *= -1;
  }
  constexpr uint32_t kThreads = c10::metal::simdgroup_size;
  p.size = static_cast<uint32_t>(n);
  p.matrices = static_cast<uint32_t>(x.size(0));
  p.packs = static_cast<uint32_t>(c10::metal::ceil_div(x.size(2), pack));
  p.group_packs = std::min(p.packs, kThreads);
  p.group_matrices = std::min(
      {p.matrices, kThreads / p.group_packs, kTriangleElements / elements_of_triangle(p.size)});
  p.is_unit = triangle.is_unit;
  p.is_conjugated = a.is_conj();
  launch_threadgroups(library("triangular"), typed_kernel("triangular_solve_", a),
                      uint64_t{c10::metal::ceil_div(p.packs, p.group_packs)} *
                          c10::metal::ceil_div(p.matrices, p.group_matrices),
                      kThreads, x, a, p);
}

}  // namespace

void solve_triangular_(const at::Tensor& a, Triangle triangle, const at::Tensor& x) {
  const auto n = a.size(1);
  if (x.numel() == 0) {
    return;
  }
  if (n <= kTriangleRows) {
    launch_triangle(a, triangle, x);
    return;
  }
  const auto half = c10::metal::round_up(n / 2, int64_t{32});
  const auto part = [&](bool is_later) {
    return std::pair(is_later ? half : 0, is_later ? n - half : half);
  };
  const auto [first, firsts] = part(triangle.is_upper);
  const auto [second, seconds] = part(!triangle.is_upper);
  const auto known = x.narrow(1, first, firsts);
  const auto rest = x.narrow(1, second, seconds);
  const auto rows = a.narrow(1, second, seconds);
  solve_triangular_(a.narrow(1, first, firsts).narrow(2, first, firsts), triangle, known);
  rest.sub_(at::bmm(rows.narrow(2, first, firsts), known));
  solve_triangular_(rows.narrow(2, second, seconds), triangle, rest);
}

}  // namespace metalops

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

// Host side of kernels/linalg/eigh.metal: eigenvalues and eigenvectors of Hermitian matrices, and
// their square roots.
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_eigh.h>
#include <ATen/ops/_linalg_eigh_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/linalg/eigh.h>
#include <metalops/checks.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <cctype>
#include <limits>

namespace {

using at::Tensor;

std::tuple<Tensor&, Tensor&> eigh_out(const Tensor& a, std::string_view uplo, bool with_vectors,
                                      Tensor& values, Tensor& vectors) {
  metalops::check_same_device("_linalg_eigh",
                              {{a, "A"}, {values, "eigenvalues"}, {vectors, "eigenvectors"}});
  metalops::StructuredOut<at::meta::structured__linalg_eigh> call(values, vectors);
  call.meta(a, uplo, with_vectors);
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, "linalg_eigh_mps", type);
  if (a.numel() == 0) {
    return {values, vectors};
  }
  const auto n = a.size(-1);
  const auto matrices = a.resolve_neg().reshape({-1, n, n});
  TORCH_CHECK(matrices.size(0) <= std::numeric_limits<uint32_t>::max(),
              "linalg.eigh: ", matrices.size(0), " matrices are too many for MPS");
  const bool is_upper = std::toupper(static_cast<unsigned char>(uplo.front())) == 'U';
  const auto infos = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  metalops::PlanRun run;
  metalops::plans::eigh(run.plan(),
                        {.values = run.batch_view(call.output(0), 1),
                         .vectors = run.batch_view(with_vectors ? call.output(1) : Tensor(), 2),
                         .infos = run.batch_view(infos, 0),
                         .a = run.view(matrices),
                         .is_upper = is_upper},
                        metalops::plan_device());
  run.run();
  call.write_back();
  at::_linalg_check_errors(infos, "linalg.eigh", a.dim() == 2);
  return {values, vectors};
}

std::tuple<Tensor, Tensor> eigh_of(const Tensor& a, std::string_view uplo, bool with_vectors) {
  auto values = at::empty({0}, a.options().dtype(c10::toRealValueType(a.scalar_type())));
  auto vectors = at::empty({0}, a.options());
  eigh_out(a, uplo, with_vectors, values, vectors);
  return {std::move(values), std::move(vectors)};
}

// Returns V sqrt(L) V^H of A = V L V^H, of which the lower triangle is read. Negative eigenvalues,
// which a positive semidefinite matrix has by rounding, count as zero.
Tensor matrix_sqrth(const Tensor& self) {
  constexpr const char* kName = "linalg.matrix_sqrth";
  at::native::squareCheckInputs(self, kName);
  at::native::checkFloatingOrComplex(self, kName, /*allow_low_precision_dtypes=*/false);
  const auto [values, vectors] = at::_linalg_eigh(self, "L", /*compute_v=*/true);
  const auto scaled = vectors * values.clamp_min(0).sqrt().unsqueeze(-2);
  const auto root = at::matmul(scaled, vectors.mH());
  return (root + root.mH()) * 0.5;  // rounding leaves the product almost Hermitian
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  constexpr auto kReason = "computes on the CPU what does not fit into a threadgroup's memory";
  m.replace("_linalg_eigh", eigh_of, kReason);
  m.replace("_linalg_eigh.eigenvalues", eigh_out, kReason);
  m.impl("linalg_matrix_sqrth", matrix_sqrth);
}

}  // namespace

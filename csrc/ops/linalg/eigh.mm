// Host side of kernels/linalg/eigh.metal: eigenvalues and eigenvectors of Hermitian matrices.
#include <csrc/ops/linalg/common/squares.h>
#include <csrc/ops/linalg/eigh_large.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_eigh_meta.h>
#include <ATen/ops/empty.h>
#include <metalops/checks.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <cctype>
#include <limits>

namespace {

using at::Tensor;

// Computes eigenvalues and, if with_vectors, eigenvectors. a: (batch, n, n); values: (batch, n);
// vectors: (batch, n, n) of contiguous columns.
void eigh(const Tensor& a, bool is_upper, bool with_vectors, const Tensor& values,
          const Tensor& vectors, const Tensor& infos) {
  const auto type = a.scalar_type();
  const auto parameters = metalops::squares_of(a, is_upper, with_vectors);
  const auto classes = at::isComplexType(type)
                           ? metalops::SquareClasses{"eigh", 48, "_simdgroup_48_", 2}
                           : metalops::SquareClasses{"eigh", 64, "_simdgroup_64_", 2};
  if (a.size(-1) > classes.most) {
    metalops::eigh_of_large(a, parameters, values, vectors, infos);
  } else {
    metalops::launch_squares(classes, type, parameters, values, vectors, infos, a);
  }
}

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
  const auto matrices = a.resolve_conj().reshape({-1, n, n});
  TORCH_CHECK(matrices.size(0) <= std::numeric_limits<uint32_t>::max(),
              "linalg.eigh: ", matrices.size(0), " matrices are too many for MPS");
  const bool is_upper = std::toupper(static_cast<unsigned char>(uplo.front())) == 'U';
  const auto infos = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  eigh(matrices, is_upper, with_vectors, call.output(0), call.output(1), infos);
  call.write_back();
  at::_linalg_check_errors(infos, "linalg.eigh", a.dim() == 2);
  return {values, vectors};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_linalg_eigh.eigenvalues", eigh_out);
}

}  // namespace

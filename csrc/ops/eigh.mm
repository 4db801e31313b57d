// Host side of kernels/eigh.metal: eigenvalues and eigenvectors of Hermitian matrices.
#include "eigh_large.h"

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_eigh_meta.h>
#include <ATen/ops/empty.h>
#include <kernels/eigh.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <cctype>
#include <limits>

namespace {

using at::Tensor;

// Matrices of up to so many rows are the work of a thread.
constexpr int64_t kMostOfThread = 8;

// Of a simdgroup, whose threadgroup memory has room for that many.
int64_t most_of_simdgroup(at::ScalarType type) { return at::isComplexType(type) ? 48 : 64; }

// Of the smallest class of kernels that takes matrices of n rows.
metalops::KernelName kernel_of(int64_t n, at::ScalarType type) {
  const bool is_complex = at::isComplexType(type);
  const auto* const name = n <= 4               ? "eigh_thread_4_"
                           : n <= kMostOfThread ? "eigh_thread_8_"
                           : n <= 16            ? "eigh_simdgroup_16_"
                           : n <= 32            ? "eigh_simdgroup_32_"
                           : is_complex         ? "eigh_simdgroup_48_"
                                                : "eigh_simdgroup_64_";
  return metalops::KernelName(name) + metalops::metal_type(type);
}

// a: (batch, n, n); values: (batch, n); vectors: (batch, n, n) of columns without gaps, if
// with_vectors.
void eigh(const Tensor& a, bool is_upper, bool with_vectors, const Tensor& values,
          const Tensor& vectors, const Tensor& infos) {
  const auto n = a.size(-1);
  const auto type = a.scalar_type();
  const metalops::EighParameters parameters{a.stride(0),
                                            a.stride(1),
                                            a.stride(2),
                                            static_cast<uint32_t>(a.size(0)),
                                            static_cast<int32_t>(n),
                                            is_upper,
                                            with_vectors};
  if (n > most_of_simdgroup(type)) {
    metalops::eigh_of_large(a, parameters, values, vectors, infos);
    return;
  }
  auto& library = metalops::library("eigh");
  const auto name = kernel_of(n, type);
  if (n <= kMostOfThread) {
    metalops::launch_threads(library, name, a.size(0), values, vectors, infos, a, parameters);
  } else {
    metalops::launch_threadgroups(library, name, a.size(0), c10::metal::simdgroup_size, values,
                                  vectors, infos, a, parameters);
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

// Host side of kernels/linalg/eig.metal: eigenvalues and eigenvectors of general matrices.
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/linalg/common/squares.h>
#include <csrc/ops/linalg/eig_large.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <kernels/linalg/eig.h>
#include <metalops/checks.h>
#include <metalops/stock.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace {

using at::Tensor;

// Computes eigenvalues and, if with_vectors, eigenvectors. a: (batch, n, n); values: (batch, n);
// vectors: (batch, n, n) of contiguous columns.
void find_eigenvalues(const Tensor& a, bool with_vectors, const Tensor& values,
                      const Tensor& vectors, const Tensor& infos) {
  const auto n = a.size(-1);
  const auto type = a.scalar_type();
  const auto parameters = metalops::squares_of(a, false, with_vectors);
  const auto of_simdgroup = at::isComplexType(type)
                                ? metalops::SquareClasses{"eig", 40, "_simdgroup_40_", 6}
                                : metalops::SquareClasses{"eig", 56, "_simdgroup_56_", 6};
  const metalops::SquareClasses of_device{"eig", metalops::kMostOfEigDevice, "_device_64_", 6};
  if (n <= of_simdgroup.most) {
    metalops::launch_squares(of_simdgroup, type, parameters, values, vectors, infos, a);
  } else if (n <= of_device.most) {
    const auto pack = a.is_complex() ? 2 : 4;
    const auto matrices = std::min(a.size(0), of_device.a_launch(n));
    const auto columns = at::empty({matrices, 2 * n, of_device.most + pack}, a.options());
    metalops::launch_squares(of_device, type, parameters, values, vectors, infos, a, columns);
  } else {
    metalops::eig_of_large(a, parameters, values, vectors, infos);
  }
}

// Returns the eigenvalues, and the eigenvectors if they are wanted, else an empty tensor. name:
// torch's internal name of the operator, which its messages have.
std::pair<Tensor, Tensor> results_of(const Tensor& a, bool with_vectors, const char* name) {
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, "linalg_eig_mps", type);
  const auto n = a.size(-1);
  const auto options = a.options().dtype(at::kComplexFloat);
  auto values = at::empty(a.sizes().slice(0, a.dim() - 1), options);
  auto vectors = with_vectors ? at::empty(a.sizes(), options).mT() : at::empty({0}, options);
  if (a.numel() == 0) {
    return {values, vectors};
  }
  const auto matrices = a.resolve_conj().reshape({-1, n, n});
  TORCH_CHECK(matrices.size(0) <= std::numeric_limits<uint32_t>::max(), name, ": ",
              matrices.size(0), " matrices are too many for MPS");
  const auto infos = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  find_eigenvalues(matrices, with_vectors, values, vectors, infos);
  const auto known = infos.cpu();
  TORCH_CHECK(!at::eq(known, metalops::kEigNotFinite).any().item<bool>(), name,
              ": input tensor should not contain infs or NaNs.");
  at::_linalg_check_errors(known, name, a.dim() == 2);
  return {values, vectors};
}

std::tuple<Tensor, Tensor> eig_of(const Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eig");
  at::toComplexType(self.scalar_type());  // raises for integers
  auto [values, vectors] = results_of(self, true, "torch.linalg.eig");
  return {std::move(values), std::move(vectors)};
}

std::tuple<Tensor&, Tensor&> eig_out(const Tensor& self, Tensor& values, Tensor& vectors) {
  constexpr const char* kName = "torch.linalg.eig";
  at::native::squareCheckInputs(self, "linalg.eig");
  const auto type = at::toComplexType(self.scalar_type());
  at::native::checkLinalgCompatibleDtype(kName, values.scalar_type(), type, "eigenvalues");
  at::native::checkLinalgCompatibleDtype(kName, vectors.scalar_type(), type, "eigenvectors");
  at::native::checkSameDevice(kName, values, self, "eigenvalues");
  at::native::checkSameDevice(kName, vectors, self, "eigenvectors");
  const auto [values_of_it, vectors_of_it] = results_of(self, true, kName);
  metalops::write_output(values_of_it, values);
  metalops::write_output(vectors_of_it, vectors);
  return {values, vectors};
}

Tensor eigvals_of(const Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eigvals");
  at::toComplexType(self.scalar_type());
  return results_of(self, false, "torch.linalg.eigvals").first;
}

Tensor& eigvals_out(const Tensor& self, Tensor& out) {
  constexpr const char* kName = "torch.linalg.eigvals";
  at::native::squareCheckInputs(self, "linalg.eigvals");
  const auto type = at::toComplexType(self.scalar_type());
  at::native::checkLinalgCompatibleDtype(kName, out.scalar_type(), type, "eigenvalues");
  at::native::checkSameDevice(kName, out, self, "eigenvalues");
  metalops::write_output(results_of(self, false, kName).first, out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("linalg_eig", eig_of);
  m.impl("linalg_eig.out", eig_out);
  m.impl("_linalg_eigvals", eigvals_of);
  m.impl("linalg_eigvals.out", eigvals_out);
}

}  // namespace

// Host side of kernels/linalg/svd.metal: singular values and vectors.
#include <csrc/ops/linalg/common/squares.h>
#include <csrc/ops/linalg/svd_large.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/_linalg_svd_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/geqrf.h>
#include <ATen/ops/ormqr.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros_like.h>
#include <metalops/checks.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

namespace {

using at::Tensor;

// The results of a batch. values: (batch, k), contiguous; infos: (batch). u and v_adjoint, (batch,
// ...) of contiguous columns, are written if with_vectors.
struct Found {
  bool with_vectors;
  Tensor u;
  Tensor values;
  Tensor v_adjoint;
  Tensor infos;
};

// Computes the SVD of a: (batch, n, n).
void svd_of_squares(const Tensor& a, const Found& found) {
  const auto n = a.size(-1);
  const auto type = a.scalar_type();
  const bool is_complex = at::isComplexType(type);
  const auto classes = is_complex ? metalops::SquareClasses{"svd", 48, "_simdgroup_48_", 2}
                                  : metalops::SquareClasses{"svd", 64, "_simdgroup_64_", 2};
  const auto parameters = metalops::squares_of(a, false, found.with_vectors);
  if (n > classes.most) {
    metalops::svd_of_large(a, parameters, found.u, found.values, found.v_adjoint, found.infos);
  } else if (n <= metalops::kMostOfThread) {
    metalops::launch_squares(classes, type, parameters, found.values, found.u, found.v_adjoint,
                             found.infos, a);
  } else {
    // V, if it does not fit into threadgroup memory: padded columns, as in
    // kernels/linalg/svd.metal.
    const bool keeps = n > 32 && found.with_vectors;
    const auto packs = is_complex ? classes.most / 2 : classes.most / 4;
    const auto matrices = std::min(a.size(0), classes.a_launch(n));
    const auto kept = at::empty({keeps ? matrices * classes.most * (packs + 1) * 4 : 0},
                                a.options().dtype(at::kFloat));
    metalops::launch_squares(classes, type, parameters, found.values, found.u, found.v_adjoint,
                             found.infos, a, kept);
  }
}

// Returns an identity matrix of the shape of `like`, with its leading block replaced by `square`.
Tensor extended(const Tensor& square, const Tensor& like) {
  const auto k = square.size(-1);
  auto result = at::zeros_like(like.mT(), at::MemoryFormat::Contiguous).mT();
  result.diagonal(0, -2, -1).fill_(1);
  result.narrow(-2, 0, k).narrow(-1, 0, k).copy_(square);
  return result;
}

// Computes the SVD of a: (batch, m, n), m > n, from that of R: U is the product of Q and the left
// vectors.
void svd_of_tall(const Tensor& a, const Found& found) {
  const auto n = a.size(-1);
  const auto [factors, taus] = at::geqrf(a);
  auto of_r = found;
  if (found.with_vectors) {
    of_r.u = at::empty({a.size(0), n, n}, a.options()).mT();
  }
  svd_of_squares(at::triu(factors.narrow(1, 0, n)), of_r);
  if (found.with_vectors) {
    found.u.copy_(at::ormqr(factors, taus, extended(of_r.u, found.u)));
  }
}

// Computes the SVD of a: (batch, m, n), m < n, from that of R of the adjoint, A = R^H Q^H.
void svd_of_wide(const Tensor& a, const Found& found) {
  const auto m = a.size(-2);
  const auto [factors, taus] = at::geqrf(a.mH());
  auto of_r = found;
  if (found.with_vectors) {
    of_r.v_adjoint = at::empty({a.size(0), m, m}, a.options()).mT();
  }
  svd_of_squares(at::triu(factors.narrow(1, 0, m)).mH().resolve_conj(), of_r);
  if (found.with_vectors) {
    found.v_adjoint.copy_(
        at::ormqr(factors, taus, extended(of_r.v_adjoint, found.v_adjoint), false, true));
  }
}

std::tuple<Tensor&, Tensor&, Tensor&> svd_out(const Tensor& a, bool full_matrices, bool compute_uv,
                                              std::optional<c10::string_view> driver, Tensor& u,
                                              Tensor& values, Tensor& v_adjoint) {
  metalops::check_same_device("_linalg_svd",
                              {{a, "A"}, {u, "U"}, {values, "S"}, {v_adjoint, "Vh"}});
  metalops::StructuredOut<at::meta::structured__linalg_svd> call(u, values, v_adjoint);
  call.meta(a, full_matrices, compute_uv, driver);
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, "linalg_svd_mps", type);
  if (a.numel() == 0) {
    if (compute_uv && full_matrices) {
      for (const auto index : {0, 2}) {
        call.output(index).zero_();
        call.output(index).diagonal(0, -2, -1).fill_(1);
      }
    }
    call.write_back();
    return std::forward_as_tuple(u, values, v_adjoint);
  }
  TORCH_CHECK(!driver.has_value(),
              "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with "
              "cuSOLVER backend.");
  const auto m = a.size(-2);
  const auto n = a.size(-1);
  const auto matrices = a.resolve_conj().reshape({-1, m, n});
  TORCH_CHECK(matrices.size(0) <= std::numeric_limits<uint32_t>::max(),
              "linalg.svd: ", matrices.size(0), " matrices are too many for MPS");
  const auto batch = [&](const Tensor& columns) {
    return compute_uv ? columns.mT().view({-1, columns.size(-1), columns.size(-2)}).mT() : columns;
  };
  const auto infos = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  const Found found{compute_uv, batch(call.output(0)), call.output(1), batch(call.output(2)),
                    infos};
  if (m == n) {
    svd_of_squares(matrices, found);
  } else if (m > n) {
    svd_of_tall(matrices, found);
  } else {
    svd_of_wide(matrices, found);
  }
  call.write_back();
  at::_linalg_check_errors(infos, "linalg.svd", a.dim() == 2);
  return std::forward_as_tuple(u, values, v_adjoint);
}

// The compositions of torch itself, for gradients to flow through.
std::tuple<Tensor, Tensor, Tensor> composed_svd(const Tensor& a, bool full_matrices,
                                                std::optional<c10::string_view> driver) {
  return at::_linalg_svd(a, full_matrices, true, driver);
}

std::tuple<Tensor&, Tensor&, Tensor&> composed_svd_out(const Tensor& a, bool full_matrices,
                                                       std::optional<c10::string_view> driver,
                                                       Tensor& u, Tensor& values,
                                                       Tensor& v_adjoint) {
  return at::_linalg_svd_out(u, values, v_adjoint, a, full_matrices, true, driver);
}

constexpr const char* kReason = "copies matrices to the CPU, and gradients only flow by a warning";

void register_compositions(metalops::AtenKernels m) {
  m.replace("linalg_svd", composed_svd, kReason);
  m.replace("linalg_svd.U", composed_svd_out, kReason);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_linalg_svd.U", svd_out);
  register_compositions(m);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, library) {
  register_compositions(metalops::AtenKernels(library, c10::DispatchKey::AutogradMPS));
}

}  // namespace

// Host side of kernels/linalg/qr.metal: QR factorisation (xGEQRF), and products with Q (xORMQR,
// xORGQR).
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_qr_meta.h>
#include <ATen/ops/triu.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/typed_kernel.h>
#include <metalops/checks.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include <csrc/ops/common/outputs.h>
#include <csrc/ops/linalg/common/reflectors.h>
#include <csrc/plans/linalg/launch_lengths.h>

namespace {

using at::Tensor;
using metalops::BlockReflector;

void check(const char* kernel, const char* name, const Tensor& a) {
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, kernel, type);
  TORCH_CHECK(a.size(-1) <= metalops::kInt32Max && a.size(-2) <= metalops::kInt32Max &&
                  at::native::batchCount(a) <= metalops::kInt32Max,
              name, ": matrices of ", a.sizes(), " are too large for MPS");
}

// Returns the transpose, (batch, n, m), of matrices that are stored by contiguous columns.
Tensor by_columns(const Tensor& matrices) {
  return matrices.mT().view(
      {at::native::batchCount(matrices), matrices.size(-1), matrices.size(-2)});
}

// Returns the elements that belong to each matrix as (batch, length), contiguous.
Tensor batch_of_vectors(const Tensor& vectors) {
  int64_t batch = 1;
  for (const auto size : vectors.sizes().slice(0, vectors.dim() - 1)) batch *= size;
  return vectors.contiguous().view({batch, vectors.size(-1)});
}

// The most rows of a panel that is held in registers.
constexpr int64_t kMostInRegisters = 128;

// ---- matrices stored by columns -----------------------------------------------------------------

// Factors a panel from row and column `first` on (xGEQR2) with kernels that hold it in registers of
// a thread or of lanes of a simdgroup.
void factorise_small(const Tensor& a, const Tensor& taus, int64_t first, int64_t width) {
  const auto rows = a.size(2) - first;
  const auto parameters = metalops::qr_parameters(a, taus, first, width);
  if (const auto size = std::max(rows, width); size <= int64_t{metalops::kQrThread}) {
    metalops::launch_threads(metalops::library("qr"),
                             metalops::typed_kernel("qr_thread_", a) + (size <= 4 ? "_4" : "_8"),
                             a.size(0), a, taus, parameters);
    return;
  }
  struct Size {
    int64_t columns;
    int64_t rows;
    const char* name;
  };
  // Ascending: in the first size that is large enough, most matrices share a simdgroup.
  constexpr std::array<Size, 6> kSizes{{{8, 32, "_8_32"},
                                        {16, 16, "_16_16"},
                                        {16, 64, "_16_64"},
                                        {32, 32, "_32_32"},
                                        {32, 64, "_32_64"},
                                        {32, kMostInRegisters, "_32_128"}}};
  const auto* const size = std::find_if(kSizes.begin(), kSizes.end(), [&](const Size& x) {
    return width <= x.columns && rows <= x.rows;
  });
  metalops::launch_simdgroups(
      metalops::library("qr"), metalops::typed_kernel("qr_small_", a) + size->name,
      c10::metal::ceil_div<uint64_t>(a.size(0) * size->columns, c10::metal::simdgroup_size), a,
      taus, parameters);
}

void factorise_panel(const Tensor& a, const Tensor& taus, int64_t first, int64_t width) {
  constexpr int64_t kTall = 512;
  constexpr int64_t kNarrow = 8;
  // Multiplications that a threadgroup may make in one launch, lest a GPU's watchdog stop it.
  constexpr int64_t kMostProducts = int64_t{1} << 28;
  constexpr uint64_t kThreads = 256;
  const auto rows = a.size(2) - first;
  const bool is_short = rows < kTall || (width <= kNarrow && rows * width * width <= kMostProducts);
  if (rows <= kMostInRegisters) {
    factorise_small(a, taus, first, width);
  } else if (is_short || width == 1) {
    metalops::launch_threadgroups(metalops::library("qr"), metalops::typed_kernel("qr_panel_", a),
                                  a.size(0), kThreads, a, taus,
                                  metalops::qr_parameters(a, taus, first, width));
  } else {
    // A single threadgroup takes long for many rows: the columns are halved.
    const auto half = width > kNarrow ? c10::metal::round_up<int64_t>(width / 2, 4) : width / 2;
    factorise_panel(a, taus, first, half);
    metalops::multiply_columns(metalops::block_reflector(a, taus, first, half), true,
                               a.narrow(1, first + half, width - half).narrow(2, first, rows));
    factorise_panel(a, taus, first + half, width - half);
  }
}

// Factors a, (batch, n, m) by columns, which gets R and the reflectors (xGEQRF). taus: (batch,
// min(m, n)). blocks: receives the block reflectors, if not null.
void factorise(const Tensor& a, const Tensor& taus, std::vector<BlockReflector>* blocks = nullptr) {
  const auto steps = taus.size(1);
  if (a.numel() == 0) {
    return;
  }
  if (a.size(1) <= metalops::kQrPanel && a.size(2) <= metalops::kQrSmall) {
    factorise_small(a, taus, 0, a.size(1));
    return;
  }
  taus.zero_();  // each panel writes its own
  for (int64_t first = 0; first < steps; first += metalops::kQrPanel) {
    const auto width = std::min<int64_t>(metalops::kQrPanel, steps - first);
    factorise_panel(a, taus, first, width);
    const auto behind = a.size(1) - first - width;
    if (behind == 0 && blocks == nullptr) {
      continue;
    }
    auto block = metalops::block_reflector(a, taus, first, width);
    if (behind > 0) {
      metalops::multiply_columns(
          block, true, a.narrow(1, first + width, behind).narrow(2, first, a.size(2) - first));
    }
    if (blocks != nullptr) {
      blocks->push_back(std::move(block));
    }
  }
}

// Calls part(own) for as many matrices as a launch may take, until all are done. own(x) is the part
// of x, a tensor with a's batch, that belongs to these matrices.
template <class Part>
void for_parts(const Tensor& a, Part part) {
  const auto steps = metalops::steps_of_panel(a.size(2), a.size(1));
  metalops::in_launches(a.size(0), steps, [&](int64_t first, int64_t count) {
    part([&](const Tensor& x) { return x.narrow(0, first, count); });
  });
}

// Multiplies vectors of few elements with Q or Q^H: the rows of `others` if by_rows, else its
// columns.
void multiply_small(const Tensor& others, const Tensor& a, const Tensor& taus, bool is_adjoint,
                    bool by_rows, bool is_identity) {
  const auto narrow = [](int64_t x) { return static_cast<uint32_t>(x); };
  const auto size = a.size(2);
  const auto count = others.size(by_rows ? 2 : 1);
  const metalops::QrVectorsParameters parameters{narrow(count),
                                                 narrow(size),
                                                 narrow(a.size(1)),
                                                 narrow(taus.size(1)),
                                                 others.size(1) * others.size(2),
                                                 by_rows ? 1 : size,
                                                 by_rows ? count : 1,
                                                 narrow(a.size(0)),
                                                 is_adjoint,
                                                 by_rows,
                                                 is_identity};
  metalops::launch_threads(metalops::library("qr"),
                           metalops::typed_kernel("qr_vectors_", a) + metalops::small_size(size),
                           a.size(0) * c10::metal::ceil_div<uint64_t>(count, metalops::kQrVectors),
                           others, a, taus, parameters);
}

// Forms the first columns of Q, as many as q has (xORGQR). blocks: those of the reflectors; none if
// they are small.
void form_q(const Tensor& q, const Tensor& a, const Tensor& taus,
            const std::vector<BlockReflector>& blocks) {
  if (q.numel() == 0) {
    return;
  }
  if (metalops::is_small(q.size(2)) && blocks.empty()) {
    multiply_small(q, a, taus, false, false, true);
    return;
  }
  q.zero_();
  q.diagonal(0, 1, 2).fill_(1);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    // The columns before `first` are zero in these rows.
    const auto first = block->first;
    metalops::multiply_columns(
        *block, false, q.narrow(1, first, q.size(1) - first).narrow(2, first, q.size(2) - first));
  }
}

// ---- geqrf --------------------------------------------------------------------------------------

Tensor empty_taus(const Tensor& a) {
  auto sizes = a.sizes().slice(0, a.dim() - 1).vec();
  sizes.back() = std::min(a.size(-2), a.size(-1));
  return at::empty(sizes, a.options());
}

std::tuple<Tensor, Tensor> geqrf_of(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  check("geqrf_mps", "torch.geqrf", input);
  auto a = at::native::cloneBatchedColumnMajor(input);
  auto taus = empty_taus(a);
  const auto columns = by_columns(a);
  const auto of_columns = batch_of_vectors(taus);
  for_parts(columns, [&](auto own) { factorise(own(columns), own(of_columns)); });
  return {std::move(a), std::move(taus)};
}

std::tuple<Tensor&, Tensor&> geqrf_out(const Tensor& input, Tensor& a, Tensor& tau) {
  constexpr const char* kName = "torch.geqrf";
  at::native::checkSameDevice(kName, a, input, "a");
  at::native::checkSameDevice(kName, tau, input, "tau");
  at::native::checkLinalgCompatibleDtype(kName, a, input, "a");
  at::native::checkLinalgCompatibleDtype(kName, tau, input, "tau");
  const auto [factors, taus] = geqrf_of(input);
  metalops::write_output(factors, a);
  metalops::write_output(taus, tau);
  return std::forward_as_tuple(a, tau);
}

// ---- householder_product ------------------------------------------------------------------------

// geqrf of tensors without values, for which torch has no meta function. (Without it, tracing runs
// the operator on zeros, where it may.)
std::tuple<Tensor, Tensor> geqrf_of_meta(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  auto sizes = input.sym_sizes().vec();
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  const auto a = at::empty_symint(sizes, input.options()).mT();
  sizes.pop_back();
  sizes.back() = input.sym_size(-1).min(input.sym_size(-2));
  return {a, at::empty_symint(sizes, input.options())};
}

Tensor householder_product_of(const Tensor& input, const Tensor& tau) {
  constexpr const char* kName = "torch.linalg.householder_product";
  TORCH_CHECK(input.dim() >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(input.size(-2) >= input.size(-1), kName,
              ": input.shape[-2] must be greater than or equal to input.shape[-1]");
  TORCH_CHECK(input.size(-1) >= tau.size(-1), kName,
              ": input.shape[-1] must be greater than or equal to tau.shape[-1]");
  TORCH_CHECK(input.dim() - tau.dim() == 1, kName,
              ": Expected tau to have one dimension less than input, but got tau.ndim equal to ",
              tau.dim(), " and input.ndim is equal to ", input.dim());
  const auto batch_of_tau = tau.sizes().slice(0, tau.dim() - 1);
  TORCH_CHECK(batch_of_tau.equals(input.sizes().slice(0, input.dim() - 2)), kName,
              ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ",
              batch_of_tau);
  TORCH_CHECK(tau.scalar_type() == input.scalar_type(), kName, ": tau dtype ", tau.scalar_type(),
              " does not match input dtype ", input.scalar_type());
  at::native::checkSameDevice(kName, tau, input, "tau");
  check("orgqr_mps", kName, input);
  auto result = at::native::cloneBatchedColumnMajor(input);
  const auto q = by_columns(result);
  const auto taus = batch_of_vectors(tau);
  if (metalops::is_small(input.size(-2))) {
    form_q(q, q.clone(), taus, {});
  } else if (q.numel() != 0) {
    form_q(q, q, taus, metalops::block_reflectors(q, taus));
  }
  return result;
}

Tensor& householder_product_out(const Tensor& input, const Tensor& tau, Tensor& out) {
  constexpr const char* kName = "torch.linalg.householder_product";
  at::native::checkSameDevice(kName, out, input);
  at::native::checkLinalgCompatibleDtype(kName, out, input);
  metalops::write_output(householder_product_of(input, tau), out);
  return out;
}

// ---- ormqr --------------------------------------------------------------------------------------

void check_ormqr(const Tensor& input, const Tensor& tau, const Tensor& other, bool left) {
  constexpr const char* kName = "torch.ormqr";
  TORCH_CHECK(input.dim() >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(other.dim() >= 2, kName, ": other must have at least 2 dimensions.");
  const int64_t side = left ? -2 : -1;
  TORCH_CHECK(other.size(side) == input.size(-2), kName, ": other.shape[", side,
              "] must be equal to input.shape[-2]");
  TORCH_CHECK(tau.size(-1) == std::min(other.size(side), input.size(-1)), kName,
              ": tau.shape[-1] must be equal to min(other.shape[", side, "], input.shape[-1])");
  TORCH_CHECK(input.dim() - tau.dim() == 1, kName,
              ": Expected tau to have one dimension less than input, but got tau.ndim equal to ",
              tau.dim(), " and input.ndim is equal to ", input.dim());
  TORCH_CHECK(
      input.dim() == other.dim(), kName,
      ": Expected other to have the same number of dimensions as input, but got other.ndim equal "
      "to ",
      other.dim(), " and input.ndim is equal to ", input.dim());
  const auto batch = input.sizes().slice(0, input.dim() - 2);
  const auto batch_of_tau = tau.sizes().slice(0, tau.dim() - 1);
  TORCH_CHECK(batch_of_tau.equals(batch), kName,
              ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ",
              batch_of_tau);
  const auto batch_of_other = other.sizes().slice(0, other.dim() - 2);
  TORCH_CHECK(batch_of_other.equals(batch), kName,
              ": Expected batch dimensions of other to be equal to input.shape[:-2], but got ",
              batch_of_other);
  TORCH_CHECK(tau.scalar_type() == input.scalar_type(), kName,
              ": Expected input and tau to have the same dtype, but input has dtype",
              input.scalar_type(), " and tau has dtype ", tau.scalar_type());
  TORCH_CHECK(other.scalar_type() == input.scalar_type(), kName,
              ": Expected input and other to have the same dtype, but input has dtype",
              input.scalar_type(), " and other has dtype ", other.scalar_type());
  at::native::checkSameDevice(kName, tau, input, "tau");
  at::native::checkSameDevice(kName, other, input, "other");
  check("ormqr_mps", kName, input);
  check("ormqr_mps", kName, other);
}

Tensor ormqr_of(const Tensor& input, const Tensor& tau, const Tensor& other, bool left,
                bool transpose) {
  check_ormqr(input, tau, other, left);
  auto result = at::native::cloneBatchedColumnMajor(other);
  const auto taus = batch_of_vectors(tau);
  if (result.numel() == 0 || taus.numel() == 0) {
    return result;
  }
  const auto a =
      by_columns(input.mT().is_contiguous() ? input : at::native::cloneBatchedColumnMajor(input));
  const auto c = by_columns(result);
  if (metalops::is_small(a.size(2))) {
    // x^T Q is the conjugate of Q^H conj(x).
    multiply_small(c, a, taus, left == transpose, !left, false);
    return result;
  }
  auto blocks = metalops::block_reflectors(a, taus);
  if (left != transpose) {
    std::reverse(blocks.begin(), blocks.end());
  }
  for (const auto& block : blocks) {
    if (left) {
      metalops::multiply_columns(block, transpose,
                                 c.narrow(2, block.first, a.size(2) - block.first));
    } else {
      metalops::multiply_rows(block, transpose, c.narrow(1, block.first, a.size(2) - block.first));
    }
  }
  return result;
}

Tensor& ormqr_out(const Tensor& input, const Tensor& tau, const Tensor& other, bool left,
                  bool transpose, Tensor& out) {
  check_ormqr(input, tau, other, left);
  TORCH_CHECK(out.scalar_type() == input.scalar_type(),
              "torch.ormqr: Expected input and result to have the same dtype, but input has dtype",
              input.scalar_type(), " and result has dtype ", out.scalar_type());
  at::native::checkSameDevice("torch.ormqr", out, input);
  metalops::write_output(ormqr_of(input, tau, other, left, transpose), out);
  return out;
}

// ---- qr -----------------------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> qr_out(const Tensor& input, c10::string_view mode, Tensor& q_out,
                                    Tensor& r_out) {
  metalops::StructuredOut<at::meta::structured_linalg_qr> call(q_out, r_out);
  call.meta(input, mode);
  check("geqrf_mps", "linalg.qr", input);
  const bool computes_q = mode != "r";
  const auto& r = call.output(1);
  auto factors = at::native::cloneBatchedColumnMajor(input);
  const auto a = by_columns(factors);
  const auto taus = batch_of_vectors(empty_taus(factors));
  const auto q = computes_q ? by_columns(call.output(0)) : Tensor();
  for_parts(a, [&](auto own) {
    std::vector<BlockReflector> blocks;
    factorise(own(a), own(taus), computes_q ? &blocks : nullptr);
    if (computes_q) {
      form_q(own(q), own(a), own(taus), blocks);
    }
  });
  at::triu_out(const_cast<Tensor&>(r), factors.narrow(-2, 0, r.size(-2)));
  call.write_back();
  return std::forward_as_tuple(q_out, r_out);
}

std::tuple<Tensor, Tensor> qr_of(const Tensor& input, c10::string_view mode) {
  auto q = at::empty({0}, input.options());
  auto r = at::empty({0}, input.options());
  qr_out(input, mode, q, r);
  return {std::move(q), std::move(r)};
}

constexpr const char* kReason =
    "is for float32, of at most 512 columns, and works on matrices as wide as they are high";
constexpr const char* kSlow = "makes matrices as wide as they are high, one for each reflector";

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("geqrf", geqrf_of);
  m.impl("geqrf.a", geqrf_out);
  m.impl("ormqr", ormqr_of);
  m.impl("ormqr.out", ormqr_out);
  m.replace("linalg_householder_product", householder_product_of, kSlow);
  m.replace("linalg_householder_product.out", householder_product_out, kSlow);
  m.replace("linalg_qr", qr_of, kReason);
  m.replace("linalg_qr.out", qr_out, kReason);
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  metalops::AtenKernels m(library, c10::DispatchKey::Meta);
  m.impl("geqrf", geqrf_of_meta);
}

}  // namespace

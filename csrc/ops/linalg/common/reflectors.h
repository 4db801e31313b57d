// Block reflectors of Householder reflectors, H1 H2 ... = 1 - V T V^H (compact WY), applied by
// GEMMs.
//
// Matrices are stored by columns: a contiguous tensor of (batch, columns, rows) is the transpose of
// the matrices that it stands for.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/qr.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace metalops {

// The block reflector of a panel. v: (batch, reflectors, rows from `first` on); t: (batch,
// reflectors, reflectors).
struct BlockReflector {
  int64_t first;
  at::Tensor v;
  at::Tensor t;
};

// Returns the parameters of the panel of `a` that begins in row and column `first`. taus: (batch,
// reflectors).
METALOPS_HIDDEN inline QrParameters qr_parameters(const at::Tensor& a, const at::Tensor& taus,
                                                  int64_t first, int64_t width) {
  const auto narrow = [](int64_t x) { return static_cast<uint32_t>(x); };
  return {narrow(a.size(0)),
          narrow(a.size(2)),
          narrow(a.size(1)),
          narrow(taus.size(1)),
          narrow(first),
          narrow(width),
          c10::metal::round_up<uint32_t>(narrow(width), 4)};
}

METALOPS_HIDDEN inline BlockReflector block_reflector(const at::Tensor& a, const at::Tensor& taus,
                                                      int64_t first, int64_t width) {
  const auto parameters = qr_parameters(a, taus, first, width);
  const auto batch = a.size(0);
  const auto rows = a.size(2) - first;
  const auto v = at::empty({batch, parameters.padded, rows}, a.options());
  launch_grid(library("qr"), typed_kernel("qr_reflectors_", a),
              {static_cast<uint64_t>(rows), parameters.padded, static_cast<uint64_t>(batch)}, v, a,
              parameters);
  const auto gram = at::bmm(v, v.mH());
  const auto t = at::empty_like(gram);
  launch_rows(library("qr"), typed_kernel("qr_larft_", a), parameters.padded, batch, t, gram, taus,
              parameters);
  return {first, v, t};
}

// Returns the block reflectors of all panels of a matrix.
METALOPS_HIDDEN inline std::vector<BlockReflector> block_reflectors(const at::Tensor& a,
                                                                    const at::Tensor& taus) {
  std::vector<BlockReflector> blocks;
  for (int64_t first = 0; first < taus.size(1); first += kQrPanel) {
    blocks.push_back(
        block_reflector(a, taus, first, std::min<int64_t>(kQrPanel, taus.size(1) - first)));
  }
  return blocks;
}

// Multiplies columns with H or H^H (xLARFB from the left). columns: (batch, columns, rows from
// block.first on).
METALOPS_HIDDEN inline void multiply_columns(const BlockReflector& block, bool is_adjoint,
                                             const at::Tensor& columns) {
  const auto& [first, v, t] = block;
  const auto weights = at::bmm(at::bmm(columns, v.mH()), is_adjoint ? t.mH() : t);
  columns.sub_(at::bmm(weights, v));
}

// Multiplies rows with H or H^H from the right (xLARFB). rows: (batch, elements from block.first
// on, rows).
METALOPS_HIDDEN inline void multiply_rows(const BlockReflector& block, bool is_adjoint,
                                          const at::Tensor& rows) {
  const auto& [first, v, t] = block;
  const auto weights = at::bmm(is_adjoint ? t.mH() : t, at::bmm(v, rows));
  rows.sub_(at::bmm(v.mH(), weights));
}

// Returns true if vectors of so many elements are few enough for a thread each to apply the
// reflectors.
METALOPS_HIDDEN inline bool is_small(int64_t elements) { return elements <= kQrSmall; }

METALOPS_HIDDEN inline const char* small_size(int64_t size) {
  return size <= 4 ? "_4" : size <= 8 ? "_8" : size <= 16 ? "_16" : "_32";
}

}  // namespace metalops

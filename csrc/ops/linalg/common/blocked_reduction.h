// Blocked two-sided reductions, to tridiagonal, bidiagonal and Hessenberg form: panels of
// kEighPanel reflectors, after each of which the rest of the matrix is updated by GEMMs, and
// products of all reflectors with the vectors of the reduced matrix. The kernels are those of
// kernels/linalg/eigh_large.metal.
//
// GEMMs are at::bmm of real numbers, because stock MPS multiplies complex matrices badly: a complex
// row v of factors becomes the two real rows [v; i v] of (real, imaginary) pairs.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/eigh_large.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace metalops {

// Returns the leading dimension of columns, in vectors of 16 bytes: an odd number of cache lines,
// so that adjacent columns do not fall into the same sets of a cache.
METALOPS_HIDDEN inline int64_t column_stride(int64_t n, at::ScalarType type) {
  const int64_t packs = c10::metal::ceil_div<int64_t>(n, at::isComplexType(type) ? 2 : 4);
  return c10::metal::ceil_div<int64_t>(packs, 4) / 2 * 8 + 4;
}

// The steps of a reduction, column by column in panels: the parameters of the kernels, and memory
// for the products of a column's reflector with a matrix and with vectors of the panel, summed in
// slices.
struct METALOPS_HIDDEN ColumnSteps {
  // matrices: (batch, n, row), by columns of `stride` vectors. kinds: how many kinds of panel
  // vectors a reflector is multiplied with.
  ColumnSteps(const at::Tensor& matrices, int64_t stride, int64_t reflectors, int64_t kinds)
      : n(matrices.size(1)) {
    constexpr int64_t kFewSlices = 32;
    const auto batch = matrices.size(0);
    const auto row = matrices.size(2);
    const auto slice = kEighPanel * c10::metal::ceil_div<int64_t>(n, kEighPanel * kFewSlices);
    const auto slices = c10::metal::ceil_div<int64_t>(n, slice);
    elements = row / stride;
    packs = c10::metal::ceil_div<int64_t>(n, elements);
    threads = std::min<int64_t>(256, c10::metal::round_up<int64_t>(packs, 32));
    products = at::empty({batch, slices, row}, matrices.options());
    overlaps = at::empty({batch, slices, 2 * kEighPanel}, matrices.options());
    p.size = static_cast<int32_t>(n);
    p.stride = static_cast<int32_t>(stride);
    p.reflectors = static_cast<int32_t>(reflectors);
    p.slice = static_cast<int32_t>(slice);
    p.slices = static_cast<int32_t>(slices);
    p.kinds = static_cast<int32_t>(kinds);
  }

  // Calls column() for each column, and end_panel(start, end) after each panel but the last.
  template <class Column, class EndPanel>
  void for_each(Column column, EndPanel end_panel) {
    for (int64_t start = 0; start < n; start += kEighPanel) {
      const auto end = std::min(start + kEighPanel, n);
      p.start = static_cast<int32_t>(start);
      p.ends_panel = 0;
      for (int64_t i = start; i < end; ++i) {
        p.column = static_cast<int32_t>(i);
        column();
      }
      if (end < n) {
        p.column = static_cast<int32_t>(end);
        p.from = p.column;
        p.ends_panel = 1;
        end_panel(start, end);
      }
    }
  }

  // Computes the products of the column's reflector with the matrices, from row `first` on, and
  // with so many vectors of the panel: taken in turn from `panels` and `reflectors`, or from
  // `reflectors` alone.
  void multiply(const at::Tensor& matrices, int64_t first, const at::Tensor& reflectors,
                const at::Tensor& panels, int64_t vectors) {
    p.first = static_cast<int32_t>(first);
    const auto threads = packs - first / elements + vectors;
    launch_grid(library("eigh_large"), typed_kernel("eigh_large_products_", matrices),
                {static_cast<uint64_t>(threads), static_cast<uint64_t>(p.slices - p.from / p.slice),
                 static_cast<uint64_t>(matrices.size(0))},
                products, overlaps, matrices, reflectors, panels, p);
  }

  bool is_last() const { return p.column == n - 1; }
  int64_t in_panel() const { return p.column - p.start; }

  int64_t n;
  int64_t elements;  // of a vector
  int64_t packs;     // vectors of a column that have elements
  int64_t threads;   // of the threadgroup that reduces a column
  at::Tensor products;
  at::Tensor overlaps;
  EighColumnParameters p{};
};

// Returns rows, (batch, rows, elements), as rows of real numbers.
METALOPS_HIDDEN inline at::Tensor with_real_parts(const at::Tensor& rows) {
  return rows.is_complex() ? at::view_as_real(rows).flatten(-2) : rows;
}

// Returns rows, (batch, rows, elements), as real rows: a complex row v becomes v and i v.
METALOPS_HIDDEN inline at::Tensor real_form(const at::Tensor& rows) {
  if (!rows.is_complex()) {
    return rows;
  }
  const auto times_i = at::mul(rows, c10::complex<double>(0, 1));
  return with_real_parts(at::stack({rows, times_i}, 2).flatten(1, 2));
}

// Returns the factors for the conjugates of `rows` that match real_form(): (batch, elements, rows).
METALOPS_HIDDEN inline at::Tensor conjugate_factors(const at::Tensor& rows) {
  if (!rows.is_complex()) {
    return rows.mT();
  }
  return at::view_as_real(rows.conj().resolve_conj()).permute({0, 2, 1, 3}).flatten(-2);
}

// A -= V W^H, in rows and columns from `from` on. matrices: (batch, n, row), by columns; v, w:
// (batch, vectors, row).
METALOPS_HIDDEN inline void subtract_product(const at::Tensor& matrices, int64_t from,
                                             const at::Tensor& v, const at::Tensor& w) {
  const auto n = matrices.size(1) - from;
  const auto row = matrices.size(2) - from;
  const auto factors = conjugate_factors(w.narrow(2, from, n));
  with_real_parts(matrices.narrow(1, from, n).narrow(2, from, row))
      .sub_(at::bmm(factors, real_form(v.narrow(2, from, row))));
}

// Returns the products of rows with each other, (batch, rows, rows), as sums of short sums: a GEMM
// adds one product after the other, and what is rounded the same way everywhere makes block
// reflectors less orthogonal.
METALOPS_HIDDEN inline at::Tensor gram(const at::Tensor& rows) {
  constexpr int64_t kShort = 16;
  const auto parts = rows.unflatten(-1, {rows.size(-1) / kShort, kShort}).transpose(1, 2);
  const auto shorts = parts.flatten(0, 1);
  return at::bmm(shorts, shorts.mT()).unflatten(0, parts.sizes().slice(0, 2)).sum(1);
}

// Multiplies columns with the block reflector of the kEighPanel reflectors from `start` on, or with
// its adjoint (xLARFT, xLARFB). columns: (batch, columns, row); reflectors: (batch, a multiple of
// kEighPanel, row), of which reflector k has zeros before element k; taus: (batch, reflectors).
METALOPS_HIDDEN inline void apply_block_reflector(const at::Tensor& columns,
                                                  const at::Tensor& reflectors,
                                                  const at::Tensor& taus, int64_t start,
                                                  bool is_adjoint) {
  const auto batch = reflectors.size(0);
  const auto row = reflectors.size(2);
  const int64_t parts = columns.is_complex() ? 2 : 1;
  const auto real_columns = with_real_parts(columns);
  const auto name = typed_kernel("eigh_large_larft_", columns);
  EighColumnParameters p{};
  p.reflectors = static_cast<int32_t>(reflectors.size(1));
  p.start = static_cast<int32_t>(start);
  const auto rows =
      real_form(reflectors.narrow(1, start, kEighPanel).narrow(2, start, row - start));
  const auto part = real_columns.narrow(2, parts * start, parts * (row - start));
  const auto t = at::zeros({batch, parts * kEighPanel, parts * kEighPanel}, real_columns.options());
  launch_rows(library("eigh_large"), name, kEighPanel, batch, t, gram(rows), taus, p);
  part.sub_(at::bmm(at::bmm(at::bmm(part, rows.mT()), is_adjoint ? t.mT() : t), rows));
}

// Multiplies columns with Q, the product of all reflectors, block by block (xUNMQR).
METALOPS_HIDDEN inline void multiply_by_q(const at::Tensor& columns, const at::Tensor& reflectors,
                                          const at::Tensor& taus) {
  for (int64_t start = reflectors.size(1) - kEighPanel; start >= 0; start -= kEighPanel) {
    apply_block_reflector(columns, reflectors, taus, start, false);
  }
}

}  // namespace metalops

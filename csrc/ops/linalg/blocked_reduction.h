// Blocked two-sided reductions, to tridiagonal, bidiagonal and Hessenberg form: panels of
// kReductionPanel reflectors, after each of which the rest of the matrix is updated by GEMMs, and
// products of all reflectors with the vectors of the reduced matrix.
//
// Matrices are stored by columns of vectors of 16 bytes, with zeros behind the rows. GEMMs are
// at::bmm of real numbers, because stock MPS multiplies complex matrices badly: a complex row v of
// factors becomes the two real rows [v; i v] of (real, imaginary) pairs.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/blocked_reduction.h>
#include <kernels/linalg/common/squares.h>
#include <metalops/library.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace metalops {

// A reduction of matrices (batch, n, n): scaled copies of them, the reflectors that reduce them,
// and what its results become.
struct METALOPS_HIDDEN BlockedReduction {
  // sides: from how many sides reflectors of their own are applied; reflector_count: of a side, at
  // least. Sets infos, (batch), to zero, or to not_finite where a matrix is not finite. source:
  // which of square_sources.h the matrices are, "General_" or "Hermitian_".
  BlockedReduction(const at::Tensor& a, const SquaresParameters& parameters, const char* source,
                   int64_t sides, int64_t reflector_count, const at::Tensor& infos, int not_finite);

  // Returns copies of the matrices (or as "Adjoint_": of their adjoints), divided by
  // 2^exponents so that all elements are less than 1: (batch, n, row), by columns. Those that are
  // not finite become zero.
  at::Tensor load(const at::Tensor& a, const SquaresParameters& parameters,
                  const char* source) const;

  // Stores the eigenvalues or singular values of the matrices from those of the scaled copies,
  // (batch, padded), in "ascending" or "descending" order. Returns each one's position, likewise.
  at::Tensor store_values(const at::Tensor& values, const at::Tensor& unordered,
                          const char* order) const;

  // Returns the vectors of each side in that order, times its reflectors: (sides * batch, n, row).
  // unordered: (..., padded, padded).
  at::Tensor ordered_vectors(const at::Tensor& unordered, const at::Tensor& ranks) const;

  int32_t size() const { return static_cast<int32_t>(n); }
  std::array<uint64_t, 3> grid(int64_t x, int64_t y, int64_t z) const {
    return {static_cast<uint64_t>(x), static_cast<uint64_t>(y), static_cast<uint64_t>(z)};
  }

  at::ScalarType type;
  int64_t batch;
  int64_t n;
  int64_t stride;  // of columns, in vectors
  int64_t row;     // elements of a column, with padding
  at::Tensor infos;
  at::Tensor exponents;   // (batch)
  at::Tensor reflectors;  // (sides * batch, a multiple of kReductionPanel, row)
  at::Tensor taus;        // (sides * batch, reflectors)
};

// The steps of a reduction, column by column in panels: the parameters of the kernels, and memory
// for the products of a column's reflector with a matrix and with vectors of the panel, summed in
// slices.
struct METALOPS_HIDDEN ColumnSteps {
  // kinds: how many kinds of panel vectors a reflector is multiplied with.
  ColumnSteps(const BlockedReduction& reduction, int64_t kinds);

  // Calls column() for each column, and end_panel(start, end) after each panel but the last.
  template <class Column, class EndPanel>
  void for_each(Column column, EndPanel end_panel) {
    for (int64_t start = 0; start < n; start += kReductionPanel) {
      const auto end = std::min(start + kReductionPanel, n);
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
                const at::Tensor& panels, int64_t vectors);

  bool is_last() const { return p.column == n - 1; }
  int64_t in_panel() const { return p.column - p.start; }

  int64_t n;
  int64_t elements;  // of a vector
  int64_t packs;     // vectors of a column that have elements
  int64_t threads;   // of the threadgroup that reduces a column
  at::Tensor products;
  at::Tensor overlaps;
  ReductionParameters p{};
};

// Returns rows, (batch, rows, elements), as rows of real numbers.
METALOPS_HIDDEN at::Tensor with_real_parts(const at::Tensor& rows);

// Returns rows, (batch, rows, elements), as real rows: a complex row v becomes v and i v.
METALOPS_HIDDEN at::Tensor real_form(const at::Tensor& rows);

// Returns the factors for the conjugates of `rows` that match real_form(): (batch, elements, rows).
METALOPS_HIDDEN at::Tensor conjugate_factors(const at::Tensor& rows);

// A -= V W^H, in rows and columns from `from` on. matrices: (batch, n, row), by columns; v, w:
// (batch, vectors, row).
METALOPS_HIDDEN void subtract_product(const at::Tensor& matrices, int64_t from, const at::Tensor& v,
                                      const at::Tensor& w);

// Multiplies columns with the block reflector of the kReductionPanel reflectors from `start` on, or
// with its adjoint (xLARFT, xLARFB). columns: (batch, columns, row); reflectors: (batch, a multiple
// of kReductionPanel, row), of which reflector k has zeros before element k; taus: (batch,
// reflectors).
METALOPS_HIDDEN void apply_block_reflector(const at::Tensor& columns, const at::Tensor& reflectors,
                                           const at::Tensor& taus, int64_t start, bool is_adjoint);

// Multiplies columns with Q, the product of all reflectors, block by block (xUNMQR).
METALOPS_HIDDEN void multiply_by_q(const at::Tensor& columns, const at::Tensor& reflectors,
                                   const at::Tensor& taus);

}  // namespace metalops

// Launch plans of kernels/linalg/blocked_reduction.metal. Blocked two-sided reductions: panels of
// kReductionPanel reflectors, after each of which the rest of the matrix is updated by GEMMs, and
// products of all reflectors with the vectors of the reduced matrix.
//
// Matrices are stored by columns of vectors of 16 bytes, with zeros behind the rows. GEMMs are of
// real numbers, because stock MPS multiplies complex matrices badly: a complex row v of factors
// becomes the two real rows [v; i v] of (real, imaginary) pairs.
#pragma once
#include <csrc/plans/plan.h>
#include <kernels/linalg/common/blocked_reduction.h>
#include <kernels/linalg/common/squares.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace metalops::plans {

// A reduction of matrices (batch, n, n): the reflectors that reduce scaled copies of them.
struct BlockedReduction {
  // sides: from how many sides reflectors of their own are applied; reflector_count: of a side, at
  // least. Sets infos, (batch), to zero, or to not_finite where a matrix is not finite. source:
  // which of square_sources.h the matrices are, "General_" or "Hermitian_".
  BlockedReduction(Plan& plan, const View& a, const SquaresParameters& parameters,
                   const char* source, int64_t sides, int64_t reflector_count, const View& infos,
                   int32_t not_finite);

  // Returns copies of the matrices (or as "Adjoint_": of their adjoints), divided by
  // 2^exponents so that all elements are less than 1: (batch, n, row), by columns. Those that are
  // not finite become zero.
  View load(Plan& plan, const View& a, const SquaresParameters& parameters,
            const char* source) const;

  // Returns memory for the vectors of a panel of each side: (sides * batch, kReductionPanel, row).
  // It is zero, because GEMMs take the padding of rows, too, and are slow if that is denormal by
  // chance.
  View zero_panels(Plan& plan) const;

  // Stores the eigenvalues or singular values of the matrices from those of the scaled copies,
  // (batch, padded), in "ascending" or "descending" order. Returns each one's position, likewise.
  View store_values(Plan& plan, const View& values, const View& unordered, const char* order) const;

  // Returns the vectors of each side in that order, times its reflectors: (sides * batch, n, row).
  // unordered: (sides * batch, padded, padded).
  View ordered_vectors(Plan& plan, const View& unordered, const View& ranks) const;

  Type type;
  int64_t batch;
  int64_t n;
  int64_t stride;  // of columns, in vectors
  int64_t row;     // elements of a column, with padding
  View infos;
  View exponents;   // (batch)
  View reflectors;  // (sides * batch, a multiple of kReductionPanel, row)
  View taus;        // (sides * batch, reflectors)
};

// The steps of a reduction, column by column in panels: the parameters of the kernels, and memory
// for the products of a column's reflector with a matrix and with vectors of the panel, summed in
// slices.
struct ColumnSteps {
  // kinds: how many kinds of panel vectors a reflector is multiplied with.
  ColumnSteps(Plan& plan, const BlockedReduction& reduction, int64_t kinds);

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
  void multiply(const View& matrices, int64_t first, const View& reflectors, const View& panels,
                int64_t vectors);

  bool is_last() const { return p.column == n - 1; }
  int64_t in_panel() const { return p.column - p.start; }

  Plan& plan;
  int64_t n;
  int64_t elements;  // of a vector
  int64_t packs;     // vectors of a column that have elements
  int64_t threads;   // of the threadgroup that reduces a column
  View products;
  View overlaps;
  ReductionParameters p{};
};

// Returns rows, (batch, rows, elements), as real rows: a complex row v becomes v and i v.
View real_form(Plan& plan, const View& rows);

// Returns the factors for the conjugates of `rows` that match real_form(): (batch, elements, rows).
View conjugate_factors(Plan& plan, const View& rows);

// A -= [V1 V2] [W1 W2]^H, in rows and columns from `from` on. matrices: (batch, n, row), by
// columns; V and W: (batch, vectors, row) each.
void subtract_products(Plan& plan, const View& matrices, int64_t from, const std::array<View, 2>& v,
                       const std::array<View, 2>& w);

// Multiplies columns with the block reflector of the kReductionPanel reflectors from `start` on, or
// with its adjoint (xLARFT, xLARFB). columns: (batch, columns, row); reflectors: (batch, a multiple
// of kReductionPanel, row), of which reflector k has zeros before element k; taus: (batch,
// reflectors), contiguous.
void apply_block_reflector(Plan& plan, const View& columns, const View& reflectors,
                           const View& taus, int64_t start, bool is_adjoint);

// Multiplies columns with Q, the product of all reflectors, block by block (xUNMQR).
void multiply_by_q(Plan& plan, const View& columns, const View& reflectors, const View& taus);

}  // namespace metalops::plans

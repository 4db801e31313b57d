// The operands of a GEMM as matrices, and the part of it that a simdgroup computes.
#pragma once

#include <msl/tensor.h>
#include <msl/tensor_ops/layout.h>

namespace msl::msl_impl {

MSL_INLINE long clamped(long left, long size) { return left < 0 ? 0 : left < size ? left : size; }

// A matrix in memory; reads 0 beyond `rows` and `columns`.
template <class T, class Planes = NoPlanes>
struct MatrixView {
  using Element = T;
  static constexpr bool is_plain = !is_format<T>;
  Place<T> first;
  long row_stride, column_stride;  // in elements
  long rows, columns;
  Planes planes{};
  bool columns_are_first = true;  // in the coordinates of planes

  MSL_INLINE float value(long row, long column) const {
    const long at = row * row_stride + column * column_stride;
    if constexpr (is_plain) {
      return float(first.at(at));
    } else if constexpr (Planes::has_scales) {
      const float scale = columns_are_first ? planes.at(column, row) : planes.at(row, column);
      return first.value(at) * scale;
    } else {
      return first.value(at);
    }
  }
};

// Returns a view of a tensor whose first dimension is the column, or the row if it is transposed.
template <class T, class X, class D, class... Tags>
MSL_INLINE auto view_of(const metal::tensor<T, X, D, Tags...>& of, bool is_transposed) {
  using Tensor = metal::tensor<T, X, D, Tags...>;
  constexpr long everything = 1l << 62;
  const long first = X::static_extent(0) == metal::dynamic_extent ? of.get_extent(0) : everything;
  const long second = X::static_extent(1) == metal::dynamic_extent ? of.get_extent(1) : everything;
  // Operations require that the first dimension is contiguous (stride 1).
  const long stride = of.get_stride(1);
  return MatrixView<T, typename Tensor::Planes>{of.msl_place(),
                                                is_transposed ? 1 : stride,
                                                is_transposed ? stride : 1,
                                                is_transposed ? first : second,
                                                is_transposed ? second : first,
                                                of.msl_planes(),
                                                !is_transposed};
}

// The part of an M x N tile that a simdgroup computes, or the only thread of the scope.
template <int M, int N, int Simdgroups>
struct TilePart {
  using Part = Bands<M, N, Simdgroups == 0 ? 1 : Simdgroups>;
  int row, column, rows, columns;
  MSL_INLINE explicit TilePart(uint simdgroup)
      : row(Part::first_row(simdgroup)),
        column(Part::first_column(simdgroup)),
        rows(int(clamped(M - row, Part::rows))),
        columns(int(clamped(N - column, Part::columns))) {}
  MSL_INLINE bool is_empty() const { return rows == 0 || columns == 0; }
};

}  // namespace msl::msl_impl

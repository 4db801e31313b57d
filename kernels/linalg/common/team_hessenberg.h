// xGEHD2: reduction of a team's matrix (teams.h) to Hessenberg form by Householder reflectors.
//
// Matrices are columns of packs, STRIDE packs apart, with zeros below their rows.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/schur.h>
#include <kernels/linalg/common/teams.h>

namespace metalops {

// Returns the power of two by which a column whose largest magnitude this is, of a matrix that is
// about 1, is multiplied so that its squares do not underflow; 0 if the column counts as zero.
inline float scale_of_column(float largest) {
  return largest <= kSchurTiny ? 0.0f : safe_scale(largest);
}

// Returns the reflector of (alpha, x). tail: the sum of |x_i scale|^2.
template <typename T>
inline ScaledReflector<T> reflector_of_column(T alpha, float tail, float scale) {
  const ScaledReflector<T> made = scaled_reflector(alpha * scale, tail);
  return {made.tau, scale > 0.0f ? made.beta / scale : 0.0f, made.factor * scale};
}

// Zeroes a column of n rows, `used` packs, below `row` by a Householder reflector, and returns its
// tau. reflector: receives its vector v, which is zero before `row`.
template <typename T, typename Team, typename Column, typename Vector>
inline T reflect_column(Column column, Vector reflector, int lane, int row, int n, int used) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const auto elements = elements_of<T>(column);
  float largest = 0.0f;
  for (int i = row + lane; i < n; i += Team::kLanes) {
    largest = ::metal::max(largest, largest_part(elements[i]));
  }
  largest = Team::largest(largest);
  const float scale = scale_of_column(largest);
  float tail = 0.0f;
  for (int i = row / kRows + lane; i < used; i += Team::kLanes) {
    const ::metal::float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, row + 1) * scale;
    tail += ::metal::dot(x, x);
  }
  tail = Team::sum(tail);
  const ScaledReflector<T> made =
      reflector_of_column(row < n ? elements[row] : from_real<T>(0.0f), tail, scale);
  const T factor = made.factor;
  Team::wait();
  for (int i = lane; i < used; i += Team::kLanes) {
    const ::metal::float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, row + 1);
    reflector[i] = times(x, factor) + ColumnPacks<T>::unit(i * kRows, row);
    column[i] = column[i] - ColumnPacks<T>::rows_from(column[i], i * kRows, row);
  }
  Team::wait();
  if (lane == 0 && row < n) {
    elements[row] = from_real<T>(made.beta);
  }
  return made.tau;
}

// Multiplies columns `row` to n - 1 by the adjoint of the reflector of the rows from `row` on.
template <typename T, typename Team, int STRIDE, typename Columns, typename Vector>
inline void reflect_rows_of_team(Columns packs, Vector reflector, T tau, int lane, int row, int n,
                                 int used) {
  const int first = row / ColumnPacks<T>::kRows;
  for (int j = row + lane; j < n; j += Team::kLanes) {
    T product = from_real<T>(0.0f);
    for (int i = first; i < used; ++i) {
      product += ColumnPacks<T>::inner_product(reflector[i], packs[j * STRIDE + i]);
    }
    product = -multiply(conjugate(tau), product);
    for (int i = first; i < used; ++i) {
      packs[j * STRIDE + i] += times(reflector[i], product);
    }
  }
}

// Multiplies a pack of rows of the columns `row` to n - 1 by the reflector, from the right. v: its
// elements.
template <typename T, int STRIDE, typename Pack, typename Elements>
inline void reflect_columns_of_pack(Pack x, Elements v, T tau, int row, int n) {
  ::metal::float4 sum(0.0f);
  for (int j = row; j < n; ++j) {
    sum += times(x[j * STRIDE], v[j]);
  }
  sum = times(sum, -tau);
  for (int j = row; j < n; ++j) {
    x[j * STRIDE] += times(sum, conjugate(v[j]));
  }
}

// Reduces the matrix to Hessenberg form. Column k of `vectors` receives the vector of reflector k,
// which is zero in rows 0 to k.
template <typename T, typename Team, int STRIDE, typename Columns, typename Taus>
inline void reduce_to_hessenberg(Columns packs, Columns vectors, int lane, int n, int padded,
                                 Taus taus) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = padded / kRows;
  for (int k = 0; k < n; ++k) {
    const auto column = packs + k * STRIDE;
    const auto reflector = vectors + k * STRIDE;
    const auto v = elements_of<T>(reflector);
    const T tau = reflect_column<T, Team>(column, reflector, lane, k + 1, n, used);
    if (lane == 0) {
      taus[k] = tau;
    }
    reflect_rows_of_team<T, Team, STRIDE>(packs, reflector, tau, lane, k + 1, n, used);
    Team::wait();
    for (int i = lane; i < used; i += Team::kLanes) {
      reflect_columns_of_pack<T, STRIDE>(packs + i, v, tau, k + 1, n);
    }
    Team::wait();
  }
}

// Restores Hessenberg form after deflation (as in xLAQR2): reduces the first m rows and columns of
// a matrix of `size` columns in Schur form, together with the column `spike` on its left, so that
// the spike keeps one nonzero element. `vectors`, of `vector_packs` packs, is multiplied by the
// transformation. spike: zero from row m on.
template <typename T, typename Team, int STRIDE, typename Columns>
inline void restore_hessenberg(Columns packs, Columns vectors, Columns spike, Columns reflector,
                               int lane, int m, int size, int vector_packs) {
  const int used = with_padding<T>(m) / ColumnPacks<T>::kRows;
  const auto v = elements_of<T>(reflector);
  for (int row = 0; row + 1 < m; ++row) {
    const auto column = row == 0 ? spike : packs + (row - 1) * STRIDE;
    const T tau = reflect_column<T, Team>(column, reflector, lane, row, m, used);
    reflect_rows_of_team<T, Team, STRIDE>(packs, reflector, tau, lane, row, size, used);
    Team::wait();
    for (int i = lane; i < used + vector_packs; i += Team::kLanes) {
      const auto x = i < used ? packs + i : vectors + (i - used);
      reflect_columns_of_pack<T, STRIDE>(x, v, tau, row, m);
    }
    Team::wait();
  }
}

}  // namespace metalops

// A team's matrix (teams.h) in columns of packs: each lane owns whole columns, or packs of rows.
#pragma once
#include <c10/metal/utils.h>
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/teams.h>

namespace metalops {

template <typename T, int SIZE, typename Team>
struct Layout {
  static constexpr constant int kPacks = SIZE / ColumnPacks<T>::kRows;  // per column
  // The stride of columns, in packs: odd, so that lanes that load adjacent columns use different
  // banks.
  static constexpr constant int kStride = Team::kLanes > 1 ? kPacks + 1 : kPacks;
};

// Loads the n rows and columns of a source, with zeros below them, and divides them by 2^e so that
// all elements are less than 1 in magnitude; returns e. A matrix with an element that is not finite
// becomes zero.
template <typename T, typename Team, int SIZE, typename Columns, typename Source>
inline int load_columns(Columns packs, int lane, int n, Source source, thread bool& is_finite) {
  typedef Layout<T, SIZE, Team> L;
  float largest = 0.0f;
  for (int column = lane; column < n; column += Team::kLanes) {
    const auto to = elements_of<T>(packs + column * L::kStride);
    for (int row = 0; row < SIZE; ++row) {
      const T x = row < n ? source.at(row, column) : from_real<T>(0.0f);
      largest = ::metal::max(largest, finite_magnitude(x));
      to[row] = x;
    }
  }
  largest = Team::largest(largest);
  is_finite = ::metal::isfinite(largest);
  const int exponent = exponent_above(largest);
  for (int column = lane; column < n; column += Team::kLanes) {
    for (int i = 0; i < L::kPacks; ++i) {
      const ::metal::float4 x = packs[column * L::kStride + i];
      packs[column * L::kStride + i] =
          is_finite ? with_exponent(x, -exponent) : ::metal::float4(0.0f);
    }
  }
  Team::wait();
  return exponent;
}

// xORG2R: replaces reflectors by their product Q. FIRST: 0, or 1 if row 0 takes no part. Column k
// holds the vector of reflector k, whose 1 is in row k + FIRST, below zeros. A lane computes whole
// columns of Q, the last ones first: the columns before them do not depend on the reflectors that
// are overwritten.
template <typename T, typename Team, int SIZE, int FIRST, typename Columns, typename Taus>
inline void form_q(Columns packs, int lane, int n, Taus taus) {
  typedef Layout<T, SIZE, Team> L;
  constexpr int kRows = ColumnPacks<T>::kRows;
  for (int begin = (n - 1) / Team::kLanes * Team::kLanes; begin >= 0; begin -= Team::kLanes) {
    const int j = begin + lane;
    ::metal::float4 column[L::kPacks];
    for (int i = 0; i < L::kPacks; ++i) {
      column[i] = ColumnPacks<T>::unit(i * kRows, j);
    }
    for (int k = j < n ? j - FIRST : -1; k >= 0; --k) {
      const auto vector = packs + k * L::kStride;
      T product = from_real<T>(0.0f);
      for (int i = 0; i < L::kPacks; ++i) {
        product += ColumnPacks<T>::inner_product(vector[i], column[i]);
      }
      product = multiply(product, taus[k]);
      for (int i = 0; i < L::kPacks; ++i) {
        column[i] -= times(vector[i], product);
      }
    }
    Team::wait();
    for (int i = 0; j < n && i < L::kPacks; ++i) {
      packs[j * L::kStride + i] = column[i];
    }
    Team::wait();
  }
}

}  // namespace metalops

// xTREVC: eigenvectors of a matrix in Schur form by back substitution, one thread per eigenvector.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/schur.h>

namespace metalops {

// A complex vector of PACKS packs of T, for products with columns of T: planar for float,
// interleaved for float2.
template <typename T, int PACKS>
struct ComplexColumn;

template <int PACKS>
struct ComplexColumn<float, PACKS> {
  ::metal::float4 re[PACKS];
  ::metal::float4 im[PACKS];
};

template <int PACKS>
struct ComplexColumn<::metal::float2, PACKS> {
  ::metal::float4 both[PACKS];
};

template <int PACKS>
inline float2 element_of(thread const ComplexColumn<float, PACKS>& x, int i) {
  return float2(x.re[i / 4][i % 4], x.im[i / 4][i % 4]);
}
template <int PACKS>
inline float2 element_of(thread const ComplexColumn<float2, PACKS>& x, int i) {
  const float4 pack = x.both[i / 2];
  return i % 2 == 0 ? pack.xy : pack.zw;
}

template <int PACKS>
inline void set_element(thread ComplexColumn<float, PACKS>& x, int i, float2 value) {
  x.re[i / 4][i % 4] = value.x;
  x.im[i / 4][i % 4] = value.y;
}
template <int PACKS>
inline void set_element(thread ComplexColumn<float2, PACKS>& x, int i, float2 value) {
  x.both[i / 2][2 * (i % 2)] = value.x;
  x.both[i / 2][2 * (i % 2) + 1] = value.y;
}

// A complex vector likewise, in memory that threads share. Planar ones are `stride` packs of real
// parts followed by those of imaginary parts.
template <typename T, typename Packs>
struct SharedComplexColumn {
  Packs packs;
  int stride;
};

template <typename Packs>
inline float2 element_of(thread const SharedComplexColumn<float, Packs>& x, int i) {
  return float2(elements_of<float>(x.packs)[i], elements_of<float>(x.packs + x.stride)[i]);
}
template <typename Packs>
inline float2 element_of(thread const SharedComplexColumn<float2, Packs>& x, int i) {
  return elements_of<float2>(x.packs)[i];
}

template <typename Packs>
inline void set_element(thread const SharedComplexColumn<float, Packs>& x, int i, float2 value) {
  elements_of<float>(x.packs)[i] = value.x;
  elements_of<float>(x.packs + x.stride)[i] = value.y;
}
template <typename Packs>
inline void set_element(thread const SharedComplexColumn<float2, Packs>& x, int i, float2 value) {
  elements_of<float2>(x.packs)[i] = value;
}

template <typename Packs>
inline void add_product(thread const SharedComplexColumn<float, Packs>& x, int i, float4 pack,
                        float2 factor) {
  x.packs[i] += pack * factor.x;
  x.packs[i + x.stride] += pack * factor.y;
}
template <typename Packs>
inline void add_product(thread const SharedComplexColumn<float2, Packs>& x, int i, float4 pack,
                        float2 factor) {
  x.packs[i] += times(pack, factor);
}

template <int PACKS>
inline void add_product(thread ComplexColumn<float, PACKS>& x, int i, float4 pack, float2 factor) {
  x.re[i] += pack * factor.x;
  x.im[i] += pack * factor.y;
}
template <int PACKS>
inline void add_product(thread ComplexColumn<float2, PACKS>& x, int i, float4 pack, float2 factor) {
  x.both[i] += times(pack, factor);
}

template <int PACKS>
inline void scale_by(thread ComplexColumn<float, PACKS>& x, float factor) {
  for (int i = 0; i < PACKS; ++i) {
    x.re[i] *= factor;
    x.im[i] *= factor;
  }
}
template <int PACKS>
inline void scale_by(thread ComplexColumn<float2, PACKS>& x, float factor) {
  for (int i = 0; i < PACKS; ++i) {
    x.both[i] *= factor;
  }
}

template <int PACKS>
inline void clear(thread ComplexColumn<float, PACKS>& x) {
  for (int i = 0; i < PACKS; ++i) {
    x.re[i] = float4(0.0f);
    x.im[i] = float4(0.0f);
  }
}
template <int PACKS>
inline void clear(thread ComplexColumn<float2, PACKS>& x) {
  for (int i = 0; i < PACKS; ++i) {
    x.both[i] = float4(0.0f);
  }
}

// Returns the magnitude that replaces smaller divisors: it is a rounding error of a matrix that is
// about 1.
inline float smallest_divisor(float2 value) {
  return ::metal::max(kSchurEpsilon * cabs1(value), 0x1p-64f);
}

inline float2 divisor_of(float2 x, float smallest) {
  return cabs1(x) < smallest ? float2(smallest, 0.0f) : x;
}

// Elements of an eigenvector in the rows of a diagonal block of one row, or of two rows if its
// eigenvalues are a complex pair.
struct Unknowns {
  float2 first;
  float2 second;
  int count;

  float size() const { return ::metal::max(largest_part(first), largest_part(second)); }
};

// Returns the solution of [a - value, b; c, d - value] (first, second) = (y, z), with c not zero.
inline Unknowns solve_two_by_two(float a, float b, float c, float d, float2 value, float2 y,
                                 float2 z, float smallest) {
  const float2 upper = float2(a, 0.0f) - value;
  const float2 lower = float2(d, 0.0f) - value;
  if (cabs1(upper) >= ::metal::abs(c)) {
    const float2 factor = divide(float2(c, 0.0f), upper);
    const float2 second =
        divide(z + multiply(-factor, y), divisor_of(lower + factor * -b, smallest));
    return {divide(y + second * -b, upper), second, 2};
  }
  const float2 factor = upper / c;
  const float2 second = divide(y + multiply(-factor, z),
                               divisor_of(float2(b, 0.0f) + multiply(-factor, lower), smallest));
  return {(z + multiply(-lower, second)) / c, second, 2};
}

// Returns true if rows k and k + 1 of a matrix in Schur form are a 2-by-2 block of complex
// eigenvalues.
template <typename T, typename Columns, typename Stride>
METAL_FUNC bool is_pair(Columns packs, Stride stride, int n, int k) {
  return !is_complex_v<T> && k >= 0 && k + 1 < n &&
         real_part(elements_of<T>(packs + k * stride)[k + 1]) != 0.0f;
}

// Returns the eigenvalue in row k; of a complex pair, the one with positive imaginary part.
template <typename T, typename Columns, typename Stride>
METAL_FUNC float2 schur_value(Columns packs, Stride stride, int n, int k) {
  const auto column = elements_of<T>(packs + k * stride);
  float2 value(real_part(column[k]), imaginary_part(column[k]));
  if (is_pair<T>(packs, stride, n, k)) {
    const float above = real_part(elements_of<T>(packs + (k + 1) * stride)[k]);
    value.y = ::metal::precise::sqrt(::metal::abs(above)) *
              ::metal::precise::sqrt(::metal::abs(real_part(column[k + 1])));
  }
  return value;
}

// Returns the eigenvector of the diagonal block in row j itself, for schur_value().
template <typename T, typename Columns, typename Stride>
METAL_FUNC Unknowns vector_of_block(Columns packs, Stride stride, int n, int j, float2 value) {
  if (!is_pair<T>(packs, stride, n, j)) {
    return {float2(1.0f, 0.0f), float2(0.0f), 1};
  }
  const float below = real_part(elements_of<T>(packs + j * stride)[j + 1]);
  const float above = real_part(elements_of<T>(packs + (j + 1) * stride)[j]);
  const bool is_upper = ::metal::abs(above) >= ::metal::abs(below);
  return {float2(is_upper ? 1.0f : -value.y / below, 0.0f),
          float2(0.0f, is_upper ? value.y / above : 1.0f), 2};
}

// Solves the diagonal block that ends before row `end`. x: holds the right-hand sides.
template <typename T, typename Columns, typename Stride, typename Column>
METAL_FUNC Unknowns solve_block(Columns packs, Stride stride, int n, int end, float2 value,
                                float smallest, thread const Column& x) {
  const int k = end - 1;
  const auto column = elements_of<T>(packs + k * stride);
  if (is_pair<T>(packs, stride, n, k - 1)) {
    const auto before = elements_of<T>(packs + (k - 1) * stride);
    return solve_two_by_two(real_part(before[k - 1]), real_part(column[k - 1]),
                            real_part(before[k]), real_part(column[k]), value, element_of(x, k - 1),
                            element_of(x, k), smallest);
  }
  const float2 diagonal(real_part(column[k]), imaginary_part(column[k]));
  return {divide(element_of(x, k), divisor_of(diagonal - value, smallest)), float2(0.0f), 1};
}

// Vectors are scaled down where an element is larger.
constant constexpr float kLargeUnknown = 0x1p+30f;

// Adds `factor` times the rows of a column above row `end`.
template <typename T, int PACKS, typename Column>
inline void add_above(thread ComplexColumn<T, PACKS>& x, Column column, int end, float2 factor) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int whole = end / kRows;
  for (int i = 0; i < whole; ++i) {
    add_product(x, i, column[i], factor);
  }
  if (whole * kRows < end) {
    const float4 pack = column[whole];
    add_product(x, whole, pack - ColumnPacks<T>::rows_from(pack, whole * kRows, end), factor);
  }
}

// Finds the eigenvector of a (block) triangular matrix, which is about 1, for the eigenvalue in row
// j.
template <typename T, int STRIDE, int PACKS, typename Columns>
inline void back_substitute(thread ComplexColumn<T, PACKS>& x, Columns packs, int n, int j,
                            float2 value) {
  const float smallest = smallest_divisor(value);
  clear(x);
  int end = j;
  Unknowns found = vector_of_block<T>(packs, STRIDE, n, j, value);
  while (true) {
    set_element(x, end, found.first);
    if (found.count == 2) {
      set_element(x, end + 1, found.second);
    }
    if (found.size() > kLargeUnknown) {
      scale_by(x, ::metal::ldexp(1.0f, -::metal::ilogb(found.size())));
    }
    for (int solved = end; solved < end + found.count; ++solved) {
      add_above(x, packs + solved * STRIDE, end, -element_of(x, solved));
    }
    if (end == 0) {
      break;
    }
    found = solve_block<T>(packs, STRIDE, n, end, value, smallest, x);
    end -= found.count;
  }
}

}  // namespace metalops

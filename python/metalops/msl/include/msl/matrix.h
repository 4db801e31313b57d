// metal_matrix: matrices of half and float, column-major.
#pragma once

#include <msl/geometric.h>

namespace msl::metal {

template <class T, int C, int R>
struct matrix {
  static_assert(is_floating_point_v<T> && is_scalar_v<T>,
                "the elements of a matrix are half, bfloat or float");
  using column = vec<T, R>;
  column columns[C];

  matrix() = default;
  // Sets every element of the diagonal to `diagonal`, the others to zero.
  MSL_INLINE explicit constexpr matrix(T diagonal) : columns{} {
    for (int c = 0; c < C; ++c) {
      columns[c] = column(T(0));
      if (c < R) columns[c][c] = diagonal;
    }
  }
  // Constructs a matrix from columns, or from all elements, column by column.
  template <class... V, class = enable_if_t<sizeof...(V) == C && C != 1 &&
                                            conjunction_v<is_convertible<V, column>...> &&
                                            !conjunction_v<is_scalar<V>...>>>
  MSL_INLINE constexpr matrix(const V&... v) : columns{column(v)...} {}
  template <class... S,
            class = enable_if_t<sizeof...(S) == C * R && conjunction_v<is_scalar<S>...>>, int = 0>
  MSL_INLINE constexpr matrix(const S&... s) : columns{} {
    const T elements[] = {static_cast<T>(s)...};
    for (int c = 0; c < C; ++c) {
      for (int r = 0; r < R; ++r) columns[c][r] = elements[c * R + r];
    }
  }
  template <class U, class = msl_impl::if_different<T, U>>
  MSL_INLINE explicit constexpr matrix(const matrix<U, C, R>& other) : columns{} {
    for (int c = 0; c < C; ++c) columns[c] = column(other.columns[c]);
  }

  MSL_INLINE constexpr column& operator[](size_t c) { return columns[c]; }
  MSL_INLINE constexpr const column& operator[](size_t c) const { return columns[c]; }
};

#define MSL_ELEMENTWISE(op)                                                    \
  template <class T, int C, int R>                                             \
  MSL_INLINE constexpr matrix<T, C, R> operator op(const matrix<T, C, R>& a,   \
                                                   const matrix<T, C, R>& b) { \
    matrix<T, C, R> result(T(0));                                              \
    for (int c = 0; c < C; ++c) result[c] = a[c] op b[c];                      \
    return result;                                                             \
  }                                                                            \
  template <class T, int C, int R>                                             \
  MSL_INLINE constexpr matrix<T, C, R>& operator op## =                        \
      (matrix<T, C, R> & a, const matrix<T, C, R>& b) {                        \
    return a = a op b;                                                         \
  }
MSL_ELEMENTWISE(+)
MSL_ELEMENTWISE(-)
#undef MSL_ELEMENTWISE

template <class T, int C, int R>
MSL_INLINE constexpr matrix<T, C, R> operator-(const matrix<T, C, R>& a) {
  matrix<T, C, R> result(T(0));
  for (int c = 0; c < C; ++c) result[c] = -a[c];
  return result;
}
template <class T, int C, int R>
MSL_INLINE constexpr matrix<T, C, R> operator*(const matrix<T, C, R>& a, msl_impl::as_is<T> s) {
  matrix<T, C, R> result(T(0));
  for (int c = 0; c < C; ++c) result[c] = a[c] * s;
  return result;
}
template <class T, int C, int R>
MSL_INLINE constexpr matrix<T, C, R> operator*(msl_impl::as_is<T> s, const matrix<T, C, R>& a) {
  return a * s;
}
template <class T, int C, int R>
MSL_INLINE constexpr vec<T, R> operator*(const matrix<T, C, R>& m,
                                         const msl_impl::as_is<vec<T, C>>& v) {
  vec<T, R> result = m[0] * v[0];
  for (int c = 1; c < C; ++c) result = result + m[c] * v[c];
  return result;
}
template <class T, int C, int R>
MSL_INLINE constexpr vec<T, C> operator*(const msl_impl::as_is<vec<T, R>>& v,
                                         const matrix<T, C, R>& m) {
  vec<T, C> result(T(0));
  for (int c = 0; c < C; ++c) result[c] = dot(v, m[c]);
  return result;
}
template <class T, int C, int R, int K>
MSL_INLINE constexpr matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
  matrix<T, C, R> result(T(0));
  for (int c = 0; c < C; ++c) result[c] = a * b[c];
  return result;
}
template <class T, int C, int R, class S>
MSL_INLINE constexpr matrix<T, C, R>& operator*=(matrix<T, C, R>& a, const S& b) {
  return a = a * b;
}
template <class T, int C, int R>
MSL_INLINE constexpr bool operator==(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      if (a[c][r] != b[c][r]) return false;
    }
  }
  return true;
}
template <class T, int C, int R>
MSL_INLINE constexpr bool operator!=(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  return !(a == b);
}

template <class T, int C, int R>
MSL_INLINE constexpr matrix<T, R, C> transpose(const matrix<T, C, R>& m) {
  matrix<T, R, C> result(T(0));
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) result[r][c] = m[c][r];
  }
  return result;
}

template <class T>
MSL_INLINE constexpr T determinant(const matrix<T, 2, 2>& m) {
  return T(m[0].x * m[1].y - m[1].x * m[0].y);
}
template <class T>
MSL_INLINE constexpr T determinant(const matrix<T, 3, 3>& m) {
  return dot(m[0], cross(m[1], m[2]));
}
template <class T>
MSL_INLINE constexpr T determinant(const matrix<T, 4, 4>& m) {
  // Laplace expansion by 2 x 2 minors of the first two columns and of the last two.
  const auto minor2 = [&](int c, int r, int s) {
    return T(m[c][r] * m[c + 1][s] - m[c][s] * m[c + 1][r]);
  };
  return T(minor2(0, 0, 1) * minor2(2, 2, 3) - minor2(0, 0, 2) * minor2(2, 1, 3) +
           minor2(0, 0, 3) * minor2(2, 1, 2) + minor2(0, 1, 2) * minor2(2, 0, 3) -
           minor2(0, 1, 3) * minor2(2, 0, 2) + minor2(0, 2, 3) * minor2(2, 0, 1));
}

#define MSL_MATRIX_TYPES(T)       \
  typedef matrix<T, 2, 2> T##2x2; \
  typedef matrix<T, 2, 3> T##2x3; \
  typedef matrix<T, 2, 4> T##2x4; \
  typedef matrix<T, 3, 2> T##3x2; \
  typedef matrix<T, 3, 3> T##3x3; \
  typedef matrix<T, 3, 4> T##3x4; \
  typedef matrix<T, 4, 2> T##4x2; \
  typedef matrix<T, 4, 3> T##4x3; \
  typedef matrix<T, 4, 4> T##4x4;
MSL_MATRIX_TYPES(half)
MSL_MATRIX_TYPES(float)
#undef MSL_MATRIX_TYPES

}  // namespace msl::metal

namespace msl {
#define MSL_GLOBAL_MATRIX_TYPES(T) \
  using metal::T##2x2;             \
  using metal::T##2x3;             \
  using metal::T##2x4;             \
  using metal::T##3x2;             \
  using metal::T##3x3;             \
  using metal::T##3x4;             \
  using metal::T##4x2;             \
  using metal::T##4x3;             \
  using metal::T##4x4;
MSL_GLOBAL_MATRIX_TYPES(half)
MSL_GLOBAL_MATRIX_TYPES(float)
#undef MSL_GLOBAL_MATRIX_TYPES
}  // namespace msl

// metal_simdgroup_matrix: 8 x 8 matrices distributed over the lanes of a simdgroup, two elements
// per lane.
//
// The layout is that of Apple GPUs, on which code in the wild relies: within each 4 x 4 quadrant
// pair, a lane holds two adjacent elements of a row.
#pragma once

#include <msl/simd.h>

namespace msl::metal {

template <class T, int C, int R>
struct simdgroup_matrix;

}  // namespace msl::metal

namespace msl::msl_impl {

// The position of a lane's first element; its second one is in the next column.
MSL_INLINE constexpr uint matrix_row(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
MSL_INLINE constexpr uint matrix_column(uint lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }

template <class T, int C, int R>
MSL_INLINE constexpr bool check_shape() {
  static_assert(C == 8 && R == 8, "Metal has simdgroup matrices of 8 x 8 elements only");
  static_assert(metal::is_floating_point_v<T>, "simdgroup matrices hold half, bfloat or float");
  return true;
}

}  // namespace msl::msl_impl

namespace msl::metal {

template <class T, int C = 8, int R = 8>
struct simdgroup_matrix {
  static_assert(msl_impl::check_shape<T, C, R>());
  using value_type = T;
  using storage_type = vec<T, 2>;

  simdgroup_matrix() = default;
  // Sets the diagonal to `diagonal`, the rest to zero.
  MSL_INLINE explicit simdgroup_matrix(T diagonal) {
    const uint lane = msl_impl::lane_in_simdgroup();
    const uint row = msl_impl::matrix_row(lane);
    const uint column = msl_impl::matrix_column(lane);
    elements_ = storage_type(row == column ? diagonal : T(0), row == column + 1 ? diagonal : T(0));
  }
  MSL_INLINE storage_type& thread_elements() { return elements_; }
  MSL_INLINE const storage_type& thread_elements() const { return elements_; }

 private:
  storage_type elements_;
};

typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R>
MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, C, R> result;
  result.thread_elements() = vec<T, 2>(value, value);
  return result;
}
template <class T, int N>
MSL_INLINE simdgroup_matrix<T, N, N> make_filled_simdgroup_matrix(T value) {
  return make_filled_simdgroup_matrix<T, N, N>(value);
}
template <class T, int C, int R>
MSL_INLINE simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, C, R>(value);
}
template <class T, int N>
MSL_INLINE simdgroup_matrix<T, N, N> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, N, N>(value);
}

}  // namespace msl::metal

namespace msl::msl_impl {

// Returns the index in memory of element (row, column) of a matrix with leading dimension
// elements_per_row.
MSL_INLINE ulong matrix_index(uint row, uint column, ulong elements_per_row, const ulong2& origin,
                              bool transpose) {
  if (transpose) return (origin.x + column) * elements_per_row + origin.y + row;
  return (origin.y + row) * elements_per_row + origin.x + column;
}

// A lane's part of loading and storing a matrix.
template <class T, class U>
MSL_INLINE void matrix_load(uint lane, metal::simdgroup_matrix<T, 8, 8>& d, const U* source,
                            ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                            bool transpose = false) {
  for (uint i = 0; i < 2; ++i) {
    const ulong index = matrix_index(matrix_row(lane), matrix_column(lane) + i, elements_per_row,
                                     origin, transpose);
    d.thread_elements()[i] = T(source[index]);
  }
}
template <class T, class U>
MSL_INLINE void matrix_store(uint lane, const metal::simdgroup_matrix<T, 8, 8>& a, U* destination,
                             ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                             bool transpose = false) {
  for (uint i = 0; i < 2; ++i) {
    const ulong index = matrix_index(matrix_row(lane), matrix_column(lane) + i, elements_per_row,
                                     origin, transpose);
    destination[index] = U(a.thread_elements()[i]);
  }
}

// D = A B + C, in float. Each lane passes its elements of A, B and C and takes its elements of D.
template <class A, class B, class C>
struct MatrixOperands {
  metal::vec<A, 2> a;
  metal::vec<B, 2> b;
  metal::vec<C, 2> c;
};
}  // namespace msl::msl_impl

#if defined(__CUDACC_RTC__)
#include <msl/cuda/multiply_accumulate.h>
#else
#include <msl/host/multiply_accumulate.h>
#endif

namespace msl::metal {

template <class T, class U>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const U* source,
                               ulong elements_per_row = 8, ulong2 matrix_origin = ulong2(0),
                               bool transpose_matrix = false, abi::Site = {}) {
  msl_impl::matrix_load(msl_impl::lane_in_simdgroup(), d, source, elements_per_row, matrix_origin,
                        transpose_matrix);
}
template <class T, class U>
MSL_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& a, U* destination,
                                ulong elements_per_row = 8, ulong2 matrix_origin = ulong2(0),
                                bool transpose_matrix = false, abi::Site = {}) {
  msl_impl::matrix_store(msl_impl::lane_in_simdgroup(), a, destination, elements_per_row,
                         matrix_origin, transpose_matrix);
}

// Computes d = a b + c.
template <class D, class A, class B, class C, class S = abi::Site>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                              const simdgroup_matrix<A, 8, 8>& a,
                                              const simdgroup_matrix<B, 8, 8>& b,
                                              const simdgroup_matrix<C, 8, 8>& c, S site = {}) {
  using Operands = msl_impl::MatrixOperands<A, B, C>;
  d.thread_elements() = msl_impl::together<msl_impl::MultiplyAccumulate<D, A, B, C>, vec<D, 2>>(
      site, Operands{a.thread_elements(), b.thread_elements(), c.thread_elements()});
}
// Computes d = a b.
template <class D, class A, class B, class S = abi::Site>
MSL_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, S site = {}) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), site);
}
template <class A, class B>
MSL_INLINE simdgroup_matrix<A, 8, 8> operator*(const simdgroup_matrix<A, 8, 8>& a,
                                               const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_matrix<A, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

}  // namespace msl::metal

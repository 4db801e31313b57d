// metal_simdgroup_matrix: 8 x 8 matrices spread over the lanes of a simdgroup, two elements in
// each.
//
// The layout is that of Apple GPUs, which code in the wild takes for granted: within each 4 x 4
// quadrant pair, a lane holds two neighbours in a row.
#pragma once

#include <msl/simd.h>

namespace msl::metal {

template <class T, int C, int R>
struct simdgroup_matrix;

}  // namespace msl::metal

namespace msl::msl_impl {

// The place of a lane's first element; its second one is in the next column.
MSL_INLINE constexpr uint matrix_row(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
MSL_INLINE constexpr uint matrix_column(uint lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }
// Of the elements of lane 0, those of lane 1, and so on: where the four of a row from column
// 4 * half on begin.
MSL_INLINE constexpr uint matrix_four(uint row, uint half) {
  return row / 4 * 32 + half * 16 + row % 4 * 4;
}
constexpr bool fours_are_where_lanes_are() {
  for (uint lane = 0; lane < 32; ++lane) {
    const uint row = matrix_row(lane), column = matrix_column(lane);
    if (matrix_four(row, column / 4) + column % 4 != 2 * lane) return false;
  }
  return true;
}
static_assert(fours_are_where_lanes_are());

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
  // `diagonal` on the diagonal, zero elsewhere.
  MSL_INLINE explicit simdgroup_matrix(T diagonal) {
    const uint lane = msl_runtime->lane();
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

// The index in memory of element (row, column) of a matrix whose rows are elements_per_row apart.
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

// The parts of all 32 lanes, which stand side by side.
template <class T, class U>
MSL_INLINE void matrix_load_all(metal::simdgroup_matrix<T, 8, 8>* d, const U* source,
                                ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                                bool transpose = false) {
  T* const to = reinterpret_cast<T*>(d);
  const U* const from = source + matrix_index(0, 0, elements_per_row, origin, transpose);
  for (uint row = 0; row < 8; ++row) {
    for (uint half = 0; half < 2; ++half) {
      T* const four = to + matrix_four(row, half);
      if (transpose) {
        for (uint i = 0; i < 4; ++i) four[i] = T(from[(half * 4 + i) * elements_per_row + row]);
      } else {
        for (uint i = 0; i < 4; ++i) four[i] = T(from[row * elements_per_row + half * 4 + i]);
      }
    }
  }
}
template <class T, class U>
MSL_INLINE void matrix_store_all(const metal::simdgroup_matrix<T, 8, 8>* a, U* destination,
                                 ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                                 bool transpose = false) {
  const T* const from = reinterpret_cast<const T*>(a);
  U* const to = destination + matrix_index(0, 0, elements_per_row, origin, transpose);
  for (uint row = 0; row < 8; ++row) {
    for (uint half = 0; half < 2; ++half) {
      const T* const four = from + matrix_four(row, half);
      if (transpose) {
        for (uint i = 0; i < 4; ++i) to[(half * 4 + i) * elements_per_row + row] = U(four[i]);
      } else {
        for (uint i = 0; i < 4; ++i) to[row * elements_per_row + half * 4 + i] = U(four[i]);
      }
    }
  }
}

typedef float MatrixRow __attribute__((vector_size(32)));
template <class T>
MSL_INLINE void read_rows(const metal::simdgroup_matrix<T, 8, 8>* from, MatrixRow* rows) {
  const T* const elements = reinterpret_cast<const T*>(from);
  for (uint row = 0; row < 8; ++row) {
    for (uint i = 0; i < 8; ++i) rows[row][i] = float(elements[matrix_four(row, i / 4) + i % 4]);
  }
}
template <class T>
MSL_INLINE void write_rows(const MatrixRow* rows, metal::simdgroup_matrix<T, 8, 8>* to) {
  T* const elements = reinterpret_cast<T*>(to);
  for (uint row = 0; row < 8; ++row) {
    for (uint i = 0; i < 8; ++i) elements[matrix_four(row, i / 4) + i % 4] = T(rows[row][i]);
  }
}
// D = A B + D
MSL_INLINE void multiply_accumulate_rows(const MatrixRow* a, const MatrixRow* b, MatrixRow* d) {
  for (uint row = 0; row < 8; ++row) {
    MatrixRow sum = d[row];
    for (uint k = 0; k < 8; ++k) sum += a[row][k] * b[k];
    d[row] = sum;
  }
}

// D = A B + C, in float. Each lane brings its elements of A, B and C and takes its elements of D.
template <class A, class B, class C>
struct MatrixOperands {
  metal::vec<A, 2> a;
  metal::vec<B, 2> b;
  metal::vec<C, 2> c;
};
template <class D, class A, class B, class C>
struct MultiplyAccumulate {
  static void run(const void* const* in, void* const* out, u32 mask) {
    using Operands = MatrixOperands<A, B, C>;
    if (mask != ~0u) {
      msl_runtime->undefined(abi::Undefined::kNotAll, u32(__builtin_ctz(mask)),
                             u32(__builtin_popcount(mask)));
    }
    float a[8][8] = {}, b[8][8] = {}, d[8][8] = {};
    for_lanes(mask, [&](u32 lane) {
      const Operands& mine = operand_of<Operands>(in, lane);
      const uint row = matrix_row(lane), column = matrix_column(lane);
      a[row][column] = float(mine.a.x);
      a[row][column + 1] = float(mine.a.y);
      b[row][column] = float(mine.b.x);
      b[row][column + 1] = float(mine.b.y);
      d[row][column] = float(mine.c.x);
      d[row][column + 1] = float(mine.c.y);
    });
    for (uint row = 0; row < 8; ++row) {
      for (uint k = 0; k < 8; ++k) {
        for (uint column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
      }
    }
    for_lanes(mask, [&](u32 lane) {
      const uint row = matrix_row(lane), column = matrix_column(lane);
      result_of<metal::vec<D, 2>>(out, lane) =
          metal::vec<D, 2>(D(d[row][column]), D(d[row][column + 1]));
    });
  }
};

}  // namespace msl::msl_impl

namespace msl::metal {

template <class T, class U>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const U* source,
                               ulong elements_per_row = 8, ulong2 matrix_origin = ulong2(0),
                               bool transpose_matrix = false, abi::Site = {}) {
  msl_impl::matrix_load(msl_runtime->lane(), d, source, elements_per_row, matrix_origin,
                        transpose_matrix);
}
template <class T, class U>
MSL_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& a, U* destination,
                                ulong elements_per_row = 8, ulong2 matrix_origin = ulong2(0),
                                bool transpose_matrix = false, abi::Site = {}) {
  msl_impl::matrix_store(msl_runtime->lane(), a, destination, elements_per_row, matrix_origin,
                         transpose_matrix);
}

// d = a b + c
template <class D, class A, class B, class C, class S = abi::Site>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                              const simdgroup_matrix<A, 8, 8>& a,
                                              const simdgroup_matrix<B, 8, 8>& b,
                                              const simdgroup_matrix<C, 8, 8>& c, S site = {}) {
  using Operands = msl_impl::MatrixOperands<A, B, C>;
  d.thread_elements() = msl_impl::together<msl_impl::MultiplyAccumulate<D, A, B, C>, vec<D, 2>>(
      site, Operands{a.thread_elements(), b.thread_elements(), c.thread_elements()});
}
// d = a b
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

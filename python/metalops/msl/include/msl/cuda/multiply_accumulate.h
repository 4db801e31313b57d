// Multiplication of simdgroup matrices on NVIDIA's GPUs: with tensor cores where both factors are
// half or bfloat and the whole simdgroup is active, otherwise with shuffles.
#pragma once

#include <msl/cuda/tensor_cores.h>
#include <msl/simdgroup_matrix.h>

namespace msl::msl_impl {

// Returns the lane that has the element at a row and an even column.
MSL_INLINE constexpr u32 matrix_lane(u32 row, u32 column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column & 2) / 2;
}
constexpr bool lanes_are_those_of_tensor_cores() {
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 row = matrix_row(lane), column = matrix_column(lane);
    if (matrix_lane(row, column) != lane) return false;
    if (abi::kMatrixLanes && abi::warp_lane_of(lane) != row * 4 + column / 2) return false;
  }
  return true;
}
static_assert(lanes_are_those_of_tensor_cores());

template <class D, class A, class B, class C>
struct MultiplyAccumulate {
  MSL_INLINE static metal::vec<D, 2> run(const MatrixOperands<A, B, C>& mine, const Lanes& lanes) {
    float x = float(mine.c.x), y = float(mine.c.y);
    if constexpr (abi::kMatrixLanes && same<A, B> && is_of_tensor_cores<A>) {
      if (lanes.are_all()) {
        multiply_accumulate_8x8x8<A>(x, y, __builtin_bit_cast(u32, mine.a),
                                     transposed(__builtin_bit_cast(u32, mine.b)));
        return metal::vec<D, 2>(D(x), D(y));
      }
    }
    const u32 row = matrix_row(lanes.lane), column = matrix_column(lanes.lane);
#pragma unroll
    for (u32 k = 0; k < 8; ++k) {
      const float a =
          from_lane(lanes, float(k % 2 ? mine.a.y : mine.a.x), matrix_lane(row, k & ~1u));
      const u32 right = matrix_lane(k, column);
      x = __builtin_fmaf(a, from_lane(lanes, float(mine.b.x), right), x);
      y = __builtin_fmaf(a, from_lane(lanes, float(mine.b.y), right), y);
    }
    return metal::vec<D, 2>(D(x), D(y));
  }
};

// The left operands of products with two matrices one below the other: elements that a lane has of
// columns 0 to 7 of the upper and the lower one, then of columns 8 to 15.
template <class T>
struct SixteenRows {
  metal::vec<T, 2> upper, lower, upper_right, lower_right;
};

// Accumulates a b^T into a pair of matrices. b, b_right: what a lane has of columns 0 to 7 and 8 to
// 15 of eight rows.
template <class T>
MSL_INLINE void multiply_sixteen_rows(metal::vec<float, 2>& upper, metal::vec<float, 2>& lower,
                                      const SixteenRows<T>& a, const metal::vec<T, 2>& b,
                                      const metal::vec<T, 2>& b_right) {
  if constexpr (abi::kMatrixLanes && is_of_tensor_cores<T>) {
    const u32 left[4] = {__builtin_bit_cast(u32, a.upper), __builtin_bit_cast(u32, a.lower),
                         __builtin_bit_cast(u32, a.upper_right),
                         __builtin_bit_cast(u32, a.lower_right)};
    multiply_accumulate_16x8x16<T>(upper.x, upper.y, lower.x, lower.y, left,
                                   __builtin_bit_cast(u32, b), __builtin_bit_cast(u32, b_right));
  } else {
    const Lanes lanes{~0u, lane_in_simdgroup(), ~0u};
    const u32 row = matrix_row(lanes.lane), column = matrix_column(lanes.lane);
#pragma unroll 1
    for (u32 k = 0; k < 16; ++k) {
      const bool is_right = k >= 8, is_odd = k % 2;
      const auto of = [&](const metal::vec<T, 2>& x, u32 of_row) {
        return from_lane(lanes, float(is_odd ? x.y : x.x), matrix_lane(of_row, k & 6));
      };
      const metal::vec<T, 2>& right = is_right ? b_right : b;
      const float first = of(right, column), second = of(right, column + 1);
      const float above = of(is_right ? a.upper_right : a.upper, row);
      const float below = of(is_right ? a.lower_right : a.lower, row);
      upper.x = __builtin_fmaf(above, first, upper.x);
      upper.y = __builtin_fmaf(above, second, upper.y);
      lower.x = __builtin_fmaf(below, first, lower.x);
      lower.y = __builtin_fmaf(below, second, lower.y);
    }
  }
}

}  // namespace msl::msl_impl

namespace msl::metal {

// Accumulates products of several simdgroup matrices: c[i] += a[0][i] b[0]^T + a[1][i] b[1]^T.
// Tensor cores multiply twice as many rows and columns as one has, and take b as its rows are in
// memory. Kernels see this where __METALOPS_MATRIX_PAIRS__ is defined, as neither Apple's compiler
// nor the software device does. All lanes of a simdgroup call it together.
template <class T>
MSL_INLINE void multiply_accumulate_pairs(
    simdgroup_matrix<float, 8, 8>& c0, simdgroup_matrix<float, 8, 8>& c1,
    const simdgroup_matrix<T, 8, 8>& a00, const simdgroup_matrix<T, 8, 8>& a01,
    const simdgroup_matrix<T, 8, 8>& a10, const simdgroup_matrix<T, 8, 8>& a11,
    const simdgroup_matrix<T, 8, 8>& b0, const simdgroup_matrix<T, 8, 8>& b1) {
  msl_impl::multiply_sixteen_rows<T>(
      c0.thread_elements(), c1.thread_elements(),
      {a00.thread_elements(), a01.thread_elements(), a10.thread_elements(), a11.thread_elements()},
      b0.thread_elements(), b1.thread_elements());
}

}  // namespace msl::metal

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

}  // namespace msl::msl_impl

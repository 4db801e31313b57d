// The product of simdgroup matrices on NVIDIA's GPUs.
#pragma once

#include <msl/simdgroup_matrix.h>

namespace msl::msl_impl {

// The lane that has the element at a row and an even column.
MSL_INLINE constexpr uint matrix_lane(uint row, uint column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column & 2) / 2;
}
template <class D, class A, class B, class C>
struct MultiplyAccumulate {
  MSL_INLINE static metal::vec<D, 2> run(const MatrixOperands<A, B, C>& mine, u32 mask, u32 lane) {
    const uint row = matrix_row(lane), column = matrix_column(lane);
    float x = float(mine.c.x), y = float(mine.c.y);
#pragma unroll
    for (uint k = 0; k < 8; ++k) {
      const float a =
          from_lane(mask, float(k % 2 ? mine.a.y : mine.a.x), matrix_lane(row, k & ~1u));
      const uint right = matrix_lane(k, column);
      x = __builtin_fmaf(a, from_lane(mask, float(mine.b.x), right), x);
      y = __builtin_fmaf(a, from_lane(mask, float(mine.b.y), right), y);
    }
    return metal::vec<D, 2>(D(x), D(y));
  }
};

}  // namespace msl::msl_impl

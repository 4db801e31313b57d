// Pivot search (IxAMAX): finds the element of largest magnitude and its row.
#pragma once
#include <metal_stdlib>

namespace metalops {

constexpr constant uint kMostSimdgroups = 32;  // per threadgroup

// Returns |a|, or |re| + |im| for complex elements (LAPACK's cabs1).
inline float sum_of_parts(float a) { return ::metal::abs(a); }
inline float sum_of_parts(::metal::float2 a) { return ::metal::abs(a.x) + ::metal::abs(a.y); }

// Returns the magnitude by which pivots are chosen. NaN is less than any number, so that it is
// never swapped up.
template <typename T>
inline float pivot_size(T a) {
  const float size = sum_of_parts(a);
  return ::metal::isnan(size) ? -1.0f : size;
}

struct Candidate {
  float size = -2.0f;
  uint row = 0xffffffff;

  // Keeps the larger candidate; of equal ones the one in the earlier row.
  void meet(float other_size, uint other_row) thread {
    // This has no branches, which nothing could predict.
    const bool is_better = (other_size > size) | ((other_size == size) & (other_row < row));
    size = is_better ? other_size : size;
    row = is_better ? other_row : row;
  }

  void meet_simdgroup() thread {
    const float largest = ::metal::simd_max(size);
    row = ::metal::simd_min(size == largest ? row : 0xffffffff);
    size = largest;
  }
};

}  // namespace metalops

// Pivot search (IxAMAX): finds the element of largest magnitude and its row.
#pragma once
#include <metal_stdlib>

namespace metalops {

constexpr constant uint kMostSimdgroups = 32;  // per threadgroup

// Returns |a|, or |re| + |im| for complex elements (LAPACK's cabs1).
inline float cabs1(float a) { return ::metal::abs(a); }
inline float cabs1(::metal::float2 a) { return ::metal::abs(a.x) + ::metal::abs(a.y); }

// Returns the magnitude by which pivots are chosen. NaN is less than any number, so that it is
// never swapped up.
template <typename T>
inline float pivot_magnitude(T a) {
  const float magnitude = cabs1(a);
  return ::metal::isnan(magnitude) ? -1.0f : magnitude;
}

struct Candidate {
  float magnitude = -2.0f;
  uint row = 0xffffffff;

  // Keeps the larger candidate; of equal ones the one in the earlier row.
  void combine(float other_magnitude, uint other_row) thread {
    // This has no branches, which nothing could predict.
    const bool is_better =
        (other_magnitude > magnitude) | ((other_magnitude == magnitude) & (other_row < row));
    magnitude = is_better ? other_magnitude : magnitude;
    row = is_better ? other_row : row;
  }

  void combine_simdgroup() thread {
    const float largest = ::metal::simd_max(magnitude);
    row = ::metal::simd_min(magnitude == largest ? row : 0xffffffff);
    magnitude = largest;
  }
};

}  // namespace metalops

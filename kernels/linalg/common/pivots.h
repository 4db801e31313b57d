// The choice of pivots: numbers of the largest size, and where they are.
#pragma once
#include <metal_stdlib>

namespace metalops {

constexpr constant uint kMostSimdgroups = 32;  // of a threadgroup

// The size of numbers, as LAPACK has it for complex ones.
inline float sum_of_parts(float a) { return ::metal::abs(a); }
inline float sum_of_parts(::metal::float2 a) { return ::metal::abs(a.x) + ::metal::abs(a.y); }

// NaN is less than any number, so that rows are exchanged for numbers only.
template <typename T>
inline float pivot_size(T a) {
  const float size = sum_of_parts(a);
  return ::metal::isnan(size) ? -1.0f : size;
}

struct Candidate {
  float size = -2.0f;
  uint row = 0xffffffff;

  // The larger one; of equal ones the first.
  void meet(float other_size, uint other_row) thread {
    // Without branches, which nothing could predict.
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

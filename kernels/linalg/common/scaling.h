// Matrices that are scaled to be about 1 by powers of two, what can be said of their elements then,
// and the order of what is computed of them.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/reflectors.h>

namespace metalops {

// The magnitude of the larger part; infinity for what is not finite. (As integers magnitudes have
// the same order, and NaN comes last.)
template <typename T>
inline float finite_magnitude(T x) {
  constexpr uint kInfinity = 0x7f800000;
  const uint re = as_type<uint>(::metal::abs(real_part(x)));
  const uint im = as_type<uint>(::metal::abs(imaginary_part(x)));
  return as_type<float>(::metal::min(::metal::max(re, im), kInfinity));
}

// e such that numbers of at most that magnitude times 2^-e are less than 1.
inline int exponent_above(float largest) {
  return largest > 0.0f && ::metal::isfinite(largest) ? ::metal::ilogb(largest) + 1 : 0;
}

// x 2^e, in two steps, each of which is the product with a normal number. Beyond 2^-252 nothing
// is left of any x.
template <typename X>
inline X with_exponent(X x, int e) {
  const int half_of_it = ::metal::clamp(e / 2, -126, 126);
  return x * power_of_two(half_of_it) * power_of_two(::metal::clamp(e - half_of_it, -126, 126));
}

// tail: the sum of |x_i|^2 where the matrix is about 1. What is smaller than its rounding errors by
// far counts as nothing: its squares may have underflowed.
template <typename T>
inline Reflector<T> reflector_of_scaled(T alpha, float tail) {
  Extent extent = Extent::none();
  if (tail > 0.0f) {
    extent = {1.0f, tail, 1.0f};
  }
  return reflector_of(alpha, extent);
}

// Where the value `index` is among all in ascending order.
template <typename Floats>
inline int rank_of(Floats values, int n, int index) {
  const float value = values[index];
  int rank = 0;
  for (int i = 0; i < n; ++i) {
    rank += values[i] < value || (values[i] == value && i < index);
  }
  return rank;
}

// The same of magnitudes in descending order.
template <typename Floats>
inline int descending_rank_of(Floats values, int n, int index) {
  const float value = ::metal::abs(values[index]);
  int rank = 0;
  for (int i = 0; i < n; ++i) {
    const float other = ::metal::abs(values[i]);
    rank += other > value || (other == value && i < index);
  }
  return rank;
}

}  // namespace metalops

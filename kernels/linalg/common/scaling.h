// Scaling of matrices by powers of two so that elements are about 1, reflectors of matrices scaled
// so, and the sort order of results.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/reflectors.h>

namespace metalops {

// Returns the larger magnitude of the real and the imaginary part, or infinity if x is not finite.
// (As integers, magnitudes have the same order, and NaN comes last.)
template <typename T>
inline float finite_magnitude(T x) {
  constexpr uint kInfinity = 0x7f800000;
  const uint re = as_type<uint>(::metal::abs(real_part(x)));
  const uint im = as_type<uint>(::metal::abs(imaginary_part(x)));
  return as_type<float>(::metal::min(::metal::max(re, im), kInfinity));
}

// Returns e such that elements of at most that magnitude times 2^-e are less than 1; 0 if `largest`
// is zero or not finite.
inline int exponent_above(float largest) {
  return largest > 0.0f && ::metal::isfinite(largest) ? ::metal::ilogb(largest) + 1 : 0;
}

// Returns x 2^e, in two steps, each of which multiplies by a normal number. e is clamped to
// [-252, 252]: below that nothing is left of an x of about 1.
template <typename X>
inline X with_exponent(X x, int e) {
  const int half_of_it = ::metal::clamp(e / 2, -126, 126);
  return x * power_of_two(half_of_it) * power_of_two(::metal::clamp(e - half_of_it, -126, 126));
}

// The reflector of (alpha, x) for a matrix that is about 1. Its vector v is (1, x factor).
template <typename T>
struct ScaledReflector {
  T tau;
  float beta;
  T factor;
};

// Returns the sum of |x_i|^2, or 0 if x is far below the matrix's rounding errors: its squares may
// have underflowed then.
inline float significant_tail(float tail) { return tail < 0x1p-80f ? 0.0f : tail; }

// tail: the sum of |x_i|^2, 0 only for zeros or negligible elements; these are not in v.
template <typename T>
inline ScaledReflector<T> scaled_reflector(T alpha, float tail) {
  Extent extent = Extent::none();
  if (tail > 0.0f) {
    extent = {1.0f, tail, 1.0f};
  }
  const Reflector<T> made = reflector_of(alpha, extent);
  return {made.tau, made.beta, tail > 0.0f ? made.factor() : from_real<T>(0.0f)};
}

// Returns the position of the value `index` in ascending, or descending, order.
template <bool IS_DESCENDING = false, typename Floats>
inline int rank_of(Floats values, int n, int index) {
  const float value = values[index];
  int rank = 0;
  for (int i = 0; i < n; ++i) {
    const bool is_before = IS_DESCENDING ? values[i] > value : values[i] < value;
    rank += is_before || (values[i] == value && i < index);
  }
  return rank;
}

// Returns the position of the value `index` in descending order of magnitudes.
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

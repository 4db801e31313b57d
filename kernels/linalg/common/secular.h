// The secular equation of divide and conquer methods, value(x) = c + sum z_i^2 / (p_i - x) = 0: its
// root between two neighbouring poles, or behind the last one, is found by interpolation with
// rational functions that have these poles (LAPACK's slaed4 and slasd4).
#pragma once
#include <metal_stdlib>

namespace metalops {

// The function at a place, and the sums over the poles up to a certain one and over those behind it
// with their derivatives.
struct Secular {
  float value;
  float before;
  float slope_before;
  float behind;
  float slope_behind;

  float slope() const { return slope_before + slope_behind; }
};

// The distance of the root from the left one of two poles or, if the function is negative in the
// middle between them, from the right one: for `rest`, what the function is there without these
// poles. near, far: squares of z of the pole from which the distance is taken and of the other one.
inline float first_guess_of_root(float rest, float gap, float near, float far, bool is_left) {
  const float b = near * gap;
  if (is_left) {
    const float a = rest * gap + near + far;
    const float root = ::metal::precise::sqrt(::metal::abs(a * a - 4.0f * b * rest));
    return a > 0.0f ? 2.0f * b / (a + root) : (a - root) / (2.0f * rest);
  }
  const float a = rest * gap - near - far;
  const float root = ::metal::precise::sqrt(::metal::abs(a * a + 4.0f * b * rest));
  return a < 0.0f ? 2.0f * b / (a - root) : -(a + root) / (2.0f * rest);
}

// How far the root is from a place, where the function is `at`, about. to_left, to_right: the
// distances of the two poles from there; both are before the root if it is the last one.
inline float step_to_root(Secular at, float to_left, float to_right, bool is_last) {
  const float a = (to_left + to_right) * at.value - to_left * to_right * at.slope();
  const float b = to_left * to_right * at.value;
  const float c = at.value - to_left * at.slope_before - to_right * at.slope_behind;
  const float root = ::metal::precise::sqrt(::metal::abs(a * a - 4.0f * b * c));
  if (is_last) {
    return a >= 0.0f ? (a + root) / (2.0f * c) : 2.0f * b / (a - root);
  }
  return a <= 0.0f ? (a - root) / (2.0f * c) : 2.0f * b / (a + root);
}

}  // namespace metalops

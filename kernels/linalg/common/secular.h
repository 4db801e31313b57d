// xLAED4 and xLASD4: the secular equation of divide and conquer, value(x) = c + sum z_i^2 / (p_i -
// x) = 0. The root between two adjacent poles, or beyond the last one, is found by interpolation
// with rational functions that have these poles.
#pragma once
#include <metal_stdlib>

namespace metalops {

// The function at a point, with its sum over the poles up to a certain one and that over the poles
// behind it, and the derivatives of these sums.
struct Secular {
  float value;
  float before;
  float slope_before;
  float behind;
  float slope_behind;

  float slope() const { return slope_before + slope_behind; }
};

// Returns a first guess of the root between two poles, as a distance from the left pole or, if the
// function is negative in the middle between them, from the right one. rest: the function in the
// middle without these two poles. near, far: the squares of z of the pole from which the distance
// is counted and of the other one.
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

// Returns the approximate distance of the root from a point, where the function is `at`. to_left,
// to_right: the distances of the two poles from that point; both poles are before the root if it is
// the last one.
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

// xLAED4 and xLASD4: the secular equation of divide and conquer, c + sum z_i^2 / (p_i - x) = 0. The
// root between two adjacent poles, or beyond the last one, is found by interpolation with rational
// functions that have these poles. It is kept as a distance from the nearest pole, its origin.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/divide_and_conquer.h>

namespace metalops {

constant constexpr float kSecularEpsilon = 0x1p-24f;

// The equation of D + rho z z^T: 1 / rho + sum z_i^2 / (d_i - x) = 0.
struct EigenvalueEquation {
  float rho;

  float constant_term() const { return 1.0f / rho; }

  // Returns d - x for the x at a distance from an origin.
  float difference(float d, float origin, float distance) const { return (d - origin) - distance; }

  // Returns by how much x changes if the function's argument changes by `change`.
  float change_at(float, float change) const { return change; }

  // Returns the derivative of the function's argument with respect to x.
  float derivative(float) const { return 1.0f; }

  // Returns an upper bound of the last root's distance from the last pole. squares: the sum of
  // z_i^2.
  float last_bound(float, float squares) const { return 1.001f * rho * squares; }
};

// The equation of a row z above a diagonal matrix D: 1 + sum z_i^2 / (d_i^2 - x^2) = 0. The
// function's argument is x^2.
struct SingularValueEquation {
  float constant_term() const { return 1.0f; }

  float difference(float d, float origin, float distance) const {
    return ((d - origin) - distance) * ((d + origin) + distance);
  }

  float change_at(float x, float change) const {
    return change / (x + ::metal::precise::sqrt(x * x + change));
  }

  float derivative(float x) const { return 2.0f * x; }

  float last_bound(float pole, float squares) const { return 1.001f * change_at(pole, squares); }
};

// The n poles of an equation, in ascending order, and z.
struct SecularPoles {
  device const float* poles;
  device const float* z;
  int n;
};

// The function at a point, with its sum over the poles up to a certain one and that over the poles
// behind it, and the derivatives of these sums with respect to its argument.
struct Secular {
  float value;
  float before;
  float slope_before;
  float behind;
  float slope_behind;

  float slope() const { return slope_before + slope_behind; }
};

// Evaluates the function at a distance from the pole `origin`, in two sums: over the poles up to
// `split`, and over those behind it.
template <typename Equation>
inline Secular secular_at(Equation equation, SecularPoles all, int split, float origin,
                          float distance) {
  float before = 0.0f;
  float slope_before = 0.0f;
  for (int i = 0; i <= split; ++i) {
    const float quotient = all.z[i] / equation.difference(all.poles[i], origin, distance);
    before += all.z[i] * quotient;
    slope_before += quotient * quotient;
  }
  float behind = 0.0f;
  float slope_behind = 0.0f;
  for (int i = all.n - 1; i > split; --i) {
    const float quotient = all.z[i] / equation.difference(all.poles[i], origin, distance);
    behind += all.z[i] * quotient;
    slope_behind += quotient * quotient;
  }
  return {equation.constant_term() + before + behind, before, slope_before, behind, slope_behind};
}

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

// A root as a distance from the pole `origin`, and bounds of that distance.
struct SecularRoot {
  int origin;
  float low;
  float high;
  float distance;
};

// Returns bounds and a first guess of the root behind the last pole.
template <typename Equation>
inline SecularRoot guess_last_root(Equation equation, SecularPoles all) {
  float squares = 0.0f;
  for (int i = 0; i < all.n; ++i) {
    squares += all.z[i] * all.z[i];
  }
  const float high = equation.last_bound(all.poles[all.n - 1], squares);
  return {all.n - 1, 0.0f, high, 0.5f * high};
}

// Returns bounds and a first guess of the root between the poles `left` and left + 1.
template <typename Equation>
inline SecularRoot guess_root(Equation equation, SecularPoles all, int left) {
  const int right = left + 1;
  const float pole = all.poles[left];
  const float next = all.poles[right];
  const float gap = equation.difference(next, pole, 0.0f);
  const float middle = equation.change_at(pole, 0.5f * gap);
  const Secular inside = secular_at(equation, all, left, pole, middle);
  const float near = all.z[left] * all.z[left];
  const float far = all.z[right] * all.z[right];
  const float rest = inside.value + (near - far) / (0.5f * gap);
  SecularRoot root;
  if (inside.value >= 0.0f) {
    const float guess = first_guess_of_root(rest, gap, near, far, true);
    root = {left, 0.0f, middle, equation.change_at(pole, guess)};
  } else {
    const float guess = first_guess_of_root(rest, gap, far, near, false);
    root = {right, middle - (next - pole), 0.0f, equation.change_at(next, guess)};
  }
  if (!(root.distance > root.low && root.distance < root.high)) {
    root.distance = 0.5f * (root.low + root.high);
  }
  return root;
}

// Finds the root that follows pole `index` of at least two.
template <typename Equation>
inline SecularRoot secular_root(Equation equation, SecularPoles all, int index) {
  constexpr int kMostSteps = 60;
  const bool is_last = index == all.n - 1;
  // The function is interpolated between these poles, and the sums are split there.
  const int left = is_last ? index - 1 : index;
  const int right = left + 1;
  SecularRoot root = is_last ? guess_last_root(equation, all) : guess_root(equation, all, left);
  const float origin = all.poles[root.origin];
  for (int step = 0; step < kMostSteps; ++step) {
    const float x = root.distance;
    const Secular at = secular_at(equation, all, left, origin, x);
    const float rounding =
        8.0f * (::metal::abs(at.before) + ::metal::abs(at.behind) + equation.constant_term()) +
        equation.derivative(origin + x) * ::metal::abs(x) * at.slope();
    if (::metal::abs(at.value) <= kSecularEpsilon * rounding) {
      break;
    }
    root.low = at.value < 0.0f ? ::metal::max(root.low, x) : root.low;
    root.high = at.value < 0.0f ? root.high : ::metal::min(root.high, x);
    const float to_left = equation.difference(all.poles[left], origin, x);
    const float to_right = equation.difference(all.poles[right], origin, x);
    float next = x + equation.change_at(origin + x, step_to_root(at, to_left, to_right, is_last));
    if (!(next > root.low && next < root.high)) {
      next = 0.5f * (root.low + root.high);
    }
    if (next == x || next == root.low || next == root.high) {
      break;
    }
    root.distance = next;
  }
  return root;
}

// Stores element `index` of the z for which the roots of a merge are exact, up to a factor that all
// elements have (Gu and Eisenstat 1995). The arrays are those of all merges.
template <typename Equation>
inline void store_exact_weight(Equation equation, Merge merge, int index, device float* weights,
                               device const float* roots, device const int* origins,
                               device const float* poles, device const float* z,
                               device const Deflation* deflations) {
  if (merge.is_one_block() || index >= deflations[merge.offset].kept) {
    return;
  }
  const int n = deflations[merge.offset].kept;
  device const float* const pole = poles + merge.offset;
  device const float* const root = roots + merge.offset;
  device const int* const origin = origins + merge.offset;
  const float here = pole[index];
  float product = equation.difference(here, pole[origin[index]], root[index]);
  for (int i = 0; i < n; ++i) {
    if (i != index) {
      product *= equation.difference(here, pole[origin[i]], root[i]) /
                 equation.difference(here, pole[i], 0.0f);
    }
  }
  weights[merge.offset + index] =
      ::metal::copysign(::metal::precise::sqrt(::metal::abs(product)), z[merge.offset + index]);
}

}  // namespace metalops

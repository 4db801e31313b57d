// xLARFG: Householder reflectors H = 1 - tau v v^H with v[0] = 1 and H^H (alpha, x) = (beta, 0),
// beta real.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>

namespace metalops {

// The magnitude of a vector x, from which its reflector is made. It is accumulated over all
// elements in one pass; if is_rough() is true then, which is rare, the squares are added up once
// more with the scale of rescaled().
struct Extent {
  float largest;  // largest magnitude of a real or an imaginary part
  float squares;  // sum of the squared magnitudes of the elements times scale
  float scale;    // a power of two

  static Extent none() { return {0.0f, 0.0f, 1.0f}; }

  // Returns true if squares may have overflowed, or lost elements by underflow.
  bool is_rough() const { return largest != 0.0f && !(squares >= 1e-25f && squares <= 1e37f); }

  Extent rescaled() const { return {largest, 0.0f, safe_scale(largest)}; }

  float norm() const { return ::metal::precise::sqrt(squares) / scale; }
};

template <typename T>
struct Reflector {
  T tau;
  float beta;
  float scale;  // v[i] = x[i] scale / divisor
  T divisor;

  // Returns true if elements may be multiplied by factor() instead: complex division is slow.
  // Quotients of real elements are more exact.
  bool has_factor() const {
    return is_complex_v<T> && scale == 1.0f && largest_part(divisor) >= 1e-30f &&
           largest_part(divisor) <= 1e30f;
  }
  T factor() const { return divide(from_real<T>(scale), divisor); }
  T element(T x) const { return divide(x * scale, divisor); }
};

// Returns the reflector of the vector (alpha, x). x: the extent of the elements behind alpha.
template <typename T>
inline Reflector<T> reflector_of(T alpha, Extent x) {
  if (x.largest == 0.0f && x.squares == 0.0f && imaginary_part(alpha) == 0.0f) {
    return {from_real<T>(0.0f), real_part(alpha), 1.0f, from_real<T>(1.0f)};
  }
  float scale = 1.0f;
  float tail;
  const float largest = ::metal::max(largest_part(alpha), x.largest);
  if (x.scale == 1.0f && largest >= 1e-12f && largest <= 1e18f) {
    tail = x.squares;
  } else {
    scale = safe_scale(largest);
    const float norm = ::metal::precise::sqrt(x.squares) * (scale / x.scale);
    tail = norm * norm;
    alpha *= scale;
  }
  const float norm = ::metal::precise::sqrt(squared_magnitude(alpha) + tail);
  const float beta = -::metal::copysign(norm, real_part(alpha));
  const T divisor = alpha - from_real<T>(beta);
  return {-divisor / beta, beta / scale, scale, divisor};
}

}  // namespace metalops

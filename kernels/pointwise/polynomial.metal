// Orthogonal polynomials of degree n, Laguerre L_n(x) and Legendre P_n(x), by recurrence in float;
// half and bfloat are rounded once. As in torch's CPU operators n is truncated to an integer, and
// the result is 0 for a negative degree, NaN as degree, or a degree beyond 64 bits.
//
// Where the three-term recurrence loses digits (between the zeros close to x = 0 for Laguerre, to
// |x| = 1 for Legendre), the differences of successive polynomials are summed instead; they obey a
// two-term recurrence (W. Gautschi, Computational aspects of three-term recurrence relations, SIAM
// Review 9, 1967).
#include <c10/metal/indexing.h>
#include <metalops/registration.h>
#include <metal_stdlib>
using namespace metal;
using metalops::float_result_t;

// Converts the degree. Invalid degrees become -1, and degrees beyond int are clamped to the largest
// int.
inline int polynomial_degree(float n) {
  if (!(n > -1.0f && n < 9.22337204e18f)) {
    return -1;
  }
  return n < 2.14748352e9f ? static_cast<int>(n) : 2147483647;
}

inline float laguerre_polynomial(float x, int n) {
  if (n < 0) {
    return 0.0f;
  }
  if (n == 0 || x == 0.0f) {
    return 1.0f;
  }
  float value = 1.0f - x;
  if (x > 4.0f * static_cast<float>(n) || isinf(x)) {
    // Beyond the zeros nothing cancels here, whereas the differences would overflow one degree
    // earlier.
    float previous = 1.0f;
    for (int k = 1; k < n && !isnan(value); ++k) {
      const float degree = static_cast<float>(k);
      const float next =
          ((degree + degree + (1.0f - x)) * value - degree * previous) / (degree + 1.0f);
      previous = value;
      value = next;
    }
    return value;
  }
  float difference = -x;
  for (int k = 1; k < n && isfinite(value); ++k) {
    const float degree = static_cast<float>(k);
    difference = fma(-x, value, degree * difference) / (degree + 1.0f);
    value += difference;
  }
  return value;
}

inline float legendre_polynomial(float x, int n) {
  if (n < 0) {
    return 0.0f;
  }
  const float magnitude = abs(x);
  if (n == 0 || magnitude == 1.0f) {
    return x < 0.0f && n % 2 == 1 ? -1.0f : 1.0f;
  }
  // Both recurrences run in one loop, so that lanes do not diverge: (2k + 1) x P_k - k P_(k-1), or
  // (2k + 1) (x - 1) P_k + k (P_k - P_(k-1)), over k + 1. The second one is for positive x; P_n(-x)
  // = (-1)^n P_n(x).
  const bool three_term = magnitude < 0.6f || isinf(x);
  const float point = three_term ? x : magnitude - 1.0f;
  const float largest = three_term ? INFINITY : MAXFLOAT;  // beyond it the value no longer changes
  float value = three_term ? x : magnitude;
  float previous = three_term ? 1.0f : point;  // polynomial or difference
  for (int k = 1; k < n && abs(value) <= largest; ++k) {
    const float degree = static_cast<float>(k);
    const float factor = three_term ? -degree : degree;
    const float next =
        fma((degree + degree + 1.0f) * point, value, factor * previous) / (degree + 1.0f);
    previous = three_term ? value : next;
    value = three_term ? next : value + next;
  }
  return !three_term && x < 0.0f && n % 2 == 1 ? -value : value;
}

struct special_laguerre_polynomial_l_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T x, const T n) {
    return static_cast<float_result_t<T>>(
        laguerre_polynomial(static_cast<float>(x), polynomial_degree(static_cast<float>(n))));
  }
};

struct special_legendre_polynomial_p_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T x, const T n) {
    return static_cast<float_result_t<T>>(
        legendre_polynomial(static_cast<float>(x), polynomial_degree(static_cast<float>(n))));
  }
};

#define REGISTER_POLYNOMIAL(NAME)          \
  REGISTER_OPMATH_FLOAT_BINARY_OP(NAME);   \
  REGISTER_INT2FLOAT_BINARY_OP(NAME);      \
  REGISTER_BINARY_OP(NAME, ushort, float); \
  REGISTER_BINARY_OP(NAME, uint, float);   \
  REGISTER_BINARY_OP(NAME, ulong, float)

REGISTER_POLYNOMIAL(special_laguerre_polynomial_l);
REGISTER_POLYNOMIAL(special_legendre_polynomial_p);

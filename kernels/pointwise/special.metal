// Special functions of one variable: the Airy function Ai, and the inverse and the logarithm of the
// normal distribution function. All are computed in float; half and bfloat are rounded once. The
// float kernels of torch's CPU operators evaluate double precision formulas in float; these kernels
// keep the error at a few units in the last place over the whole domain.
//
// Coefficients without a cited source are minimax fits of the function, made in 50-digit arithmetic
// and rounded to float.
#include <c10/metal/indexing.h>
#include <c10/metal/utils.h>
#include <metalops/registration.h>

#include <metal_stdlib>

#include <kernels/common/numerics.h>
using namespace metal;
using namespace metalops;

// Returns Ai(x); NaN for both infinities, as torch's CPU operator does.
//   x <= -3.2       P(z^2) cos(zeta - pi/4) + z Q(z^2) sin(zeta - pi/4), over sqrt(pi) (-x)^(1/4),
//                   where zeta = 2/3 (-x)^(3/2) and z = 1 / zeta (DLMF 9.7.9)
//   -3.2 < x < 2.1  polynomials around three centres
//   x >= 2.1        exp(-zeta) G(1 / zeta) / (2 sqrt(pi) x^(1/4)), zeta = 2/3 x^(3/2) (DLMF 9.7.5)
// zeta is a double-float: a relative error of 2^-25 in it would cause an error of zeta 2^-25 in the
// result. Relative to the envelope of the oscillation the result has float precision down to x =
// -1e5 and keeps 4 digits at -1e7.
inline float airy_ai(float x) {
  constexpr double_float kTwoThirds = {0.666666687f, -1.98682155e-08f};
  if (isinf(x)) {
    return NAN;
  }
  if (x <= -3.2f) {
    constexpr float kInverseSqrtPi = 0.564189584f;
    constexpr double_float kQuarterPi = {0.785398185f, -2.18556941e-08f};
    const double_float zeta = multiply(kTwoThirds, three_halves_power(-x));
    const float2 wave = cos_sin(reduce_angle(add(zeta, negative(kQuarterPi))));
    const float z = 1.0f / zeta.hi;
    const float w = z * z;
    const float p = polynomial(w, 1.0f, -0.0371243246f, 0.056179896f, -0.209027112f, 0.63553524f);
    const float q =
        polynomial(w, 0.0694443882f, -0.0379486494f, 0.110033676f, -0.544165671f, 1.83722281f);
    const float envelope = kInverseSqrtPi / precise::sqrt(precise::sqrt(-x));
    return envelope * fma(p, wave.x, z * q * wave.y);
  }
  if (x < -1.6f) {
    const float t = x + 2.4000001f;
    // The low part of the constant term is added before the final sum.
    const float rest = polynomial(t, -3.98595934e-10f, 0.698017597f, 0.0520017743f, -0.286429763f,
                                  0.0477588773f, 0.0369752459f, -0.013329546f, -0.000989670865f,
                                  0.00116271561f, -0.000129314954f);
    return -0.0433342159f + rest;
  }
  if (x < 0.0f) {
    const float t = x + 0.800000012f;
    const float rest = polynomial(t, 1.75253376e-08f, -0.105809987f, -0.209429711f, 0.101370387f,
                                  0.0051460471f, -0.0145270294f, 0.00323503464f, 0.000402172998f,
                                  -0.000293792516f, 3.55325355e-05f);
    return 0.523573935f + rest;
  }
  if (x < 2.1f) {
    const float t = x - 1.04999995f;
    const float rest =
        polynomial(t, 4.24070734e-09f, -0.152416363f, 0.0669394359f, -0.00542226806f,
                   -0.0068444442f, 0.00306256767f, -0.000419595046f, -8.72356322e-05f,
                   4.61553645e-05f, -6.15407771e-06f, -2.73039007e-07f);
    return 0.127503619f + rest;
  }
  if (x > 103.892f) {
    return 0.0f;
  }
  constexpr float kHalfInverseSqrtPi = 0.282094792f;
  const double_float zeta = multiply(kTwoThirds, three_halves_power(x));
  const float g = polynomial(1.0f / zeta.hi, 1.0f, -0.0694436207f, 0.0370874219f, -0.0370817743f,
                             0.0484809168f, -0.0601338968f, 0.0519720092f, -0.0212301146f);
  const float decay = precise::exp(-zeta.hi);
  return kHalfInverseSqrtPi / precise::sqrt(precise::sqrt(x)) * g * fma(-decay, zeta.lo, decay);
}

struct special_airy_ai_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T x) {
    return static_cast<float_result_t<T>>(airy_ai(static_cast<float>(x)));
  }
};

// Returns the x with ndtr(x) = y.
//   |y - 1/2| < 0.365  S. L. Moshier, Cephes 2.1, ndtri.c
//   tails              t - C(t) with t = sqrt(-2 log y), up to the smallest denormal;
//                      C is a polynomial in (t - 3) / (t + 3)
inline float ndtri(float y) {
  constexpr float kExpMinus2 = 0.135335283f;
  constexpr float kSqrtTwoPi = 2.50662827f;
  if (!(y >= 0.0f && y <= 1.0f)) {
    return NAN;
  }
  const bool upper = y > 1.0f - kExpMinus2;
  const float tail = upper ? 1.0f - y : y;  // exact
  if (tail > kExpMinus2) {
    const float d = y - 0.5f;
    const float w = d * d;
    const float p =
        polynomial(w, -1.23916583867381258016f, 13.9312609387279679503f, -56.6762857469070293439f,
                   98.0010754185999661536f, -59.9633501014107895267f);
    const float q =
        polynomial(w, -1.18331621121330003142f, 15.9056225126211695515f, -82.0372256168333339912f,
                   200.260212380060660359f, -225.462687854119370527f, 86.3602421390890590575f,
                   4.67627912898881538453f, 1.95448858338141759834f, 1.0f);
    return fma(kSqrtTwoPi, d, kSqrtTwoPi * d * (w * p / q));
  }
  if (as_type<uint>(tail) << 1 == 0) {  // not tail == 0: GPUs may flush denormals
    return upper ? INFINITY : -INFINITY;
  }
  const float square = -2.0f * log_with_denormals(tail);
  const float t = precise::sqrt(square);
  const float rest = fma(-t, t, square) / (2.0f * t);  // the rounding error of sqrt
  const float correction = polynomial((t - 3.0f) / (t + 3.0f), 0.713379681f, -0.84574002f,
                                      0.339910716f, -0.256464481f, 0.157996789f, -0.136966094f,
                                      0.101803377f, -0.0939623564f, 0.0699139088f, -0.0381429382f);
  const float x = t - (correction - rest);
  return upper ? x : -x;
}

struct special_ndtri_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T y) {
    return static_cast<float_result_t<T>>(ndtri(static_cast<float>(y)));
  }
};

// Returns erfc(x / sqrt(2)) exp(x^2 / 2) / 2 for x >= 0: the upper tail of the normal distribution
// without its exponential decay. Times 1 + x it is a polynomial in (x - 3) / (x + 3), after M. M.
// Shepherd and J. G. Laframboise, Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x <
// inf, Mathematics of Computation 36 (1981), 249-253.
inline float scaled_normal_tail(float x) {
  const float bounded = min(x, 1e18f);
  const float q = (bounded - 3.0f) / (bounded + 3.0f);
  const float scaled = polynomial(q, 0.486055791f, -0.0965267345f, -0.0164324604f, 0.0451633856f,
                                  -0.0227252673f, 0.00116424146f, 0.00298850285f, -0.000365627988f,
                                  -0.000475764245f, 3.58757061e-05f, 6.03438275e-05f);
  return scaled / (1.0f + x);
}

// Returns log(ndtr(x)): log(tail(-x)) - x^2 / 2 below -1, log1p(-tail(x)) above 1, polynomials
// between.
inline float log_ndtr(float x) {
  if (isnan(x)) {
    return x;
  }
  if (x >= -1.0f && x < 0.0f) {
    // The low part of the constant term is added before the final sum.
    const float rest =
        polynomial(x, 2.01702788e-09f, 0.797884583f, -0.318309397f, 0.0363395289f, 0.00479748426f,
                   -4.54680912e-06f, -0.000174947912f, -3.19613318e-05f);
    return -0.693147182f + rest;
  }
  if (x >= 0.0f && x <= 1.0f) {
    const float rest =
        polynomial(x - 0.600000024f, -3.02949066e-09f, 0.459147125f, -0.243152127f, 0.046534121f,
                   0.00315329502f, -0.00114597741f, -0.000360950042f, -9.69524899e-06f);
    return -0.320553958f + rest;
  }
  const float magnitude = abs(x);
  const double_float half_square = exact_product(0.5f * magnitude, magnitude);
  if (x < 0.0f) {
    if (isinf(half_square.hi)) {
      return -INFINITY;
    }
    return (precise::log(scaled_normal_tail(magnitude)) - half_square.lo) - half_square.hi;
  }
  if (magnitude > 15.0f) {
    return -0.0f;  // the tail is smaller than any float
  }
  const float decay = precise::exp(-half_square.hi);
  const float tail = scaled_normal_tail(magnitude) * fma(-half_square.lo, decay, decay);
  return c10::metal::log1p(-tail);
}

struct special_log_ndtr_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T x) {
    return static_cast<float_result_t<T>>(log_ndtr(static_cast<float>(x)));
  }
};

#define REGISTER_SPECIAL(NAME)            \
  REGISTER_FLOAT_UNARY_OP(NAME);          \
  REGISTER_INT2FLOAT_UNARY_OP(NAME);      \
  REGISTER_UNARY_OP(NAME, ushort, float); \
  REGISTER_UNARY_OP(NAME, uint, float);   \
  REGISTER_UNARY_OP(NAME, ulong, float)

REGISTER_SPECIAL(special_airy_ai);
REGISTER_SPECIAL(special_ndtri);
REGISTER_SPECIAL(special_log_ndtr);

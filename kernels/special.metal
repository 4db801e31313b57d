// Special functions of one variable: the Airy function Ai, and the inverse and the logarithm of the
// normal distribution function. Everything is computed in float; half and bfloat round once. The
// float kernels of torch's CPU operators evaluate double precision formulas in float; these keep
// the error at a few units in the last place over the whole domain.
//
// Coefficients without a source of their own are minimax fits of the function named, made in
// 50-digit arithmetic and rounded to float.
#include <c10/metal/indexing.h>
#include <c10/metal/utils.h>
#include <metalops/registration.h>

#include <metal_stdlib>

#include "numerics.h"
using namespace metal;
using namespace metalops;

// Ai(x), NaN for both infinities as torch's CPU operator has it.
//   x <= -3.2       P(z^2) cos(zeta - pi/4) + z Q(z^2) sin(zeta - pi/4), over sqrt(pi) (-x)^(1/4),
//   with
//                   zeta = 2/3 (-x)^(3/2) and z = 1 / zeta (DLMF 9.7.9)
//   -3.2 < x < 2.1  polynomials around three centres
//   x >= 2.1        exp(-zeta) G(1 / zeta) / (2 sqrt(pi) x^(1/4)), zeta = 2/3 x^(3/2) (DLMF 9.7.5)
// zeta is a sum of two floats: a relative error of 2^-25 in it would be an error of zeta 2^-25 in
// the result. Relative to the envelope of the oscillation the result is right to float precision
// down to x = -1e5 and keeps 4 digits at -1e7.
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
    // The last digits of the constant term, which float lacks, go in before the final sum.
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

// The x with ndtr(x) = y: S. L. Moshier, Cephes 2.1, ndtri.c. Tails, between exp(-2) and the
// smallest denormal: x = -(t - log(t) / t - z P(z) / Q(z)) with t = sqrt(-2 log y) and z = 1 / t.
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
    return kSqrtTwoPi * fma(d * w, p / q, d);
  }
  if (as_type<uint>(tail) << 1 == 0) {  // not tail == 0: for the GPU that may hold for denormals
    return upper ? INFINITY : -INFINITY;
  }
  const float t = precise::sqrt(-2.0f * log_with_denormals(tail));
  const float z = 1.0f / t;
  float correction;
  if (t < 8.0f) {
    const float p = polynomial(
        z, -8.57456785154685413611e-4f, -3.50424626827848203418e-2f, -1.40256079171354495875e-1f,
        2.18663306850790267539f, 14.6849561928858024014f, 44.0805073893200834700f,
        57.1628192246421288162f, 31.5251094599893866154f, 4.05544892305962419923f);
    const float q =
        polynomial(z, -9.33259480895457427372e-4f, -3.80806407691578277194e-2f,
                   -1.42182922854787788574e-1f, 2.50464946208309415979f, 15.0425385692907503408f,
                   41.3172038254672030440f, 45.3907635128879210584f, 15.7799883256466749731f, 1.0f);
    correction = z * p / q;
  } else {
    const float p = polynomial(
        z, 6.23974539184983293730e-9f, 2.65806974686737550832e-6f, 3.01581553508235416007e-4f,
        1.23716634817820021358e-2f, 2.01485389549179081538e-1f, 1.33303460815807542389f,
        3.93881025292474443415f, 6.91522889068984211695f, 3.23774891776946035970f);
    const float q = polynomial(z, 6.79019408009981274425e-9f, 2.89247864745380683936e-6f,
                               3.28014464682127739104e-4f, 1.34204006088543189037e-2f,
                               2.16236993594496635890e-1f, 1.37702099489081330271f,
                               3.67983563856160859403f, 6.02427039364742014255f, 1.0f);
    correction = z * p / q;
  }
  const float x = t - fma(precise::log(t), z, correction);
  return upper ? x : -x;
}

struct special_ndtri_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T y) {
    return static_cast<float_result_t<T>>(ndtri(static_cast<float>(y)));
  }
};

// erfc(x / sqrt(2)) exp(x^2 / 2) / 2 for x >= 0: the upper tail of the normal distribution without
// its exponential decay. Times 1 + x it is a polynomial in (x - 3) / (x + 3), after M. M. Shepherd
// and J. G. Laframboise, Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf,
// Mathematics of Computation 36 (1981), 249-253.
inline float scaled_normal_tail(float x) {
  const float bounded = min(x, 1e18f);
  const float q = (bounded - 3.0f) / (bounded + 3.0f);
  const float scaled = polynomial(q, 0.486055791f, -0.0965267345f, -0.0164324604f, 0.0451633856f,
                                  -0.0227252673f, 0.00116424146f, 0.00298850285f, -0.000365627988f,
                                  -0.000475764245f, 3.58757061e-05f, 6.03438275e-05f);
  return scaled / (1.0f + x);
}

// log(ndtr(x)): log(tail(-x)) - x^2 / 2 below -1, log1p(-tail(x)) above 1, a polynomial between
// them.
inline float log_ndtr(float x) {
  if (isnan(x)) {
    return x;
  }
  const float magnitude = abs(x);
  if (magnitude <= 1.0f) {
    const float rest = polynomial(x, 2.5974769e-09f, 0.797884583f, -0.318309933f, 0.0363353193f,
                                  0.00478258915f, -3.59742226e-05f, -0.000213585517f,
                                  -5.35333929e-05f, 3.94701374e-07f, 3.54002213e-06f);
    return -0.693147182f + rest;
  }
  const double_float square = exact_product(magnitude, magnitude);
  if (x < 0.0f) {
    if (isinf(square.hi)) {
      return -INFINITY;
    }
    const float logarithm = precise::log(scaled_normal_tail(magnitude));
    return fma(-0.5f, square.hi, fma(-0.5f, square.lo, logarithm));
  }
  if (magnitude > 15.0f) {
    return -0.0f;  // the tail is smaller than any float
  }
  const float decay = precise::exp(-0.5f * square.hi);
  const float tail = scaled_normal_tail(magnitude) * fma(-0.5f * square.lo, decay, decay);
  return c10::metal::log1p(-tail);
}

struct special_log_ndtr_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T x) {
    return static_cast<float_result_t<T>>(log_ndtr(static_cast<float>(x)));
  }
};

REGISTER_FLOAT_UNARY_OP(special_airy_ai);
REGISTER_INT2FLOAT_UNARY_OP(special_airy_ai);
REGISTER_FLOAT_UNARY_OP(special_ndtri);
REGISTER_INT2FLOAT_UNARY_OP(special_ndtri);
REGISTER_FLOAT_UNARY_OP(special_log_ndtr);
REGISTER_INT2FLOAT_UNARY_OP(special_log_ndtr);

// Fused multiply-add and clamped linear interpolation. Formulas are those of
// python/metalops/ops/interpolation.py.
#include <c10/metal/indexing.h>
#include <metalops/backward.h>
#include <metalops/registration.h>

#include <metal_stdlib>

#include <kernels/pointwise/wrapping.h>
using namespace metal;
using metalops::gradients2;
using metalops::gradients3;

// Returns a b + c of half or bfloat operands as a float rounded to odd. Rounding that to half or
// bfloat gives the correctly rounded result; rounding the nearest float would round twice (Boldo
// and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
// to odd", 2008). The product is exact in float, unless it leaves bfloat's range; the error of the
// sum is exact by Knuth's two-sum.
inline float multiply_add_to_odd(float a, float b, float c) {
  const float product = a * b;
  const float sum = fma(a, b, c);
  const float from_c = sum - product;
  const float error = (product - (sum - from_c)) + (c - from_c);
  const int bits = as_type<int>(sum);
  if (!isfinite(error) || error == 0.0f || (bits & 1) != 0 || !isfinite(sum)) {
    return sum;
  }
  return as_type<float>((error > 0.0f) == (sum > 0.0f) ? bits + 1 : bits - 1);
}

struct fma_functor {
  template <typename T>
  inline enable_if_t<is_integral_v<T>, T> operator()(const T a, const T b, const T c) {
    return metalops::wrapping_sum(metalops::wrapping_product(a, b), c);
  }
  inline float operator()(const float a, const float b, const float c) { return fma(a, b, c); }
  inline half operator()(const half a, const half b, const half c) {
    return static_cast<half>(multiply_add_to_odd(a, b, c));
  }
  inline bfloat operator()(const bfloat a, const bfloat b, const bfloat c) {
    return static_cast<bfloat>(multiply_add_to_odd(a, b, c));
  }
};

// Clamps w to [0, 1]. NaN stays NaN, as with torch.clamp.
template <typename T>
inline T clamp_weight(T w) {
  return w < T(0) ? T(0) : (w > T(1) ? T(1) : w);
}

struct lerp_clamped_functor {
  template <typename T>
  inline enable_if_t<is_integral_v<T>, T> operator()(const T a, const T b, const T w) {
    const T step = metalops::wrapping_difference(b, a);
    return metalops::wrapping_sum(a, metalops::wrapping_product(clamp_weight(w), step));
  }
  template <typename T>
  inline enable_if_t<is_floating_point_v<T>, T> operator()(const T a, const T b, const T w) {
    return static_cast<T>(a + clamp_weight(w) * (b - a));
  }
};

// The gradient of the summand is grad_output itself and is not computed here.
struct fma_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float) {
    return {grad_output * b, grad_output * a};
  }
};

// The gradient of the clamp is zero outside [0, 1] and passes at its ends, as with torch.clamp.
struct lerp_clamped_backward_functor {
  inline gradients3 operator()(float grad_output, float a, float b, float w, float) {
    const float weight = clamp_weight(w);
    return {grad_output * (1.0f - weight), grad_output * weight,
            w >= 0.0f && w <= 1.0f ? grad_output * (b - a) : 0.0f};
  }
};

REGISTER_FLOAT_TERNARY_OP(fma);
REGISTER_INTEGER_TERNARY_OP_NO_BOOL(fma);
REGISTER_OPMATH_FLOAT_TERNARY_OP(lerp_clamped);
REGISTER_INTEGER_TERNARY_OP_NO_BOOL(lerp_clamped);

REGISTER_FLOAT_BINARY_BACKWARD_OP(fma_backward);
REGISTER_FLOAT_TERNARY_BACKWARD_OP(lerp_clamped_backward);

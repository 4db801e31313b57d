// Elementwise ATen operators that are not special functions: heaviside, logit, frexp.
#include <c10/metal/indexing.h>
#include <c10/metal/utils.h>
#include <kernels/common/numerics.h>
#include <metalops/registration.h>
#include <metalops/strided.h>
#include <metal_stdlib>
using namespace metal;
using namespace metalops;

// heaviside: returns `value` where x is zero, else 1 if x is positive and 0 if it is negative or
// NaN. Decided on the bits, because GPUs may flush denormal numbers to zero.
struct heaviside_functor {
  template <typename T>
  inline enable_if_t<is_integral_v<T>, T> operator()(const T x, const T value) {
    return x == T(0) ? value : T(x > T(0));
  }
  template <typename T>
  inline enable_if_t<is_floating_point_v<T>, T> operator()(const T x, const T value) {
    const uint bits = as_type<uint>(static_cast<float>(x));
    if (bits << 1 == 0) {
      return value;
    }
    return T(bits <= 0x7f800000 ? 1.0f : 0.0f);
  }
};

// logit: returns log(x / (1 - x)) with x clamped to [eps, 1 - eps] unless eps is negative.
struct logit_functor {
  template <typename T>
  inline T operator()(const T value, const float eps) {
    float x = static_cast<float>(value);
    if (!(eps < 0.0f)) {
      const float upper = 1.0f - eps;
      x = x < eps ? eps : (x > upper ? upper : x);
    }
    // In the middle the result is log(1 + excess), with the rounding error of 1 + excess corrected
    // as in log1p (W. Kahan). Elsewhere the ratio is far enough from one, or so small that it is x.
    const bool middle = x > 0.3f && x < 0.7f;
    const float excess = fma(2.0f, x, -1.0f) / (1.0f - x);
    const float ratio = middle ? 1.0f + excess : (x < 1e-8f ? x : x / (1.0f - x));
    const float logarithm = log_with_denormals(ratio);
    const float rounded = ratio - 1.0f;
    const float corrected = rounded == 0.0f ? excess : logarithm * (excess / rounded);
    return static_cast<T>(middle ? corrected : logarithm);
  }
};

// frexp: x = mantissa 2^exponent with |mantissa| in [1/2, 1); zeros, infinities and NaN are their
// own mantissa and have exponent 0. Integer arithmetic, because GPUs may flush denormal numbers to
// zero: these are their fraction, as an integer, times 2^-149.
inline float split_mantissa(float x, thread int& exponent) {
  const uint bits = as_type<uint>(x);
  const uint fraction = bits & 0x007fffff;
  const int biased = static_cast<int>(bits >> 23) & 0xff;
  const uint denormal = as_type<uint>(static_cast<float>(fraction));
  const bool is_denormal = biased == 0;
  const bool is_whole = biased == 0xff || (bits & 0x7fffffff) == 0;
  const uint used = is_denormal ? denormal & 0x007fffff : fraction;
  const int power = is_denormal ? static_cast<int>(denormal >> 23) - 275 : biased - 126;
  exponent = is_whole ? 0 : power;
  return as_type<float>(is_whole ? bits : (bits & 0x80000000) | 0x3f000000 | used);
}

// frexp of four adjacent elements of contiguous tensors.
template <typename T>
kernel void elementwise_frexp_packs(device vec<T, 4>* mantissa [[buffer(0)]],
                                    device int4* exponent [[buffer(1)]],
                                    constant vec<T, 4>* input [[buffer(2)]],
                                    constant int64_t& count [[buffer(3)]],
                                    uint2 position [[thread_position_in_grid]],
                                    uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= count) {
    return;
  }
  const vec<T, 4> x = input[index];
  vec<T, 4> fraction;
  int4 power;
  int one;
  fraction.x = static_cast<T>(split_mantissa(static_cast<float>(x.x), one));
  power.x = one;
  fraction.y = static_cast<T>(split_mantissa(static_cast<float>(x.y), one));
  power.y = one;
  fraction.z = static_cast<T>(split_mantissa(static_cast<float>(x.z), one));
  power.z = one;
  fraction.w = static_cast<T>(split_mantissa(static_cast<float>(x.w), one));
  power.w = one;
  mantissa[index] = fraction;
  exponent[index] = power;
}

template <typename T>
kernel void elementwise_frexp(device T* mantissa [[buffer(0)]], device int* exponent [[buffer(1)]],
                              constant T* input [[buffer(2)]],
                              constant StridedLayout<3>& layout [[buffer(3)]],
                              uint2 position [[thread_position_in_grid]],
                              uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(index, layout);
  int power;
  const float fraction = split_mantissa(static_cast<float>(element_at(input, offsets[2])), power);
  element_at(mantissa, offsets[0]) = static_cast<T>(fraction);
  element_at(exponent, offsets[1]) = power;
}

#define REGISTER_FREXP(T)                                         \
  REGISTER_KERNEL("elementwise_frexp_" #T, elementwise_frexp, T); \
  REGISTER_KERNEL("elementwise_frexp_packs_" #T, elementwise_frexp_packs, T)

REGISTER_FLOAT_BINARY_OP(heaviside);
REGISTER_INTEGER_BINARY_OP(heaviside);
REGISTER_FLOAT_UNARY_ALPHA_OP(logit);
REGISTER_FREXP(float);
REGISTER_FREXP(half);
REGISTER_FREXP(bfloat);

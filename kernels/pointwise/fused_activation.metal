// Activations fused with a preceding addition.
#include <c10/metal/indexing.h>
#include <metalops/registration.h>
#include <metal_stdlib>

#include <kernels/pointwise/wrapping.h>
using namespace metal;
using namespace metalops;

// add_relu: returns a + alpha b clamped to between zero and the largest finite number; NaN stays
// NaN. Integers wrap around first, as in torch.
struct add_relu_functor {
  template <typename T, enable_if_t<is_floating_point_v<T>, bool> = true>
  inline T operator()(const T a, const T b, const float alpha) {
    const float largest = static_cast<float>(numeric_limits<T>::max());
    const float sum = static_cast<float>(a) + alpha * static_cast<float>(b);
    const float positive = sum < 0.0f ? 0.0f : sum;
    return static_cast<T>(positive > largest ? largest : positive);
  }

  template <typename T, enable_if_t<is_integral_v<T>, bool> = true>
  inline T operator()(const T a, const T b, const long alpha) {
    const T sum = wrapping_sum(a, wrapping_product(static_cast<T>(alpha), b));
    return sum < 0 ? T(0) : sum;
  }
};

REGISTER_FLOAT_BINARY_ALPHA_OP(add_relu);
REGISTER_BINARY_ALPHA_OP(add_relu, long, long, long);
REGISTER_BINARY_ALPHA_OP(add_relu, int, long, int);
REGISTER_BINARY_ALPHA_OP(add_relu, short, long, short);
REGISTER_BINARY_ALPHA_OP(add_relu, char, long, char);

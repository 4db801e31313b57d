// Unary activations and their backward functions. Formulas are those of
// python/metalops/ops/activation.py; half and bfloat are computed in float and rounded once.
#include <c10/metal/indexing.h>
#include <metalops/registration.h>

#include <metal_stdlib>

#include <kernels/common/activations.h>
#include <kernels/pointwise/wrapping.h>
using namespace metal;
using metalops::float_result_t;

struct gelu_new_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T value) {
    const float x = static_cast<float>(value);
    const float inner = kSqrt2OverPi * (x + kGeluCubic * (x * x * x));
    return static_cast<float_result_t<T>>(0.5f * x * (1.0f + precise::tanh(inner)));
  }
};

struct gelu_fast_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T value) {
    return static_cast<float_result_t<T>>(gelu_tanh(static_cast<float>(value)));
  }
};

// The derivative of gelu_new and gelu_fast, which are the same function.
struct gelu_new_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T value) {
    const float derivative = gelu_tanh_with_derivative(static_cast<float>(value)).derivative;
    return static_cast<T>(static_cast<float>(grad_output) * derivative);
  }
};

struct gelu_quick_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T value) {
    return static_cast<float_result_t<T>>(gelu_quick(static_cast<float>(value)));
  }
};

struct gelu_quick_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T value) {
    const float derivative = gelu_quick_with_derivative(static_cast<float>(value)).derivative;
    return static_cast<T>(static_cast<float>(grad_output) * derivative);
  }
};

// relu(x)^2. Integers stay integers, as with torch.square; NaN stays NaN, as with torch.relu.
struct relu_squared_functor {
  template <typename T>
  inline enable_if_t<is_integral_v<T>, T> operator()(const T x) {
    return x <= 0 ? T(0) : metalops::wrapping_product(x, x);
  }
  template <typename T>
  inline enable_if_t<is_floating_point_v<T>, T> operator()(const T value) {
    const float x = static_cast<float>(value);
    return static_cast<T>(x <= 0.0f ? 0.0f : x * x);
  }
};

struct relu_squared_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T value) {
    const float x = static_cast<float>(value);
    const float derivative = x <= 0.0f ? 0.0f : 2.0f * x;
    return static_cast<T>(static_cast<float>(grad_output) * derivative);
  }
};

struct softcap_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T value, const float cap) {
    return static_cast<float_result_t<T>>(cap * precise::tanh(static_cast<float>(value) / cap));
  }
};

struct softcap_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T value, const float cap) {
    // This equals 1 - tanh(z)^2, without the cancellation where tanh is close to 1.
    const float e = precise::exp(-2.0f * fabs(static_cast<float>(value) / cap));
    return static_cast<T>(static_cast<float>(grad_output) * (4.0f * e / ((1.0f + e) * (1.0f + e))));
  }
};

REGISTER_FLOAT_UNARY_OP(gelu_new);
REGISTER_INT2FLOAT_UNARY_OP(gelu_new);
REGISTER_FLOAT_UNARY_OP(gelu_fast);
REGISTER_INT2FLOAT_UNARY_OP(gelu_fast);
REGISTER_FLOAT_UNARY_OP(gelu_quick);
REGISTER_INT2FLOAT_UNARY_OP(gelu_quick);
REGISTER_FLOAT_UNARY_OP(relu_squared);
REGISTER_INTEGER_UNARY_OP_NO_BOOL(relu_squared);
REGISTER_FLOAT_UNARY_ALPHA_OP(softcap);
REGISTER_INT2FLOAT_UNARY_ALPHA_OP(softcap);

REGISTER_OPMATH_FLOAT_BINARY_OP(gelu_new_backward);
REGISTER_OPMATH_FLOAT_BINARY_OP(gelu_quick_backward);
REGISTER_OPMATH_FLOAT_BINARY_OP(relu_squared_backward);
REGISTER_FLOAT_BINARY_ALPHA_OP(softcap_backward);

// Gated linear units: an activation of one input (the gate) times the other input. Formulas are
// those of python/metalops/ops/gated.py; half and bfloat are computed in float and rounded once.
// Operators that halve one input (silu_and_mul, ...) run the same kernels on the two halves.
#include <c10/metal/indexing.h>
#include <metalops/backward.h>
#include <metalops/registration.h>

#include <metal_stdlib>

#include <kernels/common/activations.h>
#include <kernels/pointwise/gated.h>
#include <kernels/pointwise/wrapping.h>
using namespace metal;
using metalops::float_result_t;
using metalops::GatedRows;
using metalops::gradients2;

// Clamps x and keeps NaN, as torch.clamp does.
inline float clamp_or_nan(float x, float low, float high) {
  return x < low ? low : (x > high ? high : x);
}

// ---- forward ------------------------------------------------------------------------------------

struct swiglu_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T a, const T b) {
    return static_cast<float_result_t<T>>(silu(static_cast<float>(a)) * static_cast<float>(b));
  }
};

struct geglu_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T a, const T b) {
    return static_cast<float_result_t<T>>(gelu(static_cast<float>(a)) * static_cast<float>(b));
  }
};

struct geglu_tanh_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T a, const T b) {
    return static_cast<float_result_t<T>>(gelu_tanh(static_cast<float>(a)) * static_cast<float>(b));
  }
};

// Integers stay integers in reglu and fatreglu, as with torch.relu, torch.where and torch.mul.
struct reglu_functor {
  template <typename T>
  inline enable_if_t<is_integral_v<T>, T> operator()(const T a, const T b) {
    return a <= 0 ? T(0) : metalops::wrapping_product(a, b);
  }
  template <typename T>
  inline enable_if_t<is_floating_point_v<T>, T> operator()(const T a, const T b) {
    return static_cast<T>(relu(static_cast<float>(a)) * static_cast<float>(b));
  }
};

struct fatreglu_functor {
  template <typename T>
  inline enable_if_t<is_integral_v<T>, T> operator()(const T a, const T b, const float threshold) {
    return static_cast<float>(a) > threshold ? metalops::wrapping_product(a, b) : T(0);
  }
  template <typename T>
  inline enable_if_t<is_floating_point_v<T>, T> operator()(const T a, const T b,
                                                           const float threshold) {
    const float x = static_cast<float>(a);
    return static_cast<T>((x > threshold ? x : 0.0f) * static_cast<float>(b));
  }
};

struct swiglu_clamped_functor {
  template <typename T>
  inline float_result_t<T> operator()(const T a, const T b, const float limit) {
    const float x = static_cast<float>(a);
    const float gate = x > limit ? limit : x;
    const float linear = clamp_or_nan(static_cast<float>(b), -limit, limit) + 1.0f;
    return static_cast<float_result_t<T>>(linear * gelu_quick(gate));
  }
};

REGISTER_OPMATH_FLOAT_BINARY_OP(swiglu);
REGISTER_INT2FLOAT_BINARY_OP(swiglu);
REGISTER_OPMATH_FLOAT_BINARY_OP(geglu);
REGISTER_INT2FLOAT_BINARY_OP(geglu);
REGISTER_OPMATH_FLOAT_BINARY_OP(geglu_tanh);
REGISTER_INT2FLOAT_BINARY_OP(geglu_tanh);
REGISTER_OPMATH_FLOAT_BINARY_OP(reglu);
REGISTER_INTEGER_BINARY_OP_NO_BOOL(reglu);
REGISTER_FLOAT_BINARY_ALPHA_OP(fatreglu);
REGISTER_INTEGER_BINARY_ALPHA_OP_NO_BOOL(fatreglu);
REGISTER_FLOAT_BINARY_ALPHA_OP(swiglu_clamped);
REGISTER_INT2FLOAT_BINARY_ALPHA_OP(swiglu_clamped);

// ---- forward, for matrices with contiguous rows (such as the halves of a tensor) ----------------

template <typename F>
struct without_scalar {
  inline float operator()(float a, float b, float) {
    F f;
    return f(a, b);
  }
};

// Computes one element per thread; used where launch_tiles (<metalops/tiles_launch.h>) declines.
template <typename T, typename F>
kernel void gated_rows(device T* result [[buffer(0)]], constant T* a [[buffer(1)]],
                       constant T* b [[buffer(2)]], constant GatedRows& rows [[buffer(3)]],
                       uint2 position [[thread_position_in_grid]]) {
  F f;
  const long x = position.x;
  const long y = position.y;
  result[y * rows.result + x] = static_cast<T>(
      f(static_cast<float>(a[y * rows.a + x]), static_cast<float>(b[y * rows.b + x]), rows.scalar));
}

#define REGISTER_ROWS_OF(NAME, T, ...) \
  REGISTER_KERNEL(#NAME "_rows_" #T, gated_rows, T, __VA_ARGS__)

#define REGISTER_ROWS(NAME, ...)              \
  REGISTER_ROWS_OF(NAME, float, __VA_ARGS__); \
  REGISTER_ROWS_OF(NAME, half, __VA_ARGS__);  \
  REGISTER_ROWS_OF(NAME, bfloat, __VA_ARGS__)

REGISTER_ROWS(swiglu, without_scalar<swiglu_functor>);
REGISTER_ROWS(geglu, without_scalar<geglu_functor>);
REGISTER_ROWS(geglu_tanh, without_scalar<geglu_tanh_functor>);
REGISTER_ROWS(reglu, without_scalar<reglu_functor>);
REGISTER_ROWS(fatreglu, fatreglu_functor);
REGISTER_ROWS(swiglu_clamped, swiglu_clamped_functor);

// ---- backward -----------------------------------------------------------------------------------

inline gradients2 gate_gradients(float grad_output, activated gate, float b) {
  return {grad_output * b * gate.derivative, grad_output * gate.value};
}

struct swiglu_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float) {
    return gate_gradients(grad_output, silu_with_derivative(a), b);
  }
};

struct geglu_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float) {
    return gate_gradients(grad_output, gelu_with_derivative(a), b);
  }
};

struct geglu_tanh_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float) {
    return gate_gradients(grad_output, gelu_tanh_with_derivative(a), b);
  }
};

struct reglu_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float) {
    return gate_gradients(grad_output, relu_with_derivative(a), b);
  }
};

struct fatreglu_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float threshold) {
    const bool passes = a > threshold;
    return gate_gradients(grad_output, {passes ? a : 0.0f, passes ? 1.0f : 0.0f}, b);
  }
};

// The gradient of a clamp is zero outside its limits and passes at them, as with torch.clamp.
struct swiglu_clamped_backward_functor {
  inline gradients2 operator()(float grad_output, float a, float b, float limit) {
    const float gate = a > limit ? limit : a;
    const float linear = clamp_or_nan(b, -limit, limit) + 1.0f;
    const float s = sigmoid(kQuickSlope * gate);
    const float derivative = s + kQuickSlope * gate * (s * (1.0f - s));
    return {a <= limit ? grad_output * linear * derivative : 0.0f,
            b >= -limit && b <= limit ? grad_output * gate * s : 0.0f};
  }
};

REGISTER_FLOAT_BINARY_BACKWARD_OP(swiglu_backward);
REGISTER_FLOAT_BINARY_BACKWARD_OP(geglu_backward);
REGISTER_FLOAT_BINARY_BACKWARD_OP(geglu_tanh_backward);
REGISTER_FLOAT_BINARY_BACKWARD_OP(reglu_backward);
REGISTER_FLOAT_BINARY_BACKWARD_OP(fatreglu_backward);
REGISTER_FLOAT_BINARY_BACKWARD_OP(swiglu_clamped_backward);

// Kernels of operators of every kind that <metalops/pointwise.h> defines, for the dtypes that
// test_defined.py calls them with.
#include <c10/metal/indexing.h>
#include <metalops/backward.h>
#include <metalops/registration.h>

#include <metal_stdlib>
using namespace metal;

struct lisht_functor {
  template <typename T>
  inline T operator()(const T x) {
    return static_cast<T>(float(x) * precise::tanh(float(x)));
  }
};
REGISTER_FLOAT_UNARY_OP(lisht);

struct lisht_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T x) {
    const float t = precise::tanh(float(x));
    return static_cast<T>(float(grad_output) * (t + float(x) * (1 - t * t)));
  }
};
REGISTER_BINARY_OP_WITH_TILES(lisht_backward, float, float);
REGISTER_BINARY_OP_WITH_TILES(lisht_backward, half, half);

struct scaled_functor {
  template <typename T>
  inline T operator()(const T x, const float scale) {
    return static_cast<T>(float(x) * float(x) * scale);
  }
};
REGISTER_UNARY_ALPHA_OP_WITH_TILES(scaled, float, float, float);

struct scaled_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T x, const float scale) {
    return static_cast<T>(float(grad_output) * 2 * float(x) * scale);
  }
};
REGISTER_BINARY_ALPHA_OP_WITH_TILES(scaled_backward, float, float, float);

struct mixed_functor {
  template <typename T>
  inline T operator()(const T a, const T b, const float weight) {
    return static_cast<T>(float(a) * float(a) + weight * float(b) * float(a));
  }
};
REGISTER_BINARY_ALPHA_OP_WITH_TILES(mixed, float, float, float);

struct mixed_backward_functor {
  inline metalops::gradients2 operator()(float grad, float a, float b, float weight) {
    return {grad * (2 * a + weight * b), grad * weight * a};
  }
};
REGISTER_BINARY_BACKWARD_OP(mixed_backward, float);

struct doubled_functor {
  template <typename T>
  inline T operator()(const T x) {
    return static_cast<T>(2 * x);
  }
};
REGISTER_UNARY_OP_WITH_TILES(doubled, float, float);
REGISTER_UNARY_OP_WITH_TILES(doubled, long, long);

struct larger_functor {
  template <typename T>
  inline bool operator()(const T a, const T b) {
    return a > b;
  }
};
REGISTER_BINARY_OP(larger, float, bool);
REGISTER_BINARY_OP(larger, long, bool);

struct magnitude_functor {
  inline float operator()(const float2 z) { return precise::sqrt(z.x * z.x + z.y * z.y); }
};
REGISTER_UNARY_OP(magnitude, float2, float);

struct squared_functor {
  inline float2 operator()(const float2 z) { return float2(z.x * z.x - z.y * z.y, 2 * z.x * z.y); }
};
REGISTER_UNARY_OP(squared, float2, float2);

struct squared_backward_functor {
  inline float2 operator()(const float2 grad_output, const float2 z) {
    return 2 * float2(grad_output.x * z.x + grad_output.y * z.y,
                      grad_output.y * z.x - grad_output.x * z.y);
  }
};
REGISTER_BINARY_OP(squared_backward, float2, float2);

// The plainest kernels there are, for benchmarks/run.py: what the device itself costs.
#include <c10/metal/indexing.h>
#include <metal_stdlib>
using namespace metal;

#define UNARY(NAME)                                   \
  struct NAME##_functor {                             \
    template <typename T>                             \
    inline T operator()(const T x) {                  \
      return static_cast<T>(precise::NAME(float(x))); \
    }                                                 \
  };                                                  \
  REGISTER_UNARY_OP(NAME, float, float);              \
  REGISTER_UNARY_OP(NAME, half, half);                \
  REGISTER_UNARY_OP(NAME, bfloat, bfloat)

UNARY(exp);
UNARY(sin);
UNARY(tanh);

struct sigmoid_functor {
  template <typename T>
  inline T operator()(const T x) {
    return static_cast<T>(1 / (1 + precise::exp(-float(x))));
  }
};
REGISTER_UNARY_OP(sigmoid, float, float);
REGISTER_UNARY_OP(sigmoid, half, half);
REGISTER_UNARY_OP(sigmoid, bfloat, bfloat);

struct add_functor {
  template <typename T>
  inline T operator()(const T a, const T b) {
    return static_cast<T>(a + b);
  }
};
REGISTER_BINARY_OP(add, float, float);
REGISTER_BINARY_OP(add, half, half);
REGISTER_BINARY_OP(add, bfloat, bfloat);

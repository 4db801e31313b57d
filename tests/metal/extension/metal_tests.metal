// Functors registered in every way that c10/metal/indexing.h knows. On the small whole numbers of
// the tests they are exact in every dtype, and no operand can be mistaken for another.
#include <c10/metal/error.h>
#include <c10/metal/indexing.h>
#include <metal_stdlib>

#include "metal_tests.h"

using namespace metal;
using namespace c10::metal;

struct triple_functor {
  template <typename T>
  inline T operator()(const T x) {
    return static_cast<T>(x + x + x);
  }
};

REGISTER_UNARY_OP(triple, float, float);
REGISTER_UNARY_OP(triple, half, half);
REGISTER_UNARY_OP(triple, bfloat, bfloat);
REGISTER_UNARY_OP(triple, long, long);
REGISTER_UNARY_OP(triple, int, int);
REGISTER_UNARY_OP(triple, short, short);
REGISTER_UNARY_OP(triple, char, char);
REGISTER_UNARY_OP(triple, uchar, uchar);
REGISTER_UNARY_OP(triple, float2, float2);
REGISTER_UNARY_OP(triple, half2, half2);

struct positive_functor {
  template <typename T>
  inline bool operator()(const T x) {
    return x > 0;
  }
};

REGISTER_UNARY_OP(positive, float, bool);
REGISTER_UNARY_OP(positive, int, bool);

struct scale_functor {
  template <typename T, typename A>
  inline T operator()(const T x, const A alpha) {
    return static_cast<T>(x * alpha);
  }
};

REGISTER_UNARY_ALPHA_OP(scale, float, float, float);
REGISTER_UNARY_ALPHA_OP(scale, half, half, half);
REGISTER_UNARY_ALPHA_OP(scale, bfloat, bfloat, bfloat);
REGISTER_UNARY_ALPHA_OP(scale, half, float, half);
REGISTER_UNARY_ALPHA_OP(scale, long, long, long);
REGISTER_UNARY_ALPHA_OP(scale, int, int, int);
REGISTER_UNARY_ALPHA_OP(scale, uchar, uchar, uchar);

struct minus_twice_functor {
  template <typename T>
  inline T operator()(const T a, const T b) {
    return static_cast<T>(a - b - b);
  }
};

REGISTER_BINARY_OP(minus_twice, float, float);
REGISTER_BINARY_OP(minus_twice, half, half);
REGISTER_BINARY_OP(minus_twice, long, long);
REGISTER_BINARY_OP(minus_twice, int, int);
REGISTER_BINARY_OP(minus_twice, uchar, uchar);
REGISTER_BINARY_OP(minus_twice, float2, float2);
REGISTER_OPMATH_BINARY_OP(minus_twice, bfloat, bfloat);

struct less_functor {
  template <typename T>
  inline bool operator()(const T a, const T b) {
    return a < b;
  }
};

REGISTER_BINARY_OP(less, float, bool);
REGISTER_BINARY_OP(less, half, bool);
REGISTER_BINARY_OP(less, int, bool);
REGISTER_BINARY_CASTOUT_OP(less, float, bool);
REGISTER_BINARY_CASTOUT_OP(less, int, bool);

struct minus_scaled_functor {
  template <typename T, typename A>
  inline T operator()(const T a, const T b, const A alpha) {
    return static_cast<T>(a - alpha * b);
  }
};

REGISTER_BINARY_ALPHA_OP(minus_scaled, float, float, float);
REGISTER_BINARY_ALPHA_OP(minus_scaled, half, half, half);
REGISTER_BINARY_ALPHA_OP(minus_scaled, long, long, long);
REGISTER_BINARY_ALPHA_OP(minus_scaled, int, int, int);
REGISTER_BINARY_ALPHA_OP(minus_scaled, uchar, uchar, uchar);

struct select_sum_functor {
  template <typename T>
  inline T operator()(const T a, const T b, const T c) {
    return static_cast<T>(a + b + b - c);
  }
};

REGISTER_TERNARY_OP(select_sum, float, float);
REGISTER_TERNARY_OP(select_sum, int, int);
REGISTER_TERNARY_OP(select_sum, uchar, uchar);
REGISTER_OPMATH_TERNARY_OP(select_sum, half, half);
REGISTER_OPMATH_TERNARY_OP(select_sum, bfloat, bfloat);

#ifdef REGISTER_TERNARY_ALPHA_OP  // torch 2.15
struct scaled_sum_functor {
  template <typename T, typename A>
  inline T operator()(const T a, const T b, const T c, const A alpha) {
    return static_cast<T>(a + alpha * b + 10 * c);
  }
};

REGISTER_TERNARY_ALPHA_OP(scaled_sum, float, float, float);
REGISTER_OPMATH_TERNARY_ALPHA_OP(scaled_sum, half, float, half);
#endif

// Kernels with a structure of parameters, named as exec_*_kernel_with_params names them.
struct affine_functor {
  template <typename T>
  inline T operator()(const T x, const AffineParams params) {
    return static_cast<T>(x * params.scale + params.shift);
  }
};

template <typename T>
kernel void affine_sum_dense(device T* output [[buffer(0)]], constant T* input [[buffer(1)]],
                             constant T* other [[buffer(2)]],
                             constant AffineParams& params [[buffer(3)]],
                             uint index [[thread_position_in_grid]]) {
  output[index] = static_cast<T>(input[index] * params.scale + other[index] + params.shift);
}

template <typename T>
kernel void affine_sum_dense_cast(device T* output [[buffer(0)]],
                                  constant void* input [[buffer(1)]],
                                  constant void* other [[buffer(2)]],
                                  constant AffineParams& params [[buffer(3)]],
                                  constant uint4& sizes_types [[buffer(4)]],
                                  uint index [[thread_position_in_grid]]) {
  const auto a =
      val_at_offs<T>(input, index * sizes_types.x, static_cast<ScalarType>(sizes_types.z));
  const auto b =
      val_at_offs<T>(other, index * sizes_types.y, static_cast<ScalarType>(sizes_types.w));
  output[index] = static_cast<T>(a * params.scale + b + params.shift);
}

template <typename T>
kernel void affine_sum_strided(
    device void* output [[buffer(0)]], constant void* input [[buffer(1)]],
    constant void* other [[buffer(2)]], constant AffineParams& params [[buffer(3)]],
    constant long* sizes [[buffer(4)]], constant long* output_strides [[buffer(5)]],
    constant long* input_strides [[buffer(6)]], constant long* other_strides [[buffer(7)]],
    constant uint4& ndim_types [[buffer(8)]], uint index [[thread_position_in_grid]]) {
  int pos[max_ndim];
  pos_from_thread_index(int(index), pos, sizes, ndim_types.x);
  const auto a = val_at_offs<T>(input, offset_from_coord(pos, input_strides, ndim_types.x));
  const auto b = val_at_offs<T>(other, offset_from_coord(pos, other_strides, ndim_types.x));
  ref_at_offs<T>(output, offset_from_coord(pos, output_strides, ndim_types.x)) =
      static_cast<T>(a * params.scale + b + params.shift);
}

template <typename T>
kernel void affine_sum_strided_cast(
    device void* output [[buffer(0)]], constant void* input [[buffer(1)]],
    constant void* other [[buffer(2)]], constant AffineParams& params [[buffer(3)]],
    constant long* sizes [[buffer(4)]], constant long* output_strides [[buffer(5)]],
    constant long* input_strides [[buffer(6)]], constant long* other_strides [[buffer(7)]],
    constant uint4& ndim_types [[buffer(8)]], uint index [[thread_position_in_grid]]) {
  int pos[max_ndim];
  pos_from_thread_index(int(index), pos, sizes, ndim_types.x);
  const auto a = val_at_offs<T>(input, offset_from_coord(pos, input_strides, ndim_types.x),
                                static_cast<ScalarType>(ndim_types.y));
  const auto b = val_at_offs<T>(other, offset_from_coord(pos, other_strides, ndim_types.x),
                                static_cast<ScalarType>(ndim_types.z));
  ref_at_offs<T>(output, offset_from_coord(pos, output_strides, ndim_types.x)) =
      static_cast<T>(a * params.scale + b + params.shift);
}

#define INSTANTIATE_AFFINE(T)                                                                      \
  REGISTER_UNARY_ALPHA_OP(affine, T, AffineParams, T);                                             \
  template [[host_name("affine_sum_dense_" #T "_" #T "_AffineParams")]] kernel void                \
  affine_sum_dense<T>(device T*, constant T*, constant T*, constant AffineParams&, uint);          \
  template [[host_name("affine_sum_dense_cast_" #T "_AffineParams")]] kernel void                  \
  affine_sum_dense_cast<T>(device T*, constant void*, constant void*, constant AffineParams&,      \
                           constant uint4&, uint);                                                 \
  template [[host_name("affine_sum_strided_" #T "_" #T "_AffineParams")]] kernel void              \
  affine_sum_strided<T>(device void*, constant void*, constant void*, constant AffineParams&,      \
                        constant long*, constant long*, constant long*, constant long*,            \
                        constant uint4&, uint);                                                    \
  template [[host_name("affine_sum_strided_cast_" #T "_AffineParams")]] kernel void                \
  affine_sum_strided_cast<T>(device void*, constant void*, constant void*, constant AffineParams&, \
                             constant long*, constant long*, constant long*, constant long*,       \
                             constant uint4&, uint);

INSTANTIATE_AFFINE(float)
INSTANTIATE_AFFINE(half)

kernel void fill(device float* out [[buffer(0)]], constant float& value [[buffer(1)]],
                 constant long* increments [[buffer(2)]], uint index [[thread_position_in_grid]]) {
  out[index] = value + increments[0];
}

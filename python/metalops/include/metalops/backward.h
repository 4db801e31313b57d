// Kernels of backward operators with more than one gradient: all gradients of an element are
// computed in one pass, in float, and rounded once. Include it from a .metal file as
// <metalops/backward.h>; the host side is <metalops/elementwise_launch.h>.
//
// REGISTER_FLOAT_BINARY_BACKWARD_OP(NAME): NAME_functor takes (grad_output, a, b, alpha) and
// returns gradients2.
//
// REGISTER_FLOAT_TERNARY_BACKWARD_OP(NAME): NAME_functor takes (grad_output, a, b, c, alpha) and
// returns gradients3.
//
// Everything is float; alpha is a scalar that is the same for all elements (0 for operators without
// one). Bit i of `wanted` is set if gradient i is wanted; for the others the kernel is passed the
// first wanted gradient's buffer. All tensors have the same dtype. The kernels are called
// NAME_dense_<dtype>, NAME_rows_<dtype> (for matrices whose rows are contiguous, such as the halves
// of a tensor's last dimension) and NAME_strided_<dtype>.
#pragma once
#include <c10/metal/indexing.h>
#include <metalops/register_kernel.h>

#include <metal_stdlib>

namespace metalops {

struct gradients2 {
  float a;
  float b;
};

struct gradients3 {
  float a;
  float b;
  float c;
};

// Replaces unwanted gradients by the first wanted one, whose buffer they share. It has no branches,
// so that loops over threads vectorise.
inline gradients2 only(uint wanted, gradients2 x) {
  const float first = wanted & 1 ? x.a : x.b;
  return {first, wanted & 2 ? x.b : first};
}

inline gradients3 only(uint wanted, gradients3 x) {
  const float first = wanted & 1 ? x.a : wanted & 2 ? x.b : x.c;
  return {first, wanted & 2 ? x.b : first, wanted & 4 ? x.c : first};
}

template <typename T, typename F>
kernel void binary_backward_dense(device T* grad_a [[buffer(0)]], device T* grad_b [[buffer(1)]],
                                  constant T* grad_output [[buffer(2)]],
                                  constant T* a [[buffer(3)]], constant T* b [[buffer(4)]],
                                  constant float& alpha [[buffer(5)]],
                                  constant uint& wanted [[buffer(6)]],
                                  uint index [[thread_position_in_grid]]) {
  F f;
  const gradients2 result =
      only(wanted, f(float(grad_output[index]), float(a[index]), float(b[index]), alpha));
  grad_a[index] = T(result.a);
  grad_b[index] = T(result.b);
}

template <typename T, typename F>
kernel void ternary_backward_dense(device T* grad_a [[buffer(0)]], device T* grad_b [[buffer(1)]],
                                   device T* grad_c [[buffer(2)]],
                                   constant T* grad_output [[buffer(3)]],
                                   constant T* a [[buffer(4)]], constant T* b [[buffer(5)]],
                                   constant T* c [[buffer(6)]], constant float& alpha [[buffer(7)]],
                                   constant uint& wanted [[buffer(8)]],
                                   uint index [[thread_position_in_grid]]) {
  F f;
  const gradients3 result = only(wanted, f(float(grad_output[index]), float(a[index]),
                                           float(b[index]), float(c[index]), alpha));
  grad_a[index] = T(result.a);
  grad_b[index] = T(result.b);
  grad_c[index] = T(result.c);
}

// Kernels for matrices: row y of operand n starts at y * row_strides[n], in elements; the grid's x
// runs along the rows.

template <typename T, typename F>
kernel void binary_backward_rows(device T* grad_a [[buffer(0)]], device T* grad_b [[buffer(1)]],
                                 constant T* grad_output [[buffer(2)]], constant T* a [[buffer(3)]],
                                 constant T* b [[buffer(4)]], constant float& alpha [[buffer(5)]],
                                 constant uint& wanted [[buffer(6)]],
                                 constant long* row_strides [[buffer(7)]],
                                 uint2 position [[thread_position_in_grid]]) {
  F f;
  const long x = position.x;
  const long y = position.y;
  const gradients2 result =
      only(wanted, f(float(grad_output[y * row_strides[2] + x]), float(a[y * row_strides[3] + x]),
                     float(b[y * row_strides[4] + x]), alpha));
  grad_a[y * row_strides[0] + x] = T(result.a);
  grad_b[y * row_strides[1] + x] = T(result.b);
}

template <typename T, typename F>
kernel void ternary_backward_rows(device T* grad_a [[buffer(0)]], device T* grad_b [[buffer(1)]],
                                  device T* grad_c [[buffer(2)]],
                                  constant T* grad_output [[buffer(3)]],
                                  constant T* a [[buffer(4)]], constant T* b [[buffer(5)]],
                                  constant T* c [[buffer(6)]], constant float& alpha [[buffer(7)]],
                                  constant uint& wanted [[buffer(8)]],
                                  constant long* row_strides [[buffer(9)]],
                                  uint2 position [[thread_position_in_grid]]) {
  F f;
  const long x = position.x;
  const long y = position.y;
  const gradients3 result =
      only(wanted, f(float(grad_output[y * row_strides[3] + x]), float(a[y * row_strides[4] + x]),
                     float(b[y * row_strides[5] + x]), float(c[y * row_strides[6] + x]), alpha));
  grad_a[y * row_strides[0] + x] = T(result.a);
  grad_b[y * row_strides[1] + x] = T(result.b);
  grad_c[y * row_strides[2] + x] = T(result.c);
}

// Kernels for any strides: the strides of all operands are in one buffer, operand after operand, in
// bytes. The grid is two-dimensional: x runs along the innermost dimension, y over the rest.

template <typename T, typename F>
kernel void binary_backward_strided(
    device void* grad_a [[buffer(0)]], device void* grad_b [[buffer(1)]],
    constant void* grad_output [[buffer(2)]], constant void* a [[buffer(3)]],
    constant void* b [[buffer(4)]], constant float& alpha [[buffer(5)]],
    constant uint& wanted [[buffer(6)]], constant long* sizes [[buffer(7)]],
    constant long* strides [[buffer(8)]], constant uint& ndim [[buffer(9)]],
    uint2 position [[thread_position_in_grid]]) {
  using namespace c10::metal;
  F f;
  int pos[max_ndim];
  pos_from_thread_index(position, pos, sizes, ndim);
  const gradients2 result =
      only(wanted,
           f(float(val_at_offs<T>(grad_output, offset_from_coord(pos, strides + 2 * ndim, ndim))),
             float(val_at_offs<T>(a, offset_from_coord(pos, strides + 3 * ndim, ndim))),
             float(val_at_offs<T>(b, offset_from_coord(pos, strides + 4 * ndim, ndim))), alpha));
  ref_at_offs<T>(grad_a, offset_from_coord(pos, strides, ndim)) = T(result.a);
  ref_at_offs<T>(grad_b, offset_from_coord(pos, strides + ndim, ndim)) = T(result.b);
}

template <typename T, typename F>
kernel void ternary_backward_strided(
    device void* grad_a [[buffer(0)]], device void* grad_b [[buffer(1)]],
    device void* grad_c [[buffer(2)]], constant void* grad_output [[buffer(3)]],
    constant void* a [[buffer(4)]], constant void* b [[buffer(5)]], constant void* c [[buffer(6)]],
    constant float& alpha [[buffer(7)]], constant uint& wanted [[buffer(8)]],
    constant long* sizes [[buffer(9)]], constant long* strides [[buffer(10)]],
    constant uint& ndim [[buffer(11)]], uint2 position [[thread_position_in_grid]]) {
  using namespace c10::metal;
  F f;
  int pos[max_ndim];
  pos_from_thread_index(position, pos, sizes, ndim);
  const gradients3 result =
      only(wanted,
           f(float(val_at_offs<T>(grad_output, offset_from_coord(pos, strides + 3 * ndim, ndim))),
             float(val_at_offs<T>(a, offset_from_coord(pos, strides + 4 * ndim, ndim))),
             float(val_at_offs<T>(b, offset_from_coord(pos, strides + 5 * ndim, ndim))),
             float(val_at_offs<T>(c, offset_from_coord(pos, strides + 6 * ndim, ndim))), alpha));
  ref_at_offs<T>(grad_a, offset_from_coord(pos, strides, ndim)) = T(result.a);
  ref_at_offs<T>(grad_b, offset_from_coord(pos, strides + ndim, ndim)) = T(result.b);
  ref_at_offs<T>(grad_c, offset_from_coord(pos, strides + 2 * ndim, ndim)) = T(result.c);
}

}  // namespace metalops

#define REGISTER_BINARY_BACKWARD_OP(NAME, DTYPE)                                                   \
  REGISTER_KERNEL(#NAME "_dense_" #DTYPE, metalops::binary_backward_dense, DTYPE, NAME##_functor); \
  REGISTER_KERNEL(#NAME "_rows_" #DTYPE, metalops::binary_backward_rows, DTYPE, NAME##_functor);   \
  REGISTER_KERNEL(#NAME "_strided_" #DTYPE, metalops::binary_backward_strided, DTYPE,              \
                  NAME##_functor)

#define REGISTER_TERNARY_BACKWARD_OP(NAME, DTYPE)                                                 \
  REGISTER_KERNEL(#NAME "_dense_" #DTYPE, metalops::ternary_backward_dense, DTYPE,                \
                  NAME##_functor);                                                                \
  REGISTER_KERNEL(#NAME "_rows_" #DTYPE, metalops::ternary_backward_rows, DTYPE, NAME##_functor); \
  REGISTER_KERNEL(#NAME "_strided_" #DTYPE, metalops::ternary_backward_strided, DTYPE,            \
                  NAME##_functor)

#define REGISTER_FLOAT_BINARY_BACKWARD_OP(NAME) \
  REGISTER_BINARY_BACKWARD_OP(NAME, float);     \
  REGISTER_BINARY_BACKWARD_OP(NAME, half);      \
  REGISTER_BINARY_BACKWARD_OP(NAME, bfloat)

#define REGISTER_FLOAT_TERNARY_BACKWARD_OP(NAME) \
  REGISTER_TERNARY_BACKWARD_OP(NAME, float);     \
  REGISTER_TERNARY_BACKWARD_OP(NAME, half);      \
  REGISTER_TERNARY_BACKWARD_OP(NAME, bfloat)

// The kernels of metal_example: a unary and a binary operator as functors, and a kernel of its own
// kind.
#include <c10/metal/indexing.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include "example.h"
using namespace metal;

// x / (1 + |x|), computed in float and rounded once.
struct softsign_functor {
  template <typename T>
  inline T operator()(const T x) {
    const float value = float(x);
    return T(value / (1 + abs(value)));
  }
};

REGISTER_UNARY_OP(softsign, float, float);
REGISTER_UNARY_OP(softsign, half, half);
REGISTER_UNARY_OP(softsign, bfloat, bfloat);

// (a - b) squared.
struct squared_difference_functor {
  template <typename T>
  inline T operator()(const T a, const T b) {
    const float difference = float(a) - float(b);
    return T(difference * difference);
  }
};

REGISTER_BINARY_OP(squared_difference, float, float);
REGISTER_BINARY_OP(squared_difference, half, half);
REGISTER_BINARY_OP(squared_difference, bfloat, bfloat);

// The largest magnitude of each row: one threadgroup per row, kThreads threads, a tree in
// threadgroup memory.
template <typename T>
kernel void row_max_abs(device T* result [[buffer(0)]], constant T* matrix [[buffer(1)]],
                        constant RowParams& params [[buffer(2)]],
                        uint row [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup float largest[kThreads];
  float mine = 0;
  for (uint column = thread_index; column < params.columns; column += kThreads) {
    mine = max(mine, abs(float(matrix[row * params.row_stride + column * params.column_stride])));
  }
  largest[thread_index] = mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint half_count = kThreads / 2; half_count > 0; half_count /= 2) {
    if (thread_index < half_count) {
      largest[thread_index] = max(largest[thread_index], largest[thread_index + half_count]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (thread_index == 0) {
    result[row] = T(largest[0]);
  }
}

#define REGISTER_ROW_MAX_ABS(T) REGISTER_KERNEL("row_max_abs_" #T, row_max_abs, T)

REGISTER_ROW_MAX_ABS(float);
REGISTER_ROW_MAX_ABS(half);
REGISTER_ROW_MAX_ABS(bfloat);

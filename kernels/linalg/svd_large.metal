// xLABRD: a kernel for the blocked reduction (common/blocked_reduction.h) of square matrices of any
// size to real upper bidiagonal ones (xGEBRD), in many launches.
//
// There are two copies of a matrix, A and B = A^H. A's columns are reduced by reflectors V from the
// left; those of B, A's rows, by reflectors U from the right. After a panel of two columns (x: up
// to date in A or in B, a: not updated yet), A and the panel's V and U hold
//
//     [ x x x x x ]       [ 1        ]       [          ]
//     [ x x x x x ]       [ v1  1    ]       [ 1        ]   and the update of the rest is
//     [ x x a a a ]   V = [ v1  v2   ]   U = [ u1  1    ]   A := A - V Y^H - X U^H
//     [ x x a a a ]       [ v1  v2   ]       [ u1  u2   ]   B := B - Y V^H - U X^H
//     [ x x a a a ]       [ v1  v2   ]       [ u1  u2   ]
//
// So the same kernel reduces both, with V and X changing roles with U and Y; and all products are
// sums of columns. The x are not read again: the bidiagonal matrix is in `values` of both sides.
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/blocked_reduction.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
using namespace metal;
using namespace metalops;

// Half a step of xLABRD, in terms of A = `matrices` (or of B, alternately). Finishes the x that the
// panel needs for the other side's last reflector, brings a column up to date, and makes its
// reflector, which begins with row p.from: the column's own one in A, the next one in B. One
// threadgroup per matrix.
template <typename T>
kernel void svd_large_column(
    device float4* matrices [[buffer(0)]], device float4* reflectors [[buffer(1)]],
    device float4* panels [[buffer(2)]], device const float4* products [[buffer(3)]],
    device const T* overlaps [[buffer(4)]], device float* values [[buffer(5)]],
    device T* taus [[buffer(6)]], device const float4* other_reflectors [[buffer(7)]],
    device const float4* other_panels [[buffer(8)]], device const T* other_taus [[buffer(9)]],
    constant ReductionParameters& p [[buffer(10)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  threadgroup T shares[2 * kReductionPanel];
  threadgroup float sums[kSumsOfThreadgroup];
  threadgroup T factor;
  const int lane = thread_lane;
  const int lanes = threads;
  const int c = p.column;
  const int done = c - p.start;                      // columns of the panel
  const int others = done + (p.from - c);            // columns of X and U
  const int first = p.from / ColumnPacks<T>::kRows;  // the first pack that matters
  const int64_t reflector = int64_t(matrix) * p.reflectors + p.start;
  const int64_t offset = int64_t(matrix) * kReductionPanel * p.stride;
  device float4* const v = reflectors + reflector * p.stride;
  const Panel panel = {v, other_panels + offset, panels + offset,
                       other_reflectors + reflector * p.stride};
  if (others > 0) {
    const int last = others - 1;
    add_overlaps(&shares[0], overlaps + int64_t(matrix) * p.slices * 2 * kReductionPanel,
                 last + done, lane, lanes, p);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    finish_product(panel, products + int64_t(matrix) * p.slices * p.stride, &shares[0],
                   other_taus[reflector + last], done, last, first, lane, lanes, p);
  }
  if (p.ends_panel) {
    return;
  }
  device float4* const column = matrices + (int64_t(matrix) * p.size + c) * p.stride;
  const float tail = update_column<T>(column, panel, done, others, first, lane, lanes, p);
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  make_reflector<T>(column, v + done * p.stride, taus + reflector + done,
                    values + int64_t(matrix) * p.size + c, tail, &sums[0], &factor, first,
                    thread_lane, threads, p);
}

REGISTER_KERNEL("svd_large_column_float", svd_large_column, float);
REGISTER_KERNEL("svd_large_column_float2", svd_large_column, float2);

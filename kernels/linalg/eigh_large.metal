// xLATRD: a kernel for the blocked reduction (common/blocked_reduction.h) of Hermitian matrices of
// any size to real tridiagonal ones (xHETRD, xSYTRD), in many launches.
//
// Matrices have both triangles. After a panel of two columns (x: up to date, a: not updated yet),
// the matrix, the panel's V (`reflectors`) and its W (`panels`) hold
//
//     [ x . . . . ]       [          ]       [          ]
//     [ x x . . . ]       [ 1        ]       [ w1       ]   and the update of the rest is
//     [ x x a a a ]   V = [ v1  1    ]   W = [ w1  w2   ]   A := A - V W^H - W V^H
//     [ x x a a a ]       [ v1  v2   ]       [ w1  w2   ]
//     [ x x a a a ]       [ v1  v2   ]       [ w1  w2   ]
//
// The x are not read again: the tridiagonal matrix is in `diagonals` and `off_diagonals`.
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/blocked_reduction.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
using namespace metal;
using namespace metalops;

// Finishes the last one of W: w = x - tau (x^H v) v / 2, x = tau (A v - V (W^H v) - W (V^H v)).
template <typename T>
inline void finish_w(Panel panel, device const float4* products, threadgroup const T* shares, T tau,
                     int last, threadgroup float* sums, uint thread_lane, uint threads,
                     constant ReductionParameters& p) {
  const int used = packs_of<T>(p.size);
  const int first = p.column / ColumnPacks<T>::kRows;
  const int lane = thread_lane;
  const int lanes = threads;
  device const float4* const v = panel.v + last * p.stride;
  device float4* const w = panel.x + last * p.stride;
  finish_product(panel, products, shares, tau, last, last, first, lane, lanes, p);
  T overlap = from_real<T>(0.0f);
  for (int i = first + lane; i < used; i += lanes) {
    overlap += ColumnPacks<T>::inner_product(w[i], v[i]);
  }
  const T share = multiply(tau, sum_of_threadgroup(sums, overlap, thread_lane, threads)) * -0.5f;
  for (int i = first + lane; i < used; i += lanes) {
    w[i] += times(v[i], share);
  }
}

// One column of a panel. Finishes the w of the column before, brings the column up to date, and
// makes its reflector. One threadgroup per matrix.
template <typename T>
kernel void eigh_large_column(
    device float4* matrices [[buffer(0)]], device float4* reflectors [[buffer(1)]],
    device float4* panels [[buffer(2)]], device const float4* products [[buffer(3)]],
    device const T* overlaps [[buffer(4)]], device float* diagonals [[buffer(5)]],
    device float* off_diagonals [[buffer(6)]], device T* taus [[buffer(7)]],
    constant ReductionParameters& p [[buffer(8)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  threadgroup T shares[2 * kReductionPanel];
  threadgroup float sums[kSumsOfThreadgroup];
  threadgroup T factor;
  const int lane = thread_lane;
  const int lanes = threads;
  const int c = p.column;
  const int done = c - p.start;                 // columns of the panel
  const int first = c / ColumnPacks<T>::kRows;  // the first pack that matters
  const int64_t reflector = int64_t(matrix) * p.reflectors + p.start;
  device float4* const v = reflectors + reflector * p.stride;
  device float4* const w = panels + int64_t(matrix) * kReductionPanel * p.stride;
  const Panel panel = {v, w, w, v};
  if (done > 0) {
    const int last = done - 1;
    add_overlaps(&shares[0], overlaps + int64_t(matrix) * p.slices * 2 * kReductionPanel, 2 * last,
                 lane, lanes, p);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    finish_w<T>(panel, products + int64_t(matrix) * p.slices * p.stride, &shares[0],
                taus[reflector + last], last, &sums[0], thread_lane, threads, p);
    threadgroup_barrier(mem_flags::mem_device);
  }
  if (p.ends_panel) {
    return;
  }
  device float4* const column = matrices + (int64_t(matrix) * p.size + c) * p.stride;
  device const T* const elements = elements_of<T>(column);
  const float tail = update_column<T>(column, panel, done, done, first, lane, lanes, p);
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  if (lane == 0) {
    diagonals[int64_t(matrix) * p.size + c] = real_part(elements[c]);
  }
  if (c == p.size - 1) {
    return;
  }
  make_reflector<T>(column, v + done * p.stride, taus + reflector + done,
                    off_diagonals + int64_t(matrix) * p.size + c, tail, &sums[0], &factor, first,
                    thread_lane, threads, p);
}

REGISTER_KERNEL("eigh_large_column_float", eigh_large_column, float);
REGISTER_KERNEL("eigh_large_column_float2", eigh_large_column, float2);

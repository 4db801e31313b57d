// xLATRD, xLABRD, xLAHR2: what blocked two-sided reductions to tridiagonal, bidiagonal and
// Hessenberg form have in common. Their parameters, which the host shares, and the steps of a
// column.
//
// Matrices are columns of packs, with zeros below their rows. Reflectors are rows of a tensor of
// their own, of the same stride, with zeros before their leading 1:
//
//           [ 1             ]
//     V^H = [ 0  1          ]  of a panel of three reflectors, here from row 0 on
//           [ 0  0  1       ]
//
// A column costs two launches. The first one (eigh_large_column, svd_large_column,
// hessenberg_column) brings it up to date and makes its reflector v. The second one
// (blocked_reduction_products) computes A v and the inner products of v with vectors of the panel,
// as partial sums over slices of columns, which the next column's first launch adds up.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The width of a panel: columns that are reduced between two updates of the trailing matrix.
C10_METAL_CONSTEXPR int kReductionPanel = 32;

// A column of a matrix being reduced.
struct ReductionParameters {
  int32_t size;
  int32_t stride;      // of columns, in packs
  int32_t reflectors;  // rows of the tensor of reflectors
  int32_t column;
  int32_t from;   // the first row of the column's reflector that is not zero
  int32_t start;  // the panel's first column
  int32_t slice;  // columns over which a thread sums products: a multiple of kReductionPanel
  int32_t slices;
  int32_t first;        // the first row of the product of the matrix and the reflector
  int32_t kinds;        // kinds of vectors it is multiplied by: 1 (reflectors) or 2 (`panels`, too)
  uint32_t ends_panel;  // only the panel's last column is to be finished
};

// Parameters of the real form of complex rows.
struct ReductionRowsParameters {
  int64_t matrix_stride;  // in elements
  int64_t row_stride;
  int32_t rows;  // of a matrix
  int32_t elements;
};

// Parameters of sorting values and vectors, which are padded.
struct ReductionOrderParameters {
  int32_t size;
  int32_t padded;
  int32_t row;  // stride of vectors, in elements
};

}  // namespace metalops

#ifdef __METAL__
#include <c10/metal/reduction_utils.h>
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>

namespace metalops {

// Elements of the threadgroup memory that sum_of_threadgroup() takes.
constant constexpr int kSumsOfThreadgroup = 2 * c10::metal::simdgroup_size;

// Returns the sum over a threadgroup.
inline float sum_of_threadgroup(threadgroup float* sums, float part, uint lane, uint lanes) {
  return c10::metal::threadgroup_sum(sums, part, lane, lanes);
}
inline ::metal::float2 sum_of_threadgroup(threadgroup float* sums, ::metal::float2 part, uint lane,
                                          uint lanes) {
  const float re = c10::metal::threadgroup_sum(sums, part.x, lane, lanes);
  return ::metal::float2(
      re, c10::metal::threadgroup_sum(sums + c10::metal::simdgroup_size, part.y, lane, lanes));
}

// Adds up the slices of the first `count` inner products of a matrix's last reflector.
template <typename T>
inline void add_overlaps(threadgroup T* shares, device const T* overlaps, int count, int lane,
                         int lanes, constant ReductionParameters& p) {
  for (int i = lane; i < count; i += lanes) {
    T sum = from_real<T>(0.0f);
    for (int slice = p.column / p.slice; slice < p.slices; ++slice) {
      sum += overlaps[slice * 2 * kReductionPanel + i];
    }
    shares[i] = sum;
  }
}

// Returns pack i of the product of a matrix and its last reflector, from its slices.
inline ::metal::float4 sum_of_products(device const ::metal::float4* products, int i,
                                       constant ReductionParameters& p) {
  ::metal::float4 sum(0.0f);
  for (int slice = p.column / p.slice; slice < p.slices; ++slice) {
    sum += products[int64_t(slice) * p.stride + i];
  }
  return sum;
}

// The panel of a matrix A whose rest is A - V Y^H - X U^H, in which V and U are reflectors. (If A
// is Hermitian, U is V, and X and Y are W.)
struct Panel {
  device const ::metal::float4* v;
  device const ::metal::float4* y;
  device::metal::float4* x;
  device const ::metal::float4* u;
};

// Finishes the last one of X: x = tau (A u - V (Y^H u) - X (U^H u)). products: A u; shares: Y^H u
// and U^H u, alternately; v_count, last: the vectors of V and of X so far.
template <typename T>
inline void finish_product(Panel panel, device const ::metal::float4* products,
                           threadgroup const T* shares, T tau, int v_count, int last, int first,
                           int lane, int lanes, constant ReductionParameters& p) {
  const int used = packs_of<T>(p.size);
  for (int i = first + lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < last; ++k) {
      const int offset = k * p.stride + i;
      known.add(panel.v[offset], shares[2 * k]);
      known.add(panel.x[offset], shares[2 * k + 1]);
    }
    if (last < v_count) {
      known.add(panel.v[last * p.stride + i], shares[2 * last]);
    }
    panel.x[last * p.stride + i] = times(sum_of_products(products, i, p) - known.value(), tau);
  }
}

// Brings a column up to date, from pack `first` on. v_count, x_count: the vectors of V and X, of
// which there may be one more. Returns the thread's part of the sum of the squared magnitudes of
// the elements behind row p.from.
template <typename T>
inline float update_column(device::metal::float4* column, Panel panel, int v_count, int x_count,
                           int first, int lane, int lanes, constant ReductionParameters& p) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = packs_of<T>(p.size);
  const int c = p.column;
  float tail = 0.0f;
  for (int i = first + lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < v_count; ++k) {
      const int offset = k * p.stride + i;
      known.add(panel.v[offset], conjugate(elements_of<T>(panel.y + k * p.stride)[c]));
      known.add(panel.x[offset], conjugate(elements_of<T>(panel.u + k * p.stride)[c]));
    }
    if (v_count < x_count) {
      known.add(panel.x[v_count * p.stride + i],
                conjugate(elements_of<T>(panel.u + v_count * p.stride)[c]));
    }
    ::metal::float4 x = column[i] - known.value();
    column[i] = x;
    x = ColumnPacks<T>::rows_from(x, i * kRows, p.from + 1);
    tail += ::metal::dot(x, x);
  }
  return tail;
}

// Stores the vector of a column's reflector, whose leading 1 is in row p.from.
template <typename T>
inline void store_reflector(device::metal::float4* to, device const ::metal::float4* column,
                            T factor, int first, int lane, int lanes,
                            constant ReductionParameters& p) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = packs_of<T>(p.size);
  for (int i = lane; i < p.stride; i += lanes) {
    const ::metal::float4 x = i < used && i >= first ? column[i] : ::metal::float4(0.0f);
    to[i] = times(ColumnPacks<T>::rows_from(x, i * kRows, p.from + 1), factor) +
            ColumnPacks<T>::unit(i * kRows, p.from);
  }
}

// Makes the reflector of an up-to-date column, whose elements behind row p.from it zeroes, and
// stores its vector, its tau and the element of the reduced matrix that the column becomes. tail:
// what update_column() returned. sums, factor: scratch that the threadgroup shares.
template <typename T>
inline void make_reflector(device const ::metal::float4* column, device::metal::float4* vector,
                           device T* tau, device float* element, float tail,
                           threadgroup float* sums, threadgroup T* factor, int first, uint lane,
                           uint lanes, constant ReductionParameters& p) {
  tail = significant_tail(sum_of_threadgroup(sums, tail, lane, lanes));
  if (lane == 0) {
    const ScaledReflector<T> made = scaled_reflector(elements_of<T>(column)[p.from], tail);
    *element = made.beta;
    *tau = made.tau;
    *factor = made.factor;
  }
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  store_reflector(vector, column, T(*factor), first, lane, lanes, p);
}

}  // namespace metalops
#endif

// xLAHR2 and xGEBAL (its scaling): kernels for the blocked reduction (common/blocked_reduction.h)
// of general matrices of any size to Hessenberg form (xGEHRD), in many launches.
//
// After a panel of two columns (h: final, a: not updated yet), the matrix and the panel's V
// (`reflectors`) hold
//
//     [ h h a a a ]       [          ]   and the update of the other columns is
//     [ h h a a a ]       [ 1        ]   A := (I - V T^H V^H) (A - Y V^H)
//     [   h a a a ]   V = [ v1  1    ]
//     [     a a a ]       [ v1  v2   ]   with Y = A V T, which is in `panels`, and the upper
//     [     a a a ]       [ v1  v2   ]   triangular T of I - V T V^H, the product of reflectors
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/balance.h>
#include <kernels/linalg/common/blocked_reduction.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/squares.h>
#include <kernels/linalg/common/team_hessenberg.h>
#include <kernels/linalg/common/teams.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;

// ---- balancing ----------------------------------------------------------------------------------

// One iteration of balance() of balance.h, without its permutation. One thread per row and column.
// levels: the exponents of the largest elements of the column, unscaled and as scaled before the
// iteration.
template <typename T>
kernel void hessenberg_balance(device int* next [[buffer(0)]], device int2* levels [[buffer(1)]],
                               device const int* scales [[buffer(2)]],
                               device const float4* matrices [[buffer(3)]],
                               constant SquaresParameters& p [[buffer(4)]],
                               constant int& stride [[buffer(5)]],
                               uint2 position [[thread_position_in_grid]]) {
  constexpr int kLeast = -10000;
  constexpr int kMostExponent = 60;
  const int n = p.size;
  const int i = position.x;
  if (i >= n) {
    return;
  }
  const int64_t first = int64_t(position.y) * n;
  device const float4* const packs = matrices + first * stride;
  device const T* const column = elements_of<T>(packs + int64_t(i) * stride);
  device const int* const scale = scales + first;
  int of_row = kLeast;
  int of_column = kLeast;
  int before = kLeast;
  for (int j = 0; j < n; ++j) {
    const int change = scale[j] - scale[i];
    const int in_column = exponent_bits(largest_part(column[j]));
    before = max(before, in_column);
    if (j != i) {
      const float in_row = largest_part(elements_of<T>(packs + int64_t(j) * stride)[i]);
      of_row = max(of_row, exponent_bits(in_row) + change);
      of_column = max(of_column, in_column - change);
    }
  }
  const bool is_isolated = min(of_row, of_column) < kZeroExponent / 2;
  const int diagonal = exponent_bits(largest_part(column[i]));
  of_row = max(of_row, diagonal);
  of_column = max(of_column, diagonal);
  const int change = is_isolated ? 0 : (of_row - of_column) / 4;
  next[first + i] = clamp(scale[i] + change, -kMostExponent, kMostExponent);
  levels[first + i] = int2(before, of_column);
}

// Accepts the scaling, or drops it if rounding errors might grow by too much when results are
// scaled back. One simdgroup per matrix.
kernel void hessenberg_accept(device int* scales [[buffer(0)]], device int* shifts [[buffer(1)]],
                              device int* exponents [[buffer(2)]],
                              device const int2* levels [[buffer(3)]],
                              constant SquaresParameters& p [[buffer(4)]],
                              uint matrix [[threadgroup_position_in_grid]],
                              uint lane [[thread_index_in_simdgroup]]) {
  const int n = p.size;
  device int* const scale = scales + int64_t(matrix) * n;
  int highest = 0;
  int lowest = 0;
  int before = kZeroExponent;
  int after = kZeroExponent;
  for (int i = lane; i < n; i += kSimdgroup) {
    highest = max(highest, scale[i]);
    lowest = min(lowest, scale[i]);
    before = max(before, levels[int64_t(matrix) * n + i].x);
    after = max(after, levels[int64_t(matrix) * n + i].y);
  }
  highest = simd_max(highest);
  lowest = simd_min(lowest);
  before = simd_max(before);
  after = simd_max(after);
  const bool is_risky = highest - lowest + after - before > kMostGrowth;
  for (int i = lane; i < n; i += kSimdgroup) {
    scale[i] = is_risky ? 0 : scale[i];
  }
  if (lane == 0) {
    const int shift = before > kZeroExponent ? (is_risky ? before : after) : 0;
    shifts[matrix] = shift;
    exponents[matrix] += shift;
  }
}

// Scales rows and columns by the accepted exponents. One thread per pack of each column of each
// matrix.
template <typename T>
kernel void hessenberg_scale(device float4* matrices [[buffer(0)]],
                             device const int* scales [[buffer(1)]],
                             device const int* shifts [[buffer(2)]],
                             constant SquaresParameters& p [[buffer(3)]],
                             constant int& stride [[buffer(4)]],
                             uint3 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.z;
  const int first = position.x * ColumnPacks<T>::kRows;
  device const int* const scale = scales + matrix * p.size;
  device float4* const at = matrices + (matrix * p.size + position.y) * stride + position.x;
  float4 pack = *at;
  thread T* const elements = elements_of<T>(&pack);
  for (int i = 0; i < ColumnPacks<T>::kRows && first + i < p.size; ++i) {
    elements[i] = with_exponent(elements[i], scale[position.y] - scale[first + i] - shifts[matrix]);
  }
  *at = pack;
}

// ---- reduction ----------------------------------------------------------------------------------

// Finishes the last columns of T and of Y, y = tau (A v - Y (V^H v)), for the last reflector. t: T,
// column-major; shares: V^H v.
template <typename T>
inline void finish_y(device T* t, device float4* y, device const float4* products,
                     threadgroup const T* shares, T tau, int last, int lane, int lanes,
                     constant ReductionParameters& p) {
  for (int i = lane; i <= last; i += lanes) {
    T sum = i == last ? tau : from_real<T>(0.0f);
    for (int k = i; k < last; ++k) {
      sum -= multiply(tau, multiply(t[k * kReductionPanel + i], shares[k]));
    }
    t[last * kReductionPanel + i] = sum;
  }
  const int used = packs_of<T>(p.size);
  for (int i = lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < last; ++k) {
      const int offset = k * p.stride + i;
      known.add(y[offset], shares[k]);
    }
    y[last * p.stride + i] = times(sum_of_products(products, i, p) - known.value(), tau);
  }
}

// Subtracts Y V^H from the column.
template <typename T>
inline void subtract_from_right(device float4* column, device const float4* y,
                                device const float4* v, int done, int lane, int lanes,
                                constant ReductionParameters& p) {
  const int used = packs_of<T>(p.size);
  for (int i = lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < done; ++k) {
      const int offset = k * p.stride + i;
      known.add(y[offset], conjugate(elements_of<T>(v + k * p.stride)[p.column]));
    }
    column[i] -= known.value();
  }
}

// Computes V^H times the column, one simdgroup per element.
template <typename T>
inline void multiply_column(threadgroup T* shares, device const float4* column,
                            device const float4* v, int done, int simdgroup, int simdgroups,
                            int simd_lane, constant ReductionParameters& p) {
  const int used = packs_of<T>(p.size);
  for (int k = simdgroup; k < done; k += simdgroups) {
    InnerSum<T> of_lane = {};
    for (int i = simd_lane; i < used; i += Simdgroup::kLanes) {
      of_lane.add(v[k * p.stride + i], column[i]);
    }
    const T sum = Simdgroup::sum(of_lane.value());
    if (simd_lane == 0) {
      shares[k] = sum;
    }
  }
}

// Subtracts V `weights` from the column. Returns the thread's largest magnitude of a real or an
// imaginary part below the diagonal.
template <typename T>
inline float subtract_from_left(device float4* column, device const float4* v,
                                threadgroup const T* weights, int done, int lane, int lanes,
                                constant ReductionParameters& p) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = packs_of<T>(p.size);
  float largest = 0.0f;
  for (int i = lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < done; ++k) {
      const int offset = k * p.stride + i;
      known.add(v[offset], weights[k]);
    }
    float4 x = column[i] - known.value();
    column[i] = x;
    x = abs(ColumnPacks<T>::rows_from(x, i * kRows, p.from));
    largest = max(largest, max(max(x.x, x.y), max(x.z, x.w)));
  }
  return largest;
}

// Returns the thread's part of the sum of |x scale|^2 over the elements x behind row p.from.
template <typename T>
inline float tail_of(device const float4* column, float scale, int lane, int lanes,
                     constant ReductionParameters& p) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = packs_of<T>(p.size);
  float tail = 0.0f;
  for (int i = lane; i < used; i += lanes) {
    const float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, p.from + 1) * scale;
    tail += dot(x, x);
  }
  return tail;
}

// Replaces the elements of the column from row p.from on by beta and zeros.
template <typename T>
inline void zero_column(device float4* column, T beta, int lane, int lanes,
                        constant ReductionParameters& p) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = packs_of<T>(p.size);
  for (int i = lane; i < used; i += lanes) {
    const float4 x = column[i];
    column[i] = x - ColumnPacks<T>::rows_from(x, i * kRows, p.from) +
                times(ColumnPacks<T>::unit(i * kRows, p.from), beta);
  }
}

// One column of a panel. Finishes the y of the column before, brings the column up to date, and
// makes its reflector. One threadgroup per matrix. t: T, column-major.
template <typename T>
kernel void hessenberg_column(
    device float4* matrices [[buffer(0)]], device float4* reflectors [[buffer(1)]],
    device float4* panels [[buffer(2)]], device const float4* products [[buffer(3)]],
    device const T* overlaps [[buffer(4)]], device T* t [[buffer(5)]], device T* taus [[buffer(6)]],
    constant ReductionParameters& p [[buffer(7)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint simd_lane [[thread_index_in_simdgroup]]) {
  threadgroup T shares[kReductionPanel];
  threadgroup T weights[kReductionPanel];
  threadgroup float sums[kSumsOfThreadgroup];
  threadgroup T factor;
  threadgroup T beta;
  const int lane = thread_lane;
  const int lanes = threads;
  const int c = p.column;
  const int done = c - p.start;  // columns of the panel
  const int64_t reflector = int64_t(matrix) * p.reflectors + p.start;
  device float4* const v = reflectors + reflector * p.stride;
  device float4* const y = panels + int64_t(matrix) * kReductionPanel * p.stride;
  device T* const own_t = t + int64_t(matrix) * kReductionPanel * kReductionPanel;
  if (done > 0) {
    const int last = done - 1;
    add_overlaps(&shares[0], overlaps + int64_t(matrix) * p.slices * 2 * kReductionPanel, last,
                 lane, lanes, p);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    finish_y<T>(own_t, y, products + int64_t(matrix) * p.slices * p.stride, &shares[0],
                taus[reflector + last], last, lane, lanes, p);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  if (p.ends_panel) {
    return;
  }
  device float4* const column = matrices + (int64_t(matrix) * p.size + c) * p.stride;
  subtract_from_right<T>(column, y, v, done, lane, lanes, p);
  threadgroup_barrier(mem_flags::mem_device);
  multiply_column(&shares[0], column, v, done, simdgroup, simdgroups, simd_lane, p);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = lane; i < done; i += lanes) {
    T sum = from_real<T>(0.0f);
    for (int k = 0; k <= i; ++k) {
      sum += multiply(conjugate(own_t[i * kReductionPanel + k]), shares[k]);
    }
    weights[i] = sum;
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  float largest = subtract_from_left<T>(column, v, &weights[0], done, lane, lanes, p);
  threadgroup_barrier(mem_flags::mem_device);
  largest = c10::metal::threadgroup_max(sums, largest, thread_lane, threads);
  const float scale = scale_of_column(largest);
  float tail = tail_of<T>(column, scale, lane, lanes, p);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  tail = sum_of_threadgroup(&sums[0], tail, thread_lane, threads);
  if (lane == 0) {
    const T corner = c + 1 < p.size ? elements_of<T>(column)[c + 1] : from_real<T>(0.0f);
    const ScaledReflector<T> made = reflector_of_column(corner, tail, scale);
    taus[reflector + done] = made.tau;
    factor = made.factor;
    beta = from_real<T>(made.beta);
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  store_reflector(v + done * p.stride, column, factor, 0, lane, lanes, p);
  zero_column<T>(column, beta, lane, lanes, p);
}

#define REGISTER_HESSENBERG(T)                                      \
  REGISTER_KERNEL("hessenberg_balance_" #T, hessenberg_balance, T); \
  REGISTER_KERNEL("hessenberg_scale_" #T, hessenberg_scale, T);     \
  REGISTER_KERNEL("hessenberg_column_" #T, hessenberg_column, T)

REGISTER_HESSENBERG(float);
REGISTER_HESSENBERG(float2);

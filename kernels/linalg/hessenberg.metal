// xGEHRD and xLAHR2: kernels for the blocked reduction of general matrices of any size to
// Hessenberg form, in many launches: scaled and balanced copies (xGEBAL without permutation), and
// the columns of panels. The host does the GEMMs between them.
//
// After a panel of two columns (h: final, a: not updated yet) and with its reflectors' V and T, the
// matrix holds
//
//     [ h h a a a ]
//     [ h h a a a ]   and the update of the other columns is
//     [   h a a a ]   A := (I - V T^H V^H) (A - Y V^H), Y = A V T
//     [     a a a ]
//     [     a a a ]
//
// Matrices are columns of packs, with zeros below their rows.
#include <c10/metal/reduction_utils.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/balance.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/reflectors.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/schur.h>
#include <kernels/linalg/common/squares.h>
#include <kernels/linalg/eig.h>
#include <kernels/linalg/eigh_large.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;

// ---- scaled copies ------------------------------------------------------------------------------

// Finds the largest magnitude of each column. One simdgroup per column.
template <typename T>
kernel void hessenberg_extents(device float* extents [[buffer(0)]],
                               device const T* input [[buffer(1)]],
                               constant SquaresParameters& p [[buffer(2)]],
                               uint2 position [[thread_position_in_grid]],
                               uint lane [[thread_index_in_simdgroup]]) {
  const int64_t line = (position.y * (int64_t(1) << 30) + position.x) / kSimdgroup;
  const int n = p.size;
  if (line >= int64_t(p.end) * n) {
    return;
  }
  device const T* const column = input + line / n * p.matrix_stride + line % n * p.column_stride;
  float largest = 0.0f;
  for (int row = lane; row < n; row += kSimdgroup) {
    largest = max(largest, finite_magnitude(column[row * p.row_stride]));
  }
  largest = simd_max(largest);
  if (lane == 0) {
    extents[line] = largest;
  }
}

// Finds the exponent and the info of each matrix from its extents. One simdgroup per matrix.
kernel void hessenberg_exponents(device int* exponents [[buffer(0)]],
                                 device int* infos [[buffer(1)]],
                                 device const float* extents [[buffer(2)]],
                                 constant SquaresParameters& p [[buffer(3)]],
                                 uint matrix [[threadgroup_position_in_grid]],
                                 uint lane [[thread_index_in_simdgroup]]) {
  float largest = 0.0f;
  for (int i = lane; i < p.size; i += kSimdgroup) {
    largest = max(largest, extents[int64_t(matrix) * p.size + i]);
  }
  largest = simd_max(largest);
  if (lane == 0) {
    exponents[matrix] = exponent_above(largest);
    infos[matrix] = isfinite(largest) ? 0 : kEigNotFinite;
  }
}

// Copies and scales matrices. Those that are not finite become zero. One thread per pack of each
// column of each matrix.
template <typename T>
kernel void hessenberg_load(device float4* matrices [[buffer(0)]],
                            device const T* input [[buffer(1)]],
                            device const int* exponents [[buffer(2)]],
                            device const int* infos [[buffer(3)]],
                            constant SquaresParameters& p [[buffer(4)]],
                            constant int& stride [[buffer(5)]],
                            uint3 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.z;
  const int column = position.y;
  const int first = position.x * ColumnPacks<T>::kRows;
  device const T* const from = input + matrix * p.matrix_stride + column * p.column_stride;
  float4 pack(0.0f);
  thread T* const elements = elements_of<T>(&pack);
  if (infos[matrix] == 0) {
    for (int i = 0; i < ColumnPacks<T>::kRows && first + i < p.size; ++i) {
      elements[i] = from[(first + i) * p.row_stride];
    }
  }
  matrices[(matrix * p.size + column) * stride + position.x] =
      with_exponent(pack, -exponents[matrix]);
}

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

// Returns a scalar of the third argument's type. If it is real, the imaginary part is ignored.
inline float of_parts(float re, float, float) { return re; }
inline float2 of_parts(float re, float im, float2) { return float2(re, im); }

// One column of a panel (xLAHR2). Finishes Y_j, which the update A - Y V^H, Y = A V T, needs for
// the reflector of the column before, brings the column up to date, and makes its reflector. One
// threadgroup per matrix. t: T, column-major.
template <typename T>
kernel void hessenberg_column(
    device float4* matrices [[buffer(0)]], device float4* reflectors [[buffer(1)]],
    device float4* panels [[buffer(2)]], device const float4* products [[buffer(3)]],
    device const T* overlaps [[buffer(4)]], device T* t [[buffer(5)]], device T* taus [[buffer(6)]],
    constant EighColumnParameters& p [[buffer(7)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint simd_lane [[thread_index_in_simdgroup]]) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  threadgroup T shares[kEighPanel];
  threadgroup T weights[kEighPanel];
  threadgroup float sums[kSimdgroup];
  threadgroup T factor;
  threadgroup T beta;
  const int lane = thread_lane;
  const int lanes = threads;
  const int c = p.column;
  const int done = c - p.start;  // columns of the panel
  const int used = c10::metal::ceil_div(p.size, kRows);
  const int64_t reflector = int64_t(matrix) * p.reflectors + p.start;
  device float4* const v = reflectors + reflector * p.stride;
  device float4* const y = panels + int64_t(matrix) * kEighPanel * p.stride;
  device T* const own_t = t + int64_t(matrix) * kEighPanel * kEighPanel;
  if (done > 0) {
    const int last = done - 1;
    const int first_slice = c / p.slice;
    device const T* const of_matrix = overlaps + int64_t(matrix) * p.slices * 2 * kEighPanel;
    for (int i = lane; i < last; i += lanes) {
      T sum = from_real<T>(0.0f);
      for (int slice = first_slice; slice < p.slices; ++slice) {
        sum += of_matrix[slice * 2 * kEighPanel + i];
      }
      shares[i] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T tau = taus[reflector + last];
    for (int i = lane; i <= last; i += lanes) {
      T sum = i == last ? tau : from_real<T>(0.0f);
      for (int k = i; k < last; ++k) {
        sum -= multiply(tau, multiply(own_t[k * kEighPanel + i], shares[k]));
      }
      own_t[last * kEighPanel + i] = sum;
    }
    device const float4* const of_products = products + int64_t(matrix) * p.slices * p.stride;
    for (int i = lane; i < used; i += lanes) {
      float4 x(0.0f);
      for (int slice = first_slice; slice < p.slices; ++slice) {
        x += of_products[int64_t(slice) * p.stride + i];
      }
      PackSum<T> known = {};
      for (int k = 0; k < last; ++k) {
        const int offset = k * p.stride + i;
        known.add(y[offset], shares[k]);
      }
      y[last * p.stride + i] = times(x - known.value(), tau);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  if (p.ends_panel) {
    return;
  }
  device float4* const column = matrices + (int64_t(matrix) * p.size + c) * p.stride;
  device T* const elements = elements_of<T>(column);
  for (int i = lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < done; ++k) {
      const int offset = k * p.stride + i;
      known.add(y[offset], conjugate(elements_of<T>(v + k * p.stride)[c]));
    }
    column[i] -= known.value();
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (int k = simdgroup; k < done; k += simdgroups) {
    InnerSum<T> of_lane = {};
    for (int i = simd_lane; i < used; i += kSimdgroup) {
      of_lane.add(v[k * p.stride + i], column[i]);
    }
    T sum = of_lane.value();
    sum = of_parts(simd_sum(real_part(sum)), simd_sum(imaginary_part(sum)), sum);
    if (simd_lane == 0) {
      shares[k] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = lane; i < done; i += lanes) {
    T sum = from_real<T>(0.0f);
    for (int k = 0; k <= i; ++k) {
      sum += multiply(conjugate(own_t[i * kEighPanel + k]), shares[k]);
    }
    weights[i] = sum;
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  float largest = 0.0f;
  for (int i = lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < done; ++k) {
      const int offset = k * p.stride + i;
      known.add(v[offset], weights[k]);
    }
    float4 x = column[i] - known.value();
    column[i] = x;
    x = abs(ColumnPacks<T>::rows_from(x, i * kRows, c + 1));
    largest = max(largest, max(max(x.x, x.y), max(x.z, x.w)));
  }
  threadgroup_barrier(mem_flags::mem_device);
  largest = c10::metal::threadgroup_max(sums, largest, thread_lane, threads);
  const float scale = largest <= kSchurTiny ? 0.0f : safe_scale(largest);
  float tail = 0.0f;
  for (int i = lane; i < used; i += lanes) {
    const float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, c + 2) * scale;
    tail += dot(x, x);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  tail = c10::metal::threadgroup_sum(sums, tail, thread_lane, threads);
  if (lane == 0) {
    const T corner = c + 1 < p.size ? elements[c + 1] : from_real<T>(0.0f);
    const Reflector<T> made = reflector_of_scaled(corner * scale, tail);
    taus[reflector + done] = made.tau;
    factor = tail > 0.0f ? made.factor() * scale : from_real<T>(0.0f);
    beta = from_real<T>(scale > 0.0f ? made.beta / scale : 0.0f);
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  device float4* const to = v + done * p.stride;
  for (int i = lane; i < p.stride; i += lanes) {
    const float4 x = i < used ? column[i] : float4(0.0f);
    to[i] = times(ColumnPacks<T>::rows_from(x, i * kRows, c + 2), factor) +
            ColumnPacks<T>::unit(i * kRows, c + 1);
    if (i < used) {
      column[i] = x - ColumnPacks<T>::rows_from(x, i * kRows, c + 1) +
                  times(ColumnPacks<T>::unit(i * kRows, c + 1), beta);
    }
  }
}

#define REGISTER_HESSENBERG(T)                                      \
  REGISTER_KERNEL("hessenberg_extents_" #T, hessenberg_extents, T); \
  REGISTER_KERNEL("hessenberg_load_" #T, hessenberg_load, T);       \
  REGISTER_KERNEL("hessenberg_balance_" #T, hessenberg_balance, T); \
  REGISTER_KERNEL("hessenberg_scale_" #T, hessenberg_scale, T);     \
  REGISTER_KERNEL("hessenberg_column_" #T, hessenberg_column, T)

REGISTER_HESSENBERG(float);
REGISTER_HESSENBERG(float2);

// The Schur form of Hessenberg matrices of any size, and their eigenvectors, in many launches. A
// sweep chases several bulges, one behind the other, from window to window on the diagonal (Braman,
// Byers and Mathias, "The Multishift QR Algorithm", 2002); what a window did, a product of
// reflectors U, is then done to what is above it and right of it, and to the vectors.
//
// Matrices are columns of packs; behind their rows are zeros.
#include <metal_stdlib>

#include "column_packs.h"
#include "complex.h"
#include "eig_large.h"
#include "scaling.h"
#include "schur.h"
#include "schur_vectors.h"
#include "teams.h"
using namespace metal;
using namespace metalops;

constant constexpr int kLanes = c10::metal::simdgroup_size;

template <typename T>
struct Window {
  static constexpr constant int kSize = is_complex_v<T> ? kComplexSchurWindow : kSchurWindow;
  static constexpr constant int kRows = ColumnPacks<T>::kRows;
  static constexpr constant int kPacks = kSize / kRows;
  static constexpr constant int kStride = kPacks + 1;
  static constexpr constant int kAll = kSize * kStride;
  // U is kept by rows of so many numbers; complex ones are followed by i times them.
  static constexpr constant int kParts = is_complex_v<T> ? 2 : 1;
  static constexpr constant int kRow = kSize * kParts;
  static constexpr constant int kProduct = kRow * kRow;
  static constexpr constant int kBulges = kSize / 2 / kBulge<T>;
  // Rows from one window of a sweep to the next.
  static constexpr constant int kAdvance = kSize - 1 - kBulge<T> * kBulges;
};

// ---- windows ------------------------------------------------------------------------------------

// Copies the window of `size` rows from row `first` on; the vectors become the identity.
template <typename T>
inline void load_window(threadgroup float4* packs, threadgroup float4* vectors,
                        device const float4* matrix, int stride, int first, int size, int lane) {
  typedef Window<T> W;
  for (int j = lane; j < W::kSize; j += kLanes) {
    threadgroup T* const to = elements_of<T>(packs + j * W::kStride);
    device const T* const from =
        elements_of<T>(matrix + int64_t(first + min(j, size - 1)) * stride);
    for (int i = 0; i < W::kSize; ++i) {
      to[i] = i < size && j < size ? from[first + i] : from_real<T>(0.0f);
    }
    for (int i = 0; i < W::kPacks; ++i) {
      vectors[j * W::kStride + i] = ColumnPacks<T>::unit(i * W::kRows, j);
    }
  }
  SimdgroupOfDevice::wait();
}

template <typename T>
inline void store_window(device float4* matrix, device float* transformation,
                         threadgroup const float4* packs, threadgroup const float4* vectors,
                         int stride, int first, int size, int lane) {
  typedef Window<T> W;
  for (int j = 0; j < size; ++j) {
    threadgroup const T* const from =
        reinterpret_cast<threadgroup const T*>(packs + j * W::kStride);
    device T* const to = elements_of<T>(matrix + int64_t(first + j) * stride);
    for (int i = lane; i < size; i += kLanes) {
      to[first + i] = from[i];
    }
  }
  for (int i = lane; i < W::kSize * W::kSize; i += kLanes) {
    const int row = i / W::kSize;
    const int column = i % W::kSize;
    const T x = reinterpret_cast<threadgroup const T*>(vectors + column * W::kStride)[row];
    device float* const to = transformation + W::kParts * (row * W::kRow + column);
    to[0] = real_part(x);
    if (is_complex_v<T>) {
      to[1] = imaginary_part(x);
      to[W::kRow] = -imaginary_part(x);
      to[W::kRow + 1] = real_part(x);
    }
  }
}

// The first row after 0, or if is_last the last one up to `high`, that is split from the row before
// it, among those from `from` on; 0 if there is none.
template <typename T>
inline int find_split(device const float4* matrix, int stride, int n, int from, int high,
                      bool is_last, int lane) {
  float best = is_last ? 0.0f : -float(n);
  for (int k = max(from, 1) + lane; k <= high; k += kLanes) {
    if (is_split<T>(matrix, stride, n, k, kSchurTiny)) {
      best = max(best, float(is_last ? k : -k));
    }
  }
  best = simd_max(best);
  return is_last ? int(best) : best == -float(n) ? 0 : int(-best);
}

// Finds the eigenvalues of what has been split off at the end and fits into a window. A simdgroup
// for each matrix.
template <typename T>
kernel void schur_finish(device SchurSweeps* all_sweeps [[buffer(0)]],
                         device float4* matrices [[buffer(1)]],
                         device float* transformations [[buffer(2)]],
                         device int* infos [[buffer(3)]], constant SchurParameters& p [[buffer(4)]],
                         uint matrix [[threadgroup_position_in_grid]],
                         uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef Window<T> W;
  threadgroup float4 packs[W::kAll];
  threadgroup float4 vectors[W::kAll];
  threadgroup SchurStep<T> step;
  threadgroup Bulge<T> bulge;
  threadgroup int plan[2];
  const int lane = simd_lane;
  const int n = p.size;
  device SchurSweeps* const sweeps = all_sweeps + matrix;
  device float4* const own = matrices + int64_t(matrix) * n * p.stride;
  const int high = sweeps->high;
  const int begin = high - W::kSize + 1;
  const int split = find_split<T>(own, p.stride, n, begin, high, false, lane);
  SimdgroupOfDevice::wait();
  if (lane == 0) {
    plan[0] = high < W::kSize ? 0 : split;
    plan[1] = high < 0 || (begin > 0 && split == 0) ? 0 : high - plan[0] + 1;
    sweeps->first = plan[0];
    sweeps->size = plan[1];
    if (plan[1] > 0) {
      sweeps->high = plan[0] - 1;
      sweeps->stalled = 0;
      if (plan[0] > 0) {
        elements_of<T>(own + int64_t(plan[0] - 1) * p.stride)[plan[0]] = from_real<T>(0.0f);
      }
    }
  }
  SimdgroupOfDevice::wait();
  const int first = plan[0];
  const int size = plan[1];
  if (size == 0) {
    return;
  }
  load_window<T>(&packs[0], &vectors[0], own, p.stride, first, size, lane);
  find_schur_form<T, Simdgroup, W::kStride>(&packs[0], &vectors[0], lane, size, W::kSize, true,
                                            &step, &bulge);
  store_window<T>(own, transformations + int64_t(matrix) * W::kProduct, &packs[0], &vectors[0],
                  p.stride, first, size, lane);
  if (lane == 0 && step.count_unfinished() > 0 && infos[matrix] == 0) {
    infos[matrix] = first + step.count_unfinished();
  }
}

// Begins a sweep over what is left, if that does not fit into a window: the shifts are eigenvalues
// of its end. A simdgroup for each matrix.
template <typename T>
kernel void schur_begin(device SchurSweeps* all_sweeps [[buffer(0)]],
                        device float4* all_shifts [[buffer(1)]],
                        device float4* matrices [[buffer(2)]], device int* infos [[buffer(3)]],
                        constant SchurParameters& p [[buffer(4)]],
                        uint matrix [[threadgroup_position_in_grid]],
                        uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef Window<T> W;
  constexpr int kShifts = W::kBulges * (kBulge<T> - 1);
  constexpr int kPatience = 6;
  threadgroup float4 packs[W::kAll];
  threadgroup float4 vectors[W::kAll];
  threadgroup SchurStep<T> step;
  threadgroup Bulge<T> bulge;
  threadgroup int plan[2];
  const int lane = simd_lane;
  const int n = p.size;
  device SchurSweeps* const sweeps = all_sweeps + matrix;
  device float4* const own = matrices + int64_t(matrix) * n * p.stride;
  device float4* const shifts = all_shifts + int64_t(matrix) * kMostBulges;
  const int high = sweeps->high;
  const int low = find_split<T>(own, p.stride, n, 1, high, true, lane);
  SimdgroupOfDevice::wait();
  if (lane == 0) {
    plan[0] = high - low + 1 > W::kSize;
    plan[1] = sweeps->stalled > 0 && sweeps->stalled % kPatience == 0;
    sweeps->low = low;
    sweeps->bulges = 0;
    sweeps->windows = 0;
    if (low > 0) {
      elements_of<T>(own + int64_t(low - 1) * p.stride)[low] = from_real<T>(0.0f);
    }
    if (plan[0] != 0 && sweeps->sweeps == 0) {
      infos[matrix] = infos[matrix] == 0 ? high + 1 : infos[matrix];
      sweeps->high = -1;
      plan[0] = 0;
    }
  }
  SimdgroupOfDevice::wait();
  const bool begins = plan[0] != 0;
  if (!begins) {
    return;
  }
  load_window<T>(&packs[0], &vectors[0], own, p.stride, high - kShifts + 1, kShifts, lane);
  find_schur_form<T, Simdgroup, W::kStride>(&packs[0], &vectors[0], lane, kShifts, W::kSize, false,
                                            &step, &bulge);
  if (lane == 0) {
    const bool is_exceptional = plan[1] != 0;
    int found = 0;
    float2 alone(0.0f);
    bool has_alone = false;
    for (int k = 0; k < kShifts; ++k) {
      float2 value = schur_value<T, W::kStride>(&packs[0], kShifts, k);
      if (is_exceptional) {
        const int row = high - k;
        const T beside = elements_of<T>(own + int64_t(row - 1) * p.stride)[row];
        const T corner = elements_of<T>(own + int64_t(row) * p.stride)[row];
        value = float2(real_part(corner) + 0.75f * sum_of_parts(beside), imaginary_part(corner));
        shifts[found++] = float4(value, value);
        k += kBulge<T> - 2;
      } else if (kBulge<T> == 2) {
        shifts[found++] = float4(value, value);
      } else if (is_pair<T, W::kStride>(&packs[0], kShifts, k)) {
        shifts[found++] = float4(value, conjugate(value));
        ++k;
      } else if (has_alone) {
        shifts[found++] = float4(alone, value);
        has_alone = false;
      } else {
        alone = value;
        has_alone = true;
      }
    }
    for (int i = 0; i < found; ++i) {
      sweeps->next[i] = low;
    }
    sweeps->bulges = found;
    const int rest = high - (low + W::kSize - 1);
    sweeps->windows = 1 + (rest + W::kAdvance - 1) / W::kAdvance;
    ++sweeps->stalled;
    --sweeps->sweeps;
  }
}

inline void begin_bulge(thread SchurStep<float>* step, threadgroup const float* a,
                        threadgroup const float* b, float4 shifts) {
  const float3 v = first_column(a, b, shifts.xy, shifts.zw);
  step->v[0] = v.x;
  step->v[1] = v.y;
  step->v[2] = v.z;
}

inline void begin_bulge(thread SchurStep<float2>* step, threadgroup const float2* a,
                        threadgroup const float2*, float4 shifts) {
  const float2 x = a[0] - shifts.xy;
  const float s = sum_of_parts(x) + sum_of_parts(a[1]);
  step->v[0] = x / s;
  step->v[1] = a[1] / s;
}

// The bulges that are chased by a row each at the same time. Each is kBulge rows behind the one
// before it: so none touches what another one reads, and the reflectors are those of chasing one
// after the other. Rows are those of the window.
template <typename T>
struct Wave {
  threadgroup const int* starts;  // of each bulge
  threadgroup const int* ends;
  int bulges;
  int row;  // of the first bulge
  int high;

  int row_of(int bulge) const { return row - kBulge<T> * bulge; }
  bool has(int bulge) const {
    return row_of(bulge) >= starts[bulge] && row_of(bulge) < ends[bulge];
  }
  int count_of(int bulge) const { return min(kBulge<T>, high - row_of(bulge) + 1); }
};

template <typename T>
inline void make_reflector(Wave<T> wave, threadgroup float4* packs,
                           threadgroup Bulge<T>* reflectors, float4 shifts, int low, int lane) {
  if (lane >= wave.bulges || !wave.has(lane)) {
    return;
  }
  constexpr int kStride = Window<T>::kStride;
  const int k = wave.row_of(lane);
  SchurStep<T> step;
  step.first = low;
  step.low = low;
  for (int i = 0; i < 3; ++i) {
    step.v[i] = from_real<T>(0.0f);
  }
  if (k == low) {
    begin_bulge(&step, elements_of<T>(&packs[k * kStride]) + k,
                elements_of<T>(&packs[(k + 1) * kStride]) + k, shifts);
  }
  reflectors[lane] = bulge_of<T, kStride>(packs, &step, k, wave.count_of(lane));
}

template <typename T>
inline void reflect_rows_of_window(Wave<T> wave, threadgroup float4* packs,
                                   threadgroup const Bulge<T>* reflectors, int size, int lane) {
  for (int i = 0; i < wave.bulges; ++i) {
    if (wave.has(i)) {
      const int k = wave.row_of(i);
      const Bulge<T> bulge = reflectors[i];
      const int count = wave.count_of(i);
      for (int j = k + lane; j < size; j += kLanes) {
        reflect_rows<T>(elements_of<T>(packs + j * Window<T>::kStride) + k, bulge, count);
      }
    }
  }
}

template <typename T>
inline void reflect_columns_of_window(Wave<T> wave, threadgroup float4* packs,
                                      threadgroup float4* vectors,
                                      threadgroup const Bulge<T>* reflectors, int lane) {
  typedef Window<T> W;
  for (int i = 0; i < wave.bulges; ++i) {
    if (wave.has(i)) {
      const int k = wave.row_of(i);
      const Bulge<T> bulge = reflectors[i];
      const int count = wave.count_of(i);
      const int own_packs = min(k + kBulge<T>, wave.high) / W::kRows + 1;
      for (int j = lane; j < own_packs + W::kPacks; j += kLanes) {
        if (j < own_packs) {
          reflect_columns<T, W::kStride>(packs + k * W::kStride + j, bulge, count);
        } else {
          reflect_columns<T, W::kStride>(vectors + k * W::kStride + j - own_packs, bulge, count);
        }
      }
    }
  }
}

// Chases all bulges as far as the next window reaches. A simdgroup for each matrix.
template <typename T>
kernel void schur_chase(device SchurSweeps* all_sweeps [[buffer(0)]],
                        device float4* matrices [[buffer(1)]],
                        device float* transformations [[buffer(2)]],
                        device const float4* all_shifts [[buffer(3)]],
                        constant SchurParameters& p [[buffer(4)]],
                        uint matrix [[threadgroup_position_in_grid]],
                        uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef Window<T> W;
  threadgroup float4 packs[W::kAll];
  threadgroup float4 vectors[W::kAll];
  threadgroup Bulge<T> reflectors[kMostBulges];
  threadgroup int next[kMostBulges];
  threadgroup int ends[kMostBulges];
  threadgroup int plan[3];
  const int lane = simd_lane;
  device SchurSweeps* const sweeps = all_sweeps + matrix;
  device float4* const own = matrices + int64_t(matrix) * p.size * p.stride;
  if (lane == 0) {
    plan[0] = sweeps->bulges;
    plan[1] = sweeps->low;
    plan[2] = sweeps->high;
    for (int i = 0; i < plan[0]; ++i) {
      next[i] = sweeps->next[i];
    }
    sweeps->size = 0;
  }
  Simdgroup::wait();
  const int bulges = plan[0];
  const int low = plan[1];
  const int high = plan[2];
  if (bulges == 0) {
    return;
  }
  const int first = max(low, next[bulges - 1] - 1);
  const int last = min(first + W::kSize - 1, high);
  const int size = last - first + 1;
  const bool is_end = last == high;
  const int start = next[0] - first;
  Simdgroup::wait();
  if (lane < bulges) {
    next[lane] -= first;
    ends[lane] = (is_end ? high : last - kBulge<T> + 1 - kBulge<T> * lane) - first;
  }
  load_window<T>(&packs[0], &vectors[0], own, p.stride, first, size, lane);
  const float4 own_shifts =
      lane < bulges ? all_shifts[int64_t(matrix) * kMostBulges + lane] : float4(0.0f);
  const int end = is_end ? high - first + kBulge<T> * (bulges - 1) : last - kBulge<T> + 1 - first;
  for (int row = start; row < end; ++row) {
    const Wave<T> wave = {&next[0], &ends[0], bulges, row, high - first};
    make_reflector<T>(wave, &packs[0], &reflectors[0], own_shifts, low - first, lane);
    Simdgroup::wait();
    reflect_rows_of_window<T>(wave, &packs[0], &reflectors[0], size, lane);
    Simdgroup::wait();
    reflect_columns_of_window<T>(wave, &packs[0], &vectors[0], &reflectors[0], lane);
    Simdgroup::wait();
  }
  store_window<T>(own, transformations + int64_t(matrix) * W::kProduct, &packs[0], &vectors[0],
                  p.stride, first, size, lane);
  if (lane == 0) {
    for (int i = 0; i < bulges; ++i) {
      sweeps->next[i] = ends[i] + first;
    }
    sweeps->first = first;
    sweeps->size = size;
    sweeps->bulges = is_end ? 0 : bulges;
  }
}

// Multiplies a row of so many elements, `step` apart, with U. Columns, which U^H is to be
// multiplied with, are conjugate rows. The sums are numbers of their own and not packs: so they
// stay in registers, of GPUs and, side by side, of the software device.
template <typename T>
inline void multiply_row(device T* x, int64_t step, int size, device const float* u,
                         bool is_column) {
  typedef Window<T> W;
  float sums[W::kRow];
#pragma unroll
  for (int i = 0; i < W::kRow; ++i) {
    sums[i] = 0.0f;
  }
  for (int k = 0; k < size * W::kParts; ++k) {
    const int part = k % W::kParts;
    const float number = reinterpret_cast<device const float*>(x + k / W::kParts * step)[part];
    const float factor = is_column && part == 1 ? -number : number;
#pragma unroll
    for (int i = 0; i < W::kRow; ++i) {
      sums[i] = fma(u[i], factor, sums[i]);
    }
    u += W::kRow;
  }
#pragma unroll
  for (int j = 0; j < W::kSize; ++j) {
    if (j < size) {
      device float* const to = reinterpret_cast<device float*>(x + j * step);
      to[0] = sums[W::kParts * j];
      if (is_complex_v<T>) {
        const float im = sums[W::kParts * j + W::kParts - 1];
        to[W::kParts - 1] = is_column ? -im : im;
      }
    }
  }
}

// What the last window did, to the rest of the matrix and to the vectors: a thread for a row above
// it, for one of the vectors, or for a column right of it.
template <typename T>
kernel void schur_apply(device float4* matrices [[buffer(0)]], device float4* vectors [[buffer(1)]],
                        device const SchurSweeps* all_sweeps [[buffer(2)]],
                        device const float* transformations [[buffer(3)]],
                        constant SchurParameters& p [[buffer(4)]],
                        uint2 position [[thread_position_in_grid]]) {
  typedef Window<T> W;
  const int64_t matrix = position.y;
  const int n = p.size;
  const int first = all_sweeps[matrix].first;
  const int size = all_sweeps[matrix].size;
  const int index = position.x % n;
  const int what = position.x / n;
  // Without vectors, what has been split off does not matter.
  int begin = p.with_form ? 0 : all_sweeps[matrix].low;
  int end = first;
  if (what == 1) {
    begin = 0;
    end = p.with_form ? n : 0;
  } else if (what == 2) {
    begin = first + size;
    end = p.with_form ? n : min(n, all_sweeps[matrix].high + 1);
  }
  if (size == 0 || index < begin || index >= end) {
    return;
  }
  const bool is_column = what == 2;
  const int64_t column = int64_t(p.stride) * W::kRows;
  device T* const from = elements_of<T>((what == 1 ? vectors : matrices) + matrix * n * p.stride);
  multiply_row<T>(is_column ? from + index * column + first : from + first * column + index,
                  is_column ? 1 : column, size, transformations + matrix * W::kProduct, is_column);
}

// ---- results ------------------------------------------------------------------------------------

// Whether rows k and k + 1 are a block of complex eigenvalues.
template <typename T>
inline bool has_pair(device const float4* matrix, int stride, int n, int k) {
  return !is_complex_v<T> && k >= 0 && k + 1 < n &&
         real_part(elements_of<T>(matrix + int64_t(k) * stride)[k + 1]) != 0.0f;
}

template <typename T>
inline float2 value_of(device const float4* matrix, int stride, int n, int k) {
  device const T* const column = elements_of<T>(matrix + int64_t(k) * stride);
  float2 value(real_part(column[k]), imaginary_part(column[k]));
  if (has_pair<T>(matrix, stride, n, k)) {
    const float above = real_part(elements_of<T>(matrix + int64_t(k + 1) * stride)[k]);
    value.y = precise::sqrt(abs(above)) * precise::sqrt(abs(real_part(column[k + 1])));
  }
  return value;
}

// The eigenvalues. A thread for each.
template <typename T>
kernel void schur_values(device float2* values [[buffer(0)]],
                         device const float4* matrices [[buffer(1)]],
                         device const int* exponents [[buffer(2)]],
                         constant SchurParameters& p [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
  const int n = p.size;
  const int k = position.x;
  if (k >= n) {
    return;
  }
  const int64_t matrix = position.y;
  device const float4* const own = matrices + matrix * n * p.stride;
  const bool is_second = has_pair<T>(own, p.stride, n, k - 1);
  const float2 value = value_of<T>(own, p.stride, n, is_second ? k - 1 : k);
  values[matrix * n + k] = with_exponent(is_second ? conjugate(value) : value, exponents[matrix]);
}

// Complex vectors in packs: of real matrices, real parts in a row, then imaginary parts; of complex
// ones as they are.
inline float2 element_at(device const float4* x, int stride, int i, float) {
  return float2(elements_of<float>(x)[i], elements_of<float>(x + stride)[i]);
}
inline float2 element_at(device const float4* x, int, int i, float2) {
  return elements_of<float2>(x)[i];
}
inline void put_element(device float4* x, int stride, int i, float2 value, float) {
  elements_of<float>(x)[i] = value.x;
  elements_of<float>(x + stride)[i] = value.y;
}
inline void put_element(device float4* x, int, int i, float2 value, float2) {
  elements_of<float2>(x)[i] = value;
}
inline void subtract_pack(device float4* x, int stride, float4 pack, float2 factor, float) {
  x[0] += pack * -factor.x;
  x[stride] += pack * -factor.y;
}
inline void subtract_pack(device float4* x, int, float4 pack, float2 factor, float2) {
  x[0] += times(pack, -factor);
}

// Eigenvectors of the matrices in Schur form, as back_substitute() of schur_vectors.h makes them. A
// simdgroup for each.
template <typename T>
kernel void schur_back_substitute(device float4* vectors [[buffer(0)]],
                                  device const float4* matrices [[buffer(1)]],
                                  constant SchurParameters& p [[buffer(2)]],
                                  uint group [[threadgroup_position_in_grid]],
                                  uint simd_lane [[thread_index_in_simdgroup]]) {
  constexpr float kLarge = 0x1p+30f;
  constexpr int kRows = ColumnPacks<T>::kRows;
  constexpr int kParts = is_complex_v<T> ? 1 : 2;
  threadgroup float2 solved[2];
  threadgroup int plan[2];
  threadgroup float scale;
  const T type = from_real<T>(0.0f);
  const int lane = simd_lane;
  const int n = p.size;
  const int64_t matrix = group / p.count;
  const int j = p.first + int(group % p.count);
  device const float4* const own = matrices + matrix * n * p.stride;
  device float4* const x = vectors + (matrix * n + j) * kParts * p.stride;
  for (int i = lane; i < kParts * p.stride; i += kLanes) {
    x[i] = float4(0.0f);
  }
  simdgroup_barrier(mem_flags::mem_device);
  if (lane == 0) {
    plan[0] = has_pair<T>(own, p.stride, n, j - 1) ? 0 : j;
    plan[1] = 1;
    solved[0] = float2(1.0f, 0.0f);
    solved[1] = float2(0.0f);
    scale = 1.0f;
    if (has_pair<T>(own, p.stride, n, j)) {
      const float below = real_part(elements_of<T>(own + int64_t(j) * p.stride)[j + 1]);
      const float above = real_part(elements_of<T>(own + int64_t(j + 1) * p.stride)[j]);
      const float2 value = value_of<T>(own, p.stride, n, j);
      const bool is_upper = abs(above) >= abs(below);
      solved[0] = float2(is_upper ? 1.0f : -value.y / below, 0.0f);
      solved[1] = float2(0.0f, is_upper ? value.y / above : 1.0f);
      plan[1] = 2;
      put_element(x, p.stride, j + 1, solved[1], type);
    }
    if (plan[0] == j) {
      put_element(x, p.stride, j, solved[0], type);
    }
  }
  simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  const float2 value = value_of<T>(own, p.stride, n, j);
  const float smallest = smallest_divisor(value);
  int end = plan[0];
  // What is solved last is in rows end to end + count - 1.
  while (end > 0) {
    const int count = plan[1];
    const float factor = scale;
    const float2 first = solved[0];
    const float2 second = solved[1];
    device const float4* const column = own + int64_t(end) * p.stride;
    if (factor != 1.0f) {
      for (int i = lane; i < p.stride; i += kLanes) {  // packs of the same lane as below
        for (int part = 0; part < kParts; ++part) {
          const int place = part * p.stride + i;
          x[place] *= factor;
        }
      }
    }
    const int packs = c10::metal::ceil_div(end, kRows);
    for (int i = lane; i < packs; i += kLanes) {
      const float4 pack = column[i];
      subtract_pack(x + i, p.stride, pack - ColumnPacks<T>::rows_from(pack, i * kRows, end), first,
                    type);
      if (count == 2) {
        const float4 next = column[p.stride + i];
        subtract_pack(x + i, p.stride, next - ColumnPacks<T>::rows_from(next, i * kRows, end),
                      second, type);
      }
    }
    simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (lane == 0) {
      const int k = end - 1;
      device const T* const diagonal = elements_of<T>(own + int64_t(k) * p.stride);
      float size;
      if (has_pair<T>(own, p.stride, n, k - 1)) {
        device const T* const before = elements_of<T>(own + int64_t(k - 1) * p.stride);
        const TwoUnknowns found = solve_two_by_two(
            real_part(before[k - 1]), real_part(diagonal[k - 1]), real_part(before[k]),
            real_part(diagonal[k]), value, element_at(x, p.stride, k - 1, type),
            element_at(x, p.stride, k, type), smallest);
        solved[0] = found.first;
        solved[1] = found.second;
        put_element(x, p.stride, k - 1, found.first, type);
        put_element(x, p.stride, k, found.second, type);
        size = max(largest_part(found.first), largest_part(found.second));
        plan[1] = 2;
        plan[0] = end - 2;
      } else {
        const float2 corner(real_part(diagonal[k]), imaginary_part(diagonal[k]));
        const float2 above = element_at(x, p.stride, k, type);
        const float2 divisor = divisor_of(corner - value, smallest);
        const float2 found = metalops::divide(above, divisor);
        solved[0] = found;
        put_element(x, p.stride, k, found, type);
        size = largest_part(found);
        plan[1] = 1;
        plan[0] = end - 1;
      }
      scale = size > kLarge ? ldexp(1.0f, -ilogb(size)) : 1.0f;
      solved[0] *= scale;
      solved[1] *= scale;
    }
    simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    end = plan[0];
  }
}

// Eigenvectors of the balanced matrices as those of the matrices themselves, of norm 1 and with
// their largest elements real. A simdgroup for each.
template <typename T>
kernel void schur_vectors(device float2* vectors [[buffer(0)]],
                          device const float4* balanced [[buffer(1)]],
                          device const float4* matrices [[buffer(2)]],
                          device const int* scales [[buffer(3)]],
                          constant SchurParameters& p [[buffer(4)]],
                          uint2 position [[thread_position_in_grid]],
                          uint simd_lane [[thread_index_in_simdgroup]]) {
  constexpr int kParts = is_complex_v<T> ? 1 : 2;
  const T type = from_real<T>(0.0f);
  const int lane = simd_lane;
  const int n = p.size;
  const int64_t matrix = position.y;
  const int j = position.x / kLanes;
  if (j >= n) {
    return;
  }
  device const float4* const own = matrices + matrix * n * p.stride;
  const bool is_second = has_pair<T>(own, p.stride, n, j - 1);
  device const float4* const x =
      balanced + (matrix * n + (is_second ? j - 1 : j)) * kParts * p.stride;
  device const int* const scale = scales + matrix * n;
  float highest = -1000.0f;
  for (int i = lane; i < n; i += kLanes) {
    const float size = largest_part(element_at(x, p.stride, i, type));
    highest = max(highest, size > 0.0f ? float(ilogb(size) + scale[i]) : -1000.0f);
  }
  const int exponent = int(simd_max(highest));
  float squares = 0.0f;
  float largest = -1.0f;
  for (int i = lane; i < n; i += kLanes) {
    const float2 element = with_exponent(element_at(x, p.stride, i, type), scale[i] - exponent);
    squares += squared_magnitude(element);
    largest = max(largest, squared_magnitude(element));
  }
  squares = simd_sum(squares);
  largest = simd_max(largest);
  float place = float(n);
  for (int i = lane; i < n; i += kLanes) {
    const float2 element = with_exponent(element_at(x, p.stride, i, type), scale[i] - exponent);
    place = min(place, squared_magnitude(element) >= largest ? float(i) : float(n));
  }
  const int at = min(int(simd_min(place)), n - 1);
  const float2 turned = with_exponent(element_at(x, p.stride, at, type), scale[at] - exponent);
  const float unit = 1.0f / precise::sqrt(squares);
  const float2 factor =
      turned.y == 0.0f ? float2(unit, 0.0f) : conjugate(turned) * (unit / precise::sqrt(largest));
  device float2* const to = vectors + (matrix * n + j) * n;
  for (int i = lane; i < n; i += kLanes) {
    float2 element =
        multiply(with_exponent(element_at(x, p.stride, i, type), scale[i] - exponent), factor);
    element.y = i == at ? 0.0f : element.y;
    to[i] = is_second ? conjugate(element) : element;
  }
}

#define REGISTER_EIG_LARGE(T)                                                                      \
  template [[host_name("schur_finish_" #T)]] kernel void schur_finish<T>(                          \
      device SchurSweeps*, device float4*, device float*, device int*, constant SchurParameters&,  \
      uint, uint);                                                                                 \
  template [[host_name("schur_begin_" #T)]] kernel void schur_begin<T>(                            \
      device SchurSweeps*, device float4*, device float4*, device int*, constant SchurParameters&, \
      uint, uint);                                                                                 \
  template [[host_name("schur_chase_" #T)]] kernel void schur_chase<T>(                            \
      device SchurSweeps*, device float4*, device float*, device const float4*,                    \
      constant SchurParameters&, uint, uint);                                                      \
  template [[host_name("schur_apply_" #T)]] kernel void schur_apply<T>(                            \
      device float4*, device float4*, device const SchurSweeps*, device const float*,              \
      constant SchurParameters&, uint2);                                                           \
  template [[host_name("schur_values_" #T)]] kernel void schur_values<T>(                          \
      device float2*, device const float4*, device const int*, constant SchurParameters&, uint2);  \
  template [[host_name("schur_back_substitute_" #T)]] kernel void schur_back_substitute<T>(        \
      device float4*, device const float4*, constant SchurParameters&, uint, uint);                \
  template [[host_name("schur_vectors_" #T)]] kernel void schur_vectors<T>(                        \
      device float2*, device const float4*, device const float4*, device const int*,               \
      constant SchurParameters&, uint2, uint)

REGISTER_EIG_LARGE(float);
REGISTER_EIG_LARGE(float2);

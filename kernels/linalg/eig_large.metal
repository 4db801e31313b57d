// xLAQR0 to xLAQR5, and xTREVC: the Schur form of Hessenberg matrices of any size (xHSEQR) and
// their eigenvectors, in many launches. A small-bulge multishift sweep (Braman, Byers and Mathias,
// "The Multishift QR Algorithm. Part I", 2002) chases several bulges, one behind the other, from
// window to window on the diagonal. Two bulges (b) of a real matrix, and what the transformation U
// of a window W is then applied to (Q: the vectors):
//
//     [ x x x x x x x ]
//     [ x x x x x x x ]
//     [ b x x x x x x ]       [ . A A . ]   A := A U
//     [ b b x x x x x ]       [ . W W R ]   R := U^H R
//     [       x x x x ]       [ . W W R ]   Q := Q U
//     [       b x x x ]       [ .     . ]
//     [       b b x x ]
//
// U, the product of the window's reflectors, is in `transformations`, by rows. Matrices are columns
// of packs, with zeros below their rows; on exit they are (block) upper triangular.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/schur.h>
#include <kernels/linalg/common/schur_vectors.h>
#include <kernels/linalg/common/team_hessenberg.h>
#include <kernels/linalg/common/teams.h>
#include <kernels/linalg/eig_large.h>
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
  static constexpr constant int kRow = is_complex_v<T> ? 2 * kSize : kSize;  // floats per row of U
  static constexpr constant int kProduct = kSize * kSize;
  static constexpr constant int kBulges = kSize / 2 / kBulge<T>;
  // The distance, in rows, from one window of a sweep to the next.
  static constexpr constant int kAdvance = kSize - 1 - kBulge<T> * kBulges;
};

// ---- windows ------------------------------------------------------------------------------------

// Loads the window of `size` rows from row `first` on, and sets the vectors to the identity.
// Adjacent lanes load adjacent packs.
template <typename T>
inline void load_window(threadgroup float4* packs, threadgroup float4* vectors,
                        device const float4* matrix, int stride, int first, int size, int lane,
                        int lanes) {
  typedef Window<T> W;
  for (int p = lane; p < W::kSize * W::kPacks; p += lanes) {
    const int j = p / W::kPacks;
    const int row = p % W::kPacks * W::kRows;
    device const T* const from =
        elements_of<T>(matrix + int64_t(first + min(j, size - 1)) * stride) + first;
    threadgroup float4* const to = packs + j * W::kStride + p % W::kPacks;
#pragma unroll
    for (int i = 0; i < W::kRows; ++i) {
      elements_of<T>(to)[i] = row + i < size && j < size ? from[row + i] : from_real<T>(0.0f);
    }
    vectors[j * W::kStride + p % W::kPacks] = ColumnPacks<T>::unit(row, j);
  }
}

// Stores a window of `size` rows and, row-major, its transformation U.
template <typename T>
inline void store_window(device float4* matrix, device T* transformation,
                         threadgroup const float4* packs, threadgroup const float4* vectors,
                         int stride, int first, int size, int lane, int lanes) {
  typedef Window<T> W;
  for (int p = lane; p < size * W::kPacks; p += lanes) {
    const int j = p / W::kPacks;
    const int row = p % W::kPacks * W::kRows;
    threadgroup const float4* const from = packs + j * W::kStride + p % W::kPacks;
    device T* const to = elements_of<T>(matrix + int64_t(first + j) * stride) + first;
#pragma unroll
    for (int i = 0; i < W::kRows; ++i) {
      if (row + i < size) {
        to[row + i] = elements_of<T>(from)[i];
      }
    }
  }
  for (int i = lane; i < W::kSize * W::kSize; i += lanes) {
    const int row = i / W::kSize;
    const int column = i % W::kSize;
    transformation[i] = elements_of<T>(vectors + column * W::kStride)[row];
  }
}

// Returns the first row, or if is_last the last one, from `from` (at least 1) to `high` whose
// subdiagonal element is negligible; 0 if there is none.
template <typename T>
inline int find_split(device const float4* matrix, int64_t stride, int n, int from, int high,
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

// Computes the Schur form of the diagonal block that has been split off at the end of the active
// block, if it fits into a window, and deflates it. One simdgroup per matrix.
template <typename T>
kernel void eig_large_schur_finish(device SchurSweeps* all_sweeps [[buffer(0)]],
                                   device float4* matrices [[buffer(1)]],
                                   device T* transformations [[buffer(2)]],
                                   device int* infos [[buffer(3)]],
                                   constant SchurParameters& p [[buffer(4)]],
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
  load_window<T>(&packs[0], &vectors[0], own, p.stride, first, size, lane, kLanes);
  SimdgroupOfDevice::wait();
  find_schur_form<T, Simdgroup, W::kStride>(&packs[0], &vectors[0], lane, size, W::kSize, true,
                                            &step, &bulge);
  store_window<T>(own, transformations + int64_t(matrix) * W::kProduct, &packs[0], &vectors[0],
                  p.stride, first, size, lane, kLanes);
  if (lane == 0 && step.count_unfinished() > 0 && infos[matrix] == 0) {
    infos[matrix] = first + step.count_unfinished();
  }
}

// Returns the number of rows of a window in Schur form that are left after deflation. An eigenvalue
// at its end has converged if its elements of the spike are only rounding errors. The spike is what
// the window's transformation makes of the column before it, whose only nonzero there is `below`,
// in the first row.
template <typename T>
inline int count_left(threadgroup const float4* packs, threadgroup const float4* vectors, T below) {
  constexpr int kSize = Window<T>::kSize;
  constexpr int kStride = Window<T>::kStride;
  const float size = cabs1(below);
  int left = kSize;
  while (left > 0) {
    const int rows = is_pair<T>(packs, kStride, kSize, left - 2) ? 2 : 1;
    const float2 value = schur_value<T>(packs, kStride, kSize, left - rows);
    float spike = 0.0f;
    for (int k = left - rows; k < left; ++k) {
      spike = max(spike, size * cabs1(elements_of<T>(vectors + k * kStride)[0]));
    }
    const float around = cabs1(value);
    if (!(spike <= max(kSchurTiny, kSchurEpsilon * (around > 0.0f ? around : size)))) {
      break;
    }
    left -= rows;
  }
  return left;
}

// Finds the shifts of the bulges: the last eigenvalues of the first `rows` rows of a window in
// Schur form. Real ones are paired. Returns the number of bulges.
template <typename T>
inline int find_shifts(device float4* shifts, threadgroup const float4* packs, int rows) {
  constexpr int kStride = Window<T>::kStride;
  int k = max(rows - Window<T>::kBulges * (kBulge<T> - 1), 0);
  if (is_pair<T>(packs, kStride, rows, k - 1)) {
    ++k;
  }
  int found = 0;
  float2 alone(0.0f);
  bool has_alone = false;
  for (; k < rows; ++k) {
    const float2 value = schur_value<T>(packs, kStride, rows, k);
    if (kBulge<T> == 2) {
      shifts[found++] = float4(value, value);
    } else if (is_pair<T>(packs, kStride, rows, k)) {
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
  return found;
}

// Finds exceptional shifts, for a matrix on whose rows up to `high` the usual ones have no effect.
template <typename T>
inline int exceptional_shifts(device float4* shifts, device const float4* matrix, int stride,
                              int high) {
  for (int i = 0; i < Window<T>::kBulges; ++i) {
    const int row = high - i * (kBulge<T> - 1);
    const T subdiagonal = elements_of<T>(matrix + int64_t(row - 1) * stride)[row];
    const T corner = elements_of<T>(matrix + int64_t(row) * stride)[row];
    const float2 value(real_part(corner) + 0.75f * cabs1(subdiagonal), imaginary_part(corner));
    shifts[i] = float4(value, value);
  }
  return Window<T>::kBulges;
}

// Finds the active block, whose first row is `low`. Returns true if there is a sweep to begin: if
// it does not fit into a window and the iteration limit is not reached. One lane does it.
template <typename T>
inline bool find_active_block(device SchurSweeps* sweeps, device float4* matrix, device int* info,
                              int64_t stride, int low) {
  sweeps->low = low;
  sweeps->size = 0;
  sweeps->bulges = 0;
  sweeps->windows = 0;
  if (low > 0) {
    elements_of<T>(matrix + (low - 1) * stride)[low] = from_real<T>(0.0f);
  }
  if (sweeps->high - low + 1 <= Window<T>::kSize) {
    return false;
  }
  if (sweeps->sweeps == 0) {
    *info = *info == 0 ? sweeps->high + 1 : *info;
    sweeps->high = -1;
    return false;
  }
  return true;
}

// Deflates the rows of the window behind the first `left`, and plans the windows and bulges of the
// sweep, unless many rows were deflated: the next window may deflate some, too. One lane does it.
template <typename T>
inline void plan_sweep(device SchurSweeps* sweeps, device float4* shifts,
                       device const float4* matrix, threadgroup const float4* packs, int stride,
                       int left) {
  typedef Window<T> W;
  constexpr int kStallLimit = 6;
  constexpr int kFew = W::kSize / 7;
  const int found = W::kSize - left;
  const int high = sweeps->high;
  const int low = sweeps->low;
  sweeps->high = high - found;
  sweeps->stalled = found > 0 ? 0 : sweeps->stalled;
  if (found <= kFew && high - found - low + 1 > W::kSize) {
    const bool is_exceptional = sweeps->stalled > 0 && sweeps->stalled % kStallLimit == 0;
    sweeps->bulges = is_exceptional ? exceptional_shifts<T>(shifts, matrix, stride, high)
                                    : find_shifts<T>(shifts, packs, left);
    sweeps->next = low;
    const int rest = high - found - (low + W::kSize - 1);
    sweeps->windows = 1 + (rest + W::kAdvance - 1) / W::kAdvance;
    ++sweeps->stalled;
    --sweeps->sweeps;
  }
}

// Begins a sweep over the active block, if that does not fit into a window. The Schur form of a
// window at its end gives the shifts, and the eigenvalues that have converged already: these are
// deflated (Braman, Byers and Mathias, "The Multishift QR Algorithm. Part II: Aggressive Early
// Deflation", 2002; LAPACK's xLAQR2; but only those at the window's end, as eigenvalues are not
// reordered). With the spike s, the window in Schur form, two rows deflated, and then again in
// Hessenberg form:
//
//     [ s  x x x x x ]      [ s  x x x x x ]
//     [ s    x x x x ]      [    x x x x x ]
//     [ s      x x x ]  ->  [      x x x x ]
//     [ s        x x ]      [        x x x ]
//     [ 0          x x ]    [            x x ]
//     [ 0            x ]    [              x ]
//
// One simdgroup per matrix.
template <typename T>
kernel void eig_large_schur_begin(
    device SchurSweeps* all_sweeps [[buffer(0)]], device float4* all_shifts [[buffer(1)]],
    device float4* matrices [[buffer(2)]], device T* transformations [[buffer(3)]],
    device int* infos [[buffer(4)]], constant SchurParameters& p [[buffer(5)]],
    uint matrix [[threadgroup_position_in_grid]], uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef Window<T> W;
  threadgroup float4 packs[W::kAll];
  threadgroup float4 vectors[W::kAll];
  threadgroup float4 spike[W::kPacks];
  threadgroup float4 reflector[W::kPacks];
  threadgroup SchurStep<T> step;
  threadgroup Bulge<T> bulge;
  threadgroup int plan[1];
  const int lane = simd_lane;
  const int n = p.size;
  device SchurSweeps* const sweeps = all_sweeps + matrix;
  device float4* const own = matrices + int64_t(matrix) * n * p.stride;
  const int high = sweeps->high;
  const int low = find_split<T>(own, p.stride, n, 1, high, true, lane);
  SimdgroupOfDevice::wait();
  if (lane == 0) {
    plan[0] = find_active_block<T>(sweeps, own, infos + matrix, p.stride, low);
  }
  SimdgroupOfDevice::wait();
  const bool begins = plan[0] != 0;
  if (!begins) {
    return;
  }
  const int first = high - W::kSize + 1;
  load_window<T>(&packs[0], &vectors[0], own, p.stride, first, W::kSize, lane, kLanes);
  SimdgroupOfDevice::wait();
  find_schur_form<T, Simdgroup, W::kStride>(&packs[0], &vectors[0], lane, W::kSize, W::kSize, true,
                                            &step, &bulge);
  device T* const before = elements_of<T>(own + int64_t(first - 1) * p.stride) + first;
  if (lane == 0) {
    const T below = before[0];
    const int left =
        step.count_unfinished() > 0 ? W::kSize : count_left<T>(&packs[0], &vectors[0], below);
    plan[0] = left;
    plan_sweep<T>(sweeps, all_shifts + int64_t(matrix) * kMostBulges, own, &packs[0], p.stride,
                  left);
    for (int i = 0; i < W::kSize; ++i) {
      const T share = elements_of<T>(&vectors[i * W::kStride])[0];
      elements_of<T>(&spike[0])[i] =
          i < left ? multiply(conjugate(share), below) : from_real<T>(0.0f);
    }
  }
  SimdgroupOfDevice::wait();
  const int left = plan[0];
  if (left == W::kSize) {
    return;
  }
  restore_hessenberg<T, Simdgroup, W::kStride>(&packs[0], &vectors[0], &spike[0], &reflector[0],
                                               lane, left, W::kSize, W::kPacks);
  store_window<T>(own, transformations + int64_t(matrix) * W::kProduct, &packs[0], &vectors[0],
                  p.stride, first, W::kSize, lane, kLanes);
  if (lane == 0) {
    before[0] = elements_of<T>(&spike[0])[0];
    sweeps->first = first;
    sweeps->size = W::kSize;
  }
}

// The bulges that are chased by one row each at the same time. Each is kBulge rows behind the one
// before it, so that none touches elements that another one reads, and the reflectors are those of
// chasing one bulge after the other. Rows are counted from the window's first one.
template <typename T>
struct Wave {
  int bulges;
  int row;  // row of the first bulge
  int low;
  int high;

  int row_of(int bulge) const { return row - kBulge<T> * bulge; }
  bool has(int bulge) const { return row_of(bulge) >= low && row_of(bulge) < high; }
  int count_of(int bulge) const { return min(kBulge<T>, high - row_of(bulge) + 1); }
};

// One of the simdgroups of a threadgroup, which share the bulges.
struct Worker {
  int simdgroup;
  int simdgroups;
  int lane;
};

// Makes the reflector by which bulge i is chased by a row, if it is in the wave.
template <typename T>
inline void make_reflector(Wave<T> wave, threadgroup float4* packs,
                           threadgroup Bulge<T>* reflectors, threadgroup const float4* shifts,
                           int i) {
  if (!wave.has(i)) {
    return;
  }
  constexpr int kStride = Window<T>::kStride;
  const int k = wave.row_of(i);
  SchurStep<T> step;
  step.first = wave.low;
  step.low = wave.low;
  for (int part = 0; part < 3; ++part) {
    step.v[part] = from_real<T>(0.0f);
  }
  if (k == wave.low) {
    begin_bulge(&step, elements_of<T>(packs + k * kStride) + k,
                elements_of<T>(packs + (k + 1) * kStride) + k, shifts[i], from_real<T>(0.0f));
  }
  reflectors[i] = bulge_of<T, kStride>(packs, &step, k, wave.count_of(i));
}

// Applies the reflectors of a wave to the window from the left.
template <typename T>
inline void reflect_rows_of_window(Wave<T> wave, threadgroup float4* packs,
                                   threadgroup const Bulge<T>* reflectors, int size,
                                   Worker worker) {
  for (int i = worker.simdgroup; i < wave.bulges; i += worker.simdgroups) {
    if (wave.has(i)) {
      reflect_rows_of_block<T, Window<T>::kStride>(packs, reflectors[i], wave.row_of(i),
                                                   wave.count_of(i), size - 1, worker.lane, kLanes);
    }
  }
}

// Applies the reflectors of a wave from the right to the window and to the vectors.
template <typename T>
inline void reflect_columns_of_window(Wave<T> wave, threadgroup float4* packs,
                                      threadgroup float4* vectors,
                                      threadgroup const Bulge<T>* reflectors, Worker worker) {
  typedef Window<T> W;
  for (int i = worker.simdgroup; i < wave.bulges; i += worker.simdgroups) {
    if (wave.has(i)) {
      const int k = wave.row_of(i);
      reflect_columns_of_block<T, W::kStride>(packs, vectors, reflectors[i], k, wave.count_of(i), 0,
                                              min(k + kBulge<T>, wave.high), W::kPacks, worker.lane,
                                              kLanes);
    }
  }
}

// Chases all bulges as far as the next window reaches. One threadgroup per matrix.
template <typename T>
kernel void eig_large_schur_chase(
    device SchurSweeps* all_sweeps [[buffer(0)]], device float4* matrices [[buffer(1)]],
    device T* transformations [[buffer(2)]], device const float4* all_shifts [[buffer(3)]],
    constant SchurParameters& p [[buffer(4)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef Window<T> W;
  threadgroup float4 packs[W::kAll];
  threadgroup float4 vectors[W::kAll];
  threadgroup Bulge<T> reflectors[kMostBulges];
  threadgroup float4 shifts[kMostBulges];
  threadgroup int plan[4];
  const int lane = thread_lane;
  const int lanes = threads;
  device SchurSweeps* const sweeps = all_sweeps + matrix;
  device float4* const own = matrices + int64_t(matrix) * p.size * p.stride;
  if (lane == 0) {
    plan[0] = sweeps->bulges;
    plan[1] = sweeps->low;
    plan[2] = sweeps->high;
    plan[3] = sweeps->next;
    sweeps->size = 0;
  }
  if (lane < kMostBulges) {
    shifts[lane] = all_shifts[int64_t(matrix) * kMostBulges + lane];
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  const int bulges = plan[0];
  const int low = plan[1];
  const int high = plan[2];
  if (bulges == 0) {
    return;
  }
  const int next = plan[3];
  const int before = next - kBulge<T> * (bulges - 1) - 1;  // the row before the last bulge
  const int first = before > low ? before : low;
  const int full = first + W::kSize - 1;
  const int last = full < high ? full : high;
  const int size = last - first + 1;
  const bool is_end = last == high;
  const int end = is_end ? high + kBulge<T> * (bulges - 1) : last - kBulge<T> + 1;
  load_window<T>(&packs[0], &vectors[0], own, p.stride, first, size, lane, lanes);
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  const Worker worker = {int(simdgroup), int(simdgroups), int(simd_lane)};
  for (int row = next - first; row < end - first; ++row) {
    const Wave<T> wave = {bulges, row, low - first, high - first};
    if (lane < bulges) {
      make_reflector<T>(wave, &packs[0], &reflectors[0], &shifts[0], lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    reflect_rows_of_window<T>(wave, &packs[0], &reflectors[0], size, worker);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    reflect_columns_of_window<T>(wave, &packs[0], &vectors[0], &reflectors[0], worker);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  store_window<T>(own, transformations + int64_t(matrix) * W::kProduct, &packs[0], &vectors[0],
                  p.stride, first, size, lane, lanes);
  if (lane == 0) {
    sweeps->next = end;
    sweeps->first = first;
    sweeps->size = size;
    sweeps->bulges = is_end ? 0 : bulges;
  }
}

// Multiplies a row of `size` elements, `stride` apart, by U, in place; elements past `size` are
// overwritten, too (padding). Columns, which are to be multiplied by U^H, are conjugate rows. The
// sums are scalars and not packs: so they stay in registers, on GPUs and, vectorised, on the
// software device, if they are not too many.
template <typename T>
inline void multiply_row(threadgroup T* x, int stride, int size, threadgroup const float4* product,
                         bool is_column) {
  typedef Window<T> W;
  constexpr int kSums = is_complex_v<T> ? W::kRow / 2 : W::kRow;
  float results[W::kRow];
#pragma unroll
  for (int first = 0; first < W::kRow; first += kSums) {
    threadgroup const float* u = reinterpret_cast<threadgroup const float*>(product) + first;
    float sums[kSums];
    float imaginary_sums[kSums];  // sums of products with imaginary parts
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] = 0.0f;
      imaginary_sums[i] = 0.0f;
    }
    for (int k = 0; k < size; ++k) {
      const T element = x[k * stride];
      const float re = real_part(element);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] = fma(u[i], re, sums[i]);
      }
      if (is_complex_v<T>) {
        const float im = is_column ? -imaginary_part(element) : imaginary_part(element);
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          imaginary_sums[i] = fma(u[i], im, imaginary_sums[i]);
        }
      }
      u += W::kRow;
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float other = is_complex_v<T> ? imaginary_sums[i ^ 1] : 0.0f;
      results[first + i] = sums[i] + (i % 2 == 0 ? -other : other);
    }
  }
  threadgroup float* const to = reinterpret_cast<threadgroup float*>(x);
#pragma unroll
  for (int i = 0; i < W::kRow; ++i) {
    if (is_complex_v<T>) {
      to[2 * (i / 2 * stride) + i % 2] = is_column && i % 2 == 1 ? -results[i] : results[i];
    } else {
      to[i * stride] = results[i];
    }
  }
}

// Applies the last window's transformation to the rest of the matrix and to the vectors, one thread
// per row or column. The first third of a matrix's threadgroups takes the rows above the window,
// the second one the rows of the vectors, the last one the columns right of the window.
// Threadgroups have kSchurRows threads.
template <typename T>
kernel void eig_large_schur_apply(device float4* matrices [[buffer(0)]],
                                  device float4* vectors [[buffer(1)]],
                                  device const SchurSweeps* all_sweeps [[buffer(2)]],
                                  device const float4* transformations [[buffer(3)]],
                                  constant SchurParameters& p [[buffer(4)]],
                                  uint group [[threadgroup_position_in_grid]],
                                  uint thread_lane [[thread_index_in_threadgroup]]) {
  typedef Window<T> W;
  constexpr int kTeam = kSchurRows;
  constexpr int kPacks = W::kProduct / W::kRows;
  threadgroup float4 product[kPacks];
  threadgroup T tile[W::kSize * kTeam + max(W::kSize, kTeam)];
  const int lane = thread_lane;
  const int n = p.size;
  const uint groups = (n + kTeam - 1) / kTeam;
  const int64_t matrix = group / (kSchurBlocks * groups);
  const auto block = static_cast<SchurBlock>(group / groups % kSchurBlocks);
  const int first = all_sweeps[matrix].first;
  const int size = all_sweeps[matrix].size;
  // If only eigenvalues are wanted, rows and columns that have been deflated need no update.
  int begin = p.with_form ? 0 : all_sweeps[matrix].low;
  int end = first;
  if (block == SchurBlock::kVectors) {
    begin = 0;
    end = p.with_form ? n : 0;
  } else if (block == SchurBlock::kRight) {
    begin = first + size;
    end = p.with_form ? n : all_sweeps[matrix].high + 1;
  }
  begin += int(group % groups) * kTeam;
  const int left = end - begin;
  const int rows = left < kTeam ? left : kTeam;
  if (size == 0 || rows <= 0) {
    return;
  }
  // A line of the tile is a part of a column: of the window's, or of those right of it.
  const bool is_column = block == SchurBlock::kRight;
  const int lines = is_column ? rows : size;
  const int length = is_column ? size : rows;
  const int stride = (is_column ? W::kSize : kTeam) + 1;  // odd: threads use different banks
  const int64_t column = int64_t(p.stride) * W::kRows;
  device T* const from =
      elements_of<T>((block == SchurBlock::kVectors ? vectors : matrices) + matrix * n * p.stride) +
      (is_column ? begin * column + first : first * column + begin);
  for (int i = lane; i < kPacks; i += kTeam) {
    product[i] = transformations[matrix * kPacks + i];
  }
  if (lane < length) {
#pragma unroll(16)
    for (int line = 0; line < lines; ++line) {
      tile[line * stride + lane] = from[line * column + lane];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane < rows) {
    multiply_row<T>(is_column ? &tile[lane * stride] : &tile[lane], is_column ? 1 : stride, size,
                    &product[0], is_column);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane < length) {
    for (int line = 0; line < lines; ++line) {
      from[line * column + lane] = tile[line * stride + lane];
    }
  }
}

// ---- results ------------------------------------------------------------------------------------

// Stores the eigenvalues. One thread per eigenvalue.
template <typename T>
kernel void eig_large_values(device float2* values [[buffer(0)]],
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
  const int64_t stride = p.stride;
  device const float4* const own = matrices + matrix * n * stride;
  const bool is_second = is_pair<T>(own, stride, n, k - 1);
  const float2 value = schur_value<T>(own, stride, n, is_second ? k - 1 : k);
  values[matrix * n + k] = with_exponent(is_second ? conjugate(value) : value, exponents[matrix]);
}

template <typename T>
using DeviceColumn = SharedComplexColumn<T, device float4*>;

// Scales a vector, and subtracts from its rows before `end` those of the columns of the last
// diagonal block, which begins in row `end`, times its unknowns.
template <typename T>
inline void subtract_columns(DeviceColumn<T> x, device const float4* matrix, Unknowns solved,
                             float scale, int end, int lane) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  constexpr int kParts = is_complex_v<T> ? 1 : 2;
  device const float4* const column = matrix + int64_t(end) * x.stride;
  if (scale != 1.0f) {
    for (int i = lane; i < x.stride; i += kLanes) {  // a lane's packs are the same as below
      for (int part = 0; part < kParts; ++part) {
        const int offset = part * x.stride + i;
        x.packs[offset] *= scale;
      }
    }
  }
  const int packs = packs_of<T>(end);
  for (int i = lane; i < packs; i += kLanes) {
    const float4 pack = column[i];
    add_product(x, i, pack - ColumnPacks<T>::rows_from(pack, i * kRows, end), -solved.first);
    if (solved.count == 2) {
      const float4 next = column[x.stride + i];
      add_product(x, i, next - ColumnPacks<T>::rows_from(next, i * kRows, end), -solved.second);
    }
  }
}

// Stores the unknowns of the diagonal block that begins in row `end`.
template <typename T>
inline void store_unknowns(DeviceColumn<T> x, Unknowns found, int end) {
  set_element(x, end, found.first);
  if (found.count == 2) {
    set_element(x, end + 1, found.second);
  }
}

// Computes eigenvectors of the matrices in Schur form, as back_substitute() of schur_vectors.h
// does. One simdgroup per vector.
template <typename T>
kernel void eig_large_back_substitute(device float4* vectors [[buffer(0)]],
                                      device const float4* matrices [[buffer(1)]],
                                      constant SchurParameters& p [[buffer(2)]],
                                      uint group [[threadgroup_position_in_grid]],
                                      uint simd_lane [[thread_index_in_simdgroup]]) {
  constexpr int kParts = is_complex_v<T> ? 1 : 2;
  threadgroup Unknowns solved;
  threadgroup int row;  // the first one of the block that was solved last
  threadgroup float scale;
  const int lane = simd_lane;
  const int n = p.size;
  const int64_t stride = p.stride;
  const int64_t matrix = group / p.count;
  const int j = p.first + int(group % p.count);
  device const float4* const own = matrices + matrix * n * stride;
  const DeviceColumn<T> x = {vectors + (matrix * n + j) * kParts * stride, p.stride};
  for (int i = lane; i < kParts * p.stride; i += kLanes) {
    x.packs[i] = float4(0.0f);
  }
  simdgroup_barrier(mem_flags::mem_device);
  const float2 value = schur_value<T>(own, stride, n, j);
  const float smallest = smallest_divisor(value);
  if (lane == 0) {
    // The second row of a pair has no vector of its own.
    row = is_pair<T>(own, stride, n, j - 1) ? 0 : j;
    scale = 1.0f;
    solved = vector_of_block<T>(own, stride, n, j, value);
    if (row == j) {
      store_unknowns<T>(x, solved, j);
    }
  }
  simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  int end = row;
  while (end > 0) {
    subtract_columns<T>(x, own, solved, scale, end, lane);
    simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (lane == 0) {
      Unknowns found = solve_block<T>(own, stride, n, end, value, smallest, x);
      row = end - found.count;
      store_unknowns<T>(x, found, row);
      scale = found.size() > kLargeUnknown ? ldexp(1.0f, -ilogb(found.size())) : 1.0f;
      found.first *= scale;
      found.second *= scale;
      solved = found;
    }
    simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    end = row;
  }
}

// Transforms eigenvectors of the balanced matrices into those of the matrices themselves (xGEBAK),
// of norm 1 and with their largest elements real. One simdgroup per vector.
template <typename T>
kernel void eig_large_vectors(device float2* vectors [[buffer(0)]],
                              device const float4* balanced [[buffer(1)]],
                              device const float4* matrices [[buffer(2)]],
                              device const int* scales [[buffer(3)]],
                              constant SchurParameters& p [[buffer(4)]],
                              uint2 position [[thread_position_in_grid]],
                              uint simd_lane [[thread_index_in_simdgroup]]) {
  constexpr int kParts = is_complex_v<T> ? 1 : 2;
  const int lane = simd_lane;
  const int n = p.size;
  const int64_t matrix = position.y;
  const int j = position.x / kLanes;
  if (j >= n) {
    return;
  }
  const int64_t stride = p.stride;
  const bool is_second = is_pair<T>(matrices + matrix * n * stride, stride, n, j - 1);
  const SharedComplexColumn<T, device const float4*> x = {
      balanced + (matrix * n + (is_second ? j - 1 : j)) * kParts * stride, p.stride};
  device const int* const scale = scales + matrix * n;
  float highest = -1000.0f;
  for (int i = lane; i < n; i += kLanes) {
    const float size = largest_part(element_of(x, i));
    highest = max(highest, size > 0.0f ? float(ilogb(size) + scale[i]) : -1000.0f);
  }
  const int exponent = int(simd_max(highest));
  float squares = 0.0f;
  float largest = -1.0f;
  for (int i = lane; i < n; i += kLanes) {
    const float2 element = with_exponent(element_of(x, i), scale[i] - exponent);
    squares += squared_magnitude(element);
    largest = max(largest, squared_magnitude(element));
  }
  squares = simd_sum(squares);
  largest = simd_max(largest);
  float index = float(n);
  for (int i = lane; i < n; i += kLanes) {
    const float2 element = with_exponent(element_of(x, i), scale[i] - exponent);
    index = min(index, squared_magnitude(element) >= largest ? float(i) : float(n));
  }
  const int at = min(int(simd_min(index)), n - 1);
  const float2 largest_element = with_exponent(element_of(x, at), scale[at] - exponent);
  const float unit = 1.0f / precise::sqrt(squares);
  const float2 factor = largest_element.y == 0.0f
                            ? float2(unit, 0.0f)
                            : conjugate(largest_element) * (unit / precise::sqrt(largest));
  device float2* const to = vectors + (matrix * n + j) * n;
  for (int i = lane; i < n; i += kLanes) {
    float2 element = multiply(with_exponent(element_of(x, i), scale[i] - exponent), factor);
    element.y = i == at ? 0.0f : element.y;
    to[i] = is_second ? conjugate(element) : element;
  }
}

#define REGISTER_EIG_LARGE(T)                                                     \
  REGISTER_KERNEL("eig_large_schur_finish_" #T, eig_large_schur_finish, T);       \
  REGISTER_KERNEL("eig_large_schur_begin_" #T, eig_large_schur_begin, T);         \
  REGISTER_KERNEL("eig_large_schur_chase_" #T, eig_large_schur_chase, T);         \
  REGISTER_KERNEL("eig_large_schur_apply_" #T, eig_large_schur_apply, T);         \
  REGISTER_KERNEL("eig_large_values_" #T, eig_large_values, T);                   \
  REGISTER_KERNEL("eig_large_back_substitute_" #T, eig_large_back_substitute, T); \
  REGISTER_KERNEL("eig_large_vectors_" #T, eig_large_vectors, T)

REGISTER_EIG_LARGE(float);
REGISTER_EIG_LARGE(float2);

// xHETRD (xSYTRD), xLATRD and xLARFT: kernels for eigenvalues and eigenvectors of Hermitian
// matrices of any size, in many launches: the columns of panels of the blocked reduction to a real
// tridiagonal matrix, the order of the results, and the T of block reflectors. The host does the
// GEMMs between them.
//
// Matrices have both triangles, in columns of packs.
#include <c10/metal/reduction_utils.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/hermitian.h>
#include <kernels/linalg/common/reflectors.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/eigh_large.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;

// Returns a scalar of the third argument's type. If it is real, the imaginary part is ignored.
inline float of_parts(float re, float, float) { return re; }
inline float2 of_parts(float re, float im, float2) { return float2(re, im); }

// ---- scaled copies ------------------------------------------------------------------------------

// Finds the largest magnitude of each row or column of the triangle that is read. One simdgroup per
// row or column.
template <typename T>
kernel void eigh_large_extents(device float* extents [[buffer(0)]],
                               device const T* input [[buffer(1)]],
                               constant SquaresParameters& p [[buffer(2)]],
                               uint2 position [[thread_position_in_grid]],
                               uint lane [[thread_index_in_simdgroup]]) {
  const int64_t line = (position.y * (int64_t(1) << 30) + position.x) / kSimdgroup;
  const int n = p.size;
  if (line >= int64_t(p.end) * n) {
    return;
  }
  const int64_t matrix = line / n;
  const int row = line % n;
  const Source<T> source{input + matrix * p.matrix_stride, p};
  float largest = 0.0f;
  for (int column = lane; column <= row; column += kSimdgroup) {
    largest = max(largest, finite_magnitude(source.at(row, column)));
  }
  largest = simd_max(largest);
  if (lane == 0) {
    extents[line] = largest;
  }
}

// Finds the exponent and the info of each matrix from its extents. One simdgroup per matrix.
kernel void eigh_large_exponents(device int* exponents [[buffer(0)]],
                                 device int* infos [[buffer(1)]],
                                 device const float* extents [[buffer(2)]],
                                 constant SquaresParameters& p [[buffer(3)]],
                                 uint matrix [[threadgroup_position_in_grid]],
                                 uint lane [[thread_index_in_simdgroup]]) {
  const int n = p.size;
  float largest = 0.0f;
  for (int i = lane; i < n; i += kSimdgroup) {
    largest = max(largest, extents[int64_t(matrix) * n + i]);
  }
  largest = simd_max(largest);
  if (lane == 0) {
    exponents[matrix] = exponent_above(largest);
    infos[matrix] = isfinite(largest) ? 0 : 1;
  }
}

// Copies and scales matrices. Those that are not finite become zero. One thread per pack of each
// column of each matrix.
template <typename T>
kernel void eigh_large_load(device float4* matrices [[buffer(0)]],
                            device const T* input [[buffer(1)]],
                            device const int* exponents [[buffer(2)]],
                            device const int* infos [[buffer(3)]],
                            constant SquaresParameters& p [[buffer(4)]],
                            constant int& stride [[buffer(5)]],
                            uint3 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.z;
  const int column = position.y;
  const int first = position.x * ColumnPacks<T>::kRows;
  const Source<T> source{input + matrix * p.matrix_stride, p};
  float4 pack(0.0f);
  thread T* const elements = elements_of<T>(&pack);
  if (infos[matrix] == 0) {
    for (int i = 0; i < ColumnPacks<T>::kRows && first + i < p.size; ++i) {
      elements[i] = source.at(first + i, column);
    }
  }
  matrices[(matrix * p.size + column) * stride + position.x] =
      with_exponent(pack, -exponents[matrix]);
}

// ---- reduction to a tridiagonal matrix ----------------------------------------------------------

// One column of a panel (xLATRD). Finishes W_j, which the update A - V W^H - W V^H needs for the
// reflector of the column before, brings the column up to date, and makes its reflector. One
// threadgroup per matrix.
template <typename T>
kernel void eigh_large_column(
    device float4* matrices [[buffer(0)]], device float4* reflectors [[buffer(1)]],
    device float4* panels [[buffer(2)]], device const float4* products [[buffer(3)]],
    device const T* overlaps [[buffer(4)]], device float* diagonals [[buffer(5)]],
    device float* off_diagonals [[buffer(6)]], device T* taus [[buffer(7)]],
    constant EighColumnParameters& p [[buffer(8)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  threadgroup T shares[2 * kEighPanel];
  threadgroup float sums[kSimdgroup];
  threadgroup float more_sums[kSimdgroup];
  threadgroup T factor;
  const int lane = thread_lane;
  const int lanes = threads;
  const int c = p.column;
  const int done = c - p.start;  // columns of the panel
  const int used = c10::metal::ceil_div(p.size, kRows);
  const int first = c / kRows;  // the first pack that matters
  const int64_t reflector = int64_t(matrix) * p.reflectors + p.start;
  device const float4* const v = reflectors + reflector * p.stride;
  device float4* const w = panels + int64_t(matrix) * kEighPanel * p.stride;
  if (done > 0) {
    const int last = done - 1;
    const int first_slice = c / p.slice;
    device const T* const of_matrix = overlaps + int64_t(matrix) * p.slices * 2 * kEighPanel;
    for (int i = lane; i < 2 * last; i += lanes) {
      T sum = from_real<T>(0.0f);
      for (int slice = first_slice; slice < p.slices; ++slice) {
        sum += of_matrix[slice * 2 * kEighPanel + i];
      }
      shares[i] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T tau = taus[reflector + last];
    device const float4* const of_products = products + int64_t(matrix) * p.slices * p.stride;
    T overlap = from_real<T>(0.0f);
    for (int i = first + lane; i < used; i += lanes) {
      float4 x(0.0f);
      for (int slice = first_slice; slice < p.slices; ++slice) {
        x += of_products[int64_t(slice) * p.stride + i];
      }
      PackSum<T> known = {};
      for (int k = 0; k < last; ++k) {
        const int offset = k * p.stride + i;
        known.add(v[offset], shares[2 * k]);
        known.add(w[offset], shares[2 * k + 1]);
      }
      x = times(x - known.value(), tau);
      w[last * p.stride + i] = x;
      overlap += ColumnPacks<T>::inner_product(x, v[last * p.stride + i]);
    }
    const float real_share =
        c10::metal::threadgroup_sum(sums, real_part(overlap), thread_lane, threads);
    const float imaginary_share =
        c10::metal::threadgroup_sum(more_sums, imaginary_part(overlap), thread_lane, threads);
    const T share = multiply(tau, of_parts(real_share, imaginary_share, tau)) * -0.5f;
    for (int i = first + lane; i < used; i += lanes) {
      w[last * p.stride + i] += times(v[last * p.stride + i], share);
    }
    threadgroup_barrier(mem_flags::mem_device);
  }
  if (p.ends_panel) {
    return;
  }
  device float4* const column = matrices + (int64_t(matrix) * p.size + c) * p.stride;
  device const T* const elements = elements_of<T>(column);
  float tail = 0.0f;
  for (int i = first + lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < done; ++k) {
      const T of_v = conjugate(elements_of<T>(w + k * p.stride)[c]);
      const T of_w = conjugate(elements_of<T>(v + k * p.stride)[c]);
      const int offset = k * p.stride + i;
      known.add(v[offset], of_v);
      known.add(w[offset], of_w);
    }
    float4 x = column[i] - known.value();
    column[i] = x;
    x = ColumnPacks<T>::rows_from(x, i * kRows, c + 2);
    tail += dot(x, x);
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  tail = c10::metal::threadgroup_sum(sums, tail, thread_lane, threads);
  if (lane == 0) {
    diagonals[int64_t(matrix) * p.size + c] = real_part(elements[c]);
  }
  if (c == p.size - 1) {
    return;
  }
  tail = tail < 0x1p-80f ? 0.0f : tail;
  if (lane == 0) {
    const Reflector<T> made = reflector_of_scaled(elements[c + 1], tail);
    off_diagonals[int64_t(matrix) * p.size + c] = made.beta;
    taus[reflector + done] = made.tau;
    factor = tail > 0.0f ? made.factor() : from_real<T>(0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device float4* const to = reflectors + (reflector + done) * p.stride;
  for (int i = lane; i < p.stride; i += lanes) {
    const float4 x = i < used && i >= first ? column[i] : float4(0.0f);
    to[i] = times(ColumnPacks<T>::rows_from(x, i * kRows, c + 2), factor) +
            ColumnPacks<T>::unit(i * kRows, c + 1);
  }
}

// Multiplies a matrix by the column's reflector (GEMV), and forms the inner products of vectors of
// the panel with it: those of `panels` and the reflectors, alternately. Sums are partial, over
// slices of columns and rows, and are added up by the next kernel. One thread per pack and slice,
// or per vector and slice.
template <typename T>
kernel void eigh_large_products(device float4* products [[buffer(0)]],
                                device T* overlaps [[buffer(1)]],
                                device const float4* matrices [[buffer(2)]],
                                device const float4* reflectors [[buffer(3)]],
                                device const float4* panels [[buffer(4)]],
                                constant EighColumnParameters& p [[buffer(5)]],
                                uint3 position [[thread_position_in_grid]]) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int64_t matrix = position.z;
  const int first = p.first / kRows;
  const int used = c10::metal::ceil_div(p.size, kRows);
  const int slice = p.from / p.slice + position.y;
  const int begin = max(slice * p.slice, p.from);
  const int end = min((slice + 1) * p.slice, p.size);
  device const float4* const v = reflectors + (matrix * p.reflectors + p.start) * p.stride;
  device const float4* const made = v + (p.column - p.start) * p.stride;
  const int pack = first + position.x;
  if (pack < used) {
    device const T* const factors = elements_of<T>(made);
    device const float4* const row = matrices + matrix * p.size * p.stride + pack;
    PackSum<T> sum = {};
    for (int column = begin; column < end; ++column) {
      sum.add(row[int64_t(column) * p.stride], factors[column]);
    }
    products[(matrix * p.slices + slice) * p.stride + pack] = sum.value();
    return;
  }
  const int which = pack - used;
  device const float4* const row = which % p.kinds == p.kinds - 1
                                       ? v + which / p.kinds * p.stride
                                       : panels + (matrix * kEighPanel + which / 2) * p.stride;
  InnerSum<T> sum = {};
  for (int i = begin / kRows; i < c10::metal::ceil_div(end, kRows); ++i) {
    sum.add(row[i], made[i]);
  }
  overlaps[(matrix * p.slices + slice) * 2 * kEighPanel + which] = sum.value();
}

// ---- results ------------------------------------------------------------------------------------

// Stores the eigenvalues in ascending order, and each one's position there as `ranks`; padding has
// infinite ones. infos: those of eigh_large_exponents. One thread per value.
kernel void eigh_large_values(device float* values [[buffer(0)]], device int* ranks [[buffer(1)]],
                              device const int* infos [[buffer(2)]],
                              device const float* unordered [[buffer(3)]],
                              device const int* exponents [[buffer(4)]],
                              constant EighOrderParameters& p [[buffer(5)]],
                              uint2 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.y;
  const int index = position.x;
  device const float* const of_matrix = unordered + matrix * p.padded;
  const int rank = rank_of(of_matrix, p.padded, index);
  ranks[matrix * p.padded + index] = rank;
  const bool is_finite = infos[matrix] == 0;
  if (rank < p.size) {
    values[matrix * p.size + rank] =
        is_finite ? with_exponent(of_matrix[index], exponents[matrix]) : NAN;
  }
}

// Stores the vectors in the order of the values, with zeros as imaginary parts. All sides of a
// matrix, of which there may be several, have the same order. One thread per element.
template <typename T>
kernel void eigh_large_vectors(device T* vectors [[buffer(0)]],
                               device const float* unordered [[buffer(1)]],
                               device const int* ranks [[buffer(2)]],
                               constant EighOrderParameters& p [[buffer(3)]],
                               constant uint& matrices [[buffer(4)]],
                               uint3 position [[thread_position_in_grid]]) {
  const int64_t side_and_matrix = position.z;
  const int rank = ranks[int64_t(position.z % matrices) * p.padded + position.y];
  if (rank < p.size) {
    const float x = unordered[(side_and_matrix * p.padded + position.y) * p.padded + position.x];
    vectors[(side_and_matrix * p.size + rank) * p.row + position.x] = from_real<T>(x);
  }
}

// ---- block reflectors ---------------------------------------------------------------------------

// xLARFT: the upper triangular T of the block reflector I - V T V^H, the product of kEighPanel
// reflectors. One thread per row of T. Complex elements are 2-by-2 matrices [re im; -im re] here,
// both in `products`, the inner products of V's columns, and in `t`, which is T transposed
// and begins as zeros.
template <typename T>
kernel void eigh_large_larft(device float* t [[buffer(0)]],
                             device const float* products [[buffer(1)]],
                             device const T* taus [[buffer(2)]],
                             constant EighColumnParameters& p [[buffer(3)]],
                             uint2 position [[thread_position_in_grid]]) {
  constexpr int kParts = is_complex_v<T> ? 2 : 1;
  constexpr int kLine = kEighPanel * kParts;
  const int64_t matrix = position.y;
  const int row = position.x;
  if (row >= kEighPanel) {
    return;
  }
  device float* const own_t = t + matrix * kLine * kLine;
  device const float* const product = products + matrix * kLine * kLine;
  device const T* const tau = taus + matrix * p.reflectors + p.start;
  for (int column = row; column < kEighPanel; ++column) {
    T sum = column == row ? from_real<T>(-1.0f) : from_real<T>(0.0f);
    for (int k = row; k < column; ++k) {
      device const float* const of_t = own_t + (k * kLine + row) * kParts;
      device const float* const of_product = product + (k * kLine + column) * kParts;
      sum += multiply(of_parts(of_t[0], of_t[kParts - 1], sum),
                      of_parts(of_product[0], -of_product[kParts - 1], sum));
    }
    const T element = -multiply(sum, tau[column]);
    device float* const to = own_t + (column * kLine + row) * kParts;
    to[0] = real_part(element);
    if (kParts == 2) {
      to[1] = imaginary_part(element);
      to[kLine] = -imaginary_part(element);
      to[kLine + 1] = real_part(element);
    }
  }
}

#define REGISTER_EIGH_LARGE(T)                                        \
  REGISTER_KERNEL("eigh_large_extents_" #T, eigh_large_extents, T);   \
  REGISTER_KERNEL("eigh_large_load_" #T, eigh_large_load, T);         \
  REGISTER_KERNEL("eigh_large_column_" #T, eigh_large_column, T);     \
  REGISTER_KERNEL("eigh_large_products_" #T, eigh_large_products, T); \
  REGISTER_KERNEL("eigh_large_vectors_" #T, eigh_large_vectors, T);   \
  REGISTER_KERNEL("eigh_large_larft_" #T, eigh_large_larft, T)

REGISTER_EIGH_LARGE(float);
REGISTER_EIGH_LARGE(float2);

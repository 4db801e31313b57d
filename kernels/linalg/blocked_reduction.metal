// xLARFT, xLASCL: kernels that the blocked two-sided reductions (common/blocked_reduction.h) share:
// scaled copies of the matrices, the products of a column's reflector (the GEMV of xLATRD, xLABRD
// and xLAHR2), the T of block reflectors, and the sort of the results of a reduced matrix. The host
// does the GEMMs between them.
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/blocked_reduction.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/square_sources.h>
#include <kernels/linalg/common/squares.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;

// ---- scaled copies ------------------------------------------------------------------------------

// Finds the largest magnitude of each column. One simdgroup per column.
template <typename T, typename Source>
kernel void blocked_reduction_extents(device float* extents [[buffer(0)]],
                                      device const T* input [[buffer(1)]],
                                      constant SquaresParameters& p [[buffer(2)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint lane [[thread_index_in_simdgroup]]) {
  const int64_t line = (position.y * (int64_t(1) << 30) + position.x) / kSimdgroup;
  const int n = p.size;
  if (line >= int64_t(p.end) * n) {
    return;
  }
  const int column = line % n;
  const Source source{input + line / n * p.matrix_stride, p};
  float largest = 0.0f;
  for (int row = lane; row < source.distinct_rows(column); row += kSimdgroup) {
    largest = max(largest, finite_magnitude(source.at(row, column)));
  }
  largest = simd_max(largest);
  if (lane == 0) {
    extents[line] = largest;
  }
}

// Finds the exponent of each matrix from its extents, and sets its info to zero, or to `not_finite`
// if an element is not. One simdgroup per matrix.
kernel void blocked_reduction_exponents(device int* exponents [[buffer(0)]],
                                        device int* infos [[buffer(1)]],
                                        device const float* extents [[buffer(2)]],
                                        constant SquaresParameters& p [[buffer(3)]],
                                        constant int& not_finite [[buffer(4)]],
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
    infos[matrix] = isfinite(largest) ? 0 : not_finite;
  }
}

// Copies and scales matrices. Those that are not finite become zero. One thread per pack of each
// column of each matrix.
template <typename T, typename Source>
kernel void blocked_reduction_load(device float4* matrices [[buffer(0)]],
                                   device const T* input [[buffer(1)]],
                                   device const int* exponents [[buffer(2)]],
                                   device const int* infos [[buffer(3)]],
                                   constant SquaresParameters& p [[buffer(4)]],
                                   constant int& stride [[buffer(5)]],
                                   uint3 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.z;
  const int column = position.y;
  const int first = position.x * ColumnPacks<T>::kRows;
  const Source source{input + matrix * p.matrix_stride, p};
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

// ---- reduction ----------------------------------------------------------------------------------

// Multiplies a matrix by the column's reflector (GEMV), and forms the inner products of vectors of
// the panel with it: those of `panels` and the reflectors, alternately. Sums are partial, over
// slices of columns and rows, and are added up by the next kernel. One thread per pack and slice,
// or per vector and slice.
template <typename T>
kernel void blocked_reduction_products(device float4* products [[buffer(0)]],
                                       device T* overlaps [[buffer(1)]],
                                       device const float4* matrices [[buffer(2)]],
                                       device const float4* reflectors [[buffer(3)]],
                                       device const float4* panels [[buffer(4)]],
                                       constant ReductionParameters& p [[buffer(5)]],
                                       uint3 position [[thread_position_in_grid]]) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int64_t matrix = position.z;
  const int first = p.first / kRows;
  const int used = packs_of<T>(p.size);
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
                                       : panels + (matrix * kReductionPanel + which / 2) * p.stride;
  InnerSum<T> sum = {};
  for (int i = begin / kRows; i < packs_of<T>(end); ++i) {
    sum.add(row[i], made[i]);
  }
  overlaps[(matrix * p.slices + slice) * 2 * kReductionPanel + which] = sum.value();
}

// ---- block reflectors ---------------------------------------------------------------------------

// Writes complex rows v as v and i v. One thread per element of a row.
kernel void blocked_reduction_real_form(device float2* result [[buffer(0)]],
                                        device const float2* rows [[buffer(1)]],
                                        constant ReductionRowsParameters& p [[buffer(2)]],
                                        uint3 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.z;
  const int row = position.y;
  const int i = position.x;
  const float2 x = rows[matrix * p.matrix_stride + row * p.row_stride + i];
  device float2* const to = result + (matrix * p.rows + row) * 2 * p.elements + i;
  to[0] = x;
  to[p.elements] = float2(-x.y, x.x);
}

// Adds up `parts` matrices of so many elements for each sum: in parts of their own, lest one error
// follow another. One thread per element.
kernel void blocked_reduction_gram(device float* sums [[buffer(0)]],
                                   device const float* matrices [[buffer(1)]],
                                   constant int& parts [[buffer(2)]],
                                   constant int& elements [[buffer(3)]],
                                   uint2 position [[thread_position_in_grid]]) {
  constexpr int kTogether = 16;
  device const float* const own = matrices + int64_t(position.y) * parts * elements + position.x;
  float sum = 0.0f;
  float part = 0.0f;
  for (int i = 0; i < parts; ++i) {
    part += own[int64_t(i) * elements];
    if (i % kTogether == kTogether - 1) {
      sum += part;
      part = 0.0f;
    }
  }
  sums[int64_t(position.y) * elements + position.x] = part + sum;
}

// Returns a scalar of the third argument's type. If it is real, the imaginary part is ignored.
inline float from_parts(float re, float, float) { return re; }
inline float2 from_parts(float re, float im, float2) { return float2(re, im); }

// xLARFT: the upper triangular T of the block reflector I - V T V^H, the product of kReductionPanel
// reflectors. One thread per row of T. Complex elements are 2-by-2 matrices [re im; -im re] here,
// both in `products`, the inner products of V's columns, and in `t`, which is T transposed
// and begins as zeros.
template <typename T>
kernel void blocked_reduction_larft(device float* t [[buffer(0)]],
                                    device const float* products [[buffer(1)]],
                                    device const T* taus [[buffer(2)]],
                                    constant ReductionParameters& p [[buffer(3)]],
                                    uint2 position [[thread_position_in_grid]]) {
  constexpr int kParts = is_complex_v<T> ? 2 : 1;
  constexpr int kLine = kReductionPanel * kParts;
  const int64_t matrix = position.y;
  const int row = position.x;
  if (row >= kReductionPanel) {
    return;
  }
  device float* const own_t = t + matrix * kLine * kLine;
  device const float* const product = products + matrix * kLine * kLine;
  device const T* const tau = taus + matrix * p.reflectors + p.start;
  for (int column = row; column < kReductionPanel; ++column) {
    T sum = column == row ? from_real<T>(-1.0f) : from_real<T>(0.0f);
    for (int k = row; k < column; ++k) {
      device const float* const of_t = own_t + (k * kLine + row) * kParts;
      device const float* const of_product = product + (k * kLine + column) * kParts;
      sum += multiply(from_parts(of_t[0], of_t[kParts - 1], sum),
                      from_parts(of_product[0], -of_product[kParts - 1], sum));
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

// ---- results ------------------------------------------------------------------------------------

// Stores the eigenvalues in ascending order, or the singular values in descending order, and each
// one's position there as `ranks`. Padding comes last. infos: not zero if a matrix is not finite.
// One thread per value.
template <bool IS_DESCENDING>
kernel void blocked_reduction_values(device float* values [[buffer(0)]],
                                     device int* ranks [[buffer(1)]],
                                     device const int* infos [[buffer(2)]],
                                     device const float* unordered [[buffer(3)]],
                                     device const int* exponents [[buffer(4)]],
                                     constant ReductionOrderParameters& p [[buffer(5)]],
                                     uint2 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.y;
  const int index = position.x;
  device const float* const of_matrix = unordered + matrix * p.padded;
  const int rank = rank_of<IS_DESCENDING>(of_matrix, p.padded, index);
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
kernel void blocked_reduction_vectors(device T* vectors [[buffer(0)]],
                                      device const float* unordered [[buffer(1)]],
                                      device const int* ranks [[buffer(2)]],
                                      constant ReductionOrderParameters& p [[buffer(3)]],
                                      constant uint& matrices [[buffer(4)]],
                                      uint3 position [[thread_position_in_grid]]) {
  const int64_t side_and_matrix = position.z;
  const int rank = ranks[int64_t(position.z % matrices) * p.padded + position.y];
  if (rank < p.size) {
    const float x = unordered[(side_and_matrix * p.padded + position.y) * p.padded + position.x];
    vectors[(side_and_matrix * p.size + rank) * p.row + position.x] = from_real<T>(x);
  }
}

#define REGISTER_EXTENTS(SOURCE, T)                                                          \
  REGISTER_KERNEL("blocked_reduction_extents_" #SOURCE "_" #T, blocked_reduction_extents, T, \
                  SOURCE##Source<T>)
#define REGISTER_LOAD(SOURCE, T)                                                       \
  REGISTER_KERNEL("blocked_reduction_load_" #SOURCE "_" #T, blocked_reduction_load, T, \
                  SOURCE##Source<T>)

#define REGISTER_BLOCKED_REDUCTION(T)                                               \
  REGISTER_EXTENTS(General, T);                                                     \
  REGISTER_EXTENTS(Hermitian, T);                                                   \
  REGISTER_LOAD(General, T);                                                        \
  REGISTER_LOAD(Adjoint, T);                                                        \
  REGISTER_LOAD(Hermitian, T);                                                      \
  REGISTER_KERNEL("blocked_reduction_products_" #T, blocked_reduction_products, T); \
  REGISTER_KERNEL("blocked_reduction_larft_" #T, blocked_reduction_larft, T);       \
  REGISTER_KERNEL("blocked_reduction_vectors_" #T, blocked_reduction_vectors, T)

REGISTER_BLOCKED_REDUCTION(float);
REGISTER_BLOCKED_REDUCTION(float2);
REGISTER_KERNEL("blocked_reduction_values_ascending", blocked_reduction_values, false);
REGISTER_KERNEL("blocked_reduction_values_descending", blocked_reduction_values, true);

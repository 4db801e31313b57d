// xGEBRD and xLABRD: kernels for singular values of square matrices of any size, in many launches:
// the columns of panels of the blocked reduction to a real upper bidiagonal matrix, and the order
// of the values that svd_merge.metal finds for it. The host does the GEMMs between them.
//
// There are two copies of a matrix, A and B = A^H, both in columns of packs. A's columns are
// reduced by reflectors V from the left; those of B, A's rows, by reflectors U from the right.
// Within a panel, A - V Y^H - X U^H and B - Y V^H - U X^H are the up-to-date matrices. So the same
// kernel reduces both, with V and X changing roles with U and Y; and all products are sums of
// columns.
#include <c10/metal/reduction_utils.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/reflectors.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/svd_large.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;

// ---- scaled copies ------------------------------------------------------------------------------

// Finds the largest magnitude of each column (or row, where strides are swapped). One simdgroup per
// column.
template <typename T>
kernel void svd_large_extents(device float* extents [[buffer(0)]],
                              device const T* input [[buffer(1)]],
                              constant SvdLoadParameters& p [[buffer(2)]],
                              uint2 position [[thread_position_in_grid]],
                              uint lane [[thread_index_in_simdgroup]]) {
  const int64_t line = (position.y * (int64_t(1) << 30) + position.x) / kSimdgroup;
  const int n = p.size;
  if (line >= int64_t(p.matrices) * n) {
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

// Copies and scales matrices. Those that are not finite become zero. One thread per pack of each
// column of each matrix.
template <typename T>
kernel void svd_large_load(device float4* matrices [[buffer(0)]],
                           device const T* input [[buffer(1)]],
                           device const int* exponents [[buffer(2)]],
                           device const int* infos [[buffer(3)]],
                           constant SvdLoadParameters& p [[buffer(4)]],
                           uint3 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.z;
  const int64_t column = position.y;
  const int first = position.x * ColumnPacks<T>::kRows;
  device const T* const from = input + matrix * p.matrix_stride + column * p.column_stride;
  float4 pack(0.0f);
  thread T* const elements = elements_of<T>(&pack);
  if (infos[matrix] == 0) {
    for (int i = 0; i < ColumnPacks<T>::kRows && first + i < p.size; ++i) {
      const T x = from[(first + i) * p.row_stride];
      elements[i] = p.is_conjugate ? conjugate(x) : x;
    }
  }
  matrices[(matrix * p.size + column) * p.stride + position.x] =
      with_exponent(pack, -exponents[matrix]);
}

// ---- reduction to a bidiagonal matrix -----------------------------------------------------------

// Half a step of xLABRD, in terms of A = `matrices` (or of B, alternately). Finishes the x that the
// panel needs for the other side's last reflector u: x = tau (A u - V (Y^H u) - X (U^H u)), for
// which `products` and `overlaps` hold partial sums over slices. Brings a column up to date and
// makes its reflector, which begins with row p.from: the column's own one in A, the next one in B.
// One threadgroup per matrix.
template <typename T>
kernel void svd_large_column(
    device float4* matrices [[buffer(0)]], device float4* reflectors [[buffer(1)]],
    device float4* panels [[buffer(2)]], device const float4* products [[buffer(3)]],
    device const T* overlaps [[buffer(4)]], device float* values [[buffer(5)]],
    device T* taus [[buffer(6)]], device const float4* other_reflectors [[buffer(7)]],
    device const float4* other_panels [[buffer(8)]], device const T* other_taus [[buffer(9)]],
    constant EighColumnParameters& p [[buffer(10)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_lane [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  threadgroup T shares[2 * kEighPanel];
  threadgroup float sums[kSimdgroup];
  threadgroup T factor;
  const int lane = thread_lane;
  const int lanes = threads;
  const int c = p.column;
  const int done = c - p.start;            // columns of the panel
  const int others = done + (p.from - c);  // columns of X and U
  const int used = c10::metal::ceil_div(p.size, kRows);
  const int first = p.from / kRows;  // the first pack that matters
  const int64_t reflector = int64_t(matrix) * p.reflectors + p.start;
  const int64_t panel = int64_t(matrix) * kEighPanel * p.stride;
  device const float4* const v = reflectors + reflector * p.stride;
  device const float4* const u = other_reflectors + reflector * p.stride;
  device const float4* const y = other_panels + panel;
  device float4* const x = panels + panel;
  if (others > 0) {
    const int last = others - 1;
    const int first_slice = c / p.slice;
    device const T* const of_matrix = overlaps + int64_t(matrix) * p.slices * 2 * kEighPanel;
    for (int i = lane; i < last + done; i += lanes) {
      T sum = from_real<T>(0.0f);
      for (int slice = first_slice; slice < p.slices; ++slice) {
        sum += of_matrix[slice * 2 * kEighPanel + i];
      }
      shares[i] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T tau = other_taus[reflector + last];
    device const float4* const of_products = products + int64_t(matrix) * p.slices * p.stride;
    for (int i = first + lane; i < used; i += lanes) {
      float4 sum(0.0f);
      for (int slice = first_slice; slice < p.slices; ++slice) {
        sum += of_products[int64_t(slice) * p.stride + i];
      }
      PackSum<T> known = {};
      for (int k = 0; k < last; ++k) {
        const int offset = k * p.stride + i;
        known.add(v[offset], shares[2 * k]);
        known.add(x[offset], shares[2 * k + 1]);
      }
      if (last < done) {
        known.add(v[last * p.stride + i], shares[2 * last]);
      }
      x[last * p.stride + i] = times(sum - known.value(), tau);
    }
  }
  if (p.ends_panel) {
    return;
  }
  device float4* const column = matrices + (int64_t(matrix) * p.size + c) * p.stride;
  float tail = 0.0f;
  for (int i = first + lane; i < used; i += lanes) {
    PackSum<T> known = {};
    for (int k = 0; k < done; ++k) {
      const int offset = k * p.stride + i;
      known.add(v[offset], conjugate(elements_of<T>(y + k * p.stride)[c]));
      known.add(x[offset], conjugate(elements_of<T>(u + k * p.stride)[c]));
    }
    if (done < others) {
      known.add(x[done * p.stride + i], conjugate(elements_of<T>(u + done * p.stride)[c]));
    }
    float4 sum = column[i] - known.value();
    column[i] = sum;
    sum = ColumnPacks<T>::rows_from(sum, i * kRows, p.from + 1);
    tail += dot(sum, sum);
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  tail = c10::metal::threadgroup_sum(sums, tail, thread_lane, threads);
  tail = tail < 0x1p-80f ? 0.0f : tail;
  if (lane == 0) {
    const Reflector<T> made = reflector_of_scaled(elements_of<T>(column)[p.from], tail);
    values[int64_t(matrix) * p.size + c] = made.beta;
    taus[reflector + done] = made.tau;
    factor = tail > 0.0f ? made.factor() : from_real<T>(0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device float4* const to = reflectors + (reflector + done) * p.stride;
  for (int i = lane; i < p.stride; i += lanes) {
    const float4 rest = i < used && i >= first ? column[i] : float4(0.0f);
    to[i] = times(ColumnPacks<T>::rows_from(rest, i * kRows, p.from + 1), factor) +
            ColumnPacks<T>::unit(i * kRows, p.from);
  }
}

// ---- results ------------------------------------------------------------------------------------

// Stores the singular values in descending order, and each one's position there as `ranks`; padding
// has none. infos: those of eigh_large_exponents. One thread per value.
kernel void svd_large_values(device float* values [[buffer(0)]], device int* ranks [[buffer(1)]],
                             device int* infos [[buffer(2)]],
                             device const float* unordered [[buffer(3)]],
                             device const int* exponents [[buffer(4)]],
                             constant EighOrderParameters& p [[buffer(5)]],
                             uint2 position [[thread_position_in_grid]]) {
  const int64_t matrix = position.y;
  const int index = position.x;
  device const float* const of_matrix = unordered + matrix * p.padded;
  const float value = of_matrix[index];
  int rank = 0;
  for (int i = 0; i < p.padded; ++i) {
    rank += of_matrix[i] > value || (of_matrix[i] == value && i < index);
  }
  ranks[matrix * p.padded + index] = rank;
  const bool is_finite = infos[matrix] == 0;
  if (rank < p.size) {
    values[matrix * p.size + rank] = is_finite ? with_exponent(value, exponents[matrix]) : NAN;
  }
}

#define REGISTER_SVD_LARGE(T)                                     \
  REGISTER_KERNEL("svd_large_extents_" #T, svd_large_extents, T); \
  REGISTER_KERNEL("svd_large_load_" #T, svd_large_load, T);       \
  REGISTER_KERNEL("svd_large_column_" #T, svd_large_column, T)

REGISTER_SVD_LARGE(float);
REGISTER_SVD_LARGE(float2);

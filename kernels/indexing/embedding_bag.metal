// embedding_bag: sums, means and maxima of rows of a weight, and what its gradients are scattered
// by. Adjacent threads have adjacent columns. An index out of range is reported to the host and
// left out.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_simdgroup>
#include <metal_stdlib>

#include <kernels/indexing/embedding_bag.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline bool is_row(int64_t index, constant EmbeddingBagParameters& p) {
  return index >= 0 && index < p.rows;
}

inline bool is_taken(int64_t index, constant EmbeddingBagParameters& p) {
  return is_row(index, p) && index != p.padding;
}

// Returns where the bag ends; the first one begins at 0.
inline int64_t end_of_bag(int64_t bag, device const long* offsets,
                          constant EmbeddingBagParameters& p) {
  const bool is_given = bag + 1 < p.bags || p.has_last_offset != 0;
  return is_given ? clamp(static_cast<int64_t>(offsets[bag + 1]), int64_t(0), p.indices)
                  : p.indices;
}

inline int64_t begin_of_bag(int64_t bag, device const long* offsets,
                            constant EmbeddingBagParameters& p) {
  return bag == 0 ? 0 : clamp(static_cast<int64_t>(offsets[bag]), int64_t(0), p.indices);
}

// Checks an offset.
inline void check_offset(int64_t i, device const long* offsets, constant EmbeddingBagParameters& p,
                         device ErrorMessages* errors) {
  const int64_t offset = offsets[i];
  if (i == 0 && offset != 0) {
    TORCH_REPORT_ERROR(errors,
                       "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to "
                       "start from position 0. However, got ",
                       offset);
  } else if (offset > p.indices || (i > 0 && offset < offsets[i - 1])) {
    TORCH_REPORT_ERROR(errors, "embedding_bag: offsets[", i, "] is ", offset,
                       ", but offsets must not decrease, nor be greater than input's length of ",
                       p.indices);
  }
}

// Writes the bag that each index is in, -1 for those behind the last bag, and checks indices and
// offsets.
kernel void embedding_bag_find(device long* bags [[buffer(0)]],
                               device const long* indices [[buffer(1)]],
                               device const long* offsets [[buffer(2)]],
                               constant EmbeddingBagParameters& p [[buffer(3)]],
                               device ErrorMessages* errors [[buffer(4)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 grid [[threads_per_grid]]) {
  const int64_t i = thread_index(position, grid);
  if (i < p.bags + p.has_last_offset) {
    check_offset(i, offsets, p, errors);
  }
  if (i >= p.indices) {
    return;
  }
  const int64_t index = indices[i];
  if (!is_row(index, p)) {
    TORCH_REPORT_ERROR(errors, "embedding_bag: index ", i, " of input takes value ", index,
                       " which is not in the valid range [0, ", p.rows, ")");
  }
  int64_t bag = 0;
  int64_t end = p.bags;
  while (bag + 1 < end) {
    const int64_t middle = (bag + end) / 2;
    if (offsets[middle] <= i) {
      bag = middle;
    } else {
      end = middle;
    }
  }
  bags[i] = p.bags > 0 && i < end_of_bag(bag, offsets, p) ? bag : -1;
}

// Loads one element of a row, or four.
template <typename T>
inline void load_columns(thread float (&to)[1], device const T* row) {
  to[0] = static_cast<float>(row[0]);
}
template <typename T>
inline void load_columns(thread float (&to)[4], device const T* row) {
  const vec<T, 4> four = *reinterpret_cast<device const vec<T, 4>*>(row);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    to[e] = static_cast<float>(four[e]);
  }
}

// Each thread has PACK adjacent columns of a bag. largest: the index that each maximum is of, -1 in
// a bag without one; written in mode kBagMaximum only.
template <typename T, int PACK>
kernel void embedding_bag_forward(
    device T* output [[buffer(0)]], device long* sizes [[buffer(1)]],
    device long* largest [[buffer(2)]], device const T* weight [[buffer(3)]],
    device const long* indices [[buffer(4)]], device const long* offsets [[buffer(5)]],
    device const T* sample_weights [[buffer(6)]], constant EmbeddingBagParameters& p [[buffer(7)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t pack = thread_index(position, grid);
  const int64_t packs = p.columns / PACK;
  if (pack >= p.bags * packs) {
    return;
  }
  const int64_t bag = quotient(pack, packs, p.bags * packs);
  const int64_t column = (pack - bag * packs) * PACK;
  const int64_t end = p.rows > 0 ? end_of_bag(bag, offsets, p) : 0;
  device const T* const of_column = weight + column * p.column_stride;
  int64_t size = 0;
  int64_t best[PACK];
  float values[PACK];
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    best[e] = -1;
    values[e] = 0.0f;
  }
  // A row is loaded for indices that are left out, too: loads of several indices then begin at
  // once.
#pragma unroll 4
  for (int64_t i = begin_of_bag(bag, offsets, p); i < end; ++i) {
    const int64_t index = indices[i];
    const bool counts = is_taken(index, p);
    float row[PACK];
    load_columns(row, of_column + (counts ? index : 0) * p.row_stride);
    const float factor = p.has_sample_weights != 0 ? static_cast<float>(sample_weights[i]) : 1.0f;
#pragma unroll
    for (int e = 0; e < PACK; ++e) {
      if (p.mode == kBagMaximum) {
        const bool is_larger = counts && (size == 0 || row[e] > values[e]);
        best[e] = is_larger ? index : best[e];
        values[e] = is_larger ? row[e] : values[e];
      } else {
        values[e] += counts ? row[e] * factor : 0.0f;
      }
    }
    size += counts ? 1 : 0;
  }
  const float divisor = p.mode == kBagMean && size > 0 ? static_cast<float>(size) : 1.0f;
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    output[pack * PACK + e] = static_cast<T>(values[e] / divisor);
    if (p.mode == kBagMaximum) {
      largest[pack * PACK + e] = best[e];
    }
  }
  if (column == 0) {
    sizes[bag] = size;
  }
}

// Writes where the gradient of each index goes: the row of the weight, which bag's gradient it is,
// and its factor.
template <typename T>
kernel void embedding_bag_items(
    device long* places [[buffer(0)]], device long* rows [[buffer(1)]],
    device float* scales [[buffer(2)]], device const long* indices [[buffer(3)]],
    device const long* bags [[buffer(4)]], device const long* sizes [[buffer(5)]],
    device const T* sample_weights [[buffer(6)]], constant EmbeddingBagParameters& p [[buffer(7)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t i = thread_index(position, grid);
  if (i >= p.indices) {
    return;
  }
  const int64_t bag = bags[i];
  const bool is_used = bag >= 0 && bag < p.bags && is_taken(indices[i], p);
  places[i] = is_used ? indices[i] * p.row_bytes : -1;
  rows[i] = is_used ? bag : 0;
  float scale = p.has_sample_weights != 0 ? static_cast<float>(sample_weights[i]) : 1.0f;
  if (p.mode == kBagMean && is_used) {
    scale /= static_cast<float>(sizes[bag]);
  }
  scales[i] = scale;
}

// Writes where the gradient of each maximum goes. width: of an element of the weight's gradient, in
// bytes.
kernel void embedding_bag_maxima(device long* places [[buffer(0)]],
                                 device const long* largest [[buffer(1)]],
                                 constant EmbeddingBagParameters& p [[buffer(2)]],
                                 constant int64_t& width [[buffer(3)]],
                                 uint2 position [[thread_position_in_grid]],
                                 uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= p.bags * p.columns) {
    return;
  }
  const int64_t column = element - quotient(element, p.columns, p.bags * p.columns) * p.columns;
  const int64_t index = largest[element];
  places[element] = is_taken(index, p) ? index * p.row_bytes + column * width : -1;
}

// Gradients of sample weights: a simdgroup multiplies the gradient of a bag by a row of the weight.
template <typename T>
kernel void embedding_bag_dots(device T* output [[buffer(0)]], device const T* grad [[buffer(1)]],
                               device const T* weight [[buffer(2)]],
                               device const long* indices [[buffer(3)]],
                               device const long* bags [[buffer(4)]],
                               constant EmbeddingBagParameters& p [[buffer(5)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 grid [[threads_per_grid]],
                               uint lane [[thread_index_in_simdgroup]]) {
  const int64_t i = thread_index(position, grid) / 32;
  if (i >= p.indices) {
    return;
  }
  const int64_t index = indices[i];
  const int64_t bag = bags[i];
  const bool is_used = bag >= 0 && bag < p.bags && is_taken(index, p);
  float sum = 0;
  for (int64_t c = lane; is_used && c < p.columns; c += 32) {
    sum += static_cast<float>(grad[bag * p.grad_row_stride + c * p.grad_column_stride]) *
           static_cast<float>(weight[index * p.row_stride + c * p.column_stride]);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    output[i] = static_cast<T>(sum);
  }
}

#define REGISTER_EMBEDDING_BAG(T)                                                  \
  REGISTER_KERNEL("embedding_bag_forward_" #T, embedding_bag_forward, T, 1);       \
  REGISTER_KERNEL("embedding_bag_forward_packs_" #T, embedding_bag_forward, T, 4); \
  REGISTER_KERNEL("embedding_bag_items_" #T, embedding_bag_items, T);              \
  REGISTER_KERNEL("embedding_bag_dots_" #T, embedding_bag_dots, T)

REGISTER_EMBEDDING_BAG(float);
REGISTER_EMBEDDING_BAG(half);
REGISTER_EMBEDDING_BAG(bfloat);

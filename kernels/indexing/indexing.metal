// Gather and scatter by index: take, put_ and embedding_renorm_. An index out of range is reported
// to the host and nothing is read or written for it.
#include <c10/metal/atomic.h>
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>

#include <metal_stdlib>

#include <kernels/indexing/indexing.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

// Makes a negative index count from the end. Returns false if it is out of range.
inline bool wrap_index(thread int64_t& index, int64_t size) {
  if (index < -size || index >= size) {
    return false;
  }
  index += index < 0 ? size : 0;
  return true;
}

// ---- take and put_ ------------------------------------------------------------------------------

// Elements are numbered in row-major order, whatever the tensors' strides. Kernels that only move
// elements are instantiated once for each element size.

// layout: that of the output and of the indices.
template <typename T>
kernel void indexing_take(device T* output [[buffer(0)]], constant T* input [[buffer(1)]],
                          constant long* indices [[buffer(2)]],
                          constant StridedLayout<2>& layout [[buffer(3)]],
                          constant StridedLayout<1>& input_layout [[buffer(4)]],
                          device ErrorMessages* errors [[buffer(5)]],
                          uint2 position [[thread_position_in_grid]],
                          uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(element, layout);
  int64_t index = element_at(indices, offsets[1]);
  if (!wrap_index(index, input_layout.count)) {
    TORCH_REPORT_ERROR(errors, "take(): out of range: tried to access index ", index,
                       " on a tensor of ", input_layout.count, " elements.");
    return;
  }
  const auto input_offsets = offsets_of(index, input_layout);
  element_at(output, offsets[0]) = element_at(input, input_offsets[0]);
}

// Returns the offset in bytes where put_ writes the source's element `element`; negative if its
// index is out of range. layout: that of the source and of the indices.
inline int64_t put_offset(thread array<int64_t, 2>& offsets, constant long* indices,
                          constant StridedLayout<1>& self_layout, device ErrorMessages* errors) {
  int64_t index = element_at(indices, offsets[1]);
  if (!wrap_index(index, self_layout.count)) {
    TORCH_REPORT_ERROR(errors, "put_(): out of range: tried to access index ", index,
                       " on a tensor of ", self_layout.count, " elements.");
    return -1;
  }
  const auto self_offsets = offsets_of(index, self_layout);
  return self_offsets[0];
}

template <typename T>
kernel void indexing_put(device T* self [[buffer(0)]], constant T* source [[buffer(1)]],
                         constant long* indices [[buffer(2)]],
                         constant StridedLayout<2>& layout [[buffer(3)]],
                         constant StridedLayout<1>& self_layout [[buffer(4)]],
                         device ErrorMessages* errors [[buffer(5)]],
                         uint2 position [[thread_position_in_grid]],
                         uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= layout.count) {
    return;
  }
  auto offsets = offsets_of(element, layout);
  const int64_t offset = put_offset(offsets, indices, self_layout, errors);
  if (offset >= 0) {
    element_at(self, offset) = element_at(source, offsets[0]);
  }
}

template <typename T>
inline void accumulate(device T* data, int64_t index, T value) {
  using Atomic = c10::metal::AtomicType<T>;
  Atomic::atomic_add(reinterpret_cast<device typename Atomic::type*>(data), index, value);
}

// Accumulates a bool by logical or. (c10's own function assumes that `data` is word-aligned.)
inline void accumulate(device bool* data, int64_t index, bool value) {
  if (value) {
    device uchar* const element = reinterpret_cast<device uchar*>(data + index);
    const uint byte = reinterpret_cast<ulong>(element) % sizeof(uint);
    atomic_fetch_or_explicit(reinterpret_cast<device atomic_uint*>(element - byte),
                             1u << (8 * byte), memory_order_relaxed);
  }
}

template <typename T>
kernel void indexing_put_accumulate(device T* self [[buffer(0)]], constant T* source [[buffer(1)]],
                                    constant long* indices [[buffer(2)]],
                                    constant StridedLayout<2>& layout [[buffer(3)]],
                                    constant StridedLayout<1>& self_layout [[buffer(4)]],
                                    device ErrorMessages* errors [[buffer(5)]],
                                    uint2 position [[thread_position_in_grid]],
                                    uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= layout.count) {
    return;
  }
  auto offsets = offsets_of(element, layout);
  const int64_t offset = put_offset(offsets, indices, self_layout, errors);
  if (offset >= 0) {
    accumulate(self, offset / static_cast<int64_t>(sizeof(T)), element_at(source, offsets[0]));
  }
}

// ---- embedding_renorm_ --------------------------------------------------------------------------

inline float magnitude(float value) { return abs(value); }

// Returns |a + bi|, also where a^2 + b^2 would overflow or underflow.
inline float magnitude(float2 value) {
  const float2 parts = abs(value);
  const float larger = max(parts.x, parts.y);
  const float ratio = min(parts.x, parts.y) / larger;
  const bool plain = larger == 0.0f || isinf(larger) || any(isnan(parts));
  return plain ? parts.x + parts.y : larger * precise::sqrt(fma(ratio, ratio, 1.0f));
}

template <typename T>
struct wide {
  using type = float;
};
template <>
struct wide<float2> {
  using type = float2;
};
template <>
struct wide<half2> {
  using type = float2;
};

// Computes the norm of a row in a simdgroup. Magnitudes are scaled by the largest one first, so
// that their powers neither overflow nor underflow.
template <typename T>
inline float row_norm(device T* row, constant EmbeddingRenormParameters& parameters, uint lane) {
  using W = typename wide<T>::type;
  const float p = parameters.norm_type;
  float largest = 0.0f;
  float smallest = INFINITY;
  float count = 0.0f;
  float invalid = 0.0f;
  for (int64_t i = lane; i < parameters.columns; i += c10::metal::simdgroup_size) {
    const float x = magnitude(static_cast<W>(row[i * parameters.column_stride]));
    largest = max(largest, x);
    smallest = min(smallest, x);
    count += x != 0.0f;
    invalid += isnan(x);
  }
  largest = simd_max(largest);
  smallest = simd_min(smallest);
  count = simd_sum(count);
  if (p == 0.0f) {
    return count;
  }
  if (simd_sum(invalid) != 0.0f) {
    return NAN;
  }
  if (isinf(p)) {
    return p > 0.0f ? largest : smallest;
  }
  const float unit = largest == 0.0f || isinf(largest) ? 1.0f : largest;
  float sum = 0.0f;
  for (int64_t i = lane; i < parameters.columns; i += c10::metal::simdgroup_size) {
    const float x = magnitude(static_cast<W>(row[i * parameters.column_stride])) / unit;
    sum += p == 2.0f ? x * x : (p == 1.0f ? x : precise::pow(x, p));
  }
  sum = simd_sum(sum);
  return unit * (p == 2.0f ? precise::sqrt(sum) : (p == 1.0f ? sum : precise::pow(sum, 1.0f / p)));
}

// Renormalises a row. One simdgroup per index; the first one for a row marks it in `visited`, which
// is initially zero, and scales it.
template <typename T, typename Index>
kernel void indexing_embedding_renorm(device T* weight [[buffer(0)]],
                                      constant Index* indices [[buffer(1)]],
                                      device atomic_uint* visited [[buffer(2)]],
                                      constant EmbeddingRenormParameters& parameters [[buffer(3)]],
                                      constant StridedLayout<1>& layout [[buffer(4)]],
                                      device ErrorMessages* errors [[buffer(5)]],
                                      uint group [[threadgroup_position_in_grid]],
                                      uint groups [[threadgroups_per_grid]],
                                      uint lane [[thread_index_in_simdgroup]]) {
  using W = typename wide<T>::type;
  for (int64_t element = group; element < layout.count; element += groups) {
    const auto offsets = offsets_of(element, layout);
    const int64_t given = element_at(indices, offsets[0]);
    int64_t index = given;
    if (!wrap_index(index, parameters.rows)) {
      if (lane == 0) {
        TORCH_REPORT_ERROR(errors, "embedding_renorm_(): index ", given,
                           " out of range for tensor of size [", parameters.rows, ", ",
                           parameters.columns, "] at dimension 0");
      }
      continue;
    }
    uint seen = 0;
    if (lane == 0) {
      seen = atomic_exchange_explicit(visited + index, 1u, memory_order_relaxed);
    }
    if (simd_broadcast_first(seen) != 0) {
      continue;
    }
    device T* row = weight + index * parameters.row_stride;
    const float norm = row_norm(row, parameters, lane);
    if (norm > parameters.max_norm) {
      const float scale = parameters.max_norm / (norm + 1e-7f);
      for (int64_t i = lane; i < parameters.columns; i += c10::metal::simdgroup_size) {
        device T& value = row[i * parameters.column_stride];
        value = static_cast<T>(static_cast<W>(value) * scale);
      }
    }
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_TAKE_AND_PUT(T)                          \
  REGISTER_KERNEL("indexing_take_" #T, indexing_take, T); \
  REGISTER_KERNEL("indexing_put_" #T, indexing_put, T)

REGISTER_TAKE_AND_PUT(uchar);
REGISTER_TAKE_AND_PUT(short);
REGISTER_TAKE_AND_PUT(int);
REGISTER_TAKE_AND_PUT(long);

#define REGISTER_PUT_ACCUMULATE(T) \
  REGISTER_KERNEL("indexing_put_accumulate_" #T, indexing_put_accumulate, T)

REGISTER_PUT_ACCUMULATE(float);
REGISTER_PUT_ACCUMULATE(half);
REGISTER_PUT_ACCUMULATE(bfloat);
REGISTER_PUT_ACCUMULATE(float2);
REGISTER_PUT_ACCUMULATE(long);
REGISTER_PUT_ACCUMULATE(int);
REGISTER_PUT_ACCUMULATE(short);
REGISTER_PUT_ACCUMULATE(char);
REGISTER_PUT_ACCUMULATE(uchar);
REGISTER_PUT_ACCUMULATE(bool);

#define REGISTER_EMBEDDING_RENORM_WITH(T, Index) \
  REGISTER_KERNEL("indexing_embedding_renorm_" #T "_" #Index, indexing_embedding_renorm, T, Index)
#define REGISTER_EMBEDDING_RENORM(T)       \
  REGISTER_EMBEDDING_RENORM_WITH(T, long); \
  REGISTER_EMBEDDING_RENORM_WITH(T, int)

REGISTER_EMBEDDING_RENORM(float);
REGISTER_EMBEDDING_RENORM(half);
REGISTER_EMBEDDING_RENORM(bfloat);
REGISTER_EMBEDDING_RENORM(float2);
REGISTER_EMBEDDING_RENORM(half2);

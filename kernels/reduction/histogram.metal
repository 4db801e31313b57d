// Histograms: the bins of samples, and the number of samples in each bin. Counts are added by
// integer atomics, so that they are the same each time; weights are reduced by
// kernels/indexing/scatter.metal.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_atomic>
#include <metal_stdlib>

#include <kernels/reduction/histogram.h>
using namespace metal;
using namespace metalops;

// Returns the number of edges in [begin, end) that are in front of the first one larger than x,
// beginning to count at `begin`, in the order of a binary search: edges need not be sorted.
template <typename T>
inline int64_t edges_before(float x, device const T* edges, int64_t begin, int64_t end) {
  int64_t count = end - begin;
  while (count > 0) {
    const int64_t half_count = count / 2;
    const int64_t middle = begin + half_count;
    if (x < static_cast<float>(edges[middle])) {
      count = half_count;
    } else {
      begin = middle + 1;
      count -= half_count + 1;
    }
  }
  return begin;
}

constant constexpr int64_t kManyBins = int64_t(1) << 30;

// Returns the bin of a coordinate, or -1 if it is outside of all. NaN is outside.
template <typename T>
inline int64_t bin_of(T value, constant HistogramAxis& axis, device const T* all_edges,
                      int32_t method) {
  const float x = static_cast<float>(value);
  device const T* const edges = all_edges + axis.edges;
  const bool is_even = method == kHistogramEven;
  const float low = is_even ? axis.low : static_cast<float>(edges[0]);
  const float high = is_even ? axis.high : static_cast<float>(edges[axis.bins]);
  if (!(x >= low && x <= high)) {
    return -1;
  }
  int64_t bin = 0;
  if (method == kHistogramEdges) {
    bin = edges_before(x, edges, 0, axis.bins + 1) - 1;
  } else {
    const float width = high * axis.scale - low * axis.scale;
    const float at = (x * axis.scale - low * axis.scale) * static_cast<float>(axis.bins) / width;
    // GPUs convert to 32 bits many times as fast.
    bin = axis.bins < kManyBins ? static_cast<int32_t>(at) : static_cast<int64_t>(at);
    if (method == kHistogramNear) {
      bin = edges_before(x, edges, max(bin - 1, 0l), min(bin + 2, axis.bins + 1)) - 1;
    }
  }
  return clamp(bin, 0l, axis.bins - 1);  // the last bin has its right edge
}

inline int64_t bin_of_integer(long x, constant HistogramAxis& axis, int32_t method) {
  if (x < axis.lowest || x > axis.highest) {
    return -1;
  }
  if (method == kHistogramNumber) {
    return x;
  }
  const ulong above = (static_cast<ulong>(x) - static_cast<ulong>(axis.lowest)) >> axis.shift;
  const ulong range =
      (static_cast<ulong>(axis.highest) - static_cast<ulong>(axis.lowest)) >> axis.shift;
  return min(static_cast<int64_t>(above * static_cast<ulong>(axis.bins) / range), axis.bins - 1);
}

#define BIN_OF_INTEGER(T)                                                                     \
  inline int64_t bin_of(T x, constant HistogramAxis& axis, device const T*, int32_t method) { \
    return bin_of_integer(static_cast<long>(x), axis, method);                                \
  }
BIN_OF_INTEGER(long)
BIN_OF_INTEGER(int)
BIN_OF_INTEGER(uchar)

// Returns where in the histogram a sample is counted, or -1.
template <typename T>
inline int64_t place_of_sample(constant T* self, device const T* edges, int64_t offset,
                               constant HistogramParameters& p) {
  int64_t place = 0;
  for (int32_t i = 0; i < p.axes; ++i) {
    const T x = element_at(self, offset + i * p.coordinate_stride);
    const int64_t bin = bin_of(x, p.axis[i], edges, p.method);
    if (bin < 0) {
      return -1;
    }
    place += bin * p.axis[i].step;
  }
  return place;
}

// Adds to a 64-bit counter, which is two words.
inline void add_to(device atomic_uint* counter, uint count) {
  const uint before = atomic_fetch_add_explicit(counter, count, memory_order_relaxed);
  if (before + count < before) {
    atomic_fetch_add_explicit(counter + 1, 1, memory_order_relaxed);
  }
}

// Counts samples. A threadgroup has counters of its own if the bins are few: then adjacent threads
// count in different copies of a bin.
template <typename T>
kernel void histogram_count(device atomic_uint* counts [[buffer(0)]],
                            constant T* self [[buffer(1)]], device const T* edges [[buffer(2)]],
                            constant HistogramParameters& p [[buffer(3)]],
                            constant StridedLayout<1>& samples [[buffer(4)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint groups [[threadgroups_per_grid]],
                            uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint slots[kHistogramSlots];
  const uint copies = static_cast<uint>(p.copies);
  const uint bins = copies > 0 ? static_cast<uint>(p.bins) : 0;
  for (uint i = thread_index; i < bins * copies; i += kHistogramThreads) {
    atomic_store_explicit(&slots[i], 0, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint copy = copies > 0 ? thread_index % copies : 0;  // not in the loop: it is a division
  const int64_t step = static_cast<int64_t>(groups) * kHistogramThreads;
  for (int64_t i = static_cast<int64_t>(group) * kHistogramThreads + thread_index;
       i < samples.count; i += step) {
    const int64_t place = place_of_sample(self, edges, offsets_of(i, samples)[0], p);
    if (place >= 0 && copies > 0) {
      atomic_fetch_add_explicit(&slots[static_cast<uint>(place) * copies + copy], 1,
                                memory_order_relaxed);
    } else if (place >= 0) {
      add_to(counts + 2 * place, 1);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint bin = thread_index; bin < bins; bin += kHistogramThreads) {
    uint count = 0;
    for (uint i = 0; i < copies; ++i) {
      count += atomic_load_explicit(&slots[bin * copies + i], memory_order_relaxed);
    }
    if (count > 0) {
      add_to(counts + 2 * static_cast<int64_t>(bin), count);
    }
  }
}

// Writes where the weight of each sample goes, in bytes.
template <typename T>
kernel void histogram_places(device long* places [[buffer(0)]], constant T* self [[buffer(1)]],
                             device const T* edges [[buffer(2)]],
                             constant HistogramParameters& p [[buffer(3)]],
                             constant StridedLayout<1>& samples [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]],
                             uint2 grid [[threads_per_grid]]) {
  const int64_t i = thread_index(position, grid);
  if (i >= samples.count) {
    return;
  }
  const int64_t place = place_of_sample(self, edges, offsets_of(i, samples)[0], p);
  places[i] = place < 0 ? -1 : place * p.width;
}

#define REGISTER_HISTOGRAM(T)                                 \
  REGISTER_KERNEL("histogram_count_" #T, histogram_count, T); \
  REGISTER_KERNEL("histogram_places_" #T, histogram_places, T)

REGISTER_HISTOGRAM(float);
REGISTER_HISTOGRAM(half);
REGISTER_HISTOGRAM(bfloat);
REGISTER_HISTOGRAM(long);
REGISTER_HISTOGRAM(int);
REGISTER_HISTOGRAM(uchar);

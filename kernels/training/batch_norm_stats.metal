// batch_norm_update_stats: mean and variance of each channel, and their moving averages.
//
// A channel is processed by a threadgroup, or by a single thread if channels are short: squared
// deviations are summed in a second pass, around the mean from the first. Alternatively a channel
// is divided into parts, whose elements are read once and kept in registers, and whose moments are
// combined in a fixed order. Sums are float for all dtypes.
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/common/packs.h>
#include <kernels/training/batch_norm_blocks.h>
#include <kernels/training/batch_norm_stats.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kAdjacentThreads = 256;  // limit of a threadgroup

template <typename V>
inline V term(V deviation, bool squared) {
  return squared ? deviation * deviation : deviation;
}

// Sums x - origin or (x - origin)^2 over the elements of a channel in the blocks of thread `lane`
// of `lanes`.
template <typename T>
inline float sum_part(int64_t channel, constant T* input, float origin, bool squared,
                      constant BatchNormStatsParameters& parameters, uint lane, uint lanes) {
  const int64_t stride = parameters.inner_stride;
  const int64_t blocks = (parameters.inner + kBlock - 1) / kBlock;  // per row
  float4 sums[4] = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
  float sum = 0.0f;
  for (int64_t block = lane; block < parameters.outer * blocks; block += lanes) {
    const int64_t row = block / blocks;
    const int64_t first = (block - row * blocks) * kBlock;
    constant T* x = input + channel * parameters.channel_stride + row * parameters.outer_stride +
                    first * stride;
    const int64_t count = min(kBlock, parameters.inner - first);
    if (stride == 1 && count == kBlock) {
      for (uint i = 0; i < 4; ++i) {
        sums[i] += term(four(x + 4 * i) - origin, squared);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        sum += term(static_cast<float>(x[i * stride]) - origin, squared);
      }
    }
  }
  const float4 rest = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum + ((rest.x + rest.y) + (rest.z + rest.w));
}

template <typename P>
inline void move_average(device P* average, float value, float momentum) {
  const float before = static_cast<float>(*average);
  *average = static_cast<P>(momentum * value + (1.0f - momentum) * before);
}

template <typename P>
inline void write_stats(int64_t channel, float mean, float squares, device P* means,
                        device P* variances, device P* running_mean, device P* running_var,
                        constant BatchNormStatsParameters& parameters) {
  const float count = static_cast<float>(parameters.outer * parameters.inner);
  means[channel] = static_cast<P>(mean);
  variances[channel] = static_cast<P>(squares / count);
  if (parameters.has_running_mean != 0) {
    move_average(running_mean + channel * parameters.running_mean_stride, mean,
                 parameters.momentum);
  }
  if (parameters.has_running_var != 0) {
    move_average(running_var + channel * parameters.running_var_stride, squares / (count - 1.0f),
                 parameters.momentum);
  }
}

// Computes the statistics with one thread per channel. T: dtype of the input; P: dtype of the
// statistics.
template <typename T, typename P>
kernel void batch_norm_stats_short_rows(
    device P* means [[buffer(0)]], device P* variances [[buffer(1)]],
    device P* running_mean [[buffer(2)]], device P* running_var [[buffer(3)]],
    constant T* input [[buffer(4)]], constant BatchNormStatsParameters& parameters [[buffer(5)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t channel = thread_index(position, grid);
  if (channel >= parameters.channels) {
    return;
  }
  const float count = static_cast<float>(parameters.outer * parameters.inner);
  const float mean = sum_part(channel, input, 0.0f, false, parameters, 0, 1) / count;
  const float squares = sum_part(channel, input, mean, true, parameters, 0, 1);
  write_stats(channel, mean, squares, means, variances, running_mean, running_var, parameters);
}

template <typename T, typename P>
kernel void batch_norm_stats_rows(device P* means [[buffer(0)]], device P* variances [[buffer(1)]],
                                  device P* running_mean [[buffer(2)]],
                                  device P* running_var [[buffer(3)]],
                                  constant T* input [[buffer(4)]],
                                  constant BatchNormStatsParameters& parameters [[buffer(5)]],
                                  uint channel [[threadgroup_position_in_grid]],
                                  uint lane [[thread_position_in_threadgroup]],
                                  uint lanes [[threads_per_threadgroup]]) {
  threadgroup float sums[c10::metal::simdgroup_size];
  threadgroup float square_sums[c10::metal::simdgroup_size];
  const float count = static_cast<float>(parameters.outer * parameters.inner);
  const float sum = sum_part(channel, input, 0.0f, false, parameters, lane, lanes);
  const float mean = c10::metal::threadgroup_sum(sums, sum, lane, lanes) / count;
  const float part = sum_part(channel, input, mean, true, parameters, lane, lanes);
  const float squares = c10::metal::threadgroup_sum(square_sums, part, lane, lanes);
  if (lane == 0) {
    write_stats(channel, mean, squares, means, variances, running_mean, running_var, parameters);
  }
}

// ---- parts of channels --------------------------------------------------------------------------

// V is float4 if a thread loads four adjacent elements at once, else float.

// Sums that overflow give infinite means; the deviation of equal infinities is 0, not NaN.
inline float deviation(float a, float b) { return a == b ? 0.0f : a - b; }
inline float4 deviation(float4 a, float4 b) { return select(a - b, float4(0.0f), a == b); }

inline float unless_infinite(float x, float mean) { return isinf(mean) ? 0.0f : x; }
inline float4 unless_infinite(float4 x, float4 mean) {
  return select(x, float4(0.0f), isinf(mean));
}

// Moments of a set of elements. The mean is mean + rest: if it is large compared to the deviations,
// its rounding error would be visible in the sum of squares.
template <typename V>
struct Moments {
  V sum;
  V mean;
  V rest;
  V squares;

  // Makes moments from sums relative to `around`, the rounded mean. deviations, squares: the sums
  // of x - around and of its square.
  static Moments of(V sum, V around, V deviations, V squares, float count) {
    const V rest = unless_infinite(deviations / count, around);
    return {sum, around, rest, squares - unless_infinite(rest * deviations, around)};
  }
};

// Returns the offset of a channel's element or vector `index`. Rows have `length` of them, with
// stride `stride`.
inline int64_t place(uint index, uint length, int64_t stride,
                     constant BatchNormStatsParameters& parameters) {
  if (parameters.outer == 1) {
    return index * stride;
  }
  const uint row = index / length;
  return row * parameters.outer_stride + (index - row * length) * stride;
}

// Computes moments of parts of channels that are not adjacent in memory. A part has 16 elements per
// thread of a group, and adjacent threads have adjacent elements.
template <typename T, typename V>
kernel void batch_norm_stats_planes(device float4* parts [[buffer(0)]],
                                    constant T* input [[buffer(1)]],
                                    constant BatchNormStatsParameters& parameters [[buffer(2)]],
                                    constant uint& parts_of_channel [[buffer(3)]],
                                    uint group [[threadgroup_position_in_grid]],
                                    uint lane [[thread_position_in_threadgroup]],
                                    uint lanes [[threads_per_threadgroup]]) {
  constexpr uint kWidth = Packs<V>::kWidth;
  constexpr uint kLoads = kBlock / kWidth;
  threadgroup float sums[c10::metal::simdgroup_size];
  threadgroup float deviation_sums[c10::metal::simdgroup_size];
  threadgroup float square_sums[c10::metal::simdgroup_size];
  const uint channel = group / parts_of_channel;
  const uint length = static_cast<uint>(parameters.inner) / kWidth;
  const uint all = static_cast<uint>(parameters.outer) * length;
  const int64_t stride = parameters.inner_stride * kWidth;
  const uint first = (group - channel * parts_of_channel) * lanes * kLoads;
  constant T* begin = input + channel * parameters.channel_stride;
  V x[kLoads];
  V sum = V(0.0f);
  for (uint i = 0; i < kLoads; ++i) {
    const uint index = first + i * lanes + lane;
    // A load that exists stands for one that does not: no branch separates those of a thread.
    const uint existing = min(index, all - 1);
    const V loaded = Packs<V>::load(begin + place(existing, length, stride, parameters));
    x[i] = index < all ? loaded : V(0.0f);
  }
  for (uint i = 0; i < kLoads; ++i) {
    sum += x[i];
  }
  const float whole = c10::metal::threadgroup_sum(sums, Packs<V>::total(sum), lane, lanes);
  const float count = static_cast<float>(min(all - first, lanes * kLoads) * kWidth);
  const float mean = whole / count;
  V deviations = V(0.0f);
  V square = V(0.0f);
  for (uint i = 0; i < kLoads; ++i) {
    const V delta = first + i * lanes + lane < all ? x[i] - mean : V(0.0f);
    deviations += delta;
    square += delta * delta;
  }
  const float rest =
      c10::metal::threadgroup_sum(deviation_sums, Packs<V>::total(deviations), lane, lanes);
  const float squares =
      c10::metal::threadgroup_sum(square_sums, Packs<V>::total(square), lane, lanes);
  if (lane == 0) {
    const Moments<float> part = Moments<float>::of(whole, mean, rest, squares, count);
    parts[group] = float4(part.sum, part.mean, part.rest, part.squares);
  }
}

// Returns true if moving the origin to the mean would cancel most of the sum of squares.
inline bool is_far(float deviations, float squares, float count) {
  return deviations * deviations > 0.9375f * squares * count;
}
inline bool is_far(float4 deviations, float4 squares, float count) {
  return any(deviations * deviations > 0.9375f * squares * count);
}

// Computes the moments of `count` rows with stride `step`. They are read once, relative to the mean
// of the first ones, and a second time only if that is far from the overall mean.
template <typename V, typename T>
inline Moments<V> moments_of_rows(constant T* begin, uint first, uint step, uint count,
                                  constant BatchNormStatsParameters& parameters) {
  constexpr uint kLoads = 8;
  const uint length = static_cast<uint>(parameters.inner);
  const float elements = static_cast<float>(count);
  V around = V(0.0f);
  V sum = V(0.0f);
  V deviations = V(0.0f);
  V squares = V(0.0f);
  for (uint pass = 0; pass < 2; ++pass) {
    sum = V(0.0f);
    deviations = V(0.0f);
    squares = V(0.0f);
    for (uint row = 0; row < count; row += kLoads) {
      V x[kLoads];
      for (uint i = 0; i < kLoads; ++i) {
        const uint existing = first + min(row + i, count - 1) * step;
        const V loaded =
            Packs<V>::load(begin + place(existing, length, parameters.inner_stride, parameters));
        x[i] = row + i < count ? loaded : V(0.0f);
      }
      V block = V(0.0f);
      for (uint i = 0; i < kLoads; ++i) {
        block += x[i];
      }
      if (pass == 0 && row == 0) {
        around = block / static_cast<float>(min(kLoads, count));
      }
      sum += block;
      for (uint i = 0; i < kLoads; ++i) {
        const V delta = row + i < count ? x[i] - around : V(0.0f);
        deviations += delta;
        squares += delta * delta;
      }
    }
    if (!is_far(deviations, squares, elements)) {
      break;
    }
    around += unless_infinite(deviations / elements, around);
  }
  return Moments<V>::of(sum, around, deviations, squares, elements);
}

// Computes moments of parts of channels that are adjacent in memory. A part is rows_of_part
// elements of as many channels as `across` threads have; a row of threads has the same element of
// these channels.
template <typename T, typename V>
kernel void batch_norm_stats_adjacent(
    device float4* parts [[buffer(0)]], constant T* input [[buffer(1)]],
    constant BatchNormStatsParameters& parameters [[buffer(2)]],
    constant uint& parts_of_channel [[buffer(3)]], constant uint& rows_of_part [[buffer(4)]],
    constant uint& across [[buffer(5)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  constexpr uint kWidth = Packs<V>::kWidth;
  threadgroup V sums[kAdjacentThreads];
  threadgroup V means[kAdjacentThreads];
  threadgroup V rests[kAdjacentThreads];
  threadgroup V square_sums[kAdjacentThreads];
  const uint column = group / parts_of_channel;
  const uint part = group - column * parts_of_channel;
  const uint down = lane / across;
  const uint step = lanes / across;
  const uint channel = (column * across + lane - down * across) * kWidth;
  const uint channels = static_cast<uint>(parameters.channels);
  const uint all = static_cast<uint>(parameters.outer) * static_cast<uint>(parameters.inner);
  const uint first = part * rows_of_part;
  const uint end = min(first + rows_of_part, all);
  Moments<V> mine = {V(0.0f), V(0.0f), V(0.0f), V(0.0f)};
  if (channel < channels && first + down < end) {
    const uint count = (end - first - down + step - 1) / step;
    mine = moments_of_rows<V>(input + channel, first + down, step, count, parameters);
  }
  sums[lane] = mine.sum;
  means[lane] = mine.mean;
  rests[lane] = mine.rest;
  square_sums[lane] = mine.squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* all_sums = reinterpret_cast<threadgroup float*>(sums);
  threadgroup float* all_means = reinterpret_cast<threadgroup float*>(means);
  threadgroup float* all_rests = reinterpret_cast<threadgroup float*>(rests);
  threadgroup float* all_squares = reinterpret_cast<threadgroup float*>(square_sums);
  const uint width = across * kWidth;
  const uint each = (end - first) / step;  // per thread, or one more
  const uint more = (end - first) - each * step;
  for (uint i = lane; i < width && column * width + i < channels; i += lanes) {
    float whole = 0.0f;
#pragma unroll 4
    for (uint k = 0; k < step; ++k) {
      whole += all_sums[k * width + i];
    }
    const float elements = static_cast<float>(end - first);
    const float mean = whole / elements;
    float deviations = 0.0f;
    float squares = 0.0f;
    const uint taking = each == 0 ? more : step;  // rows of threads that have elements
#pragma unroll 4
    for (uint k = 0; k < taking; ++k) {
      const uint at = k * width + i;
      const float taken = static_cast<float>(each + (k < more ? 1 : 0));
      const float delta = deviation(all_means[at], mean) + all_rests[at];
      deviations += delta * taken;
      squares += all_squares[at] + delta * delta * taken;
    }
    const Moments<float> all = Moments<float>::of(whole, mean, deviations, squares, elements);
    parts[(column * width + i) * parts_of_channel + part] =
        float4(all.sum, all.mean, all.rest, all.squares);
  }
}

// Combines the parts of a channel in a threadgroup. Parts have `elements` elements; the last one
// has the rest.
template <typename P>
kernel void batch_norm_stats_combine(
    device P* means [[buffer(0)]], device P* variances [[buffer(1)]],
    device P* running_mean [[buffer(2)]], device P* running_var [[buffer(3)]],
    constant float4* parts [[buffer(4)]],
    constant BatchNormStatsParameters& parameters [[buffer(5)]],
    constant uint& parts_of_channel [[buffer(6)]], constant uint& elements [[buffer(7)]],
    uint channel [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup float sums[c10::metal::simdgroup_size];
  threadgroup float deviation_sums[c10::metal::simdgroup_size];
  threadgroup float square_sums[c10::metal::simdgroup_size];
  const uint all = static_cast<uint>(parameters.outer) * static_cast<uint>(parameters.inner);
  constant float4* mine = parts + channel * parts_of_channel;
  float sum = 0.0f;
  for (uint i = lane; i < parts_of_channel; i += lanes) {
    sum += mine[i].x;
  }
  const float whole = c10::metal::threadgroup_sum(sums, sum, lane, lanes);
  const float mean = whole / static_cast<float>(all);
  float deviations = 0.0f;
  float square = 0.0f;
  for (uint i = lane; i < parts_of_channel; i += lanes) {
    const float4 part = mine[i];
    const float count = static_cast<float>(min(elements, all - i * elements));
    const float delta = deviation(part.y, mean) + part.z;
    deviations += delta * count;
    square += part.w + delta * delta * count;
  }
  const float rest = c10::metal::threadgroup_sum(deviation_sums, deviations, lane, lanes);
  const float squares = c10::metal::threadgroup_sum(square_sums, square, lane, lanes);
  if (lane == 0) {
    const Moments<float> found =
        Moments<float>::of(whole, mean, rest, squares, static_cast<float>(all));
    const float squares_or_zero = found.squares < 0.0f ? 0.0f : found.squares;  // NaN stays NaN
    write_stats(channel, mean + found.rest, squares_or_zero, means, variances, running_mean,
                running_var, parameters);
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_BATCH_NORM_STATS(T, P)                                                         \
  REGISTER_KERNEL("batch_norm_stats_short_rows_" #T "_" #P, batch_norm_stats_short_rows, T, P); \
  REGISTER_KERNEL("batch_norm_stats_rows_" #T "_" #P, batch_norm_stats_rows, T, P)

REGISTER_BATCH_NORM_STATS(float, float);
REGISTER_BATCH_NORM_STATS(half, half);
REGISTER_BATCH_NORM_STATS(half, float);
REGISTER_BATCH_NORM_STATS(bfloat, bfloat);
REGISTER_BATCH_NORM_STATS(bfloat, float);

#define REGISTER_PARTS(T, V, SUFFIX)                                                       \
  REGISTER_KERNEL("batch_norm_stats_planes" SUFFIX "_" #T, batch_norm_stats_planes, T, V); \
  REGISTER_KERNEL("batch_norm_stats_adjacent" SUFFIX "_" #T, batch_norm_stats_adjacent, T, V)

#define REGISTER_BATCH_NORM_STATS_PARTS(T) \
  REGISTER_PARTS(T, float, "");            \
  REGISTER_PARTS(T, float4, "_packs");     \
  REGISTER_KERNEL("batch_norm_stats_combine_" #T, batch_norm_stats_combine, T)

REGISTER_BATCH_NORM_STATS_PARTS(float);
REGISTER_BATCH_NORM_STATS_PARTS(half);
REGISTER_BATCH_NORM_STATS_PARTS(bfloat);

// batch_norm_update_stats: mean and variance of each channel, and their moving averages.
//
// A channel is the work of a threadgroup, or of a single thread where channels are short. Sums are
// float whatever the tensors are. Squares are summed in a second pass, of the deviations from the
// mean that the first one finds.
#include <c10/metal/reduction_utils.h>

#include <metalops/strided.h>
#include <metal_stdlib>

#include "batch_norm_stats.h"
#include "blocks.h"
using namespace metal;
using namespace metalops;

template <typename V>
inline V term(V deviation, bool squared) {
  return squared ? deviation * deviation : deviation;
}

// The sum of x - origin or (x - origin)^2 over the elements of a channel in the blocks that belong
// to thread `lane` of `lanes`.
template <typename T>
inline float sum_part(int64_t channel, constant T* input, float origin, bool squared,
                      constant BatchNormStatsParameters& parameters, uint lane, uint lanes) {
  const int64_t stride = parameters.inner_stride;
  const int64_t blocks = (parameters.inner + kBlock - 1) / kBlock;  // of a row
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

// T: of the input, P: of the statistics.
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

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_BATCH_NORM_STATS(T, P)                                                      \
  template [[host_name("batch_norm_stats_short_rows_" #T "_" #P)]] kernel void               \
  batch_norm_stats_short_rows<T, P>(device P*, device P*, device P*, device P*, constant T*, \
                                    constant BatchNormStatsParameters&, uint2, uint2);       \
  template [[host_name("batch_norm_stats_rows_" #T "_" #P)]] kernel void                     \
  batch_norm_stats_rows<T, P>(device P*, device P*, device P*, device P*, constant T*,       \
                              constant BatchNormStatsParameters&, uint, uint, uint)

REGISTER_BATCH_NORM_STATS(float, float);
REGISTER_BATCH_NORM_STATS(half, half);
REGISTER_BATCH_NORM_STATS(half, float);
REGISTER_BATCH_NORM_STATS(bfloat, bfloat);
REGISTER_BATCH_NORM_STATS(bfloat, float);

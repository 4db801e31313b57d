// Normalisation and its gradients: layer_norm, group_norm, rms_norm and batch_norm.
//
// Rows that are normalised by statistics of their own are read by a simdgroup each, or by a
// threadgroup if they are long; adjacent lanes have adjacent elements, or packs of four. Their
// gradients need two sums of a row. Gradients of weights and biases, and those that batch_norm
// needs of its channels, are sums over a channel: parts of it are summed by a threadgroup each, and
// combined in a fixed order. The statistics of batch_norm are those of batch_norm_stats.metal.
// Whatever the dtype, sums and statistics are float.
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/training/norm.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSumThreads = 256;  // limit of a threadgroup that sums channels

// ---- packs: one element, or four adjacent ones --------------------------------------------------

template <typename V>
struct Packs;

template <>
struct Packs<float> {
  static constexpr constant uint kWidth = 1;
  template <typename T>
  static float load(constant T* from) {
    return static_cast<float>(*from);
  }
  template <typename T>
  static void store(device T* to, float x) {
    *to = static_cast<T>(x);
  }
  static float total(float x) { return x; }
};

template <>
struct Packs<float4> {
  static constexpr constant uint kWidth = 4;
  template <typename T>
  static float4 load(constant T* from) {
    const vec<T, 4> x = *reinterpret_cast<constant vec<T, 4>*>(from);
    return float4(static_cast<float>(x.x), static_cast<float>(x.y), static_cast<float>(x.z),
                  static_cast<float>(x.w));
  }
  template <typename T>
  static void store(device T* to, float4 x) {
    *reinterpret_cast<device vec<T, 4>*>(to) = vec<T, 4>(static_cast<T>(x.x), static_cast<T>(x.y),
                                                         static_cast<T>(x.z), static_cast<T>(x.w));
  }
  static float total(float4 x) { return (x.x + x.y) + (x.z + x.w); }
};

// ---- rows ---------------------------------------------------------------------------------------

// The threads of a row. shared: threadgroup memory of one sum.
struct Simdgroup {
  static float sum(threadgroup float*, float part, uint, uint) { return simd_sum(part); }
};

struct Threadgroup {
  static float sum(threadgroup float* shared, float part, uint lane, uint lanes) {
    return c10::metal::threadgroup_sum(shared, part, lane, lanes);
  }
};

// Returns the parameters of the elements from i on. values: those of the row's first channel.
template <typename V, typename P>
inline V parameters_at(constant P* values, uint i, constant NormRowsParameters& parameters) {
  if (parameters.inner == 1) {
    return Packs<V>::load(values + i);
  }
  return V(static_cast<float>(values[i / parameters.inner]));
}

// shared: threadgroup memory of two sums.
template <typename V, typename Team, typename T, typename P>
inline void normalise_row(device T* out, device float* means, device float* rstds,
                          constant T* input, constant P* weight, constant P* bias,
                          constant NormRowsParameters& parameters, threadgroup float* shared,
                          int64_t row, uint lane, uint lanes) {
  const uint first = lane * Packs<V>::kWidth;
  const uint step = lanes * Packs<V>::kWidth;
  const float count = static_cast<float>(parameters.length);
  const int64_t channel = row % parameters.groups * parameters.channels;
  constant T* x = input + row * parameters.length;
  device T* y = out + row * parameters.length;
  float mean = 0.0f;
  if (parameters.is_centred != 0) {
    V sum = V(0.0f);
    for (uint i = first; i < parameters.length; i += step) {
      sum += Packs<V>::load(x + i);
    }
    mean = Team::sum(shared, Packs<V>::total(sum), lane, lanes) / count;
  }
  V squares = V(0.0f);
  for (uint i = first; i < parameters.length; i += step) {
    const V deviation = Packs<V>::load(x + i) - mean;
    squares += deviation * deviation;
  }
  const float square =
      Team::sum(shared + c10::metal::simdgroup_size, Packs<V>::total(squares), lane, lanes);
  const float rstd = precise::rsqrt(square / count + parameters.eps);
  if (lane == 0) {
    means[row] = mean;
    rstds[row] = rstd;
  }
  for (uint i = first; i < parameters.length; i += step) {
    V normalised = (Packs<V>::load(x + i) - mean) * rstd;
    if (parameters.has_weight != 0) {
      normalised *= parameters_at<V>(weight + channel, i, parameters);
    }
    if (parameters.has_bias != 0) {
      normalised += parameters_at<V>(bias + channel, i, parameters);
    }
    Packs<V>::store(y + i, normalised);
  }
}

// With g = grad_out * weight and the normalised x: (g - mean(g) - x * mean(g * x)) * rstd.
template <typename V, typename Team, typename T, typename P>
inline void gradient_of_row(device T* grad_input, constant T* grad_out, constant T* input,
                            constant float* means, constant float* rstds, constant P* weight,
                            constant NormRowsParameters& parameters, threadgroup float* shared,
                            int64_t row, uint lane, uint lanes) {
  const uint first = lane * Packs<V>::kWidth;
  const uint step = lanes * Packs<V>::kWidth;
  const float count = static_cast<float>(parameters.length);
  const int64_t channel = row % parameters.groups * parameters.channels;
  constant T* x = input + row * parameters.length;
  constant T* dy = grad_out + row * parameters.length;
  device T* dx = grad_input + row * parameters.length;
  const float mean = parameters.is_centred != 0 ? means[row] : 0.0f;
  const float rstd = rstds[row];
  V sum = V(0.0f);
  V product = V(0.0f);
  for (uint i = first; i < parameters.length; i += step) {
    V g = Packs<V>::load(dy + i);
    if (parameters.has_weight != 0) {
      g *= parameters_at<V>(weight + channel, i, parameters);
    }
    sum += g;
    product += g * (Packs<V>::load(x + i) - mean);
  }
  float mean_g = 0.0f;
  if (parameters.is_centred != 0) {
    mean_g = Team::sum(shared, Packs<V>::total(sum), lane, lanes) / count;
  }
  const float all =
      Team::sum(shared + c10::metal::simdgroup_size, Packs<V>::total(product), lane, lanes);
  const float slope = all * rstd * rstd / count;
  for (uint i = first; i < parameters.length; i += step) {
    V g = Packs<V>::load(dy + i);
    if (parameters.has_weight != 0) {
      g *= parameters_at<V>(weight + channel, i, parameters);
    }
    Packs<V>::store(dx + i, (g - mean_g - (Packs<V>::load(x + i) - mean) * slope) * rstd);
  }
}

// A simdgroup per row. T: dtype of the input; P: dtype of the weight and the bias.
template <typename T, typename P>
kernel void norm_short_rows(device T* out [[buffer(0)]], device float* means [[buffer(1)]],
                            device float* rstds [[buffer(2)]], constant T* input [[buffer(3)]],
                            constant P* weight [[buffer(4)]], constant P* bias [[buffer(5)]],
                            constant NormRowsParameters& parameters [[buffer(6)]],
                            uint2 position [[thread_position_in_grid]],
                            uint2 grid [[threads_per_grid]],
                            uint lane [[thread_index_in_simdgroup]]) {
  const int64_t row = thread_index(position, grid) / c10::metal::simdgroup_size;
  if (row >= parameters.rows) {
    return;
  }
  if (parameters.packs != 0) {
    normalise_row<float4, Simdgroup>(out, means, rstds, input, weight, bias, parameters, nullptr,
                                     row, lane, c10::metal::simdgroup_size);
  } else {
    normalise_row<float, Simdgroup>(out, means, rstds, input, weight, bias, parameters, nullptr,
                                    row, lane, c10::metal::simdgroup_size);
  }
}

// A threadgroup per row.
template <typename T, typename P>
kernel void norm_rows(device T* out [[buffer(0)]], device float* means [[buffer(1)]],
                      device float* rstds [[buffer(2)]], constant T* input [[buffer(3)]],
                      constant P* weight [[buffer(4)]], constant P* bias [[buffer(5)]],
                      constant NormRowsParameters& parameters [[buffer(6)]],
                      uint row [[threadgroup_position_in_grid]],
                      uint lane [[thread_position_in_threadgroup]],
                      uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[2 * c10::metal::simdgroup_size];
  if (parameters.packs != 0) {
    normalise_row<float4, Threadgroup>(out, means, rstds, input, weight, bias, parameters, shared,
                                       row, lane, lanes);
  } else {
    normalise_row<float, Threadgroup>(out, means, rstds, input, weight, bias, parameters, shared,
                                      row, lane, lanes);
  }
}

template <typename T, typename P>
kernel void norm_short_rows_backward(
    device T* grad_input [[buffer(0)]], constant T* grad_out [[buffer(1)]],
    constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
    constant float* rstds [[buffer(4)]], constant P* weight [[buffer(5)]],
    constant NormRowsParameters& parameters [[buffer(6)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int64_t row = thread_index(position, grid) / c10::metal::simdgroup_size;
  if (row >= parameters.rows) {
    return;
  }
  if (parameters.packs != 0) {
    gradient_of_row<float4, Simdgroup>(grad_input, grad_out, input, means, rstds, weight,
                                       parameters, nullptr, row, lane, c10::metal::simdgroup_size);
  } else {
    gradient_of_row<float, Simdgroup>(grad_input, grad_out, input, means, rstds, weight, parameters,
                                      nullptr, row, lane, c10::metal::simdgroup_size);
  }
}

template <typename T, typename P>
kernel void norm_rows_backward(device T* grad_input [[buffer(0)]],
                               constant T* grad_out [[buffer(1)]], constant T* input [[buffer(2)]],
                               constant float* means [[buffer(3)]],
                               constant float* rstds [[buffer(4)]],
                               constant P* weight [[buffer(5)]],
                               constant NormRowsParameters& parameters [[buffer(6)]],
                               uint row [[threadgroup_position_in_grid]],
                               uint lane [[thread_position_in_threadgroup]],
                               uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[2 * c10::metal::simdgroup_size];
  if (parameters.packs != 0) {
    gradient_of_row<float4, Threadgroup>(grad_input, grad_out, input, means, rstds, weight,
                                         parameters, shared, row, lane, lanes);
  } else {
    gradient_of_row<float, Threadgroup>(grad_input, grad_out, input, means, rstds, weight,
                                        parameters, shared, row, lane, lanes);
  }
}

// ---- sums of channels ---------------------------------------------------------------------------

// The sums of gradients, and of gradients times normalised inputs.
template <typename V>
struct Sums {
  V gradient;
  V product;
};

// Adds the elements that begin at `place`.
template <typename V, typename T>
inline void add_elements(thread Sums<V>& sums, constant T* grad_out, constant T* input,
                         int64_t place, V mean, V rstd) {
  const V dy = Packs<V>::load(grad_out + place);
  sums.gradient += dy;
  sums.product += dy * ((Packs<V>::load(input + place) - mean) * rstd);
}

// Sums a part of a channel that is not adjacent to others: threads have adjacent elements of it.
template <typename V, typename T>
inline Sums<V> sum_of_plane(constant T* grad_out, constant T* input, constant float* means,
                            constant float* rstds, constant NormChannelsParameters& parameters,
                            constant NormParts& division, uint channel, uint part, uint lane,
                            uint lanes) {
  const uint inner = static_cast<uint>(parameters.inner);
  const uint all = static_cast<uint>(parameters.outer) * inner;
  const uint first = part * division.elements;
  const uint end = min(first + division.elements, all);
  const int64_t stats = channel / parameters.channels_of_stats;
  Sums<V> sums = {V(0.0f), V(0.0f)};
  for (uint i = first + lane * Packs<V>::kWidth; i < end; i += lanes * Packs<V>::kWidth) {
    const uint outer = i / inner;
    const int64_t place = (outer * parameters.channels + channel) * parameters.inner + i -
                          static_cast<int64_t>(outer) * inner;
    const int64_t stat = outer * parameters.stats_of_outer + stats;
    const float mean = parameters.is_centred != 0 ? means[stat] : 0.0f;
    add_elements(sums, grad_out, input, place, V(mean), V(rstds[stat]));
  }
  return sums;
}

template <typename T>
kernel void norm_sums_of_planes(
    device float2* parts [[buffer(0)]], constant T* grad_out [[buffer(1)]],
    constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
    constant float* rstds [[buffer(4)]], constant NormChannelsParameters& parameters [[buffer(5)]],
    constant NormParts& division [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  threadgroup float gradients[c10::metal::simdgroup_size];
  threadgroup float products[c10::metal::simdgroup_size];
  const uint channel = group / division.parts;
  const uint part = group - channel * division.parts;
  Sums<float> mine;
  if (parameters.packs != 0) {
    const Sums<float4> four = sum_of_plane<float4>(grad_out, input, means, rstds, parameters,
                                                   division, channel, part, lane, lanes);
    mine = {Packs<float4>::total(four.gradient), Packs<float4>::total(four.product)};
  } else {
    mine = sum_of_plane<float>(grad_out, input, means, rstds, parameters, division, channel, part,
                               lane, lanes);
  }
  const float gradient = c10::metal::threadgroup_sum(gradients, mine.gradient, lane, lanes);
  const float product = c10::metal::threadgroup_sum(products, mine.product, lane, lanes);
  if (lane == 0) {
    parts[group] = float2(gradient, product);
  }
}

// Returns the statistics of the channels from `channel` on. They differ where batch_norm's channels
// or the groups of group_norm do.
template <typename V>
inline V stats_at(constant float* values, int64_t first, int64_t channel,
                  constant NormChannelsParameters& parameters) {
  if (parameters.channels_of_stats == 1) {
    return Packs<V>::load(values + first + channel);
  }
  return V(values[first + channel / parameters.channels_of_stats]);
}

// Sums rows of a part of channels that are adjacent in memory: outer indices with stride `down`.
template <typename V, typename T>
inline Sums<V> sum_of_column(constant T* grad_out, constant T* input, constant float* means,
                             constant float* rstds, constant NormChannelsParameters& parameters,
                             uint channel, uint first, uint end, uint down) {
  Sums<V> sums = {V(0.0f), V(0.0f)};
  for (uint row = first; row < end; row += down) {
    const int64_t stats = row * parameters.stats_of_outer;
    const V mean =
        parameters.is_centred != 0 ? stats_at<V>(means, stats, channel, parameters) : V(0.0f);
    add_elements(sums, grad_out, input, row * parameters.channels + channel, mean,
                 stats_at<V>(rstds, stats, channel, parameters));
  }
  return sums;
}

// Combines the sums of threads that have the same channels, which are in threadgroup memory:
// `down` rows of `width` channels, from `column` on.
inline void combine_columns(device float2* parts, threadgroup float* gradients,
                            threadgroup float* products, uint column, uint width, uint down,
                            uint channels, uint part, uint parts_of_channel, uint lane,
                            uint lanes) {
  for (uint i = lane; i < width && column + i < channels; i += lanes) {
    float gradient = 0.0f;
    float product = 0.0f;
    for (uint k = 0; k < down; ++k) {
      gradient += gradients[k * width + i];
      product += products[k * width + i];
    }
    parts[(column + i) * parts_of_channel + part] = float2(gradient, product);
  }
}

// V: float4 if threads have four adjacent channels each, else float.
template <typename T, typename V>
kernel void norm_sums_of_columns(
    device float2* parts [[buffer(0)]], constant T* grad_out [[buffer(1)]],
    constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
    constant float* rstds [[buffer(4)]], constant NormChannelsParameters& parameters [[buffer(5)]],
    constant NormParts& division [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  threadgroup V gradients[kSumThreads];
  threadgroup V products[kSumThreads];
  const uint width = division.across * Packs<V>::kWidth;
  const uint down = lanes / division.across;
  const uint column = group / division.parts * width;
  const uint part = group % division.parts;
  const uint row = lane / division.across;
  const uint channel = column + (lane - row * division.across) * Packs<V>::kWidth;
  const uint channels = static_cast<uint>(parameters.channels);
  const uint first = part * division.elements;
  const uint end = min(first + division.elements, static_cast<uint>(parameters.outer));
  Sums<V> mine = {V(0.0f), V(0.0f)};
  if (channel < channels) {
    mine = sum_of_column<V>(grad_out, input, means, rstds, parameters, channel, first + row, end,
                            down);
  }
  gradients[lane] = mine.gradient;
  products[lane] = mine.product;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  combine_columns(parts, reinterpret_cast<threadgroup float*>(gradients),
                  reinterpret_cast<threadgroup float*>(products), column, width, down, channels,
                  part, division.parts, lane, lanes);
}

// Combines the parts of a channel in a simdgroup. The gradients of the weight and the bias are
// written in their dtype P, and the means of the two sums for batch_norm's gradients.
template <typename P>
kernel void norm_combine(device float* mean_gradients [[buffer(0)]],
                         device float* mean_products [[buffer(1)]],
                         device P* grad_weight [[buffer(2)]], device P* grad_bias [[buffer(3)]],
                         constant float2* parts [[buffer(4)]],
                         constant NormChannelsParameters& parameters [[buffer(5)]],
                         constant NormParts& division [[buffer(6)]],
                         uint2 position [[thread_position_in_grid]],
                         uint2 grid [[threads_per_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const int64_t channel = thread_index(position, grid) / c10::metal::simdgroup_size;
  if (channel >= parameters.channels) {
    return;
  }
  float2 sum = float2(0.0f);
  for (uint i = lane; i < division.parts; i += c10::metal::simdgroup_size) {
    sum += parts[channel * division.parts + i];
  }
  const float gradient = simd_sum(sum.x);
  const float product = simd_sum(sum.y);
  if (lane == 0) {
    const float count = static_cast<float>(parameters.outer * parameters.inner);
    mean_gradients[channel] = gradient / count;
    mean_products[channel] = product / count;
    grad_weight[channel] = static_cast<P>(product);
    grad_bias[channel] = static_cast<P>(gradient);
  }
}

// ---- elements of channels: batch_norm -----------------------------------------------------------

// Returns the values of the channels from `channel` on, which are adjacent if inner is 1.
template <typename V, typename P>
inline V of_channel(constant P* values, int64_t channel,
                    constant NormChannelsParameters& parameters) {
  if (parameters.inner == 1) {
    return Packs<V>::load(values + channel);
  }
  return V(static_cast<float>(values[channel]));
}

// Returns the channel of a grid's rows, which are planes, or of its columns if inner is 1.
template <typename V>
inline int64_t channel_at(uint2 position, constant NormChannelsParameters& parameters) {
  return parameters.inner == 1 ? static_cast<int64_t>(position.x) * Packs<V>::kWidth
                               : position.y % parameters.channels;
}

template <typename V>
inline int64_t place_at(uint2 position, constant NormChannelsParameters& parameters) {
  const int64_t row = parameters.inner == 1 ? parameters.channels : parameters.inner;
  return position.y * row + position.x * Packs<V>::kWidth;
}

template <typename V, typename T, typename P>
inline void normalise_elements(device T* out, device float* rstds, constant T* input,
                               constant float* means, constant float* variances, constant P* weight,
                               constant P* bias, constant NormChannelsParameters& parameters,
                               uint2 position) {
  const int64_t channel = channel_at<V>(position, parameters);
  const int64_t place = place_at<V>(position, parameters);
  const V variance = of_channel<V>(variances, channel, parameters);
  const V rstd = precise::rsqrt(variance + parameters.eps);
  V y = (Packs<V>::load(input + place) - of_channel<V>(means, channel, parameters)) * rstd;
  if (parameters.has_weight != 0) {
    y *= of_channel<V>(weight, channel, parameters);
  }
  if (parameters.has_bias != 0) {
    y += of_channel<V>(bias, channel, parameters);
  }
  Packs<V>::store(out + place, y);
  if (parameters.inner == 1 && position.y == 0) {
    Packs<V>::store(rstds + channel, rstd);
  } else if (parameters.inner != 1 && position.x == 0 && position.y < parameters.channels) {
    Packs<float>::store(rstds + channel, precise::rsqrt(variances[channel] + parameters.eps));
  }
}

// Normalises by statistics of the channels, and writes rstds. A thread has one element or pack; the
// grid's rows are planes, or samples if inner is 1.
template <typename T, typename P>
kernel void norm_channels(device T* out [[buffer(0)]], device float* rstds [[buffer(1)]],
                          constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
                          constant float* variances [[buffer(4)]], constant P* weight [[buffer(5)]],
                          constant P* bias [[buffer(6)]],
                          constant NormChannelsParameters& parameters [[buffer(7)]],
                          uint2 position [[thread_position_in_grid]]) {
  if (parameters.packs != 0) {
    normalise_elements<float4>(out, rstds, input, means, variances, weight, bias, parameters,
                               position);
  } else {
    normalise_elements<float>(out, rstds, input, means, variances, weight, bias, parameters,
                              position);
  }
}

// The statistics of batch_norm depend on the input if it is centred by them: in training.
template <typename V, typename T, typename P>
inline void gradient_of_elements(device T* grad_input, constant T* grad_out, constant T* input,
                                 constant float* means, constant float* rstds, constant P* weight,
                                 constant float* mean_gradients, constant float* mean_products,
                                 constant NormChannelsParameters& parameters, uint2 position) {
  const int64_t channel = channel_at<V>(position, parameters);
  const int64_t place = place_at<V>(position, parameters);
  const V rstd = of_channel<V>(rstds, channel, parameters);
  V dx = Packs<V>::load(grad_out + place);
  if (parameters.is_centred != 0) {
    const V x = (Packs<V>::load(input + place) - of_channel<V>(means, channel, parameters)) * rstd;
    dx -= of_channel<V>(mean_gradients, channel, parameters);
    dx -= x * of_channel<V>(mean_products, channel, parameters);
  }
  dx *= rstd;
  if (parameters.has_weight != 0) {
    dx *= of_channel<V>(weight, channel, parameters);
  }
  Packs<V>::store(grad_input + place, dx);
}

template <typename T, typename P>
kernel void norm_channels_backward(
    device T* grad_input [[buffer(0)]], constant T* grad_out [[buffer(1)]],
    constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
    constant float* rstds [[buffer(4)]], constant P* weight [[buffer(5)]],
    constant float* mean_gradients [[buffer(6)]], constant float* mean_products [[buffer(7)]],
    constant NormChannelsParameters& parameters [[buffer(8)]],
    uint2 position [[thread_position_in_grid]]) {
  if (parameters.packs != 0) {
    gradient_of_elements<float4>(grad_input, grad_out, input, means, rstds, weight, mean_gradients,
                                 mean_products, parameters, position);
  } else {
    gradient_of_elements<float>(grad_input, grad_out, input, means, rstds, weight, mean_gradients,
                                mean_products, parameters, position);
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_NORM(T, P)                                                               \
  REGISTER_KERNEL("norm_short_rows_" #T "_" #P, norm_short_rows, T, P);                   \
  REGISTER_KERNEL("norm_rows_" #T "_" #P, norm_rows, T, P);                               \
  REGISTER_KERNEL("norm_short_rows_backward_" #T "_" #P, norm_short_rows_backward, T, P); \
  REGISTER_KERNEL("norm_rows_backward_" #T "_" #P, norm_rows_backward, T, P);             \
  REGISTER_KERNEL("norm_channels_" #T "_" #P, norm_channels, T, P);                       \
  REGISTER_KERNEL("norm_channels_backward_" #T "_" #P, norm_channels_backward, T, P)

REGISTER_NORM(float, float);
REGISTER_NORM(half, half);
REGISTER_NORM(half, float);
REGISTER_NORM(bfloat, bfloat);
REGISTER_NORM(bfloat, float);

#define REGISTER_NORM_SUMS(T)                                                         \
  REGISTER_KERNEL("norm_sums_of_planes_" #T, norm_sums_of_planes, T);                 \
  REGISTER_KERNEL("norm_sums_of_columns_" #T, norm_sums_of_columns, T, float);        \
  REGISTER_KERNEL("norm_sums_of_columns_packs_" #T, norm_sums_of_columns, T, float4); \
  REGISTER_KERNEL("norm_combine_" #T, norm_combine, T)

REGISTER_NORM_SUMS(float);
REGISTER_NORM_SUMS(half);
REGISTER_NORM_SUMS(bfloat);

// Normalisation and its gradients: layer_norm, group_norm, rms_norm and batch_norm.
//
// Rows that are normalised by statistics of their own are read by a simdgroup each, or by a
// threadgroup if they are long; adjacent lanes have adjacent elements, or packs of four, and keep
// them in registers, so that all but very long rows are read once. Gradients of rows need two sums
// of a row. Gradients of weights and biases, and those that batch_norm
// needs of its channels, are sums over a channel: parts of it are summed by a threadgroup each, and
// combined in a fixed order. The statistics of batch_norm are those of batch_norm_stats.metal.
// Whatever the dtype, sums and statistics are float.
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/common/packs.h>
#include <kernels/training/norm.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kSumThreads = 256;  // limit of a threadgroup that sums channels

// ---- rows ---------------------------------------------------------------------------------------

// The threads of a row. shared: threadgroup memory of one sum.
struct Simdgroup {
  static float sum(threadgroup float*, float part, uint, uint) { return simd_sum(part); }
};

// Every simdgroup adds the sums of all of them, so that they wait for each other once.
struct Threadgroup {
  static float sum(threadgroup float* shared, float part, uint lane, uint lanes) {
    const uint own = lane % c10::metal::simdgroup_size;
    const float of_simdgroup = simd_sum(part);
    if (own == 0) {
      shared[lane / c10::metal::simdgroup_size] = of_simdgroup;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(own < lanes / c10::metal::simdgroup_size ? shared[own] : 0.0f);
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

// weight, bias: of the row's first channel.
template <typename V, typename P>
inline V weighted(V x, constant P* weight, uint i, constant NormRowsParameters& parameters) {
  return parameters.has_weight != 0 ? x * parameters_at<V>(weight, i, parameters) : x;
}

template <typename V, typename T, typename P>
inline void store_normalised(device T* row, V normalised, constant P* weight, constant P* bias,
                             uint i, constant NormRowsParameters& parameters) {
  V y = weighted(normalised, weight, i, parameters);
  if (parameters.has_bias != 0) {
    y += parameters_at<V>(bias, i, parameters);
  }
  Packs<V>::store(row + i, y);
}

// The packs of a row that a thread has: from `first` on, `step` elements apart. It keeps KEPT of
// them in registers, as they are stored, and loads the rest whenever they are needed; a CPU, whose
// threads have memory in place of registers, keeps none.
template <typename V, uint KEPT>
struct Share {
  static constexpr constant uint kPlaces = KEPT == 0 ? 1 : KEPT;  // of arrays of packs
  uint first;
  uint step;
  uint length;

  Share(uint lane, uint lanes, uint of_row)
      : first(lane * Packs<V>::kWidth), step(lanes * Packs<V>::kWidth), length(of_row) {}
  uint at(uint i) const { return first + i * step; }
  bool has(uint i) const { return at(i) < length; }

  // A pack that does not exist is zero. Nothing waits for the loads.
  template <typename T>
  void load(thread typename Packs<V>::template Stored<T> (&packs)[kPlaces],
            constant T* row) const thread {
    typedef typename Packs<V>::template Stored<T> Stored;
    for (uint i = 0; i < KEPT; ++i) {
      packs[i] = Stored(T(0));
      if (has(i)) {
        packs[i] = *reinterpret_cast<constant Stored*>(row + at(i));
      }
    }
  }
};

// shared: threadgroup memory of two sums.
template <typename V, uint KEPT, typename Team, typename T, typename P>
inline void normalise_row(device T* out, device float* means, device float* rstds,
                          constant T* input, constant P* weight, constant P* bias,
                          constant NormRowsParameters& parameters, threadgroup float* shared,
                          int64_t row, uint lane, uint lanes) {
  const Share<V, KEPT> mine(lane, lanes, parameters.length);
  // Variables, not members, so that a CPU runs the loops over the rest across threads.
  const uint step = lanes * Packs<V>::kWidth;
  const uint rest = lane * Packs<V>::kWidth + KEPT * step;
  const float count = static_cast<float>(parameters.length);
  const int64_t channel = row % parameters.groups * parameters.channels;
  constant T* x = input + row * parameters.length;
  device T* y = out + row * parameters.length;
  typename Packs<V>::template Stored<T> kept[Share<V, KEPT>::kPlaces];
  mine.load(kept, x);
  V sum = V(0.0f);
  float mean = 0.0f;
  if (parameters.is_centred != 0) {
    for (uint i = 0; i < KEPT; ++i) {
      sum += Packs<V>::widened(kept[i]);
    }
    for (uint i = rest; i < parameters.length; i += step) {
      sum += Packs<V>::load(x + i);
    }
    mean = Team::sum(shared, Packs<V>::total(sum), lane, lanes) / count;
  }
  V squares = V(0.0f);
  for (uint i = 0; i < KEPT; ++i) {
    const V deviation = Packs<V>::widened(kept[i]) - mean;
    squares += mine.has(i) ? deviation * deviation : V(0.0f);
  }
  for (uint i = rest; i < parameters.length; i += step) {
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
  for (uint i = 0; i < KEPT; ++i) {
    if (mine.has(i)) {
      const V normalised = (Packs<V>::widened(kept[i]) - mean) * rstd;
      store_normalised(y, normalised, weight + channel, bias + channel, mine.at(i), parameters);
    }
  }
  for (uint i = rest; i < parameters.length; i += step) {
    store_normalised(y, (Packs<V>::load(x + i) - mean) * rstd, weight + channel, bias + channel, i,
                     parameters);
  }
}

// With g = grad_out * weight and the normalised x: (g - mean(g) - x * mean(g * x)) * rstd.
template <typename V, uint KEPT, typename Team, typename T, typename P>
inline void gradient_of_row(device T* grad_input, constant T* grad_out, constant T* input,
                            constant float* means, constant float* rstds, constant P* weight,
                            constant NormRowsParameters& parameters, threadgroup float* shared,
                            int64_t row, uint lane, uint lanes) {
  const Share<V, KEPT> mine(lane, lanes, parameters.length);
  // Variables, not members, so that a CPU runs the loops over the rest across threads.
  const uint step = lanes * Packs<V>::kWidth;
  const uint rest = lane * Packs<V>::kWidth + KEPT * step;
  const float count = static_cast<float>(parameters.length);
  constant P* of_row = weight + row % parameters.groups * parameters.channels;
  constant T* x = input + row * parameters.length;
  constant T* dy = grad_out + row * parameters.length;
  device T* dx = grad_input + row * parameters.length;
  const float mean = parameters.is_centred != 0 ? means[row] : 0.0f;
  const float rstd = rstds[row];
  typename Packs<V>::template Stored<T> kept[Share<V, KEPT>::kPlaces];
  typename Packs<V>::template Stored<T> kept_dy[Share<V, KEPT>::kPlaces];
  mine.load(kept, x);
  mine.load(kept_dy, dy);
  V gradients[Share<V, KEPT>::kPlaces];
  V sum = V(0.0f);
  V product = V(0.0f);
  for (uint i = 0; i < KEPT; ++i) {
    gradients[i] = V(0.0f);
    if (mine.has(i)) {
      gradients[i] = weighted(Packs<V>::widened(kept_dy[i]), of_row, mine.at(i), parameters);
      sum += gradients[i];
      product += gradients[i] * (Packs<V>::widened(kept[i]) - mean);
    }
  }
  for (uint i = rest; i < parameters.length; i += step) {
    const V g = weighted(Packs<V>::load(dy + i), of_row, i, parameters);
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
  for (uint i = 0; i < KEPT; ++i) {
    if (mine.has(i)) {
      const V deviation = Packs<V>::widened(kept[i]) - mean;
      Packs<V>::store(dx + mine.at(i), (gradients[i] - mean_g - deviation * slope) * rstd);
    }
  }
  for (uint i = rest; i < parameters.length; i += step) {
    const V g = weighted(Packs<V>::load(dy + i), of_row, i, parameters);
    Packs<V>::store(dx + i, (g - mean_g - (Packs<V>::load(x + i) - mean) * slope) * rstd);
  }
}

constant constexpr uint kKeptOfShort = 8;       // packs of a lane
constant constexpr uint kKept = 4;              // packs of a thread
constant constexpr uint kMostThreads = 1024;    // limit of a threadgroup of a row
constant constexpr uint kThreadsOfShort = 256;  // limit of a threadgroup of short rows

// A simdgroup per row. T: dtype of the input; P: dtype of the weight and the bias. KEPT: see Share.
// A CPU keeps elements in memory, so that it keeps as few as possible.
template <typename T, typename P, uint KEPT>
[[max_total_threads_per_threadgroup(kThreadsOfShort)]] kernel void norm_short_rows(
    device T* out [[buffer(0)]], device float* means [[buffer(1)]],
    device float* rstds [[buffer(2)]], constant T* input [[buffer(3)]],
    constant P* weight [[buffer(4)]], constant P* bias [[buffer(5)]],
    constant NormRowsParameters& parameters [[buffer(6)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int64_t row = thread_index(position, grid) / c10::metal::simdgroup_size;
  if (row >= parameters.rows) {
    return;
  }
  if (parameters.packs != 0) {
    normalise_row<float4, KEPT, Simdgroup>(out, means, rstds, input, weight, bias, parameters,
                                           nullptr, row, lane, c10::metal::simdgroup_size);
  } else {
    normalise_row<float, KEPT, Simdgroup>(out, means, rstds, input, weight, bias, parameters,
                                          nullptr, row, lane, c10::metal::simdgroup_size);
  }
}

// A threadgroup per row.
template <typename T, typename P, uint KEPT>
[[max_total_threads_per_threadgroup(kMostThreads)]] kernel void norm_rows(
    device T* out [[buffer(0)]], device float* means [[buffer(1)]],
    device float* rstds [[buffer(2)]], constant T* input [[buffer(3)]],
    constant P* weight [[buffer(4)]], constant P* bias [[buffer(5)]],
    constant NormRowsParameters& parameters [[buffer(6)]],
    uint row [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[2 * c10::metal::simdgroup_size];
  if (parameters.packs != 0) {
    normalise_row<float4, KEPT, Threadgroup>(out, means, rstds, input, weight, bias, parameters,
                                             shared, row, lane, lanes);
  } else {
    normalise_row<float, KEPT, Threadgroup>(out, means, rstds, input, weight, bias, parameters,
                                            shared, row, lane, lanes);
  }
}

template <typename T, typename P, uint KEPT>
[[max_total_threads_per_threadgroup(kThreadsOfShort)]] kernel void norm_short_rows_backward(
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
    gradient_of_row<float4, KEPT, Simdgroup>(grad_input, grad_out, input, means, rstds, weight,
                                             parameters, nullptr, row, lane,
                                             c10::metal::simdgroup_size);
  } else {
    gradient_of_row<float, KEPT, Simdgroup>(grad_input, grad_out, input, means, rstds, weight,
                                            parameters, nullptr, row, lane,
                                            c10::metal::simdgroup_size);
  }
}

template <typename T, typename P, uint KEPT>
[[max_total_threads_per_threadgroup(kMostThreads)]] kernel void norm_rows_backward(
    device T* grad_input [[buffer(0)]], constant T* grad_out [[buffer(1)]],
    constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
    constant float* rstds [[buffer(4)]], constant P* weight [[buffer(5)]],
    constant NormRowsParameters& parameters [[buffer(6)]],
    uint row [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[2 * c10::metal::simdgroup_size];
  if (parameters.packs != 0) {
    gradient_of_row<float4, KEPT, Threadgroup>(grad_input, grad_out, input, means, rstds, weight,
                                               parameters, shared, row, lane, lanes);
  } else {
    gradient_of_row<float, KEPT, Threadgroup>(grad_input, grad_out, input, means, rstds, weight,
                                              parameters, shared, row, lane, lanes);
  }
}

// ---- sums of channels ---------------------------------------------------------------------------

constant constexpr uint kAtOnce = 4;  // packs that a thread loads before it adds them

// The sums of gradients, and of gradients times normalised inputs.
template <typename V>
struct Sums {
  V gradient;
  V product;
};

// The packs that a thread adds at once. Those that do not exist are zero.
template <typename V>
struct Addends {
  V gradients[kAtOnce];
  V normalised[kAtOnce];

  template <typename T>
  void load(uint i, bool exists, constant T* grad_out, constant T* input, V mean, V rstd) thread {
    const V dy = Packs<V>::load(grad_out);
    const V x = (Packs<V>::load(input) - mean) * rstd;
    gradients[i] = exists ? dy : V(0.0f);
    normalised[i] = exists ? x : V(0.0f);
  }
  void add_to(thread Sums<V>& sums) const thread {
    for (uint i = 0; i < kAtOnce; ++i) {
      sums.gradient += gradients[i];
      sums.product += gradients[i] * normalised[i];
    }
  }
};

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
  const uint step = lanes * Packs<V>::kWidth;
  const int64_t stats = channel / parameters.channels_of_stats;
  Sums<V> sums = {V(0.0f), V(0.0f)};
  for (uint begin = first + lane * Packs<V>::kWidth; begin < end; begin += kAtOnce * step) {
    Addends<V> addends;
    for (uint i = 0; i < kAtOnce; ++i) {
      const bool exists = begin + i * step < end;
      const uint at = exists ? begin + i * step : begin;
      const uint outer = at / inner;
      const int64_t place = (outer * parameters.channels + channel) * parameters.inner + at -
                            static_cast<int64_t>(outer) * inner;
      const int64_t stat = outer * parameters.stats_of_outer + stats;
      addends.load(i, exists, grad_out + place, input + place, V(means[stat]), V(rstds[stat]));
    }
    addends.add_to(sums);
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

// Returns the statistics of adjacent channels: those of batch_norm are adjacent, too.
template <typename V>
inline V stats_at(constant float* values, int64_t place, bool are_of_channels) {
  return are_of_channels ? Packs<V>::load(values + place) : V(values[place]);
}

// Sums rows of a part of channels that are adjacent in memory: outer indices with stride `down`.
template <typename V, typename T>
inline Sums<V> sum_of_column(constant T* grad_out, constant T* input, constant float* means,
                             constant float* rstds, constant NormChannelsParameters& parameters,
                             uint channel, uint first, uint end, uint down) {
  const bool are_of_channels = parameters.channels_of_stats == 1;
  const uint stats = channel / static_cast<uint>(parameters.channels_of_stats);
  Sums<V> sums = {V(0.0f), V(0.0f)};
  for (uint begin = first; begin < end; begin += kAtOnce * down) {
    Addends<V> addends;
    for (uint i = 0; i < kAtOnce; ++i) {
      const bool exists = begin + i * down < end;
      const uint row = exists ? begin + i * down : begin;
      const int64_t place = row * parameters.channels + channel;
      const int64_t stat = row * parameters.stats_of_outer + stats;
      const V mean =
          parameters.is_centred != 0 ? stats_at<V>(means, stat, are_of_channels) : V(0.0f);
      addends.load(i, exists, grad_out + place, input + place, mean,
                   stats_at<V>(rstds, stat, are_of_channels));
    }
    addends.add_to(sums);
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

kernel void norm_rstds(device float* rstds [[buffer(0)]], constant float* variances [[buffer(1)]],
                       constant NormChannelsParameters& parameters [[buffer(2)]],
                       uint2 position [[thread_position_in_grid]],
                       uint2 grid [[threads_per_grid]]) {
  const int64_t channel = thread_index(position, grid);
  if (channel < parameters.channels) {
    rstds[channel] = precise::rsqrt(variances[channel] + parameters.eps);
  }
}

// The packs of a thread in a grid of elements. Lines are planes, or samples if inner is 1; the
// grid's rows are COUNT lines each, of the same channels.
template <typename V, uint COUNT>
struct Elements {
  int64_t channel;
  int64_t first;
  int64_t step;
  uint count;

  Elements(uint2 position, constant NormChannelsParameters& parameters) {
    const uint channels = static_cast<uint>(parameters.channels);
    const uint outer = static_cast<uint>(parameters.outer);
    const bool are_adjacent = parameters.inner == 1;
    const uint of_row = are_adjacent ? 1 : channels;  // lines that follow each other in the grid
    const uint sample = position.y / of_row * COUNT;
    const uint column = position.x * Packs<V>::kWidth;
    channel = are_adjacent ? column : position.y % of_row;
    step = parameters.channels * parameters.inner;
    first = sample * step + (are_adjacent ? column : channel * parameters.inner + column);
    count = min(COUNT, outer - sample);
  }
  int64_t at(uint i) const { return first + (i < count ? i : 0u) * step; }
  // Returns the values of the channels, which are adjacent if inner is 1.
  template <typename P>
  V of_channel(constant P* values, constant NormChannelsParameters& parameters) const {
    if (parameters.inner == 1) {
      return Packs<V>::load(values + channel);
    }
    return V(static_cast<float>(values[channel]));
  }
};

template <typename V, uint COUNT, typename T, typename P>
inline void normalise_elements(device T* out, constant T* input, constant float* means,
                               constant float* rstds, constant P* weight, constant P* bias,
                               constant NormChannelsParameters& parameters, uint2 position) {
  const Elements<V, COUNT> mine(position, parameters);
  V x[COUNT];
  for (uint i = 0; i < COUNT; ++i) {
    x[i] = Packs<V>::load(input + mine.at(i));
  }
  const V mean = mine.of_channel(means, parameters);
  const V rstd = mine.of_channel(rstds, parameters);
  const V factor = parameters.has_weight != 0 ? mine.of_channel(weight, parameters) : V(1.0f);
  const V offset = parameters.has_bias != 0 ? mine.of_channel(bias, parameters) : V(0.0f);
  for (uint i = 0; i < COUNT; ++i) {
    if (i < mine.count) {
      Packs<V>::store(out + mine.at(i), (x[i] - mean) * rstd * factor + offset);
    }
  }
}

// Normalises by statistics of the channels. A thread has COUNT elements or packs.
template <typename T, typename P, uint COUNT>
kernel void norm_channels(device T* out [[buffer(0)]], constant T* input [[buffer(1)]],
                          constant float* means [[buffer(2)]], constant float* rstds [[buffer(3)]],
                          constant P* weight [[buffer(4)]], constant P* bias [[buffer(5)]],
                          constant NormChannelsParameters& parameters [[buffer(6)]],
                          uint2 position [[thread_position_in_grid]]) {
  if (parameters.packs != 0) {
    normalise_elements<float4, COUNT>(out, input, means, rstds, weight, bias, parameters, position);
  } else {
    normalise_elements<float, COUNT>(out, input, means, rstds, weight, bias, parameters, position);
  }
}

// The statistics of batch_norm depend on the input if it is centred by them: in training.
template <typename V, uint COUNT, typename T, typename P>
inline void gradient_of_elements(device T* grad_input, constant T* grad_out, constant T* input,
                                 constant float* means, constant float* rstds, constant P* weight,
                                 constant float* mean_gradients, constant float* mean_products,
                                 constant NormChannelsParameters& parameters, uint2 position) {
  const Elements<V, COUNT> mine(position, parameters);
  V dy[COUNT];
  V x[COUNT];
  for (uint i = 0; i < COUNT; ++i) {
    dy[i] = Packs<V>::load(grad_out + mine.at(i));
    x[i] = parameters.is_centred != 0 ? Packs<V>::load(input + mine.at(i)) : V(0.0f);
  }
  const V rstd = mine.of_channel(rstds, parameters);
  V mean = V(0.0f);
  V gradient = V(0.0f);
  V product = V(0.0f);
  if (parameters.is_centred != 0) {
    mean = mine.of_channel(means, parameters);
    gradient = mine.of_channel(mean_gradients, parameters);
    product = mine.of_channel(mean_products, parameters);
  }
  const V factor = parameters.has_weight != 0 ? mine.of_channel(weight, parameters) : V(1.0f);
  for (uint i = 0; i < COUNT; ++i) {
    if (i < mine.count) {
      V dx = dy[i];
      if (parameters.is_centred != 0) {
        dx -= gradient;
        dx -= (x[i] - mean) * rstd * product;
      }
      Packs<V>::store(grad_input + mine.at(i), dx * rstd * factor);
    }
  }
}

template <typename T, typename P, uint COUNT>
kernel void norm_channels_backward(
    device T* grad_input [[buffer(0)]], constant T* grad_out [[buffer(1)]],
    constant T* input [[buffer(2)]], constant float* means [[buffer(3)]],
    constant float* rstds [[buffer(4)]], constant P* weight [[buffer(5)]],
    constant float* mean_gradients [[buffer(6)]], constant float* mean_products [[buffer(7)]],
    constant NormChannelsParameters& parameters [[buffer(8)]],
    uint2 position [[thread_position_in_grid]]) {
  if (parameters.packs != 0) {
    gradient_of_elements<float4, COUNT>(grad_input, grad_out, input, means, rstds, weight,
                                        mean_gradients, mean_products, parameters, position);
  } else {
    gradient_of_elements<float, COUNT>(grad_input, grad_out, input, means, rstds, weight,
                                       mean_gradients, mean_products, parameters, position);
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_NORM(T, P)                                                                   \
  REGISTER_KERNEL("norm_short_rows_" #T "_" #P, norm_short_rows, T, P, 0);                    \
  REGISTER_KERNEL("norm_rows_" #T "_" #P, norm_rows, T, P, 0);                                \
  REGISTER_KERNEL("norm_short_rows_backward_" #T "_" #P, norm_short_rows_backward, T, P, 0);  \
  REGISTER_KERNEL("norm_rows_backward_" #T "_" #P, norm_rows_backward, T, P, 0);              \
  REGISTER_KERNEL("norm_kept_short_rows_" #T "_" #P, norm_short_rows, T, P, kKeptOfShort);    \
  REGISTER_KERNEL("norm_kept_rows_" #T "_" #P, norm_rows, T, P, kKept);                       \
  REGISTER_KERNEL("norm_kept_short_rows_backward_" #T "_" #P, norm_short_rows_backward, T, P, \
                  kKeptOfShort);                                                              \
  REGISTER_KERNEL("norm_kept_rows_backward_" #T "_" #P, norm_rows_backward, T, P, kKept);     \
  REGISTER_KERNEL("norm_channels_" #T "_" #P, norm_channels, T, P, 1);                        \
  REGISTER_KERNEL("norm_channels_backward_" #T "_" #P, norm_channels_backward, T, P, 1);      \
  REGISTER_KERNEL("norm_several_channels_" #T "_" #P, norm_channels, T, P, kNormLines);       \
  REGISTER_KERNEL("norm_several_channels_backward_" #T "_" #P, norm_channels_backward, T, P,  \
                  kNormLines)

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

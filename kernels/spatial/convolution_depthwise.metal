// Depthwise convolutions, whose groups have one channel of the input, and the gradients of their
// weights. A thread computes adjacent elements of a row, of one channel or, if channels are
// adjacent in memory, of a pack of them. Sums are in float, and each result is rounded once.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/spatial/convolution_depthwise.h>
#include <kernels/spatial/convolution_depthwise_square.h>
using namespace metal;
using metalops::DepthwiseParameters;

constant constexpr int kPixels = metalops::kDepthwisePixels;
constant constexpr int kTaps = metalops::kDepthwiseTaps;
constant constexpr int kThreads = metalops::kDepthwiseThreads;

template <typename T, int CHANNELS>
struct alignas(sizeof(T) * CHANNELS) Channels {
  T of[CHANNELS];
};

// The elements that a thread computes: those of a row from x on.
struct Row {
  int image, channel, z, y, x;
};

// Returns the row of a thread. Adjacent threads have adjacent channels (ARE_LAST) or elements.
template <bool ARE_LAST, int CHANNELS>
inline Row row_of(uint index, constant DepthwiseParameters& p) {
  const uint channels = static_cast<uint>(p.channels / CHANNELS);
  const uint across = static_cast<uint>(p.across);
  const uint height = static_cast<uint>(p.count[1]), depth = static_cast<uint>(p.count[0]);
  uint rest = index;
  uint channel = 0;
  if (ARE_LAST) {
    channel = rest % channels;
    rest /= channels;
  }
  const uint x = rest % across;
  rest /= across;
  const uint y = rest % height;
  rest /= height;
  const uint z = rest % depth;
  rest /= depth;
  if (!ARE_LAST) {
    channel = rest % channels;
    rest /= channels;
  }
  return {static_cast<int>(rest), static_cast<int>(channel) * CHANNELS, static_cast<int>(z),
          static_cast<int>(y), static_cast<int>(x) * kPixels};
}

inline bool is_inside(int position, int limit) {
  return static_cast<uint>(position) < static_cast<uint>(limit);
}

// The adjacent elements of the input that a filter of WIDTH adjacent ones needs for the elements of
// a thread.
template <typename T, int CHANNELS, int WIDTH>
struct Window {
  float of[kPixels + WIDTH - 1][CHANNELS];

  inline void load(device const T* input, int first, constant DepthwiseParameters& p) {
#pragma unroll
    for (int i = 0; i < kPixels + WIDTH - 1; ++i) {
      Channels<T, CHANNELS> value{};
      if (is_inside(first + i, p.limits[2])) {
        value = *reinterpret_cast<device const Channels<T, CHANNELS>*>(
            input + (first + i) * p.input_strides[3]);
      }
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        of[i][c] = static_cast<float>(value.of[c]);
      }
    }
  }
};

// Adds the products of a row of a filter of WIDTH elements, each of which moves by one element.
template <typename T, int CHANNELS, int WIDTH>
inline void add_adjacent(thread float (&sums)[kPixels][CHANNELS], device const T* input,
                         device const T* weight, int first, constant DepthwiseParameters& p) {
  const bool is_forward = p.move[2] > 0;
  Window<T, CHANNELS, WIDTH> window;
  window.load(input, is_forward ? first : first - (WIDTH - 1), p);
#pragma unroll
  for (int q = 0; q < WIDTH; ++q) {
    const int tap = is_forward ? q : WIDTH - 1 - q;
    const Channels<T, CHANNELS> by =
        *reinterpret_cast<device const Channels<T, CHANNELS>*>(weight + tap * p.weight_strides[3]);
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        sums[i][c] += static_cast<float>(by.of[c]) * window.of[i + q][c];
      }
    }
  }
}

// Adds the products of a row of the filter.
template <typename T, int CHANNELS>
inline void add_row(thread float (&sums)[kPixels][CHANNELS], device const T* input,
                    device const T* weight, int first, constant DepthwiseParameters& p) {
  typedef Channels<T, CHANNELS> Some;
  for (int q = 0; q < p.filters[2]; ++q) {
    const Some by = *reinterpret_cast<device const Some*>(weight + q * p.weight_strides[3]);
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int x = first + i * p.step[2] + q * p.move[2];
      if (is_inside(x, p.limits[2])) {
        const Some value = *reinterpret_cast<device const Some*>(input + x * p.input_strides[3]);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          sums[i][c] += static_cast<float>(by.of[c]) * static_cast<float>(value.of[c]);
        }
      }
    }
  }
}

// WIDTH: that of a filter whose elements, and those of the result, are adjacent in the input; else
// 0.
template <typename T, bool ARE_LAST, int CHANNELS, int WIDTH>
kernel void convolution_depthwise(device T* result [[buffer(0)]],
                                  device const T* input [[buffer(1)]],
                                  device const T* weight [[buffer(2)]],
                                  device const T* bias [[buffer(3)]],
                                  constant DepthwiseParameters& p [[buffer(4)]],
                                  uint index [[thread_position_in_grid]]) {
  const Row at = row_of<ARE_LAST, CHANNELS>(index, p);
  if (at.image >= p.images) {
    return;
  }
  const int group = at.channel / p.multiple;
  device const T* const from = input + at.image * p.input_image + group * p.input_strides[0];
  device const T* const by = weight + p.weight_begin + at.channel * p.weight_strides[0];
  float sums[kPixels][CHANNELS];
  for (int i = 0; i < kPixels; ++i) {
    for (int c = 0; c < CHANNELS; ++c) {
      sums[i][c] = p.has_bias ? static_cast<float>(bias[at.channel + c]) : 0.0f;
    }
  }
  for (int d = 0; d < p.filters[0]; ++d) {
    const int z = p.first[0] + at.z * p.step[0] + d * p.move[0];
    for (int r = 0; r < p.filters[1]; ++r) {
      const int y = p.first[1] + at.y * p.step[1] + r * p.move[1];
      if (is_inside(z, p.limits[0]) && is_inside(y, p.limits[1])) {
        device const T* const row = from + z * p.input_strides[1] + y * p.input_strides[2];
        device const T* const taps = by + d * p.weight_strides[1] + r * p.weight_strides[2];
        const int first = p.first[2] + at.x * p.step[2];
        if (WIDTH > 0) {
          add_adjacent<T, CHANNELS, (WIDTH > 0 ? WIDTH : 1)>(sums, row, taps, first, p);
        } else {
          add_row<T, CHANNELS>(sums, row, taps, first, p);
        }
      }
    }
  }
  device T* const to = result + p.result_begin + at.image * p.result_image +
                       at.channel * p.result_strides[0] + at.z * p.result_strides[1] +
                       at.y * p.result_strides[2] + at.x * p.result_strides[3];
  for (int i = 0; i < kPixels; ++i) {
    if (at.x + i < p.count[2]) {
      Channels<T, CHANNELS> values;
      for (int c = 0; c < CHANNELS; ++c) {
        values.of[c] = static_cast<T>(sums[i][c]);
      }
      *reinterpret_cast<device Channels<T, CHANNELS>*>(to + i * p.result_strides[3]) = values;
    }
  }
}

// Adds the products of a thread's row of outputs with the input to the sums of some taps. WIDTH:
// that of a filter, as above, of which there are whole rows.
template <typename T, int WIDTH>
inline void add_rows_of_taps(thread float (&sums)[kTaps], device const T* input,
                             device const T* outputs, Row at, int tap,
                             constant DepthwiseParameters& p) {
  float values[kPixels];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    values[i] = at.x + i < p.count[2] ? static_cast<float>(outputs[i * p.result_strides[3]]) : 0.0f;
  }
  int r = tap / WIDTH % p.filters[1], d = tap / WIDTH / p.filters[1];
#pragma unroll
  for (int k = 0; k < kTaps / WIDTH; ++k) {
    const int z = p.first[0] + at.z * p.step[0] + d * p.move[0];
    const int y = p.first[1] + at.y * p.step[1] + r * p.move[1];
    if (d < p.filters[0] && is_inside(z, p.limits[0]) && is_inside(y, p.limits[1])) {
      Window<T, 1, WIDTH> window;
      window.load(input + z * p.input_strides[1] + y * p.input_strides[2], p.first[2] + at.x, p);
#pragma unroll
      for (int q = 0; q < WIDTH; ++q) {
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
          sums[k * WIDTH + q] += values[i] * window.of[i + q][0];
        }
      }
    }
    r += 1;
    if (r == p.filters[1]) {
      r = 0;
      d += 1;
    }
  }
}

template <typename T>
inline void add_taps(thread float (&sums)[kTaps], device const T* input, device const T* outputs,
                     Row at, int tap, constant DepthwiseParameters& p) {
  float values[kPixels];
  for (int i = 0; i < kPixels; ++i) {
    values[i] = at.x + i < p.count[2] ? static_cast<float>(outputs[i * p.result_strides[3]]) : 0.0f;
  }
  int q = tap % p.filters[2], r = tap / p.filters[2] % p.filters[1];
  int d = tap / p.filters[2] / p.filters[1];
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const int z = p.first[0] + at.z * p.step[0] + d * p.move[0];
    const int y = p.first[1] + at.y * p.step[1] + r * p.move[1];
    if (d < p.filters[0] && is_inside(z, p.limits[0]) && is_inside(y, p.limits[1])) {
      device const T* const row = input + z * p.input_strides[1] + y * p.input_strides[2];
      const int first = p.first[2] + at.x * p.step[2] + q * p.move[2];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const int x = first + i * p.step[2];
        if (is_inside(x, p.limits[2])) {
          sums[k] += values[i] * static_cast<float>(row[x * p.input_strides[3]]);
        }
      }
    }
    q += 1;
    if (q == p.filters[2]) {
      q = 0;
      r += 1;
    }
    if (r == p.filters[1]) {
      r = 0;
      d += 1;
    }
  }
}

// The gradient of the weight: sums[split][channel][tap] for some taps of one channel, or of 32
// adjacent ones (ARE_LAST), in each threadgroup.
template <typename T, bool ARE_LAST, int WIDTH>
kernel void convolution_depthwise_weight(device float* sums [[buffer(0)]],
                                         device const T* input [[buffer(1)]],
                                         device const T* outputs [[buffer(2)]],
                                         constant DepthwiseParameters& p [[buffer(3)]],
                                         uint threadgroup_index [[threadgroup_position_in_grid]],
                                         uint thread_index [[thread_index_in_threadgroup]],
                                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                                         uint lane [[thread_index_in_simdgroup]]) {
  constexpr int simdgroups = kThreads / 32;
  constexpr int together = ARE_LAST ? 32 : 1;
  threadgroup float parts[simdgroups][32];
  const int taps = p.filters[0] * p.filters[1] * p.filters[2];
  const int chunks = (taps + kTaps - 1) / kTaps;
  const int channels = (p.channels + together - 1) / together;
  const int tap = static_cast<int>(threadgroup_index) % chunks * kTaps;
  const int rest = static_cast<int>(threadgroup_index) / chunks;
  const int split = rest / channels;
  const int channel = rest % channels * together + (ARE_LAST ? static_cast<int>(lane) : 0);
  // Rows of all images are divided among the splits.
  const int rows = p.images * p.count[0] * p.count[1] * p.across;
  const int of_split = (rows + p.splits - 1) / p.splits;
  const int end = min(rows, (split + 1) * of_split);
  const int stride = ARE_LAST ? simdgroups : kThreads;
  float mine[kTaps] = {};
  const bool exists = channel < p.channels;
  for (int i = split * of_split + static_cast<int>(ARE_LAST ? simdgroup : thread_index);
       i < end && exists; i += stride) {
    const int x = i % p.across, in_width = i / p.across;
    const int y = in_width % p.count[1], in_height = in_width / p.count[1];
    const int z = in_height % p.count[0], image = in_height / p.count[0];
    const Row at{image, channel, z, y, x * kPixels};
    device const T* const from =
        input + image * p.input_image + channel / p.multiple * p.input_strides[0];
    device const T* const row = outputs + image * p.result_image + channel * p.result_strides[0] +
                                z * p.result_strides[1] + y * p.result_strides[2] +
                                at.x * p.result_strides[3];
    if (WIDTH > 0) {
      add_rows_of_taps<T, (WIDTH > 0 ? WIDTH : 1)>(mine, from, row, at, tap, p);
    } else {
      add_taps(mine, from, row, at, tap, p);
    }
  }
  for (int k = 0; k < kTaps; ++k) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float part = ARE_LAST ? mine[k] : simd_sum(mine[k]);
    parts[simdgroup][lane] = part;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < static_cast<uint>(together) && exists && tap + k < taps) {
      float sum = 0.0f;
      for (int s = 0; s < simdgroups; ++s) {
        sum += parts[s][lane];
      }
      sums[(split * static_cast<int64_t>(p.channels) + channel) * taps + tap + k] = sum;
    }
  }
}

// Adds the sums of the splits: each simdgroup has every eighth of 32 elements' splits, and their
// sums are added in order.
template <typename T>
kernel void convolution_depthwise_combine(device T* result [[buffer(0)]],
                                          device const float* sums [[buffer(1)]],
                                          constant DepthwiseParameters& p [[buffer(2)]],
                                          uint threadgroup_index [[threadgroup_position_in_grid]],
                                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                                          uint lane [[thread_index_in_simdgroup]]) {
  constexpr int simdgroups = kThreads / 32;
  threadgroup float parts[simdgroups][32];
  const int taps = p.filters[0] * p.filters[1] * p.filters[2];
  const int index = static_cast<int>(threadgroup_index * 32 + lane);
  const bool exists = index < p.channels * taps;
  float sum = 0.0f;
#pragma unroll 4
  for (int split = static_cast<int>(simdgroup); split < p.splits; split += simdgroups) {
    sum += exists ? sums[split * static_cast<int64_t>(p.channels) * taps + index] : 0.0f;
  }
  parts[simdgroup][lane] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup > 0 || !exists) {
    return;
  }
  for (int other = 1; other < simdgroups; ++other) {
    sum += parts[other][lane];
  }
  const int channel = index / taps, tap = index % taps;
  const int q = tap % p.filters[2], r = tap / p.filters[2] % p.filters[1];
  const int d = tap / p.filters[2] / p.filters[1];
  result[channel * p.weight_strides[0] + d * p.weight_strides[1] + r * p.weight_strides[2] +
         q * p.weight_strides[3]] = static_cast<T>(sum);
}

#define REGISTER_DEPTHWISE(T)                                                                     \
  REGISTER_KERNEL("convolution_depthwise_" #T, convolution_depthwise, T, false, 1, 0);            \
  REGISTER_KERNEL("convolution_depthwise_3_" #T, convolution_depthwise, T, false, 1, 3);          \
  REGISTER_KERNEL("convolution_depthwise_last_" #T, convolution_depthwise, T, true, 1, 0);        \
  REGISTER_KERNEL("convolution_depthwise_packs_" #T, convolution_depthwise, T, true, 4, 0);       \
  REGISTER_KERNEL("convolution_depthwise_packs_3_" #T, convolution_depthwise, T, true, 4, 3);     \
  REGISTER_KERNEL("convolution_depthwise_weight_" #T, convolution_depthwise_weight, T, false, 0); \
  REGISTER_KERNEL("convolution_depthwise_weight_3_" #T, convolution_depthwise_weight, T, false,   \
                  3);                                                                             \
  REGISTER_KERNEL("convolution_depthwise_weight_last_" #T, convolution_depthwise_weight, T, true, \
                  0);                                                                             \
  REGISTER_KERNEL("convolution_depthwise_weight_last_3_" #T, convolution_depthwise_weight, T,     \
                  true, 3);                                                                       \
  REGISTER_KERNEL("convolution_depthwise_combine_" #T, convolution_depthwise_combine, T)

#define REGISTER_SQUARE(T, KIND, ARE_LAST, CHANNELS, PIXELS)                                       \
  REGISTER_KERNEL("convolution_depthwise_square_" #KIND "_" #T,                                    \
                  metalops::depthwise::convolution_depthwise_square, T, ARE_LAST, CHANNELS,        \
                  PIXELS);                                                                         \
  REGISTER_KERNEL("convolution_depthwise_square_weight_" #KIND "_" #T,                             \
                  metalops::depthwise::convolution_depthwise_square_weight, T, ARE_LAST, CHANNELS, \
                  PIXELS)
#define REGISTER_SQUARES(T)               \
  REGISTER_SQUARE(T, rows4, false, 1, 4); \
  REGISTER_SQUARE(T, rows8, false, 1, 8); \
  REGISTER_SQUARE(T, packs, true, 4, 2)

REGISTER_SQUARES(float);
REGISTER_SQUARES(half);
REGISTER_SQUARES(bfloat);
REGISTER_DEPTHWISE(float);
REGISTER_DEPTHWISE(half);
REGISTER_DEPTHWISE(bfloat);

// Depthwise convolutions of filters of 3 x 3 elements that move by one, and the gradients of their
// weights. A thread has several rows of adjacent elements, so that elements of the input serve all
// results that need them; each is loaded and converted once. They are those of a pack of channels,
// or of one channel in packs.
#pragma once

#include <metal_stdlib>

#include <kernels/spatial/convolution_depthwise.h>

namespace metalops {
namespace depthwise {

constant constexpr int kSide = 3;
constant constexpr int kRows = kDepthwiseRows;

template <typename T, int COUNT>
struct alignas(sizeof(T) * COUNT) Pack {
  T of[COUNT];
};

// The elements that a thread computes: those of kRows rows from (z, y, x) on. index: among them
// all.
struct Block {
  int image, channel, z, y, x;
};
template <bool ARE_LAST, int CHANNELS, int PIXELS>
inline Block block_of(uint index, constant DepthwiseParameters& p) {
  const uint channels = static_cast<uint>(p.channels / CHANNELS);
  const uint across = static_cast<uint>(p.across), down = static_cast<uint>(p.down);
  const uint depth = static_cast<uint>(p.count[0]);
  uint rest = index, channel = 0;
  if (ARE_LAST) {
    rest = index / channels;
    channel = index - rest * channels;
  }
  const uint line = rest / across, x = rest - line * across;
  const uint plane = line / down, y = line - plane * down;
  const uint volume = depth == 1 ? plane : plane / depth, z = plane - volume * depth;
  uint image = volume;
  if (!ARE_LAST) {
    image = volume / channels;
    channel = volume - image * channels;
  }
  return {static_cast<int>(image), static_cast<int>(channel) * CHANNELS, static_cast<int>(z),
          static_cast<int>(y) * kRows, static_cast<int>(x) * PIXELS};
}

inline bool is_within(int position, int limit) {
  return static_cast<uint>(position) < static_cast<uint>(limit);
}

// Returns the position itself if it exists, or another one.
inline int existing(int position, int limit) { return ::metal::clamp(position, 0, limit - 1); }

// PIXELS adjacent elements of a row, and one before and behind them, of each channel. Elements that
// do not exist are zero: others are loaded instead of them, since loads behind conditions would
// wait for each other.
template <int CHANNELS, int PIXELS>
struct Window {
  float of[PIXELS + kSide - 1][CHANNELS];

  // Loads from (y, x) on. One channel's row begins before the image and has whole packs.
  template <typename T>
  inline void load(device const T* image, int y, int x, constant DepthwiseParameters& p) {
    device const T* const row = image + existing(y, p.limits[1]) * p.input_strides[2];
    const bool exists = is_within(y, p.limits[1]);
    if (CHANNELS == 1) {
      const Pack<T, PIXELS> values = *reinterpret_cast<device const Pack<T, PIXELS>*>(row + x + 1);
      const T before = row[existing(x, p.limits[2])];
      const T behind = row[existing(x + 1 + PIXELS, p.limits[2])];
      of[0][0] = exists && x >= 0 ? static_cast<float>(before) : 0.0f;
#pragma unroll
      for (int i = 0; i < PIXELS; ++i) {
        of[1 + i][0] = exists ? static_cast<float>(values.of[i]) : 0.0f;
      }
      of[1 + PIXELS][0] =
          exists && x + 1 + PIXELS < p.limits[2] ? static_cast<float>(behind) : 0.0f;
      return;
    }
    Pack<T, CHANNELS> values[PIXELS + kSide - 1];
#pragma unroll
    for (int i = 0; i < PIXELS + kSide - 1; ++i) {
      values[i] = *reinterpret_cast<device const Pack<T, CHANNELS>*>(
          row + existing(x + i, p.limits[2]) * p.input_strides[3]);
    }
#pragma unroll
    for (int i = 0; i < PIXELS + kSide - 1; ++i) {
      const bool is_inside = exists && is_within(x + i, p.limits[2]);
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        of[i][c] = is_inside ? static_cast<float>(values[i].of[c]) : 0.0f;
      }
    }
  }
};

// Loads the taps of a filter, in the order of the elements of the input that they belong to.
template <typename T, int CHANNELS>
inline void load_taps(thread float (&taps)[kSide * kSide][CHANNELS], device const T* weight,
                      constant DepthwiseParameters& p) {
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
#pragma unroll
    for (int q = 0; q < kSide; ++q) {
      const int row = p.move[1] > 0 ? r : kSide - 1 - r;
      const int column = p.move[2] > 0 ? q : kSide - 1 - q;
      const Pack<T, CHANNELS> values = *reinterpret_cast<device const Pack<T, CHANNELS>*>(
          weight + row * p.weight_strides[2] + column * p.weight_strides[3]);
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        taps[r * kSide + q][c] = static_cast<float>(values.of[c]);
      }
    }
  }
}

// Returns the least position along a dimension that element 0 of the result needs.
inline int lowest(int d, constant DepthwiseParameters& p) {
  return p.first[d] + (p.move[d] > 0 ? 0 : (kSide - 1) * p.move[d]);
}

template <typename T, int CHANNELS, int PIXELS>
inline void store_rows(device T* result, thread float (&sums)[kRows][PIXELS][CHANNELS], Block at,
                       constant DepthwiseParameters& p) {
  device T* const to = result + p.result_begin + at.image * p.result_image +
                       at.channel * p.result_strides[0] + at.z * p.result_strides[1] +
                       at.x * p.result_strides[3];
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    if (at.y + j >= p.count[1]) {
      continue;
    }
    device T* const row = to + (at.y + j) * p.result_strides[2];
    if (CHANNELS == 1) {
      Pack<T, PIXELS> values;
#pragma unroll
      for (int i = 0; i < PIXELS; ++i) {
        values.of[i] = static_cast<T>(sums[j][i][0]);
      }
      *reinterpret_cast<device Pack<T, PIXELS>*>(row) = values;
    } else {
#pragma unroll
      for (int i = 0; i < PIXELS; ++i) {
        Pack<T, CHANNELS> values;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          values.of[c] = static_cast<T>(sums[j][i][c]);
        }
        if (at.x + i < p.count[2]) {
          *reinterpret_cast<device Pack<T, CHANNELS>*>(row + i * p.result_strides[3]) = values;
        }
      }
    }
  }
}

template <typename T, bool ARE_LAST, int CHANNELS, int PIXELS>
[[max_total_threads_per_threadgroup(metalops::kDepthwiseMostThreads)]]
kernel void convolution_depthwise_square(device T* result [[buffer(0)]],
                                         device const T* input [[buffer(1)]],
                                         device const T* weight [[buffer(2)]],
                                         device const T* bias [[buffer(3)]],
                                         constant DepthwiseParameters& p [[buffer(4)]],
                                         uint index [[thread_position_in_grid]]) {
  const Block at = block_of<ARE_LAST, CHANNELS, PIXELS>(index, p);
  if (at.image >= p.images) {
    return;
  }
  const int group = p.multiple == 1 ? at.channel : at.channel / p.multiple;
  device const T* const from = input + at.image * p.input_image + group * p.input_strides[0];
  float sums[kRows][PIXELS][CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    const float first = p.has_bias ? static_cast<float>(bias[at.channel + c]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRows * PIXELS; ++i) {
      sums[i / PIXELS][i % PIXELS][c] = first;
    }
  }
  const int y = lowest(1, p) + at.y, x = lowest(2, p) + at.x;
  for (int d = 0; d < p.filters[0]; ++d) {
    const int z = p.first[0] + at.z * p.step[0] + d * p.move[0];
    if (!is_within(z, p.limits[0])) {
      continue;
    }
    float taps[kSide * kSide][CHANNELS];
    load_taps<T, CHANNELS>(
        taps, weight + p.weight_begin + at.channel * p.weight_strides[0] + d * p.weight_strides[1],
        p);
#pragma unroll
    for (int u = 0; u < kRows + kSide - 1; ++u) {
      Window<CHANNELS, PIXELS> window;
      window.load(from + z * p.input_strides[1], y + u, x, p);
#pragma unroll
      for (int j = u < kSide ? 0 : u - kSide + 1; j < kRows && j <= u; ++j) {
#pragma unroll
        for (int q = 0; q < kSide * PIXELS; ++q) {
#pragma unroll
          for (int c = 0; c < CHANNELS; ++c) {
            sums[j][q % PIXELS][c] +=
                taps[(u - j) * kSide + q / PIXELS][c] * window.of[q % PIXELS + q / PIXELS][c];
          }
        }
      }
    }
  }
  store_rows<T, CHANNELS, PIXELS>(result, sums, at, p);
}

// Adds what a block of outputs adds to the gradients of the taps.
template <typename T, int CHANNELS, int PIXELS>
inline void add_block(thread float (&mine)[kSide * kSide][CHANNELS], device const T* input,
                      device const T* outputs, Block at, constant DepthwiseParameters& p) {
  const int y = p.first[1] + at.y, x = p.first[2] + at.x;
  Window<CHANNELS, PIXELS> rows[kSide];
#pragma unroll
  for (int u = 0; u < kSide - 1; ++u) {
    rows[u].load(input, y + u, x, p);
  }
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    rows[(j + kSide - 1) % kSide].load(input, y + j + kSide - 1, x, p);
    const int in_count = existing(at.y + j, p.count[1]) - at.y;
    const bool exists = in_count == j;
    device const T* const row = outputs + in_count * p.result_strides[2];
    float values[PIXELS][CHANNELS];
    if (CHANNELS == 1) {
      const Pack<T, PIXELS> loaded = *reinterpret_cast<device const Pack<T, PIXELS>*>(row);
#pragma unroll
      for (int i = 0; i < PIXELS; ++i) {
        values[i][0] = exists ? static_cast<float>(loaded.of[i]) : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 0; i < PIXELS; ++i) {
        const int x_in_count = existing(at.x + i, p.count[2]) - at.x;
        const Pack<T, CHANNELS> loaded = *reinterpret_cast<device const Pack<T, CHANNELS>*>(
            row + x_in_count * p.result_strides[3]);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          values[i][c] = exists && x_in_count == i ? static_cast<float>(loaded.of[c]) : 0.0f;
        }
      }
    }
#pragma unroll
    for (int tap = 0; tap < kSide * kSide; ++tap) {
#pragma unroll
      for (int i = 0; i < PIXELS; ++i) {
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          mine[tap][c] += values[i][c] * rows[(j + tap / kSide) % kSide].of[i + tap % kSide][c];
        }
      }
    }
  }
}

// The gradient of the weight of images: sums[split][channel][tap] of one channel, or of 32 adjacent
// packs (ARE_LAST), in each threadgroup.
template <typename T, bool ARE_LAST, int CHANNELS, int PIXELS>
[[max_total_threads_per_threadgroup(metalops::kDepthwiseMostThreads)]]
kernel void convolution_depthwise_square_weight(
    device float* sums [[buffer(0)]], device const T* input [[buffer(1)]],
    device const T* outputs [[buffer(2)]], constant DepthwiseParameters& p [[buffer(3)]],
    uint threadgroup_index [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr int simdgroups = kDepthwiseThreads / 32;
  constexpr int together = ARE_LAST ? 32 * CHANNELS : 1;
  threadgroup float parts[simdgroups][32][CHANNELS];
  const int channels = (p.channels + together - 1) / together;
  const int split = static_cast<int>(threadgroup_index) / channels;
  const int channel = (static_cast<int>(threadgroup_index) - split * channels) * together +
                      (ARE_LAST ? static_cast<int>(lane) * CHANNELS : 0);
  const int blocks = p.images * p.down * p.across;
  const int of_split = (blocks + p.splits - 1) / p.splits;
  const int end = channel < p.channels ? ::metal::min(blocks, (split + 1) * of_split) : 0;
  float mine[kSide * kSide][CHANNELS] = {};
  for (int i = split * of_split + static_cast<int>(ARE_LAST ? simdgroup : thread_index); i < end;
       i += ARE_LAST ? simdgroups : kDepthwiseThreads) {
    const uint line = static_cast<uint>(i) / static_cast<uint>(p.across);
    const int image = static_cast<int>(line / static_cast<uint>(p.down));
    const Block at{image, channel, 0, (static_cast<int>(line) - image * p.down) * kRows,
                   (i - static_cast<int>(line) * p.across) * PIXELS};
    const int group = p.multiple == 1 ? channel : channel / p.multiple;
    add_block<T, CHANNELS, PIXELS>(mine, input + image * p.input_image + group * p.input_strides[0],
                                   outputs + image * p.result_image +
                                       channel * p.result_strides[0] + at.y * p.result_strides[2] +
                                       at.x * p.result_strides[3],
                                   at, p);
  }
#pragma unroll
  for (int tap = 0; tap < kSide * kSide; ++tap) {
    ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      parts[simdgroup][lane][c] = ARE_LAST ? mine[tap][c] : ::metal::simd_sum(mine[tap][c]);
    }
    ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
    const int c = static_cast<int>(thread_index) % CHANNELS;
    const int in_lane = static_cast<int>(thread_index) / CHANNELS;
    const int of =
        channel - (ARE_LAST ? static_cast<int>(lane) * CHANNELS : 0) + in_lane * CHANNELS + c;
    if (static_cast<int>(thread_index) < together && of < p.channels) {
      float sum = 0.0f;
      for (int s = 0; s < simdgroups; ++s) {
        sum += parts[s][in_lane][c];
      }
      sums[(split * static_cast<int64_t>(p.channels) + of) * (kSide * kSide) + tap] = sum;
    }
  }
}

}  // namespace depthwise
}  // namespace metalops

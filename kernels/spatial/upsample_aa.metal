// Antialiased resizing, forward and backward. The filter is separable, so the axes are resized one
// after the other by the same kernel: every output pixel is a weighted sum of a few adjacent input
// pixels, with weights from a table.
//
// The gradient uses the transposed table: every input pixel is a weighted sum of the output pixels
// that it contributed to, in a fixed order, without atomics.
#include <c10/metal/reduction_utils.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/common/numerics.h>
#include <kernels/spatial/upsample_aa.h>
using namespace metal;
using namespace metalops;

// ---- filters ------------------------------------------------------------------------------------

inline float bilinear(float x) { return max(1.0f - abs(x), 0.0f); }

// R. G. Keys, Cubic convolution interpolation for digital image processing, 1981, with a = -1/2.
inline float bicubic(float x) {
  constexpr float a = -0.5f;
  x = abs(x);
  if (x < 1.0f) {
    return ((a + 2.0f) * x - (a + 3.0f)) * x * x + 1.0f;
  }
  return x < 2.0f ? (((x - 5.0f) * x + 8.0f) * x - 4.0f) * a : 0.0f;
}

// Returns sinc(pi x) sinc(pi x / 3), the Lanczos-3 filter, where sinc(t) = sin(t) / t.
inline float lanczos(float x) {
  if (x == 0.0f) {
    return 1.0f;
  }
  const float angle = M_PI_F * x;
  const float value = 3.0f * precise::sinpi(x) * precise::sinpi(x / 3.0f) / (angle * angle);
  return abs(x) < 3.0f ? value : 0.0f;
}

inline float filtered(float x, AntialiasFilter filter) {
  switch (filter) {
    case kBilinear:
      return bilinear(x);
    case kBicubic:
      return bicubic(x);
    default:
      return lanczos(x);
  }
}

// ---- tables -------------------------------------------------------------------------------------

// The nonzero weights of a table's row: `count` pixels from `first` on; the row is zero-padded.
struct Window {
  int64_t first;
  int64_t count;
};

// A coordinate on the axis, in input pixels: whole + fraction.
struct Coordinate {
  int64_t whole;
  float fraction;
};

// Returns the center of an output pixel. It is a double-float product: one float would lose the
// fraction at the end of a long axis. Positions far beyond that end need not be accurate.
inline Coordinate center_of(int64_t output, constant AxisParameters& axis) {
  constexpr float kFarBeyond = 4.61168602e18f;  // 2^62
  const float rounded = static_cast<float>(output);
  const float rest = static_cast<float>(output - static_cast<int64_t>(rounded));
  const double_float center =
      multiply({axis.scale.hi, axis.scale.lo}, exact_sum(rounded, rest + 0.5f));
  const float whole = min(floor(center.hi), kFarBeyond);
  return {static_cast<int64_t>(whole), (center.hi - whole) + center.lo};
}

// Returns the pixel at coordinate + offset, rounded down and clamped to the axis.
inline int64_t pixel_at(Coordinate coordinate, float offset, constant AxisParameters& axis) {
  const float steps = floor(coordinate.fraction + offset);
  return clamp(coordinate.whole + static_cast<int64_t>(steps), static_cast<int64_t>(0),
               axis.inputs);
}

// Computes the weights of one output pixel per thread.
kernel void upsample_aa_weights(device float* weights [[buffer(0)]],
                                device Window* windows [[buffer(1)]],
                                constant AxisParameters& axis [[buffer(2)]],
                                uint2 position [[thread_position_in_grid]],
                                uint2 grid [[threads_per_grid]]) {
  const int64_t output = thread_index(position, grid);
  if (output >= axis.outputs) {
    return;
  }
  const Coordinate center = center_of(output, axis);
  const int64_t first = pixel_at(center, 0.5f - axis.support, axis);
  const int64_t count = pixel_at(center, 0.5f + axis.support, axis) - first;
  windows[output] = Window{first, count};
  device float* row = weights + output * axis.taps;
  float total = 0.0f;
  for (int64_t i = 0; i < axis.taps; ++i) {
    const float steps = static_cast<float>(first + i - center.whole);
    const float distance = (steps - center.fraction) + 0.5f;
    row[i] = i < count ? filtered(distance * axis.sharpness, axis.filter) : 0.0f;
    total += row[i];
  }
  for (int64_t i = 0; i < count && total != 0.0f; ++i) {
    row[i] /= total;
  }
}

// Returns the number of windows that begin or, if kEnd, end at or before the pixel. Windows are in
// order.
template <bool kEnd>
inline int64_t windows_until(int64_t pixel, constant Window* windows, int64_t outputs) {
  int64_t low = 0;
  int64_t high = outputs;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const int64_t bound = windows[middle].first + (kEnd ? windows[middle].count : 0);
    if (bound <= pixel) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Transposes the table: computes the weights that an input pixel has in the windows that contain
// it. One thread per input pixel. taps: those of the transposed table.
kernel void upsample_aa_transposed_weights(
    device float* weights [[buffer(0)]], device Window* windows [[buffer(1)]],
    constant float* original_weights [[buffer(2)]], constant Window* original_windows [[buffer(3)]],
    constant AxisParameters& axis [[buffer(4)]], constant int64_t& taps [[buffer(5)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t input = thread_index(position, grid);
  if (input >= axis.inputs) {
    return;
  }
  const int64_t first = windows_until<true>(input, original_windows, axis.outputs);
  const int64_t count = windows_until<false>(input, original_windows, axis.outputs) - first;
  windows[input] = Window{first, count};
  device float* row = weights + input * taps;
  for (int64_t i = 0; i < taps; ++i) {
    row[i] = 0.0f;
    if (i < count) {
      const int64_t tap = input - original_windows[first + i].first;
      row[i] = original_weights[(first + i) * axis.taps + tap];
    }
  }
}

// Rounds weights for uint8 images to 16-bit fixed point, as on the CPU: multiples of 2^-precision
// for the largest precision that fits. Runs in one threadgroup.
kernel void upsample_aa_fixed_point_weights(device short* rounded [[buffer(0)]],
                                            device int* precision [[buffer(1)]],
                                            constant float* weights [[buffer(2)]],
                                            constant int64_t& count [[buffer(3)]],
                                            uint lane [[thread_position_in_threadgroup]],
                                            uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[c10::metal::simdgroup_size];
  float largest = 0.0f;
  for (int64_t i = lane; i < count; i += lanes) {
    largest = max(largest, weights[i]);
  }
  largest = c10::metal::threadgroup_max(shared, largest, lane, lanes);
  int bits = 0;
  while (bits < 22 && static_cast<int>(fma(largest, static_cast<float>(2 << bits), 0.5f)) < 32768) {
    ++bits;
  }
  for (int64_t i = lane; i < count; i += lanes) {
    rounded[i] = static_cast<short>(round(weights[i] * static_cast<float>(1 << bits)));
  }
  if (lane == 0) {
    *precision = bits;
  }
}

// ---- resizing -----------------------------------------------------------------------------------

struct FloatWeights {
  using sum_type = float;
  constant float* weights;

  float start() const { return 0.0f; }
  float finish(float sum) const { return sum; }
};

struct FixedPointWeights {
  using sum_type = int;
  constant short* weights;
  int precision;

  int start() const { return (1 << precision) >> 1; }
  int finish(int sum) const { return clamp(sum >> precision, 0, 255); }
};

// Strides from one element of a block to the next.
struct Strides {
  int64_t output;
  int64_t input;
};

// Computes `size` output elements: weighted sums of input elements with stride `inner`.
template <typename Out, typename In, typename Weights>
inline void resize_block(device Out* output, constant In* input, Strides strides, uint size,
                         Weights table, int64_t row, int64_t count, int64_t inner) {
  typename Weights::sum_type sums[kResizeBlock];
  for (uint i = 0; i < size; ++i) {
    sums[i] = table.start();
  }
  for (int64_t tap = 0; tap < count; ++tap) {
    const auto weight = table.weights[row + tap];
    constant In* elements = input + tap * inner;
    for (uint i = 0; i < size; ++i) {
      sums[i] += weight * static_cast<typename Weights::sum_type>(elements[i * strides.input]);
    }
  }
  for (uint i = 0; i < size; ++i) {
    output[i * strides.output] = static_cast<Out>(table.finish(sums[i]));
  }
}

// Computes one block of elements with the same weights per thread: adjacent elements of the inner
// dimensions or, if these are short, elements of adjacent rows.
template <typename Out, typename In, typename Weights>
inline void resize_along_axis(device Out* output, constant In* input, Weights table,
                              constant Window* windows, constant ResizeParameters& parameters,
                              uint2 position) {
  const int64_t inner = parameters.inner;
  const bool across_rows = inner < kResizeBlock;
  const int64_t blocks = across_rows ? inner : c10::metal::ceil_div<int64_t>(inner, kResizeBlock);
  const int64_t pixel = position.x / static_cast<uint>(blocks);
  const int64_t block = position.x % static_cast<uint>(blocks);
  const int64_t within = across_rows ? block : block * kResizeBlock;
  const int64_t row = across_rows ? static_cast<int64_t>(position.y) * kResizeBlock : position.y;
  const int64_t rest = across_rows ? parameters.rows - row : inner - within;
  const Window window = windows[pixel];
  output += (row * parameters.outputs + pixel) * inner + within;
  input += (row * parameters.inputs + window.first) * inner + within;
  const Strides rows = {parameters.outputs * inner, parameters.inputs * inner};
  const int64_t weights = pixel * parameters.taps;
  if (rest < kResizeBlock) {
    const Strides strides = across_rows ? rows : Strides{1, 1};
    resize_block(output, input, strides, static_cast<uint>(rest), table, weights, window.count,
                 inner);
  } else if (across_rows) {
    resize_block(output, input, rows, kResizeBlock, table, weights, window.count, inner);
  } else {
    resize_block(output, input, Strides{1, 1}, kResizeBlock, table, weights, window.count, inner);
  }
}

template <typename Out, typename In>
kernel void upsample_aa_resize(device Out* output [[buffer(0)]], constant In* input [[buffer(1)]],
                               constant float* weights [[buffer(2)]],
                               constant Window* windows [[buffer(3)]],
                               constant ResizeParameters& parameters [[buffer(4)]],
                               uint2 position [[thread_position_in_grid]]) {
  const FloatWeights table = {weights};
  resize_along_axis(output, input, table, windows, parameters, position);
}

kernel void upsample_aa_resize_bytes(device uchar* output [[buffer(0)]],
                                     constant uchar* input [[buffer(1)]],
                                     constant short* weights [[buffer(2)]],
                                     constant Window* windows [[buffer(3)]],
                                     constant ResizeParameters& parameters [[buffer(4)]],
                                     constant int& precision [[buffer(5)]],
                                     uint2 position [[thread_position_in_grid]]) {
  const FixedPointWeights table = {weights, precision};
  resize_along_axis(output, input, table, windows, parameters, position);
}

#define REGISTER_RESIZE(Out, In) \
  REGISTER_KERNEL("upsample_aa_resize_" #Out "_" #In, upsample_aa_resize, Out, In)

REGISTER_RESIZE(float, float);
REGISTER_RESIZE(half, half);
REGISTER_RESIZE(half, float);
REGISTER_RESIZE(float, half);
REGISTER_RESIZE(bfloat, bfloat);
REGISTER_RESIZE(bfloat, float);
REGISTER_RESIZE(float, bfloat);

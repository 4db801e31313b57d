// Adaptive average pooling in two and three dimensions, and its gradient: means over windows that
// divide the input into as many parts as the output has elements. Tensors are dense; one thread per
// element of the result. Sums are float for all dtypes.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/spatial/adaptive_avg_pool.h>
#include <kernels/spatial/adaptive_windows.h>
using namespace metal;
using namespace metalops;

// Positions in tensors whose planes are contiguous.
struct Planar : PlanePosition {
  Planar(uint3 position, constant AdaptiveAvgPoolParameters& parameters)
      : PlanePosition(position, parameters.sizes.result) {}

  // Returns where a row of the source begins; step() is the stride of its elements.
  int64_t row(uint depth, uint height, constant AdaptiveAvgPoolParameters& parameters) const {
    return row_of_plane(plane, depth, height, parameters.sizes.source);
  }
  static uint step(constant AdaptiveAvgPoolParameters&) { return 1; }
};

// Positions in two-dimensional pooling of channels-last tensors.
struct ChannelsLast {
  uint3 coordinates;
  int64_t image;
  uint channel;
  int64_t element;

  ChannelsLast(uint3 position, constant AdaptiveAvgPoolParameters& parameters) {
    constant uint32_t* sizes = parameters.sizes.result;
    image = position.z / sizes[1];
    channel = position.x;
    coordinates = uint3(position.y, position.z % sizes[1], 0);
    element = (static_cast<int64_t>(position.z) * sizes[2] + position.y) * parameters.channels +
              position.x;
  }

  int64_t row(uint, uint height, constant AdaptiveAvgPoolParameters& parameters) const {
    constant uint32_t* sizes = parameters.sizes.source;
    return (image * sizes[1] + height) * sizes[2] * parameters.channels + channel;
  }
  static uint step(constant AdaptiveAvgPoolParameters& parameters) { return parameters.channels; }
};

template <typename Layout, typename T>
kernel void adaptive_avg_pool(device T* output [[buffer(0)]], constant T* input [[buffer(1)]],
                              constant uint2* table [[buffer(2)]],
                              constant AdaptiveAvgPoolParameters& parameters [[buffer(3)]],
                              uint3 position [[thread_position_in_grid]]) {
  const Layout at(position, parameters);
  const Windows windows(table, parameters.sizes.result);
  const uint2 depths = windows.depth[at.coordinates.z];
  const uint2 heights = windows.height[at.coordinates.y];
  const uint2 widths = windows.width[at.coordinates.x];
  const int64_t step = Layout::step(parameters);
  float sum = 0.0f;
  for (uint d = depths.x; d < depths.y; ++d) {
    for (uint h = heights.x; h < heights.y; ++h) {
      constant T* row = input + at.row(d, h, parameters);
      for (uint w = widths.x; w < widths.y; ++w) {
        sum += static_cast<float>(row[w * step]);
      }
    }
  }
  const int64_t plane = static_cast<int64_t>(depths.y - depths.x) * (heights.y - heights.x);
  const float count = static_cast<float>(plane * (widths.y - widths.x));
  output[at.element] = static_cast<T>(sum / count);
}

// Computes the weight with which a window passes its gradient to each of its elements, for each
// dimension. One thread per depth, height and width of the output.
kernel void adaptive_avg_pool_shares(device float* shares [[buffer(0)]],
                                     constant PoolingSizes& sizes [[buffer(1)]],
                                     uint entry [[thread_position_in_grid]]) {
  const WindowIndex entry_index(entry, sizes);
  if (entry_index.exists) {
    const uint2 window = adaptive_window(entry_index);
    shares[entry] = 1.0f / static_cast<float>(window.y - window.x);
  }
}

template <typename Layout, typename T>
kernel void adaptive_avg_pool_backward(device T* grad_input [[buffer(0)]],
                                       constant T* grad_output [[buffer(1)]],
                                       constant uint2* table [[buffer(2)]],
                                       constant float* shares [[buffer(3)]],
                                       constant AdaptiveAvgPoolParameters& parameters [[buffer(4)]],
                                       uint3 position [[thread_position_in_grid]]) {
  const Layout at(position, parameters);
  const Windows windows(table, parameters.sizes.result);
  constant float* depth_shares = shares;
  constant float* height_shares = depth_shares + parameters.sizes.source[0];
  constant float* width_shares = height_shares + parameters.sizes.source[1];
  const uint2 depths = windows.depth[at.coordinates.z];
  const uint2 heights = windows.height[at.coordinates.y];
  const uint2 widths = windows.width[at.coordinates.x];
  const int64_t step = Layout::step(parameters);
  float sum = 0.0f;
  for (uint d = depths.x; d < depths.y; ++d) {
    float of_slice = 0.0f;
    for (uint h = heights.x; h < heights.y; ++h) {
      constant T* row = grad_output + at.row(d, h, parameters);
      float of_row = 0.0f;
      for (uint w = widths.x; w < widths.y; ++w) {
        of_row += static_cast<float>(row[w * step]) * width_shares[w];
      }
      of_slice += of_row * height_shares[h];
    }
    sum += of_slice * depth_shares[d];
  }
  grad_input[at.element] = static_cast<T>(sum);
}

#define REGISTER_ADAPTIVE_AVG_POOL(NAME, LAYOUT, T)                            \
  REGISTER_KERNEL("adaptive_avg_pool_" NAME #T, adaptive_avg_pool, LAYOUT, T); \
  REGISTER_KERNEL("adaptive_avg_pool_backward_" NAME #T, adaptive_avg_pool_backward, LAYOUT, T)

REGISTER_ADAPTIVE_AVG_POOL("", Planar, float);
REGISTER_ADAPTIVE_AVG_POOL("", Planar, half);
REGISTER_ADAPTIVE_AVG_POOL("", Planar, bfloat);
REGISTER_ADAPTIVE_AVG_POOL("channels_last_", ChannelsLast, float);
REGISTER_ADAPTIVE_AVG_POOL("channels_last_", ChannelsLast, half);
REGISTER_ADAPTIVE_AVG_POOL("channels_last_", ChannelsLast, bfloat);

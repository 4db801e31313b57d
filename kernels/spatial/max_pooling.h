// Shared code of max pooling kernels. The forward pass has two results: the maximum of each window,
// and its index in the plane.
#pragma once
#include <kernels/spatial/pooling.h>
#include <metalops/register_kernel.h>

namespace metalops {

// Writes the maximum of a window and its index. Of equal elements, the first is taken; of several
// NaN, the last, as in torch.
template <typename T>
inline void write_maximum(device T* output, device long* indices, constant T* input, uint2 depths,
                          uint2 heights, uint2 widths, PlanePosition at, constant uint32_t* sizes) {
  float largest = -INFINITY;
  const int64_t size = row_of_plane(1, 0, 0, sizes);
  const int64_t rows_between = sizes[1] - (heights.y - heights.x);
  int64_t row = row_of_plane(0, depths.x, heights.x, sizes);
  int64_t index = row + widths.x;
  constant T* x = input + at.plane * size + row;
  for (uint32_t d = depths.x; d < depths.y; ++d) {
    for (uint32_t h = heights.x; h < heights.y; ++h) {
      for (uint32_t w = widths.x; w < widths.y; ++w) {
        const float value = static_cast<float>(x[w]);
        if (value > largest || ::metal::isnan(value)) {
          largest = value;
          index = row + w;
        }
      }
      x += sizes[2];
      row += sizes[2];
    }
    x += rows_between * sizes[2];
    row += rows_between * sizes[2];
  }
  output[at.element] = static_cast<T>(largest);
  indices[at.element] = index;
}

// Computes the gradient of one element of the input per thread: a loop over the output elements
// whose windows may contain it, adding those whose maximum it is. No element is added to by two
// threads.
template <typename T>
kernel void max_pool_backward(device T* grad_input [[buffer(0)]],
                              constant T* grad_output [[buffer(1)]],
                              constant long* indices [[buffer(2)]],
                              constant uint2* table [[buffer(3)]],
                              constant PoolingSizes& sizes [[buffer(4)]],
                              uint3 position [[thread_position_in_grid]]) {
  const PlanePosition at(position, sizes.result);
  const Windows windows(table, sizes.result);
  const uint2 depths = windows.depth[at.coordinates.z];
  const uint2 heights = windows.height[at.coordinates.y];
  const uint2 widths = windows.width[at.coordinates.x];
  const int64_t self =
      row_of_plane(0, at.coordinates.z, at.coordinates.y, sizes.result) + at.coordinates.x;
  float sum = 0.0f;
  for (uint32_t d = depths.x; d < depths.y; ++d) {
    for (uint32_t h = heights.x; h < heights.y; ++h) {
      const int64_t row = row_of_plane(at.plane, d, h, sizes.source);
      for (uint32_t w = widths.x; w < widths.y; ++w) {
        sum += indices[row + w] == self ? static_cast<float>(grad_output[row + w]) : 0.0f;
      }
    }
  }
  grad_input[at.element] = static_cast<T>(sum);
}

inline bool contains(uint2 window, uint32_t index) { return index >= window.x && index < window.y; }

// Returns true if the input element with this index has the output element `at` among its windows;
// otherwise max_pool_backward would lose its gradient.
inline bool is_found(int64_t index, PlanePosition at, constant uint2* table,
                     constant PoolingSizes& sizes) {
  constant uint32_t* in = sizes.result;
  if (index < 0 || index >= static_cast<int64_t>(in[0]) * in[1] * in[2]) {
    return false;
  }
  const Windows windows(table, in);
  const int64_t row = index / in[2];
  return contains(windows.depth[row / in[1]], at.coordinates.z) &&
         contains(windows.height[row % in[1]], at.coordinates.y) &&
         contains(windows.width[index % in[2]], at.coordinates.x);
}

}  // namespace metalops

#define REGISTER_MAX_POOL_BACKWARD(T) \
  REGISTER_KERNEL("max_pool_backward_" #T, metalops::max_pool_backward, T)

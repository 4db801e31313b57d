// Fractional max pooling (B. Graham, Fractional Max-Pooling, 2014) in two and three dimensions, and
// its gradient: maxima of windows of one size at pseudo-random distances. Tensors are contiguous;
// one thread per element of the result.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/spatial/fractional_max_pool.h>
#include <kernels/spatial/max_pooling.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline int rounded_to_zero(float x) {
  constexpr float kLimit = 2e9f;  // beyond that, torch's integers overflow
  return static_cast<int>(clamp(x, -kLimit, kLimit));
}

// Computes where the windows of each plane begin, in depth, height and width: a row of the table
// per plane, a thread per entry. The computation is in float for all dtypes; torch's CPU operator
// computes in half precision there, and its windows are misplaced.
template <typename T>
kernel void fractional_max_pool_starts(device uint* starts [[buffer(0)]],
                                       constant T* all_samples [[buffer(1)]],
                                       constant FractionalMaxPoolParameters& parameters
                                       [[buffer(2)]],
                                       device ErrorMessages* errors [[buffer(3)]],
                                       uint2 position [[thread_position_in_grid]],
                                       uint2 grid [[threads_per_grid]]) {
  const WindowIndex window(position.x, parameters.sizes);
  const uint last = window.source - parameters.window[window.dimension];
  uint first = last;
  if (window.index + 1 != window.result) {
    constant T* samples = all_samples + static_cast<int64_t>(position.y) * parameters.samples;
    const float sample = static_cast<float>(samples[parameters.sample_for[window.dimension]]);
    const float step = parameters.step[window.dimension];
    // The difference is never negative.
    first = static_cast<uint>(rounded_to_zero((static_cast<float>(window.index) + sample) * step)) -
            static_cast<uint>(rounded_to_zero(sample * step));
    if (first > last) {
      TORCH_REPORT_ERROR(errors, "fractional_max_pool", parameters.dimensions,
                         "d(): a random sample is not between 0 and 1 and places a window at ",
                         first, ", where only 0 to ", last, " is possible");
      first = 0;
    }
  }
  starts[static_cast<int64_t>(position.y) * grid.x + position.x] = first;
}

template <typename T>
kernel void fractional_max_pool(device T* output [[buffer(0)]], device long* indices [[buffer(1)]],
                                constant T* input [[buffer(2)]],
                                constant uint* all_starts [[buffer(3)]],
                                constant FractionalMaxPoolParameters& parameters [[buffer(4)]],
                                uint3 position [[thread_position_in_grid]]) {
  constant uint32_t* sizes = parameters.sizes.result;
  const PlanePosition at(position, sizes);
  constant uint* starts = all_starts + at.plane * (sizes[0] + sizes[1] + sizes[2]);
  const uint depth = starts[at.coordinates.z];
  const uint height = starts[sizes[0] + at.coordinates.y];
  const uint width = starts[sizes[0] + sizes[1] + at.coordinates.x];
  write_maximum(output, indices, input, uint2(depth, depth + parameters.window[0]),
                uint2(height, height + parameters.window[1]),
                uint2(width, width + parameters.window[2]), at, parameters.sizes.source);
}

// Fractional max pooling in two dimensions, for planes of fewer than 2^31 elements and square
// windows of a size known at compile time: all loads of a window are in flight at once.
template <typename T, uint kWindow>
kernel void fractional_max_pool_squares(device T* output [[buffer(0)]],
                                        device long* indices [[buffer(1)]],
                                        constant T* input [[buffer(2)]],
                                        constant uint* all_starts [[buffer(3)]],
                                        constant FractionalMaxPoolParameters& parameters
                                        [[buffer(4)]],
                                        uint3 position [[thread_position_in_grid]]) {
  const uint rows = parameters.sizes.result[1];
  const uint columns = parameters.sizes.result[2];
  const uint source_columns = parameters.sizes.source[2];
  const int64_t plane = position.z;
  constant uint* starts = all_starts + plane * (1 + rows + columns);
  const uint height = starts[1 + position.y];
  const uint first = height * source_columns + starts[1 + rows + position.x];
  constant T* x = input + plane * (parameters.sizes.source[1] * source_columns) + first;
  float values[kWindow * kWindow];
  for (uint h = 0; h < kWindow; ++h) {
    for (uint w = 0; w < kWindow; ++w) {
      values[h * kWindow + w] = static_cast<float>(x[h * source_columns + w]);
    }
  }
  float largest = -INFINITY;
  uint index = first;
  for (uint h = 0; h < kWindow; ++h) {
    for (uint w = 0; w < kWindow; ++w) {
      const float value = values[h * kWindow + w];
      if (value > largest || isnan(value)) {
        largest = value;
        index = first + h * source_columns + w;
      }
    }
  }
  const int64_t element = (plane * rows + position.y) * columns + position.x;
  output[element] = static_cast<T>(largest);
  indices[element] = index;
}

// Writes the table of the output elements whose windows may contain an element of the input, for
// any sample. One thread per entry.
//
// The window of index o begins at o * step, plus or minus less than 1 for a sample between 0 and 1,
// or less than 2 for other samples, plus rounding errors of float. Numbers here are doubled.
kernel void fractional_max_pool_windows(device uint2* table [[buffer(0)]],
                                        constant FractionalMaxPoolParameters& parameters
                                        [[buffer(1)]],
                                        uint entry [[thread_position_in_grid]]) {
  const WindowIndex window(entry, parameters.sizes);
  if (!window.exists) {
    return;
  }
  const int64_t size = parameters.window[window.dimension];
  const int64_t steps = static_cast<int64_t>(window.source) - 1;
  const int64_t span = 2 * (window.result - size);  // span of all steps, doubled
  const int64_t margin = 2 + (window.result >> 19);
  const int64_t index = 2 * static_cast<int64_t>(window.index);
  int64_t first = 0;
  int64_t end = window.source;
  if (steps > 0) {
    const int64_t before = (index - 2 * size - margin) * steps;
    const int64_t after = (index + 2 + margin) * steps;
    first = before < 0 ? 0 : before / span + 1;
    end = min(end, (after - 1) / span + 1);
  }
  table[entry] = uint2(static_cast<uint>(first), static_cast<uint>(end));
}

// Reports indices that max_pool_backward would miss. One thread per element of the output.
kernel void fractional_max_pool_check_indices(constant long* indices [[buffer(0)]],
                                              constant uint2* table [[buffer(1)]],
                                              constant PoolingSizes& sizes [[buffer(2)]],
                                              constant long& dimensions [[buffer(3)]],
                                              device ErrorMessages* errors [[buffer(4)]],
                                              uint3 position [[thread_position_in_grid]]) {
  const PlanePosition at(position, sizes.source);
  const int64_t index = indices[at.element];
  if (!is_found(index, at, table, sizes)) {
    TORCH_REPORT_ERROR(errors, "fractional_max_pool", dimensions,
                       "d_backward(): found an invalid max index: ", index,
                       ", where no random sample places the window of its element");
  }
}

#define REGISTER_SQUARES(T, WINDOW)                                                              \
  REGISTER_KERNEL("fractional_max_pool_squares_" #WINDOW "_" #T, fractional_max_pool_squares, T, \
                  WINDOW)

#define REGISTER_FRACTIONAL_MAX_POOL(T)                                             \
  REGISTER_KERNEL("fractional_max_pool_starts_" #T, fractional_max_pool_starts, T); \
  REGISTER_KERNEL("fractional_max_pool_" #T, fractional_max_pool, T);               \
  REGISTER_SQUARES(T, 2);                                                           \
  REGISTER_SQUARES(T, 3);                                                           \
  REGISTER_MAX_POOL_BACKWARD(T)

REGISTER_FRACTIONAL_MAX_POOL(float);
REGISTER_FRACTIONAL_MAX_POOL(half);
REGISTER_FRACTIONAL_MAX_POOL(bfloat);

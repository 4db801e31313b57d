// Sampling of images and volumes at the points of a grid, and its gradients.
//
// A sample is a sum over taps, the pixels around a point, with the product of a weight for each
// dimension. Coordinates and sums are in float. Points that are not finite are far outside.
//
// The gradient of the input is added up by atomics in float. Where torch must be deterministic,
// grid_sampler_items says which pixels the gradient of each sample is added to, and the kernels of
// kernels/indexing/scatter.metal reduce them.
#include <c10/metal/atomic.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/spatial/grid_sampler.h>
using namespace metal;
using namespace metalops;

// ---- coordinates --------------------------------------------------------------------------------

// A coordinate in pixels, and its derivative by the grid's.
struct GridCoordinate {
  float value;
  float slope;
};

// Returns a coordinate before padding. It is finite, and fits into an int32_t.
inline GridCoordinate pixel_coordinate(float x, int32_t size, bool align_corners) {
  constexpr float kFar = 1073741824.0f;  // 2^30
  const float scale = static_cast<float>(align_corners ? size - 1 : size) / 2;
  const float value = (x + 1) * scale - (align_corners ? 0.0f : 0.5f);
  const bool is_near = abs(value) < kFar;
  return {is_near ? value : (value > 0 ? kFar : -kFar), scale};
}

// Gradients at the borders are those of outside.
inline GridCoordinate clipped(GridCoordinate x, int32_t size) {
  const float last = static_cast<float>(size - 1);
  if (x.value <= 0) {
    return {0.0f, 0.0f};
  }
  return x.value >= last ? GridCoordinate{last, 0.0f} : x;
}

// Reflects a coordinate at the centers of the outer pixels, or at the borders of the image.
inline GridCoordinate reflected(GridCoordinate x, int32_t size, bool align_corners) {
  const float span = static_cast<float>(align_corners ? size - 1 : size);
  if (span == 0) {
    return {0.0f, 0.0f};
  }
  const float low = align_corners ? 0.0f : -0.5f;
  const float distance = abs(x.value - low);
  const float rest = fmod(distance, span);
  const bool is_flipped = (static_cast<int32_t>(rint((distance - rest) / span)) & 1) != 0;
  const float slope = x.value < low ? -x.slope : x.slope;
  return {(is_flipped ? span - rest : rest) + low, is_flipped ? -slope : slope};
}

inline GridCoordinate padded(GridCoordinate x, int32_t size, constant GridSamplerParameters& p) {
  if (p.padding == kGridZeros) {
    return x;
  }
  const bool is_reflected = p.padding == kGridReflection;
  return clipped(is_reflected ? reflected(x, size, p.align_corners != 0) : x, size);
}

// ---- taps ---------------------------------------------------------------------------------------

// The taps along one dimension: pixels, of which those outside of the image are -1, weights, and
// the derivatives of these by the grid's coordinate. TAPS: 1 (nearest), 2 (linear) or 4 (cubic).
template <int TAPS>
struct GridTaps {
  int32_t pixels[TAPS];
  float weights[TAPS];
  float slopes[TAPS];
};

inline int32_t pixel_or_none(int32_t pixel, int32_t size) {
  return pixel >= 0 && pixel < size ? pixel : -1;
}

inline void set_taps(thread GridTaps<1>& taps, float x, int32_t size,
                     constant GridSamplerParameters& p) {
  const auto at = padded(pixel_coordinate(x, size, p.align_corners != 0), size, p);
  taps.pixels[0] = pixel_or_none(static_cast<int32_t>(rint(at.value)), size);
  taps.weights[0] = 1.0f;
  taps.slopes[0] = 0.0f;
}

inline void set_taps(thread GridTaps<2>& taps, float x, int32_t size,
                     constant GridSamplerParameters& p) {
  const auto at = padded(pixel_coordinate(x, size, p.align_corners != 0), size, p);
  const float first = floor(at.value);
  const float rest = at.value - first;
  for (int i = 0; i < 2; ++i) {
    taps.pixels[i] = pixel_or_none(static_cast<int32_t>(first) + i, size);
    taps.weights[i] = i == 0 ? 1.0f - rest : rest;
    taps.slopes[i] = i == 0 ? -at.slope : at.slope;
  }
}

// R. G. Keys' filter with a = -3/4, and its derivative, for |x| <= 1 and for 1 < |x| < 2.
constant constexpr float kKeys = -0.75f;
inline float near_weight(float x) { return ((kKeys + 2) * x - (kKeys + 3)) * x * x + 1; }
inline float far_weight(float x) {
  return ((kKeys * x - 5 * kKeys) * x + 8 * kKeys) * x - 4 * kKeys;
}
inline float near_slope(float x) { return (3 * (kKeys + 2) * x - 2 * (kKeys + 3)) * x; }
inline float far_slope(float x) { return (3 * kKeys * x - 10 * kKeys) * x + 8 * kKeys; }

// Each tap is padded, not the point.
inline void set_taps(thread GridTaps<4>& taps, float x, int32_t size,
                     constant GridSamplerParameters& p) {
  const auto at = pixel_coordinate(x, size, p.align_corners != 0);
  const float first = floor(at.value);
  const float rest = at.value - first;
  for (int i = 0; i < 4; ++i) {
    const auto tap = padded({first + static_cast<float>(i - 1), 0.0f}, size, p);
    taps.pixels[i] = pixel_or_none(static_cast<int32_t>(tap.value), size);
    const float distance = abs(rest - static_cast<float>(i - 1));
    const bool is_near = i == 1 || i == 2;
    const float slope = is_near ? near_slope(distance) : far_slope(distance);
    taps.weights[i] = is_near ? near_weight(distance) : far_weight(distance);
    taps.slopes[i] = at.slope * (i < 2 ? slope : -slope);
  }
}

// The taps of a point in all dimensions; those of images have one in depth.
template <int TAPS, int DIMS>
struct GridPoint {
  GridTaps<TAPS> x;
  GridTaps<TAPS> y;
  GridTaps<DIMS == 3 ? TAPS : 1> z;
};

template <typename T, int TAPS, int DIMS>
inline GridPoint<TAPS, DIMS> point_at(constant T* grid, int64_t offset,
                                      constant GridSamplerParameters& p) {
  GridPoint<TAPS, DIMS> point;
  set_taps(point.x, static_cast<float>(element_at(grid, offset)), p.sizes[0], p);
  set_taps(point.y, static_cast<float>(element_at(grid, offset + p.grid_stride)), p.sizes[1], p);
  if (DIMS == 3) {
    const float z = static_cast<float>(element_at(grid, offset + 2 * p.grid_stride));
    set_taps(point.z, z, p.sizes[2], p);
  } else {
    point.z.pixels[0] = 0;
    point.z.weights[0] = 1.0f;
    point.z.slopes[0] = 0.0f;
  }
  return point;
}

// ---- samples ------------------------------------------------------------------------------------

template <typename T, int TAPS, int DIMS>
inline float sample_at(constant T* input, int64_t image, thread const GridPoint<TAPS, DIMS>& point,
                       constant GridSamplerParameters& p) {
  float sum = 0.0f;
  for (int k = 0; k < (DIMS == 3 ? TAPS : 1); ++k) {
    for (int j = 0; j < TAPS; ++j) {
      const float weight = point.z.weights[k] * point.y.weights[j];
      const bool is_row = point.z.pixels[k] >= 0 && point.y.pixels[j] >= 0;
      const int64_t row =
          image + point.z.pixels[k] * p.strides[2] + point.y.pixels[j] * p.strides[1];
      for (int i = 0; i < TAPS; ++i) {
        if (is_row && point.x.pixels[i] >= 0) {
          const T value = element_at(input, row + point.x.pixels[i] * p.strides[0]);
          sum += static_cast<float>(value) * (weight * point.x.weights[i]);
        }
      }
    }
  }
  return sum;
}

// layout: of the points: the first coordinate of each, its sample in the first channel, its image.
template <typename T, int TAPS, int DIMS>
kernel void grid_sampler(device T* output [[buffer(0)]], constant T* input [[buffer(1)]],
                         constant T* grid [[buffer(2)]],
                         constant GridSamplerParameters& p [[buffer(3)]],
                         constant StridedLayout<3>& layout [[buffer(4)]],
                         uint2 position [[thread_position_in_grid]],
                         uint2 threads [[threads_per_grid]]) {
  const int64_t index = thread_index(position, threads);
  const int64_t count = layout.count * p.lanes;
  if (index >= count) {
    return;
  }
  const int64_t fast = p.channels_first != 0 ? p.lanes : layout.count;
  const int64_t slow = quotient(index, fast, count);
  const int64_t rest = index - slow * fast;
  const auto offsets = offsets_of(p.channels_first != 0 ? slow : rest, layout);
  const auto point = point_at<T, TAPS, DIMS>(grid, offsets[0], p);
  for (int64_t c = p.channels_first != 0 ? rest : slow; c < p.channels; c += p.lanes) {
    const float sample = sample_at(input, offsets[2] + c * p.input_channel, point, p);
    element_at(output, offsets[1] + c * p.output_channel) = static_cast<T>(sample);
  }
}

// ---- gradients ----------------------------------------------------------------------------------

// Returns the part of a point's gradient that comes from `grad`, the gradient of its sample in one
// channel. If p.has_sums is 1, adds what comes from it to that of the input, `sums`.
template <typename T, int TAPS, int DIMS>
inline float3 coordinate_gradients(constant T* input, int64_t image, device float* sums,
                                   int64_t sums_at, float grad,
                                   thread const GridPoint<TAPS, DIMS>& point,
                                   constant GridSamplerParameters& p) {
  float3 result = float3(0.0f);
  for (int k = 0; k < (DIMS == 3 ? TAPS : 1); ++k) {
    for (int j = 0; j < TAPS; ++j) {
      if (point.z.pixels[k] < 0 || point.y.pixels[j] < 0) {
        continue;
      }
      const int64_t row =
          image + point.z.pixels[k] * p.strides[2] + point.y.pixels[j] * p.strides[1];
      const int64_t sums_row =
          sums_at +
          (point.z.pixels[k] * static_cast<int64_t>(p.sizes[1]) + point.y.pixels[j]) * p.sizes[0];
      const float weight = point.z.weights[k] * point.y.weights[j];
      for (int i = 0; i < TAPS; ++i) {
        const int32_t pixel = point.x.pixels[i];
        if (pixel < 0) {
          continue;
        }
        const float value =
            grad * static_cast<float>(element_at(input, row + pixel * p.strides[0]));
        const float x = point.x.weights[i];
        result +=
            value * float3(weight * point.x.slopes[i], point.z.weights[k] * point.y.slopes[j] * x,
                           point.z.slopes[k] * point.y.weights[j] * x);
        if (p.has_sums != 0) {
          c10::metal::AtomicType<float>::atomic_add(
              reinterpret_cast<device c10::metal::AtomicType<float>::type*>(sums), sums_row + pixel,
              grad * (weight * x));
        }
      }
    }
  }
  return result;
}

// Writes the gradient of a point, and adds that of its samples to `sums`, which is contiguous.
// layout: of the points: their first coordinates, those of the gradient, which is contiguous, the
// gradient of their samples in the first channel, their images, and these in `sums`.
template <typename T, int TAPS, int DIMS>
kernel void grid_sampler_backward(device float* sums [[buffer(0)]],
                                  device T* grad_grid [[buffer(1)]],
                                  constant T* grad_output [[buffer(2)]],
                                  constant T* input [[buffer(3)]], constant T* grid [[buffer(4)]],
                                  constant GridSamplerParameters& p [[buffer(5)]],
                                  constant StridedLayout<5>& layout [[buffer(6)]],
                                  uint2 position [[thread_position_in_grid]],
                                  uint2 threads [[threads_per_grid]]) {
  const int64_t index = thread_index(position, threads);
  if (index >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(index, layout);
  const auto point = point_at<T, TAPS, DIMS>(grid, offsets[0], p);
  const int64_t sums_at = offsets[4] / static_cast<int64_t>(sizeof(float));
  float3 gradient = float3(0.0f);
  for (int64_t c = 0; c < p.channels; ++c) {
    const float grad =
        static_cast<float>(element_at(grad_output, offsets[2] + c * p.output_channel));
    gradient += coordinate_gradients(input, offsets[3] + c * p.input_channel, sums,
                                     sums_at + c * p.pixels, grad, point, p);
  }
  for (int d = 0; d < DIMS; ++d) {
    element_at(grad_grid, offsets[1] + d * static_cast<int64_t>(sizeof(T))) =
        static_cast<T>(gradient[d]);
  }
}

// Says where the gradient of each sample goes: for every tap of every point, the pixel in the
// gradient of the input, in bytes, or -1; the number of the sample; and the weight. layout: of the
// points: their first coordinates, and their images in the gradient.
template <typename T, int TAPS, int DIMS>
kernel void grid_sampler_items(device long* places [[buffer(0)]], device long* rows [[buffer(1)]],
                               device float* scales [[buffer(2)]], constant T* grid [[buffer(3)]],
                               constant GridSamplerParameters& p [[buffer(4)]],
                               constant StridedLayout<2>& layout [[buffer(5)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 threads [[threads_per_grid]]) {
  const int64_t index = thread_index(position, threads);
  if (index >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(index, layout);
  const auto point = point_at<T, TAPS, DIMS>(grid, offsets[0], p);
  constexpr int kInDepth = DIMS == 3 ? TAPS : 1;
  int64_t item = index * (kInDepth * TAPS * TAPS);
  for (int k = 0; k < kInDepth; ++k) {
    for (int j = 0; j < TAPS; ++j) {
      for (int i = 0; i < TAPS; ++i) {
        const int32_t x = point.x.pixels[i];
        const int32_t y = point.y.pixels[j];
        const int32_t z = point.z.pixels[k];
        const int64_t pixel = (z * static_cast<int64_t>(p.sizes[1]) + y) * p.sizes[0] + x;
        const bool is_inside = x >= 0 && y >= 0 && z >= 0;
        places[item] = is_inside ? offsets[1] + pixel * static_cast<int64_t>(sizeof(T)) : -1;
        rows[item] = index;
        scales[item] = point.z.weights[k] * point.y.weights[j] * point.x.weights[i];
        ++item;
      }
    }
  }
}

#define REGISTER_GRID_SAMPLER(T, NAME, TAPS, DIMS)                                             \
  REGISTER_KERNEL("grid_sampler_" NAME "_" #T, grid_sampler, T, TAPS, DIMS);                   \
  REGISTER_KERNEL("grid_sampler_backward_" NAME "_" #T, grid_sampler_backward, T, TAPS, DIMS); \
  REGISTER_KERNEL("grid_sampler_items_" NAME "_" #T, grid_sampler_items, T, TAPS, DIMS)

#define REGISTER_GRID_SAMPLERS(T)                \
  REGISTER_GRID_SAMPLER(T, "nearest_2d", 1, 2);  \
  REGISTER_GRID_SAMPLER(T, "bilinear_2d", 2, 2); \
  REGISTER_GRID_SAMPLER(T, "bicubic_2d", 4, 2);  \
  REGISTER_GRID_SAMPLER(T, "nearest_3d", 1, 3);  \
  REGISTER_GRID_SAMPLER(T, "bilinear_3d", 2, 3)

REGISTER_GRID_SAMPLERS(float);
REGISTER_GRID_SAMPLERS(half);
REGISTER_GRID_SAMPLERS(bfloat);

// Fake quantisation for quantisation-aware training: values are rounded to (q - zero_point) *
// scale, for integers q between quant_min and quant_max.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>

#include <metal_stdlib>

#include <kernels/common/numerics.h>
#include <kernels/quantized/fake_quantize.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline float clamp_or_nan(float x, float lower, float upper) {
  return x < lower ? lower : (x > upper ? upper : x);
}

inline float used_zero_point(float given, constant FakeQuantizeParameters& parameters) {
  const float lower = parameters.quant_min;
  const float upper = parameters.quant_max;
  if (parameters.rounding == ZeroPointRounding::kNearest) {
    return clamp_or_nan(rint(given), lower, upper);
  }
  if (parameters.rounding == ZeroPointRounding::kHalfUp) {
    return trunc(clamp_or_nan(given + 0.5f, lower, upper));
  }
  return given;
}

// One channel's quantisation.
struct Quantizer {
  float scale;
  float inverse_scale;
  float zero_point;
  float added_before;  // the zero point or 0
  float added_after;   // 0 or the zero point
  float lower;
  float upper;

  inline float rounded(float x) const {
    const float ratio = x * inverse_scale;
    return rint(ratio + added_before) + added_after;
  }
  inline bool is_inside(float q) const { return q >= lower && q <= upper; }
  // NaN becomes the lower bound.
  inline float value(float q) const {
    const float clamped = q > lower ? (q < upper ? q : upper) : lower;
    return (clamped - zero_point) * scale;
  }
};

inline Quantizer make_quantizer(float scale, float given_zero_point,
                                constant FakeQuantizeParameters& parameters) {
  const float zero_point = used_zero_point(given_zero_point, parameters);
  const bool before = parameters.adds_before_rounding != 0;
  return {scale,
          1.0f / scale,
          zero_point,
          before ? zero_point : 0.0f,
          before ? 0.0f : zero_point,
          parameters.quant_min,
          parameters.quant_max};
}

// Elements are numbered in memory order, which is the same for all tensors of one shape. There are
// three thread layouts: NAME_packs has a row of the grid per run of elements that share a channel,
// and four adjacent elements per thread; NAME_rows the same with one element per thread; NAME, for
// short runs, is flat.

inline int64_t channel_of(int64_t element, constant FakeQuantizeParameters& parameters) {
  return parameters.channels == 1 ? 0 : element / parameters.inner % parameters.channels;
}

inline int64_t channel_of_row(uint row, constant FakeQuantizeParameters& parameters) {
  return row % static_cast<uint>(parameters.channels);
}

// Fake-quantises one element. mask: true if the value was inside the range, for the backward pass.
// Without fake_quant_on, values stay as they are.
template <typename T>
inline void fake_quantize_one(thread T& output, thread bool& mask, T input, Quantizer quantizer,
                              bool fake_quant_on) {
  const float q = quantizer.rounded(static_cast<float>(input));
  output = fake_quant_on ? static_cast<T>(quantizer.value(q)) : input;
  mask = !fake_quant_on || quantizer.is_inside(q);
}

template <typename T>
kernel void fake_quantize_packs(device T* output [[buffer(0)]], device bool* mask [[buffer(1)]],
                                constant T* input [[buffer(2)]],
                                constant float* scale [[buffer(3)]],
                                constant float* zero_point [[buffer(4)]],
                                constant int& fake_quant_on [[buffer(5)]],
                                constant FakeQuantizeParameters& parameters [[buffer(6)]],
                                uint2 position [[thread_position_in_grid]]) {
  const int64_t channel = channel_of_row(position.y, parameters);
  const Quantizer quantizer = make_quantizer(scale[channel], zero_point[channel], parameters);
  const bool on = fake_quant_on != 0;
  const int64_t first = position.y * parameters.inner + position.x * 4;
  const vec<T, 4> x = *reinterpret_cast<constant vec<T, 4>*>(input + first);
  vec<T, 4> y;
  vec<bool, 4> inside;
  T value;
  bool is_inside;
  fake_quantize_one(value, is_inside, x.x, quantizer, on);
  y.x = value;
  inside.x = is_inside;
  fake_quantize_one(value, is_inside, x.y, quantizer, on);
  y.y = value;
  inside.y = is_inside;
  fake_quantize_one(value, is_inside, x.z, quantizer, on);
  y.z = value;
  inside.z = is_inside;
  fake_quantize_one(value, is_inside, x.w, quantizer, on);
  y.w = value;
  inside.w = is_inside;
  *reinterpret_cast<device vec<T, 4>*>(output + first) = y;
  *reinterpret_cast<device vec<bool, 4>*>(mask + first) = inside;
}

template <typename T>
kernel void fake_quantize_rows(device T* output [[buffer(0)]], device bool* mask [[buffer(1)]],
                               constant T* input [[buffer(2)]], constant float* scale [[buffer(3)]],
                               constant float* zero_point [[buffer(4)]],
                               constant int& fake_quant_on [[buffer(5)]],
                               constant FakeQuantizeParameters& parameters [[buffer(6)]],
                               uint2 position [[thread_position_in_grid]]) {
  const int64_t channel = channel_of_row(position.y, parameters);
  const Quantizer quantizer = make_quantizer(scale[channel], zero_point[channel], parameters);
  const int64_t element = position.y * parameters.inner + position.x;
  T value;
  bool is_inside;
  fake_quantize_one(value, is_inside, input[element], quantizer, fake_quant_on != 0);
  output[element] = value;
  mask[element] = is_inside;
}

template <typename T>
kernel void fake_quantize(device T* output [[buffer(0)]], device bool* mask [[buffer(1)]],
                          constant T* input [[buffer(2)]], constant float* scale [[buffer(3)]],
                          constant float* zero_point [[buffer(4)]],
                          constant int& fake_quant_on [[buffer(5)]],
                          constant FakeQuantizeParameters& parameters [[buffer(6)]],
                          uint2 position [[thread_position_in_grid]],
                          uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= parameters.count) {
    return;
  }
  const int64_t channel = channel_of(element, parameters);
  const Quantizer quantizer = make_quantizer(scale[channel], zero_point[channel], parameters);
  T value;
  bool is_inside;
  fake_quantize_one(value, is_inside, input[element], quantizer, fake_quant_on != 0);
  output[element] = value;
  mask[element] = is_inside;
}

// ---- gradients of learned scales and zero points ------------------------------------------------

// Computes the derivatives of one element with respect to input, scale and zero point; they are
// summed afterwards. See S. K. Esser et al., "Learned step size quantization" (2020), and S. R.
// Jain et al., "Trained quantization thresholds" (2020).
inline void learnable_backward_one(thread float& grad_input, thread float& grad_scale,
                                   thread float& grad_zero_point, float grad_output, float input,
                                   Quantizer quantizer, float grad_factor) {
  const float q = quantizer.rounded(input);
  const bool inside = quantizer.is_inside(q);
  const float bound = q > quantizer.lower ? quantizer.upper : quantizer.lower;
  const float by_scale = inside ? (quantizer.value(q) - input) * quantizer.inverse_scale
                                : bound - quantizer.zero_point;
  const float by_zero_point = inside ? 0.0f : -quantizer.scale;
  grad_input = grad_output * (inside ? 1.0f : 0.0f);
  grad_scale = grad_output * by_scale * grad_factor;
  grad_zero_point = grad_output * by_zero_point * grad_factor;
}

kernel void fake_quantize_learnable_backward_packs(
    device float* grad_input [[buffer(0)]], device float* grad_scale [[buffer(1)]],
    device float* grad_zero_point [[buffer(2)]], constant float* grad_output [[buffer(3)]],
    constant float* input [[buffer(4)]], constant float* scale [[buffer(5)]],
    constant float* zero_point [[buffer(6)]],
    constant FakeQuantizeParameters& parameters [[buffer(7)]],
    uint2 position [[thread_position_in_grid]]) {
  const int64_t channel = channel_of_row(position.y, parameters);
  const Quantizer quantizer = make_quantizer(scale[channel], zero_point[channel], parameters);
  const float factor = parameters.grad_factor;
  const int64_t first = position.y * parameters.inner + position.x * 4;
  const float4 g = *reinterpret_cast<constant float4*>(grad_output + first);
  const float4 x = *reinterpret_cast<constant float4*>(input + first);
  float4 by_inputs, by_scales, by_zero_points;
  float by_input, by_scale, by_zero_point;
  learnable_backward_one(by_input, by_scale, by_zero_point, g.x, x.x, quantizer, factor);
  by_inputs.x = by_input;
  by_scales.x = by_scale;
  by_zero_points.x = by_zero_point;
  learnable_backward_one(by_input, by_scale, by_zero_point, g.y, x.y, quantizer, factor);
  by_inputs.y = by_input;
  by_scales.y = by_scale;
  by_zero_points.y = by_zero_point;
  learnable_backward_one(by_input, by_scale, by_zero_point, g.z, x.z, quantizer, factor);
  by_inputs.z = by_input;
  by_scales.z = by_scale;
  by_zero_points.z = by_zero_point;
  learnable_backward_one(by_input, by_scale, by_zero_point, g.w, x.w, quantizer, factor);
  by_inputs.w = by_input;
  by_scales.w = by_scale;
  by_zero_points.w = by_zero_point;
  *reinterpret_cast<device float4*>(grad_input + first) = by_inputs;
  *reinterpret_cast<device float4*>(grad_scale + first) = by_scales;
  *reinterpret_cast<device float4*>(grad_zero_point + first) = by_zero_points;
}

kernel void fake_quantize_learnable_backward_rows(
    device float* grad_input [[buffer(0)]], device float* grad_scale [[buffer(1)]],
    device float* grad_zero_point [[buffer(2)]], constant float* grad_output [[buffer(3)]],
    constant float* input [[buffer(4)]], constant float* scale [[buffer(5)]],
    constant float* zero_point [[buffer(6)]],
    constant FakeQuantizeParameters& parameters [[buffer(7)]],
    uint2 position [[thread_position_in_grid]]) {
  const int64_t channel = channel_of_row(position.y, parameters);
  const Quantizer quantizer = make_quantizer(scale[channel], zero_point[channel], parameters);
  const int64_t element = position.y * parameters.inner + position.x;
  float by_input, by_scale, by_zero_point;
  learnable_backward_one(by_input, by_scale, by_zero_point, grad_output[element], input[element],
                         quantizer, parameters.grad_factor);
  grad_input[element] = by_input;
  grad_scale[element] = by_scale;
  grad_zero_point[element] = by_zero_point;
}

kernel void fake_quantize_learnable_backward(
    device float* grad_input [[buffer(0)]], device float* grad_scale [[buffer(1)]],
    device float* grad_zero_point [[buffer(2)]], constant float* grad_output [[buffer(3)]],
    constant float* input [[buffer(4)]], constant float* scale [[buffer(5)]],
    constant float* zero_point [[buffer(6)]],
    constant FakeQuantizeParameters& parameters [[buffer(7)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= parameters.count) {
    return;
  }
  const int64_t channel = channel_of(element, parameters);
  const Quantizer quantizer = make_quantizer(scale[channel], zero_point[channel], parameters);
  float by_input, by_scale, by_zero_point;
  learnable_backward_one(by_input, by_scale, by_zero_point, grad_output[element], input[element],
                         quantizer, parameters.grad_factor);
  grad_input[element] = by_input;
  grad_scale[element] = by_scale;
  grad_zero_point[element] = by_zero_point;
}

// ---- choosing scales and zero points ------------------------------------------------------------

kernel void fake_quantize_check_zero_points(constant float* zero_point [[buffer(0)]],
                                            constant FakeQuantizeParameters& parameters
                                            [[buffer(1)]],
                                            device ErrorMessages* errors [[buffer(2)]],
                                            uint channel [[thread_position_in_grid]]) {
  if (channel >= parameters.count) {
    return;
  }
  const float used = used_zero_point(zero_point[channel], parameters);
  if (!(used >= parameters.quant_min && used <= parameters.quant_max)) {
    TORCH_REPORT_ERROR(errors,
                       "`zero_point` must be between `quant_min` and `quant_max`, but that of "
                       "channel ",
                       static_cast<long>(channel), " is not.");
  }
}

// Returns a / b to about 45 bits.
inline double_float divide(double_float a, float b) {
  const float quotient = a.hi / b;
  const float rest = fma(-quotient, b, a.hi) + a.lo;
  return ordered_sum(quotient, rest / b);
}

// Returns the nearest integer; ties go to the even one.
inline float rint(double_float x) {
  const float nearest = ::metal::rint(x.hi);
  const float rest = (x.hi - nearest) + x.lo;
  if (abs(rest) == 0.5f) {
    return 2.0f * ::metal::rint(0.5f * (nearest + rest));
  }
  return nearest + (rest > 0.5f ? 1.0f : (rest < -0.5f ? -1.0f : 0.0f));
}

// Chooses scale and zero point as FBGEMM and torch.ao do on a CPU, in double: the range is extended
// to include zero, and zero is represented exactly.
inline float choose_scale(float lowest, float highest, constant MovingAverageParameters& parameters,
                          thread int& zero_point) {
  constexpr float kSmallestScale = 6.1e-5f;
  const float quant_min = parameters.quant_min;
  const float quant_max = parameters.quant_max;
  const float steps = quant_max - quant_min;
  const bool centred = parameters.symmetric != 0 && lowest < 0.0f && highest > 0.0f;
  if (centred) {
    const float upper = trunc(0.5f * steps);
    const float lower = -(upper + 1.0f);
    const float largest = max(abs(lowest / lower), abs(highest / upper));
    lowest = largest * lower;
    highest = largest * upper;
  }
  lowest = min(lowest, 0.0f);
  highest = max(highest, 0.0f);
  double_float scale = divide(exact_sum(highest, -lowest), steps);
  if (scale.hi == 0.0f || isinf(1.0f / scale.hi)) {
    scale = {0.1f, -1.49011612e-09f};
  }
  if (scale.hi < kSmallestScale) {
    const float factor = kSmallestScale / scale.hi;
    scale = {kSmallestScale, 0.0f};
    if (lowest == 0.0f) {
      highest = kSmallestScale * steps;
    } else if (highest == 0.0f) {
      lowest = -kSmallestScale * steps;
    } else {
      lowest *= factor;
      highest *= factor;
    }
  }
  const double_float from_lowest = divide({lowest, 0.0f}, scale.hi);
  const double_float from_highest = divide({highest, 0.0f}, scale.hi);
  const bool lowest_is_nearer =
      abs(quant_min) + abs(from_lowest.hi) < abs(quant_max) + abs(from_highest.hi);
  double_float unrounded = lowest_is_nearer ? add({quant_min, 0.0f}, negative(from_lowest))
                                            : add({quant_max, 0.0f}, negative(from_highest));
  if (centred) {
    unrounded = {0.5f * (quant_min + quant_max), 0.0f};
  }
  const float nearest = rint(unrounded);
  const float inside =
      nearest > quant_min ? (nearest < quant_max ? nearest : quant_max) : quant_min;
  zero_point = static_cast<int>(inside);
  return scale.hi;
}

inline float moving_average(float running, float current, float weight) {
  return isinf(running) ? current : running + weight * (current - running);
}

kernel void fake_quantize_observe(
    device float* running_min [[buffer(0)]], device float* running_max [[buffer(1)]],
    device float* scale [[buffer(2)]], device int* zero_point [[buffer(3)]],
    constant float* lowest [[buffer(4)]], constant float* highest [[buffer(5)]],
    constant int& observer_on [[buffer(6)]], constant int& fake_quant_on [[buffer(7)]],
    constant MovingAverageParameters& parameters [[buffer(8)]],
    uint channel [[thread_position_in_grid]]) {
  if (channel >= parameters.channels) {
    return;
  }
  if (observer_on != 0) {
    const float weight = parameters.averaging_constant;
    running_min[channel] = moving_average(running_min[channel], lowest[channel], weight);
    running_max[channel] = moving_average(running_max[channel], highest[channel], weight);
  }
  if (fake_quant_on != 0) {
    int chosen;
    scale[channel] = choose_scale(running_min[channel], running_max[channel], parameters, chosen);
    zero_point[channel] = chosen;
  }
}

#define REGISTER_FAKE_QUANTIZE(T)                                     \
  REGISTER_KERNEL("fake_quantize_packs_" #T, fake_quantize_packs, T); \
  REGISTER_KERNEL("fake_quantize_rows_" #T, fake_quantize_rows, T);   \
  REGISTER_KERNEL("fake_quantize_" #T, fake_quantize, T)

REGISTER_FAKE_QUANTIZE(float);
REGISTER_FAKE_QUANTIZE(half);
REGISTER_FAKE_QUANTIZE(bfloat);

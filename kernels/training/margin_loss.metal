// multi_margin_loss and multilabel_margin_loss with their gradients.
//
// A row is processed by a threadgroup, or by a single thread if rows are short. In both cases
// thread `lane` of `lanes`, a power of two, owns classes lane, lane + lanes, ... exclusively. Sums
// are float for all dtypes. A target that is not a class is reported to the host and ignored.
#include <c10/metal/error.h>
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/training/margin_loss.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline bool owns(uint lane, uint lanes, int64_t i) {
  return (static_cast<uint>(i) & (lanes - 1)) == lane;
}

// ---- multi_margin_loss --------------------------------------------------------------------------

// The loss is the sum over the classes i other than the target y of weight[y] max(0, margin - x[y]
// + x[i])^power.

template <typename T>
struct MultiMarginRow {
  constant T* x;
  int64_t target;
  bool valid;    // true if the target is a class
  float margin;  // margin - x[y]
  float weight;

  MultiMarginRow(int64_t row, constant T* input, constant long* targets, constant T* weights,
                 constant MarginLossParameters& parameters) {
    x = input + row * parameters.classes;
    target = targets[row];
    valid = target >= 0 && target < parameters.classes;
    margin = valid ? parameters.margin - static_cast<float>(x[target]) : -INFINITY;
    weight = valid && parameters.weighted != 0 ? static_cast<float>(weights[target]) : 1.0f;
  }
};

// Returns the contribution of one thread's classes to the loss.
template <typename T>
inline float multi_margin_part(MultiMarginRow<T> row, constant MarginLossParameters& parameters,
                               uint lane, uint lanes) {
  float sum = 0.0f;
  for (int64_t i = lane; i < parameters.classes; i += lanes) {
    const float z = row.margin + static_cast<float>(row.x[i]);
    const float value = parameters.power == 1 ? z : z * z;
    sum += z > 0.0f && i != row.target ? value : 0.0f;
  }
  return sum;
}

// Writes the derivatives by one thread's classes other than the target, and returns their sum.
template <typename T>
inline float multi_margin_derivatives(MultiMarginRow<T> row, device T* grad_input, float grad,
                                      constant MarginLossParameters& parameters, uint lane,
                                      uint lanes) {
  const float factor = grad * row.weight * parameters.scale * static_cast<float>(parameters.power);
  float sum = 0.0f;
  for (int64_t i = lane; i < parameters.classes; i += lanes) {
    const float z = row.margin + static_cast<float>(row.x[i]);
    float value = parameters.power == 1 ? factor : factor * z;
    value = z > 0.0f && i != row.target ? value : 0.0f;
    grad_input[i] = static_cast<T>(value);
    sum += value;
  }
  return sum;
}

template <typename T>
inline void report_target(MultiMarginRow<T> row, constant MarginLossParameters& parameters,
                          device ErrorMessages* errors) {
  if (!row.valid) {
    TORCH_REPORT_ERROR(errors, "multi_margin_loss(): target out of range: ", row.target,
                       ", but there are ", parameters.classes, " classes");
  }
}

template <typename T>
kernel void margin_loss_multi_short_rows(device float* losses [[buffer(0)]],
                                         constant T* input [[buffer(1)]],
                                         constant long* targets [[buffer(2)]],
                                         constant T* weights [[buffer(3)]],
                                         constant MarginLossParameters& parameters [[buffer(4)]],
                                         device ErrorMessages* errors [[buffer(5)]],
                                         uint2 position [[thread_position_in_grid]],
                                         uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.rows) {
    return;
  }
  const MultiMarginRow<T> row(index, input, targets, weights, parameters);
  report_target(row, parameters, errors);
  losses[index] = multi_margin_part(row, parameters, 0, 1) * row.weight * parameters.scale;
}

template <typename T>
kernel void margin_loss_multi_rows(
    device float* losses [[buffer(0)]], constant T* input [[buffer(1)]],
    constant long* targets [[buffer(2)]], constant T* weights [[buffer(3)]],
    constant MarginLossParameters& parameters [[buffer(4)]],
    device ErrorMessages* errors [[buffer(5)]], uint index [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[c10::metal::simdgroup_size];
  const MultiMarginRow<T> row(index, input, targets, weights, parameters);
  const float part = multi_margin_part(row, parameters, lane, lanes);
  const float sum = c10::metal::threadgroup_sum(shared, part, lane, lanes);
  if (lane == 0) {
    report_target(row, parameters, errors);
    losses[index] = sum * row.weight * parameters.scale;
  }
}

template <typename T>
kernel void margin_loss_multi_backward_short_rows(
    device T* grad_input [[buffer(0)]], constant T* grad_output [[buffer(1)]],
    constant T* input [[buffer(2)]], constant long* targets [[buffer(3)]],
    constant T* weights [[buffer(4)]], constant MarginLossParameters& parameters [[buffer(5)]],
    device ErrorMessages* errors [[buffer(6)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.rows) {
    return;
  }
  const MultiMarginRow<T> row(index, input, targets, weights, parameters);
  report_target(row, parameters, errors);
  device T* grad_row = grad_input + index * parameters.classes;
  const float grad = static_cast<float>(grad_output[index * parameters.grad_stride]);
  const float sum = multi_margin_derivatives(row, grad_row, grad, parameters, 0, 1);
  if (row.valid) {
    grad_row[row.target] = static_cast<T>(-sum);
  }
}

template <typename T>
kernel void margin_loss_multi_backward_rows(
    device T* grad_input [[buffer(0)]], constant T* grad_output [[buffer(1)]],
    constant T* input [[buffer(2)]], constant long* targets [[buffer(3)]],
    constant T* weights [[buffer(4)]], constant MarginLossParameters& parameters [[buffer(5)]],
    device ErrorMessages* errors [[buffer(6)]], uint index [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[c10::metal::simdgroup_size];
  const MultiMarginRow<T> row(index, input, targets, weights, parameters);
  device T* grad_row = grad_input + index * parameters.classes;
  const float grad = static_cast<float>(grad_output[index * parameters.grad_stride]);
  const float part = multi_margin_derivatives(row, grad_row, grad, parameters, lane, lanes);
  const float sum = c10::metal::threadgroup_sum(shared, part, lane, lanes);
  if (lane == 0) {
    report_target(row, parameters, errors);
  }
  if (row.valid && owns(lane, lanes, row.target)) {
    grad_row[row.target] = static_cast<T>(-sum);
  }
}

// ---- multilabel_margin_loss ---------------------------------------------------------------------

// The loss is the sum of max(0, 1 - x[y] + x[i]) over the targets y, which end at the first
// negative one, and the classes i that are no target.

// Marks the targets among one thread's classes, and returns these classes' contribution.
template <typename T>
inline float multilabel_margin_part(int64_t row, device T* is_targets, constant T* input,
                                    constant long* all_targets,
                                    constant MarginLossParameters& parameters,
                                    device ErrorMessages* errors, uint lane, uint lanes) {
  const int64_t classes = parameters.classes;
  constant T* x = input + row * classes;
  constant long* targets = all_targets + row * classes;
  device T* is_target = is_targets + row * classes;
  const T zero = static_cast<T>(0.0f);
  for (int64_t i = lane; i < classes; i += lanes) {
    is_target[i] = zero;
    if (targets[i] < -1 || targets[i] >= classes) {
      TORCH_REPORT_ERROR(errors, "multilabel_margin_loss(): argument #2 'target' is out of range: ",
                         targets[i], ", but there are ", classes, " classes");
    }
  }
  for (int64_t n = 0; n < classes && targets[n] >= 0; ++n) {
    if (targets[n] < classes && owns(lane, lanes, targets[n])) {
      is_target[targets[n]] = static_cast<T>(1.0f);
    }
  }
  float sum = 0.0f;
  for (int64_t n = 0; n < classes && targets[n] >= 0; ++n) {
    const int64_t target = targets[n];
    const float margin = target < classes ? 1.0f - static_cast<float>(x[target]) : -INFINITY;
    for (int64_t i = lane; i < classes; i += lanes) {
      const float z = margin + static_cast<float>(x[i]);
      sum += z > 0.0f && is_target[i] == zero ? z : 0.0f;
    }
  }
  return sum;
}

template <typename T>
kernel void margin_loss_multilabel_short_rows(
    device float* losses [[buffer(0)]], device T* is_target [[buffer(1)]],
    constant T* input [[buffer(2)]], constant long* targets [[buffer(3)]],
    constant MarginLossParameters& parameters [[buffer(4)]],
    device ErrorMessages* errors [[buffer(5)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  if (row >= parameters.rows) {
    return;
  }
  const float sum =
      multilabel_margin_part(row, is_target, input, targets, parameters, errors, 0, 1);
  losses[row] = sum * parameters.scale;
}

template <typename T>
kernel void margin_loss_multilabel_rows(
    device float* losses [[buffer(0)]], device T* is_target [[buffer(1)]],
    constant T* input [[buffer(2)]], constant long* targets [[buffer(3)]],
    constant MarginLossParameters& parameters [[buffer(4)]],
    device ErrorMessages* errors [[buffer(5)]], uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[c10::metal::simdgroup_size];
  const float part =
      multilabel_margin_part(row, is_target, input, targets, parameters, errors, lane, lanes);
  const float sum = c10::metal::threadgroup_sum(shared, part, lane, lanes);
  if (lane == 0) {
    losses[row] = sum * parameters.scale;
  }
}

// Computes the gradient of one class of a row per thread. It counts the targets whose margin the
// class violates or, for a target, the classes that violate its own, as often as the target is
// listed.
template <typename T>
kernel void margin_loss_multilabel_backward(
    device T* grad_input [[buffer(0)]], constant T* grad_output [[buffer(1)]],
    constant T* input [[buffer(2)]], constant long* all_targets [[buffer(3)]],
    constant T* is_targets [[buffer(4)]], constant MarginLossParameters& parameters [[buffer(5)]],
    device ErrorMessages* errors [[buffer(6)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  const int64_t classes = parameters.classes;
  const int64_t row = element / classes;
  if (row >= parameters.rows) {
    return;
  }
  const int64_t self = element - row * classes;
  constant T* x = input + row * classes;
  constant long* targets = all_targets + row * classes;
  constant T* is_target = is_targets + row * classes;
  const T zero = static_cast<T>(0.0f);
  if (targets[self] < -1 || targets[self] >= classes) {
    TORCH_REPORT_ERROR(errors,
                       "multilabel_margin_loss_backward(): argument #3 'target' is out of range: ",
                       targets[self], ", but there are ", classes, " classes");
  }
  float named = 0.0f;
  float violations = 0.0f;
  for (int64_t n = 0; n < classes && targets[n] >= 0; ++n) {
    const int64_t target = targets[n];
    const float margin = target < classes ? 1.0f - static_cast<float>(x[target]) : -INFINITY;
    named += target == self ? 1.0f : 0.0f;
    violations += margin + static_cast<float>(x[self]) > 0.0f ? 1.0f : 0.0f;
  }
  if (is_target[self] != zero) {
    const float margin = 1.0f - static_cast<float>(x[self]);
    violations = 0.0f;
    for (int64_t i = 0; i < classes; ++i) {
      violations += margin + static_cast<float>(x[i]) > 0.0f && is_target[i] == zero ? 1.0f : 0.0f;
    }
    violations *= -named;
  }
  const float grad = static_cast<float>(grad_output[row * parameters.grad_stride]);
  grad_input[element] = static_cast<T>(grad * parameters.scale * violations);
}

// ---- reduction ----------------------------------------------------------------------------------

// Sums all losses in one threadgroup.
kernel void margin_loss_sum(device float* result [[buffer(0)]],
                            constant float* losses [[buffer(1)]],
                            constant long& count [[buffer(2)]],
                            uint lane [[thread_position_in_threadgroup]],
                            uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[c10::metal::simdgroup_size];
  float part = 0.0f;
  for (int64_t i = lane; i < count; i += lanes) {
    part += losses[i];
  }
  const float sum = c10::metal::threadgroup_sum(shared, part, lane, lanes);
  if (lane == 0) {
    result[0] = sum;
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_MARGIN_LOSSES(T)                                                                 \
  REGISTER_KERNEL("margin_loss_multi_short_rows_" #T, margin_loss_multi_short_rows, T);           \
  REGISTER_KERNEL("margin_loss_multi_rows_" #T, margin_loss_multi_rows, T);                       \
  REGISTER_KERNEL("margin_loss_multi_backward_short_rows_" #T,                                    \
                  margin_loss_multi_backward_short_rows, T);                                      \
  REGISTER_KERNEL("margin_loss_multi_backward_rows_" #T, margin_loss_multi_backward_rows, T);     \
  REGISTER_KERNEL("margin_loss_multilabel_short_rows_" #T, margin_loss_multilabel_short_rows, T); \
  REGISTER_KERNEL("margin_loss_multilabel_rows_" #T, margin_loss_multilabel_rows, T);             \
  REGISTER_KERNEL("margin_loss_multilabel_backward_" #T, margin_loss_multilabel_backward, T)

REGISTER_MARGIN_LOSSES(float);
REGISTER_MARGIN_LOSSES(half);
REGISTER_MARGIN_LOSSES(bfloat);

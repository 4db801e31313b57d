// CTC loss: A. Graves et al., "Connectionist temporal classification: labelling unsegmented
// sequence data with recurrent neural networks" (ICML 2006); equation numbers below are theirs. All
// probabilities are logarithms.
//
// A target l of length L has 2 L + 1 states: state s is a blank if s is even, else label l[s / 2].
// A threadgroup loops over a sample's time steps, and its threads share the states of a step. The
// gradient has one thread per element.
#include <c10/metal/error.h>

#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/training/ctc_loss.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline bool is_label(int64_t label, constant CtcLossParameters& parameters) {
  return label >= 0 && label < parameters.labels;
}

inline void report_label(int64_t label, constant CtcLossParameters& parameters,
                         device ErrorMessages* errors) {
  TORCH_REPORT_ERROR(errors, "ctc_loss(): target out of range: label ", label, ", but there are ",
                     parameters.labels, " labels");
}

// A sample of the batch. lengths: the input lengths, the target lengths, and the targets' offsets.
struct Sample {
  constant float* log_probs;
  constant long* target;
  int64_t steps;
  int64_t length;  // of the target

  Sample(int64_t index, constant float* all_log_probs, constant long* targets,
         constant long* lengths, constant CtcLossParameters& parameters) {
    log_probs = all_log_probs + index * parameters.log_probs_strides[1];
    steps = lengths[index];
    length = lengths[parameters.batch + index];
    target = targets + lengths[2 * parameters.batch + index];
  }

  int64_t states() const { return 2 * length + 1; }

  int64_t label(int64_t state, constant CtcLossParameters& parameters) const {
    return (state & 1) == 0 ? parameters.blank : target[(state >> 1) * parameters.target_stride];
  }

  // Returns true if a path may skip the blank between this state and the one two before it.
  bool skips_blank(int64_t state, constant CtcLossParameters& parameters) const {
    return state > 1 && (state & 1) != 0 &&
           label(state, parameters) != label(state - 2, parameters);
  }

  // Returns the log probability of a label at a time step; log(0) for a label that does not exist.
  float log_prob(int64_t step, int64_t label, constant CtcLossParameters& parameters) const {
    if (!is_label(label, parameters)) {
      return -INFINITY;
    }
    return log_probs[step * parameters.log_probs_strides[0] +
                     label * parameters.log_probs_strides[2]];
  }
};

inline void order(thread float& larger, thread float& smaller) {
  const float other = larger;
  larger = smaller > other ? smaller : other;
  smaller = smaller > other ? other : smaller;
}

// Returns log(exp(a) + exp(b) + exp(c)); NaN if one of them is NaN or, as on the CPU, infinity.
inline float log_sum_exp(float a, float b, float c) {
  order(a, b);
  order(a, c);
  if (a == -INFINITY) {
    return a + b + c;
  }
  const float one = 1.0f + (a - a);
  const float others =
      (b == -INFINITY ? 0.0f : precise::exp(b - a)) + (c == -INFINITY ? 0.0f : precise::exp(c - a));
  return precise::log(one + others) + a;
}

// Equation 8, of a sample's forward variables.
inline float loss_of(thread const Sample& sample, const device float* log_alpha,
                     constant CtcLossParameters& parameters) {
  if (sample.steps == 0) {
    return sample.length == 0 ? 0.0f : INFINITY;
  }
  const device float* last = log_alpha + (sample.steps - 1) * parameters.states + 2 * sample.length;
  return -log_sum_exp(last[0], sample.length > 0 ? last[-1] : -INFINITY, -INFINITY);
}

// ---- forward ------------------------------------------------------------------------------------

// Forward variables: alpha of equations 6 and 7, and the loss of equation 8. log_alpha is log(0)
// for steps and states that a sample does not have.
kernel void ctc_loss_alpha(
    device float* losses [[buffer(0)]], device float* log_alphas [[buffer(1)]],
    constant float* log_probs [[buffer(2)]], constant long* targets [[buffer(3)]],
    constant long* lengths [[buffer(4)]], constant CtcLossParameters& parameters [[buffer(5)]],
    device ErrorMessages* errors [[buffer(6)]], uint index [[threadgroup_position_in_grid]],
    uint first [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  const Sample sample(index, log_probs, targets, lengths, parameters);
  const int64_t size = parameters.steps * parameters.states;
  device float* log_alpha = log_alphas + index * size;
  for (int64_t i = first; i < sample.length; i += threads) {
    const int64_t label = sample.label(2 * i + 1, parameters);
    if (!is_label(label, parameters)) {
      report_label(label, parameters, errors);
    }
  }
  for (int64_t t = 0; t < sample.steps; ++t) {
    device float* now = log_alpha + t * parameters.states;
    device float* before = now - parameters.states;
    for (int64_t s = first; s < parameters.states; s += threads) {
      float value = -INFINITY;
      if (t == 0) {
        value = s < 2 ? 0.0f : -INFINITY;
      } else if (s < sample.states()) {
        value = log_sum_exp(before[s], s > 0 ? before[s - 1] : -INFINITY,
                            sample.skips_blank(s, parameters) ? before[s - 2] : -INFINITY);
      }
      if (s < sample.states()) {
        value += sample.log_prob(t, sample.label(s, parameters), parameters);
      } else {
        value = -INFINITY;
      }
      now[s] = value;
    }
    threadgroup_barrier(mem_flags::mem_device);
  }
  for (int64_t i = sample.steps * parameters.states + first; i < size; i += threads) {
    log_alpha[i] = -INFINITY;
  }
  if (first == 0) {
    losses[index] = loss_of(sample, log_alpha, parameters);
  }
}

// ---- backward -----------------------------------------------------------------------------------

// Backward variables: beta of equations 10 and 11; and, for the gradient, linked lists of each
// label's positions in the target. `last` holds each label's last position, `previous` the position
// before each one with the same label, -1 for none. The losses are computed once more, since those
// of half precision are rounded, and the gradient depends on their exponentials.
kernel void ctc_loss_backward_beta(
    device float* log_betas [[buffer(0)]], device int* all_last [[buffer(1)]],
    device int* all_previous [[buffer(2)]], device float* losses [[buffer(3)]],
    const device float* log_alphas [[buffer(4)]], constant float* log_probs [[buffer(5)]],
    constant long* targets [[buffer(6)]], constant long* lengths [[buffer(7)]],
    constant CtcLossParameters& parameters [[buffer(8)]],
    device ErrorMessages* errors [[buffer(9)]], uint index [[threadgroup_position_in_grid]],
    uint first [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  const Sample sample(index, log_probs, targets, lengths, parameters);
  const int64_t size = parameters.steps * parameters.states;
  const float loss = loss_of(sample, log_alphas + index * size, parameters);
  if (first == 0) {
    losses[index] = loss;
  }
  if (parameters.zero_infinity != 0 && loss == INFINITY) {
    return;
  }
  device int* last = all_last + index * parameters.labels;
  device int* previous = all_previous + index * (parameters.states / 2);
  for (int64_t i = first; i < parameters.labels; i += threads) {
    last[i] = -1;
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (int64_t i = first; i < sample.length; i += threads) {
    const int64_t label = sample.label(2 * i + 1, parameters);
    int64_t earlier = i - 1;
    while (earlier >= 0 && sample.label(2 * earlier + 1, parameters) != label) {
      --earlier;
    }
    previous[i] = static_cast<int>(earlier);
    int64_t later = i + 1;
    while (later < sample.length && sample.label(2 * later + 1, parameters) != label) {
      ++later;
    }
    if (!is_label(label, parameters)) {
      report_label(label, parameters, errors);
    } else if (later == sample.length) {
      last[label] = static_cast<int>(i);
    }
  }
  device float* log_beta = log_betas + index * size;
  const int64_t end = sample.states() - 1;
  for (int64_t t = sample.steps - 1; t >= 0; --t) {
    device float* now = log_beta + t * parameters.states;
    device float* after = now + parameters.states;
    for (int64_t s = first; s <= end; s += threads) {
      float value;
      if (t == sample.steps - 1) {
        value = s + 1 >= end ? 0.0f : -INFINITY;
      } else {
        const bool skips = s + 2 <= end && sample.skips_blank(s + 2, parameters);
        value = log_sum_exp(after[s], s < end ? after[s + 1] : -INFINITY,
                            skips ? after[s + 2] : -INFINITY);
      }
      now[s] = value + sample.log_prob(t, sample.label(s, parameters), parameters);
    }
    threadgroup_barrier(mem_flags::mem_device);
  }
}

// Log-sum-exp in two passes: compare() is called for all values to find the max, then add() for all
// of them.
struct LogSum {
  float largest = -INFINITY;
  float sum = 0.0f;

  void compare(float value) { largest = value > largest || isnan(value) ? value : largest; }
  void add(float value) { sum += value == -INFINITY ? 0.0f : precise::exp(value - largest); }
  float result() const { return precise::log(sum) + largest; }
};

// Equation 16: the derivative with respect to log_probs. grad_input is (steps, samples, labels).
kernel void ctc_loss_backward(
    device float* grad_input [[buffer(0)]], constant float* grad_output [[buffer(1)]],
    constant float* losses [[buffer(2)]], constant float* log_alphas [[buffer(3)]],
    constant float* log_betas [[buffer(4)]], constant int* all_last [[buffer(5)]],
    constant int* all_previous [[buffer(6)]], constant float* log_probs [[buffer(7)]],
    constant long* targets [[buffer(8)]], constant long* lengths [[buffer(9)]],
    constant CtcLossParameters& parameters [[buffer(10)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  const int64_t label = element % parameters.labels;
  const int64_t index = element / parameters.labels % parameters.batch;
  const int64_t t = element / parameters.labels / parameters.batch;
  if (t >= parameters.steps) {
    return;
  }
  const Sample sample(index, log_probs, targets, lengths, parameters);
  const float loss = losses[index];
  if (t >= sample.steps || (parameters.zero_infinity != 0 && loss == INFINITY)) {
    grad_input[element] = 0.0f;
    return;
  }
  const int64_t row = (index * parameters.steps + t) * parameters.states;
  constant float* alpha = log_alphas + row;
  constant float* beta = log_betas + row;
  constant int* previous = all_previous + index * (parameters.states / 2);
  const int last = all_last[index * parameters.labels + label];
  const int64_t blanks = label == parameters.blank ? sample.states() : 0;
  const float log_prob = sample.log_prob(t, label, parameters);
  const float scale = grad_output[index * parameters.grad_stride];
  if (last < 0 && blanks == 0 && isfinite(loss - log_prob)) {  // no path has this label
    grad_input[element] = precise::exp(log_prob) * scale;
    return;
  }
  LogSum collected;
  for (int64_t s = 0; s < blanks; s += 2) {
    collected.compare(alpha[s] + beta[s]);
  }
  for (int place = last; place >= 0; place = previous[place]) {
    collected.compare(alpha[2 * place + 1] + beta[2 * place + 1]);
  }
  for (int64_t s = 0; s < blanks; s += 2) {
    collected.add(alpha[s] + beta[s]);
  }
  for (int place = last; place >= 0; place = previous[place]) {
    collected.add(alpha[2 * place + 1] + beta[2 * place + 1]);
  }
  const float expected = precise::exp(collected.result() + loss - log_prob);
  grad_input[element] = (precise::exp(log_prob) - expected) * scale;
}

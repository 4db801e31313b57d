// The softmax of the elements of a row that are not masked, and its gradient. What is masked counts
// as -infinity and has the result zero; a row that is masked as a whole becomes NaN, as in torch.
// A mask of numbers is added to the elements instead.
//
// A row is the work of a threadgroup, or of a single thread where rows are short or many. Thread
// `lane` of `lanes` takes every lanes-th pack of elements from `lane` on. Sums are float whatever
// the tensors are.
#include <c10/metal/reduction_utils.h>

#include <metalops/strided.h>
#include <metal_stdlib>

#include "masked_softmax.h"
using namespace metal;
using namespace metalops;

// ---- the threads that share a row, and how they put their parts together ------------------------

struct OneThread {
  uint lane = 0;
  uint lanes = 1;
  float largest(float part) const { return part; }
  float sum(float part) const { return part; }
};

struct Threadgroup {
  threadgroup float* maxima;  // of the simdgroups
  threadgroup float* sums;
  uint lane;
  uint lanes;
  float largest(float part) const { return c10::metal::threadgroup_max(maxima, part, lane, lanes); }
  float sum(float part) const { return c10::metal::threadgroup_sum(sums, part, lane, lanes); }
};

// ---- packs: as many neighbouring elements as a thread takes at a time
// -----------------------------

constant constexpr int64_t kPack = 16;

struct Pack {
  float values[kPack];

  explicit Pack(float value) {
    for (int64_t k = 0; k < kPack; ++k) {
      values[k] = value;
    }
  }

  float largest() const {
    float result = values[0];
    for (int64_t k = 1; k < kPack; ++k) {
      result = values[k] > result ? values[k] : result;
    }
    return result;
  }

  float sum() const {
    float result = values[0];
    for (int64_t k = 1; k < kPack; ++k) {
      result += values[k];
    }
    return result;
  }
};

// `value`, or `instead` if it is masked. Without a branch, because those of a random mask are badly
// predicted, and loops with branches do not become vector instructions.
inline float unless_masked(bool masked, float value, float instead) {
  const uint bits = -static_cast<uint>(masked);
  return as_type<float>((as_type<uint>(value) & ~bits) | (as_type<uint>(instead) & bits));
}

inline float with_mask(float score, bool mask) { return unless_masked(mask, score, -INFINITY); }

template <typename T>
inline float with_mask(float score, T mask) {
  return score + static_cast<float>(mask);
}

// From an element of a row on: the scores with their mask.
template <typename T, typename Mask>
struct Scores {
  constant T* input;
  constant Mask* mask;

  float operator[](int64_t i) const { return with_mask(static_cast<float>(input[i]), mask[i]); }
};

// From an element of a row on: y (g - shift), where y is the softmax and g the gradient with
// respect to it; zero where they are masked.
template <typename T>
struct Weighted {
  constant T* result;
  constant T* grad;
  constant bool* mask;
  float shift;

  float operator[](int64_t i) const {
    const float value = static_cast<float>(result[i]) * (static_cast<float>(grad[i]) - shift);
    return unless_masked(mask[i], value, 0.0f);
  }
};

// The next elements of a row that has `count` left; `beyond` where there are none.
template <typename Elements>
inline Pack load(Elements elements, int64_t count, float beyond) {
  Pack pack(beyond);
  if (count >= kPack) {
    for (int64_t k = 0; k < kPack; ++k) {
      pack.values[k] = elements[k];
    }
  } else {
    for (int64_t k = 0; k < count; ++k) {
      pack.values[k] = elements[k];
    }
  }
  return pack;
}

inline Pack exponentials(Pack pack, float largest) {
  for (int64_t k = 0; k < kPack; ++k) {
    pack.values[k] = precise::exp(pack.values[k] - largest);
  }
  return pack;
}

template <typename T>
inline void store(device T* result, Pack pack, float factor, int64_t count) {
  if (count >= kPack) {
    for (int64_t k = 0; k < kPack; ++k) {
      result[k] = static_cast<T>(pack.values[k] * factor);
    }
  } else {
    for (int64_t k = 0; k < count; ++k) {
      result[k] = static_cast<T>(pack.values[k] * factor);
    }
  }
}

// ---- rows ---------------------------------------------------------------------------------------

template <typename T, typename Mask, typename Team>
inline void softmax(Team team, device T* result, constant T* input, constant Mask* mask,
                    int64_t size) {
  const int64_t begin = team.lane * kPack;
  const int64_t step = team.lanes * kPack;
  Pack largest(-INFINITY);
  for (int64_t i = begin; i < size; i += step) {
    const Pack x = load(Scores<T, Mask>{input + i, mask + i}, size - i, -INFINITY);
    for (int64_t k = 0; k < kPack; ++k) {
      largest.values[k] = x.values[k] > largest.values[k] ? x.values[k] : largest.values[k];
    }
  }
  const float top = team.largest(largest.largest());
  Pack sums(0.0f);
  for (int64_t i = begin; i < size; i += step) {
    const Pack x =
        exponentials(load(Scores<T, Mask>{input + i, mask + i}, size - i, -INFINITY), top);
    for (int64_t k = 0; k < kPack; ++k) {
      sums.values[k] += x.values[k];
    }
  }
  const float factor = 1.0f / team.sum(sums.sum());
  for (int64_t i = begin; i < size; i += step) {
    const Pack x =
        exponentials(load(Scores<T, Mask>{input + i, mask + i}, size - i, -INFINITY), top);
    store(result + i, x, factor, size - i);
  }
}

// y (g - sum of g y).
template <typename T, typename Team>
inline void softmax_backward(Team team, device T* grad_input, constant T* grad, constant T* result,
                             constant bool* mask, int64_t size) {
  const int64_t begin = team.lane * kPack;
  const int64_t step = team.lanes * kPack;
  Pack sums(0.0f);
  for (int64_t i = begin; i < size; i += step) {
    const Pack x = load(Weighted<T>{result + i, grad + i, mask + i, 0.0f}, size - i, 0.0f);
    for (int64_t k = 0; k < kPack; ++k) {
      sums.values[k] += x.values[k];
    }
  }
  const float sum = team.sum(sums.sum());
  for (int64_t i = begin; i < size; i += step) {
    const Pack x = load(Weighted<T>{result + i, grad + i, mask + i, sum}, size - i, 0.0f);
    store(grad_input + i, x, 1.0f, size - i);
  }
}

// ---- kernels ------------------------------------------------------------------------------------

inline int64_t mask_row(int64_t row, constant MaskedSoftmaxParameters& parameters) {
  return row / parameters.repeats % parameters.mask_rows;
}

template <typename T, typename Mask>
kernel void masked_softmax_short_rows(device T* result [[buffer(0)]],
                                      constant T* input [[buffer(1)]],
                                      constant Mask* mask [[buffer(2)]],
                                      constant MaskedSoftmaxParameters& parameters [[buffer(3)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  const int64_t size = parameters.size;
  if (row < parameters.rows) {
    softmax(OneThread(), result + row * size, input + row * size,
            mask + mask_row(row, parameters) * size, size);
  }
}

template <typename T, typename Mask>
kernel void masked_softmax_rows(device T* result [[buffer(0)]], constant T* input [[buffer(1)]],
                                constant Mask* mask [[buffer(2)]],
                                constant MaskedSoftmaxParameters& parameters [[buffer(3)]],
                                uint row [[threadgroup_position_in_grid]],
                                uint lane [[thread_position_in_threadgroup]],
                                uint lanes [[threads_per_threadgroup]]) {
  threadgroup float maxima[c10::metal::simdgroup_size];
  threadgroup float sums[c10::metal::simdgroup_size];
  const int64_t size = parameters.size;
  softmax(Threadgroup{maxima, sums, lane, lanes}, result + row * size, input + row * size,
          mask + mask_row(row, parameters) * size, size);
}

template <typename T>
kernel void masked_softmax_backward_short_rows(
    device T* grad_input [[buffer(0)]], constant T* grad [[buffer(1)]],
    constant T* result [[buffer(2)]], constant bool* mask [[buffer(3)]],
    constant MaskedSoftmaxParameters& parameters [[buffer(4)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  const int64_t start = row * parameters.size;
  if (row < parameters.rows) {
    softmax_backward(OneThread(), grad_input + start, grad + start, result + start, mask + start,
                     parameters.size);
  }
}

template <typename T>
kernel void masked_softmax_backward_rows(device T* grad_input [[buffer(0)]],
                                         constant T* grad [[buffer(1)]],
                                         constant T* result [[buffer(2)]],
                                         constant bool* mask [[buffer(3)]],
                                         constant MaskedSoftmaxParameters& parameters [[buffer(4)]],
                                         uint row [[threadgroup_position_in_grid]],
                                         uint lane [[thread_position_in_threadgroup]],
                                         uint lanes [[threads_per_threadgroup]]) {
  threadgroup float sums[c10::metal::simdgroup_size];
  const int64_t start = row * parameters.size;
  softmax_backward(Threadgroup{nullptr, sums, lane, lanes}, grad_input + start, grad + start,
                   result + start, mask + start, parameters.size);
}

#define REGISTER_MASKED_SOFTMAX(T, MASK)                                               \
  template [[host_name("masked_softmax_short_rows_" #T "_" #MASK)]] kernel void        \
  masked_softmax_short_rows<T, MASK>(device T*, constant T*, constant MASK*,           \
                                     constant MaskedSoftmaxParameters&, uint2, uint2); \
  template [[host_name("masked_softmax_rows_" #T "_" #MASK)]] kernel void              \
  masked_softmax_rows<T, MASK>(device T*, constant T*, constant MASK*,                 \
                               constant MaskedSoftmaxParameters&, uint, uint, uint)

#define REGISTER_MASKED_SOFTMAX_BACKWARD(T)                                                  \
  template [[host_name("masked_softmax_backward_short_rows_" #T)]] kernel void               \
  masked_softmax_backward_short_rows<T>(device T*, constant T*, constant T*, constant bool*, \
                                        constant MaskedSoftmaxParameters&, uint2, uint2);    \
  template [[host_name("masked_softmax_backward_rows_" #T)]] kernel void                     \
  masked_softmax_backward_rows<T>(device T*, constant T*, constant T*, constant bool*,       \
                                  constant MaskedSoftmaxParameters&, uint, uint, uint)

REGISTER_MASKED_SOFTMAX(float, bool);
REGISTER_MASKED_SOFTMAX(half, bool);
REGISTER_MASKED_SOFTMAX(bfloat, bool);
REGISTER_MASKED_SOFTMAX(float, float);
REGISTER_MASKED_SOFTMAX(half, half);
REGISTER_MASKED_SOFTMAX(bfloat, bfloat);
REGISTER_MASKED_SOFTMAX_BACKWARD(float);
REGISTER_MASKED_SOFTMAX_BACKWARD(half);
REGISTER_MASKED_SOFTMAX_BACKWARD(bfloat);

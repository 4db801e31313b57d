// rrelu: x where it is positive, else x times a slope, which is random in training and the mean of
// the bounds otherwise.
#include <c10/metal/indexing.h>
#include <c10/metal/random.h>
#include <kernels/pointwise/rrelu.h>
#include <metalops/registration.h>
#include <metalops/strided.h>
#include <metal_stdlib>
using namespace metal;
using namespace metalops;

// rrelu in training mode. Element i in row-major order uses number i of the stream, so the result
// does not depend on the tensors' strides. One thread computes the four elements that share a
// Philox call. noise receives the slope where it was applied, else 1: the derivative.
template <typename T>
kernel void rrelu_training(device T* output [[buffer(0)]], device T* noise [[buffer(1)]],
                           constant T* input [[buffer(2)]],
                           constant RreluParameters& parameters [[buffer(3)]],
                           constant StridedLayout<3>& layout [[buffer(4)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t group = thread_index(position, grid);
  const int64_t end = min(layout.count, 4 * group + 4);
  const uint4 random = c10::metal::philox4::rand(parameters.seed, parameters.offset + group);
  for (int64_t index = 4 * group; index < end; ++index) {
    const auto offsets = offsets_of(index, layout);
    const T value = element_at(input, offsets[2]);
    float slope = 1.0f;
    if (value <= T(0.0f)) {
      const float fraction = c10::metal::detail::uint32_to_uniform_float(random[index & 3]);
      const float drawn = fma(fraction, parameters.upper - parameters.lower, parameters.lower);
      slope = min(drawn, parameters.upper);
    }
    element_at(output, offsets[0]) = static_cast<T>(static_cast<float>(value) * slope);
    element_at(noise, offsets[1]) = static_cast<T>(slope);
  }
}

struct rrelu_functor {
  template <typename T>
  inline T operator()(const T value, const float slope) {
    const float x = static_cast<float>(value);
    return static_cast<T>(x > 0.0f ? x : x * slope);
  }
};

struct rrelu_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T value, const float slope) {
    const float gradient = static_cast<float>(grad_output);
    return static_cast<T>(static_cast<float>(value) > 0.0f ? gradient : gradient * slope);
  }
};

struct rrelu_training_backward_functor {
  template <typename T>
  inline T operator()(const T grad_output, const T noise) {
    return static_cast<T>(static_cast<float>(grad_output) * static_cast<float>(noise));
  }
};

#define REGISTER_RRELU_TRAINING(T) REGISTER_KERNEL("rrelu_training_" #T, rrelu_training, T)

REGISTER_RRELU_TRAINING(float);
REGISTER_RRELU_TRAINING(half);
REGISTER_RRELU_TRAINING(bfloat);
REGISTER_FLOAT_UNARY_ALPHA_OP(rrelu);
REGISTER_FLOAT_BINARY_ALPHA_OP(rrelu_backward);
REGISTER_OPMATH_FLOAT_BINARY_OP(rrelu_training_backward);

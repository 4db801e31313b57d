// One step of Adagrad (J. Duchi et al., 2011) for one parameter tensor. All tensors lie in memory
// in the same way.

#include <metal_stdlib>

#include "adagrad.h"
using namespace metal;
using namespace metalops;

// found_inf: 1 if the scaled gradients of this step overflowed, and the step is not to be made:
// what is written then is what was there.
template <typename T>
kernel void adagrad(device T* param [[buffer(0)]], device T* grad [[buffer(1)]],
                    device T* state_sum [[buffer(2)]], constant float& step [[buffer(3)]],
                    constant float& lr [[buffer(4)]], constant float& grad_scale [[buffer(5)]],
                    constant float& found_inf [[buffer(6)]],
                    constant AdagradParameters& parameters [[buffer(7)]],
                    uint2 position [[thread_position_in_grid]]) {
  const uint i = position.x;
  const bool skipped = found_inf == 1.0f;
  const float rate = lr / (1.0f + (step - 1.0f) * parameters.lr_decay);
  const float value = static_cast<float>(param[i]);
  const float old_sum = static_cast<float>(state_sum[i]);
  const float given = static_cast<float>(grad[i]);
  const float unscaled = given / grad_scale;
  const float ascent = parameters.maximize != 0 ? -unscaled : unscaled;
  const float gradient = ascent + value * parameters.weight_decay;
  const float sum = old_sum + gradient * gradient;
  const float updated = value - rate * gradient / (precise::sqrt(sum) + parameters.eps);
  if (parameters.has_grad_scale != 0) {
    grad[i] = static_cast<T>(skipped ? given : unscaled);
  }
  state_sum[i] = static_cast<T>(skipped ? old_sum : sum);
  param[i] = static_cast<T>(skipped ? value : updated);
}

#define REGISTER_ADAGRAD(T)                                                               \
  template [[host_name("adagrad_" #T)]] kernel void adagrad<T>(                           \
      device T*, device T*, device T*, constant float&, constant float&, constant float&, \
      constant float&, constant AdagradParameters&, uint2)

REGISTER_ADAGRAD(float);
REGISTER_ADAGRAD(half);
REGISTER_ADAGRAD(bfloat);

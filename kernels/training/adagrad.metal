// One step of Adagrad (J. Duchi et al., 2011) for one or several parameter tensors. All tensors of
// a parameter have the same memory layout.

#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/training/adagrad.h>
using namespace metal;
using namespace metalops;

template <typename T>
struct alignas(kAdagradPack * sizeof(T)) AdagradPack {
  T of[kAdagradPack];
};

// An element of a parameter, its gradient and the accumulated sum of squared gradients.
struct AdagradElement {
  float param;
  float grad;
  float sum;
};

// The values common to all tensors. found_inf: 1 if the scaled gradients of this step overflowed;
// then the step is skipped and the old values are written back.
struct Adagrad {
  float lr;
  float grad_scale;
  float found_inf;
  AdagradParameters parameters;

  AdagradElement stepped(AdagradElement old, float step) const thread {
    const float rate = lr / (1.0f + (step - 1.0f) * parameters.lr_decay);
    const float unscaled = old.grad / grad_scale;
    const float ascent = parameters.maximize != 0 ? -unscaled : unscaled;
    const float gradient = ascent + old.param * parameters.weight_decay;
    const float sum = old.sum + gradient * gradient;
    const float param = old.param - rate * gradient / (precise::sqrt(sum) + parameters.eps);
    const bool skipped = found_inf == 1.0f;
    return {skipped ? old.param : param, skipped ? old.grad : unscaled, skipped ? old.sum : sum};
  }

  template <typename T>
  void step_one(device T* param, device T* grad, device T* state_sum, float step,
                uint i) const thread {
    const AdagradElement element =
        stepped({static_cast<float>(param[i]), static_cast<float>(grad[i]),
                 static_cast<float>(state_sum[i])},
                step);
    if (parameters.has_grad_scale != 0) {
      grad[i] = static_cast<T>(element.grad);
    }
    state_sum[i] = static_cast<T>(element.sum);
    param[i] = static_cast<T>(element.param);
  }

  // Updates four adjacent elements, or as many as `tensor` has.
  template <typename T>
  void step_pack(device T* param, device T* grad, device T* state_sum, float step, uint pack,
                 AdagradTensor tensor) const thread {
    const uint first = (pack - tensor.first_pack) * kAdagradPack;
    if (tensor.aligned == 0 || tensor.elements - first < kAdagradPack) {
      for (uint i = first; i < min(first + kAdagradPack, tensor.elements); ++i) {
        step_one(param, grad, state_sum, step, i);
      }
      return;
    }
    device AdagradPack<T>& params = *reinterpret_cast<device AdagradPack<T>*>(param + first);
    device AdagradPack<T>& grads = *reinterpret_cast<device AdagradPack<T>*>(grad + first);
    device AdagradPack<T>& sums = *reinterpret_cast<device AdagradPack<T>*>(state_sum + first);
    AdagradPack<T> p = params;
    AdagradPack<T> g = grads;
    AdagradPack<T> s = sums;
    for (uint i = 0; i < kAdagradPack; ++i) {
      const AdagradElement element = stepped(
          {static_cast<float>(p.of[i]), static_cast<float>(g.of[i]), static_cast<float>(s.of[i])},
          step);
      p.of[i] = static_cast<T>(element.param);
      g.of[i] = static_cast<T>(element.grad);
      s.of[i] = static_cast<T>(element.sum);
    }
    if (parameters.has_grad_scale != 0) {
      grads = g;
    }
    sums = s;
    params = p;
  }
};

template <typename T>
kernel void adagrad(device T* param [[buffer(0)]], device T* grad [[buffer(1)]],
                    device T* state_sum [[buffer(2)]], constant float& step [[buffer(3)]],
                    constant float& lr [[buffer(4)]], constant float& grad_scale [[buffer(5)]],
                    constant float& found_inf [[buffer(6)]],
                    constant AdagradParameters& parameters [[buffer(7)]],
                    uint2 position [[thread_position_in_grid]]) {
  const AdagradParameters same = parameters;
  const Adagrad all = {lr, grad_scale, found_inf, same};
  all.step_one(param, grad, state_sum, step, position.x);
}

// Updates kAdagradTensors tensors, whose vectors are numbered one tensor after the other.
template <typename T>
kernel void adagrad_together(device T* param0 [[buffer(0)]], device T* grad0 [[buffer(1)]],
                             device T* sum0 [[buffer(2)]], constant float& step0 [[buffer(3)]],
                             device T* param1 [[buffer(4)]], device T* grad1 [[buffer(5)]],
                             device T* sum1 [[buffer(6)]], constant float& step1 [[buffer(7)]],
                             device T* param2 [[buffer(8)]], device T* grad2 [[buffer(9)]],
                             device T* sum2 [[buffer(10)]], constant float& step2 [[buffer(11)]],
                             device T* param3 [[buffer(12)]], device T* grad3 [[buffer(13)]],
                             device T* sum3 [[buffer(14)]], constant float& step3 [[buffer(15)]],
                             device T* param4 [[buffer(16)]], device T* grad4 [[buffer(17)]],
                             device T* sum4 [[buffer(18)]], constant float& step4 [[buffer(19)]],
                             device T* param5 [[buffer(20)]], device T* grad5 [[buffer(21)]],
                             device T* sum5 [[buffer(22)]], constant float& step5 [[buffer(23)]],
                             constant float& lr [[buffer(24)]],
                             constant float& grad_scale [[buffer(25)]],
                             constant float& found_inf [[buffer(26)]],
                             constant AdagradParameters& parameters [[buffer(27)]],
                             constant AdagradTensors& tensors [[buffer(28)]],
                             uint2 position [[thread_position_in_grid]]) {
  const AdagradParameters same = parameters;
  const Adagrad all = {lr, grad_scale, found_inf, same};
  const uint pack = position.x;
  if (pack < tensors.of[1].first_pack) {
    all.step_pack(param0, grad0, sum0, step0, pack, tensors.of[0]);
  } else if (pack < tensors.of[2].first_pack) {
    all.step_pack(param1, grad1, sum1, step1, pack, tensors.of[1]);
  } else if (pack < tensors.of[3].first_pack) {
    all.step_pack(param2, grad2, sum2, step2, pack, tensors.of[2]);
  } else if (pack < tensors.of[4].first_pack) {
    all.step_pack(param3, grad3, sum3, step3, pack, tensors.of[3]);
  } else if (pack < tensors.of[5].first_pack) {
    all.step_pack(param4, grad4, sum4, step4, pack, tensors.of[4]);
  } else {
    all.step_pack(param5, grad5, sum5, step5, pack, tensors.of[5]);
  }
}

#define REGISTER_ADAGRAD(T)                   \
  REGISTER_KERNEL("adagrad_" #T, adagrad, T); \
  REGISTER_KERNEL("adagrad_together_" #T, adagrad_together, T)

REGISTER_ADAGRAD(float);
REGISTER_ADAGRAD(half);
REGISTER_ADAGRAD(bfloat);

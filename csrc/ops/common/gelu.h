// GELU and its derivative in differentiable operators of ATen. (at::gelu_backward does not
// broadcast on every device, which torch.vmap asks of it.)
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/tanh.h>

#include <cmath>

struct WithDerivative {
  at::Tensor value;
  at::Tensor derivative;
};

inline WithDerivative gelu_erf(const at::Tensor& x) {
  const auto share = 0.5 * (1 + at::erf(x * M_SQRT1_2));
  const auto density = at::exp(-0.5 * x * x) * (0.5 * M_SQRT1_2 * M_2_SQRTPI);
  return {x * share, share + x * density};
}

inline WithDerivative gelu_tanh(const at::Tensor& x) {
  constexpr double kScale = M_SQRT2 * M_2_SQRTPI / 2;
  constexpr double kCubic = 0.044715;
  const auto t = at::tanh(kScale * x * (1 + kCubic * x * x));
  const auto slope = kScale * (1 + 3 * kCubic * x * x);
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope};
}

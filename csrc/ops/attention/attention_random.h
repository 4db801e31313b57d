// The seed and offset of attention's dropout.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <csrc/ops/common/int32.h>

namespace metalops {

// Returns seed and offset on the device of `like`, drawn by an operator of torch from that device's
// default generator: compiled programs draw at each call, and torch.vmap as its `randomness` says.
inline at::Tensor draw_attention_seed(const at::Tensor& like) {
  return at::randint(kInt32Max, {2}, like.options().dtype(at::kLong));
}

}  // namespace metalops

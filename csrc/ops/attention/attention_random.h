// What attention's dropout depends on.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <csrc/ops/common/int32.h>

namespace metalops {

// Seed and offset on the device of `like`, drawn by an operator of torch from that device's default
// generator: so compiled programs draw at each call, and torch.vmap as its `randomness` says.
inline at::Tensor draw_attention_seed(const at::Tensor& like) {
  return at::randint(kInt32Max, {2}, like.options().dtype(at::kLong));
}

}  // namespace metalops

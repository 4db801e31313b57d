// What attention's dropout depends on.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>

#include <limits>

namespace metalops {

// Seed and offset on the device of `like`, drawn by an operator of torch from that device's default
// generator: so compiled programs draw at each call, and torch.vmap as its `randomness` says.
inline at::Tensor draw_attention_seed(const at::Tensor& like) {
  return at::randint(std::numeric_limits<int32_t>::max(), {2}, like.options().dtype(at::kLong));
}

}  // namespace metalops

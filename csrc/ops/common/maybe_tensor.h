// An argument or result that may be absent, as in the schema's `Tensor?`.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace metalops {

using MaybeTensor = std::optional<at::Tensor>;

inline bool is_given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

}  // namespace metalops

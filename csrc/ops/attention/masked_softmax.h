// The part of masked_softmax.mm that composed operators call.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

namespace metalops {

// Returns the softmax along dimension `dim` of scores with a mask of type 0, 1 or 2, as
// _masked_softmax takes them. A bool mask is true where a score is left out; a mask of the scores'
// dtype is added to them.
METALOPS_HIDDEN at::Tensor masked_softmax(const at::Tensor& scores, const at::Tensor& mask,
                                          int64_t dim, std::optional<int64_t> mask_type);

}  // namespace metalops

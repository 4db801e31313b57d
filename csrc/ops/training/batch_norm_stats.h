// The statistics of batch_norm: csrc/ops/training/batch_norm_stats.mm.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <tuple>

namespace metalops {

// Returns mean and biased variance of each channel (dimension 1) of a float, half or bfloat input,
// in stats_type: the input's dtype or float, which is the running averages' dtype, too. Updates
// those that are defined. Raises RuntimeError for an input without elements, and for averages that
// do not have an element per channel.
METALOPS_HIDDEN std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input,
                                                                    const at::Tensor& running_mean,
                                                                    const at::Tensor& running_var,
                                                                    double momentum,
                                                                    at::ScalarType stats_type);

}  // namespace metalops

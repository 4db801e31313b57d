// Parameters of the kernels of ctc_loss.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Strides are in elements.
struct CtcLossParameters {
  int64_t steps;   // time steps of the longest input
  int64_t batch;   // samples
  int64_t labels;  // including the blank
  int64_t states;  // of the longest target: 2 length + 1, with blanks around its labels
  int64_t blank;
  int64_t log_probs_strides[3];  // over steps, samples, labels
  int64_t target_stride;
  int64_t grad_stride;
  int32_t zero_infinity;
};

}  // namespace metalops

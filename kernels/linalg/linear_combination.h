// Parameters of the kernels of linear_combination.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// All tensors are contiguous.
struct LinearCombinationParameters {
  int64_t terms;
  int64_t elements;  // per summand
};

}  // namespace metalops

// Parameters of the kernels in range.metal.
#pragma once
#include <c10/metal/common.h>

#include <kernels/common/split_double.h>

namespace metalops {

// Element i is base ** (start + step i) in the first half, base ** (end - step (steps - 1 - i)) in
// the second half.
struct LogspaceParameters {
  int64_t steps;
  SplitDouble start[2];  // real and imaginary part
  SplitDouble end[2];
  SplitDouble step[2];
  SplitDouble log2_base;  // log2(|base|)
  int64_t integer_base;   // base if it is an integer below 2^53 in magnitude, else 0
  float base;             // for its sign, and for its value if it is not finite
};

}  // namespace metalops

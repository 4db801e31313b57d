// Parameters of the kernels of gated.metal that take rows.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The row strides of the operands, in elements.
struct GatedRows {
  int64_t result;
  int64_t a;
  int64_t b;
  float scalar;  // of the gate, if it has one
};

}  // namespace metalops

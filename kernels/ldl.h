// Parameters of the kernels of ldl.metal. Matrices lie in rows; steps are counted in numbers.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct LdlParameters {
  int64_t row_step;
  int64_t matrix_step;
  uint32_t size;
  uint32_t last;  // columns before this one are factored
  uint32_t is_hermitian;
  uint32_t is_backward;
};

}  // namespace metalops

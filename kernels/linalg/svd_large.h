// Parameters of the kernels of svd_large.metal.
#pragma once
#include <c10/metal/common.h>

#include <kernels/linalg/eigh_large.h>

namespace metalops {

// Square matrices of any strides, in elements.
struct SvdLoadParameters {
  int64_t matrix_stride;
  int64_t row_stride;
  int64_t column_stride;
  uint32_t matrices;
  int32_t size;
  int32_t stride;         // stride of the copy's columns, in packs
  uint32_t is_conjugate;  // the copy is conjugated
};

}  // namespace metalops

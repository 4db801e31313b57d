// Parameters of the kernels of masked_softmax.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The input has `rows` rows of `size` elements. Row r uses row r / repeats % mask_rows of the mask.
struct MaskedSoftmaxParameters {
  int64_t rows;
  int64_t size;
  int64_t repeats;
  int64_t mask_rows;
};

}  // namespace metalops

// Parameters of the kernels of multinomial.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Categories of a row that are summed together.
C10_METAL_CONSTEXPR int kMultinomialChunk = 256;

// Strides are those of the probabilities, in elements. seed, offset: of the generator's stream.
struct MultinomialParameters {
  int64_t seed;
  int64_t offset;
  int64_t row_stride;
  int64_t category_stride;
  int64_t rows;
  int32_t categories;
  int32_t chunks;  // of a row
  int32_t draws;
};

// Bits of what is wrong with the probabilities.
C10_METAL_CONSTEXPR unsigned kInvalidProbability = 1;
C10_METAL_CONSTEXPR unsigned kNoProbability = 2;

}  // namespace metalops

// Parameters of the kernels of embedding_bag.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The reduction of a bag, numbered as in torch.
C10_METAL_CONSTEXPR int32_t kBagSum = 0;
C10_METAL_CONSTEXPR int32_t kBagMean = 1;
C10_METAL_CONSTEXPR int32_t kBagMaximum = 2;

struct EmbeddingBagParameters {
  int64_t indices;  // in all bags
  int64_t bags;
  int64_t rows;  // of the weight
  int64_t columns;
  int64_t padding;     // the index that is left out, or -1
  int64_t row_stride;  // of the weight, in elements
  int64_t column_stride;
  int64_t grad_row_stride;  // of the gradient, in elements
  int64_t grad_column_stride;
  int64_t row_bytes;        // of the weight's gradient
  int32_t mode;             // kBagSum and the like
  int32_t has_last_offset;  // 1: offsets have the end of the last bag
  int32_t has_sample_weights;
  int32_t unused;
};

}  // namespace metalops

// Parameters of the kernels of attention_projection.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR unsigned kTokens = 8;

struct AttentionProjectionParameters {
  int64_t tokens;  // per sample
  int64_t heads;
  int64_t head_size;  // features per head
  int64_t elements;   // in all queries
  int64_t share;      // features of a head per thread
  float scale;        // multiplies the queries
};

}  // namespace metalops

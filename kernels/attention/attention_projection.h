// Parameters of the kernels of attention_projection.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR unsigned kTokens = 8;

struct AttentionProjectionParameters {
  int64_t tokens;  // of a sample
  int64_t heads;
  int64_t head_size;  // features of a head
  int64_t elements;   // of the queries
  int64_t share;      // of a head's features that a thread takes
  float scale;        // by which queries are multiplied
};

}  // namespace metalops

// Parameters of the kernels of philox.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Which keys are derived: block first + i of key k becomes key (i, k).
struct PhiloxKeys {
  int64_t given;
  int64_t derived;  // a multiple of `given`
};

// Which elements each key fills. A tensor is filled in row-major order, `elements` by each key.
struct PhiloxFill {
  int64_t elements;  // of one key
  int64_t blocks;    // of one key: calls of Philox
  int64_t threads;   // one for each block of each key
  bool vectors;      // blocks are stored as vectors: they are adjacent, full and aligned
};

// Distributions.
struct PhiloxUniform {
  float low;  // rounded to the dtype of the result
  float high;
};

struct PhiloxNormal {
  float mean;
  float standard_deviation;
};

struct PhiloxRandint {
  uint64_t low;
  uint64_t range;  // high - low; 0: all bits of the sample
};

}  // namespace metalops

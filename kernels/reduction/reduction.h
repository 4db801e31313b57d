// Parameters of the kernels of reduction.metal, and the sizes of their threadgroups.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR uint32_t kReductionThreads = 256;

// Adjacent elements that are loaded at once.
C10_METAL_CONSTEXPR int64_t kReductionQuad = 4;

// A unit is an element that is reduced, or a quad of them; so is a result one, or a quad of
// adjacent ones.
struct ReductionParameters {
  int64_t results;
  int64_t units;       // of a result
  int64_t span;        // units of a result that a threadgroup has
  int64_t out_stride;  // in bytes from result to result of a quad
  int32_t spans;       // of a result
  int32_t width_log2;  // of the number of threads of a threadgroup that have one result
  int32_t is_across;   // adjacent threads have adjacent results, and not adjacent units
  int32_t is_packed;   // a unit is a quad
  int32_t is_partial;  // what spans amount to is written, and not results
  float parameter;     // what a sum is divided by, a norm's exponent, a variance's correction
  int32_t has_root;    // of the variance
  int32_t unused;
};

}  // namespace metalops

// Parameters of the kernels of segment_reduce.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The data are [outer][size][inner], the result [outer][segments][inner], the offsets
// [outer][segments + 1].
struct SegmentReduceParameters {
  int64_t outer;
  int64_t size;
  int64_t inner;
  int64_t segments;
  float initial;  // what the reduction starts from
  float empty;    // the result for a segment without elements
  int32_t whole;  // whether the segments must cover the axis
};

}  // namespace metalops

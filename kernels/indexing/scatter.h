// Parameters of the kernels of scatter.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Sorted items that a thread reduces, one after the other. Longer runs are partial results of
// several.
C10_METAL_CONSTEXPR int64_t kScatterSpan = 32;

// How the items of one place are combined.
C10_METAL_CONSTEXPR int32_t kScatterSum = 0;
C10_METAL_CONSTEXPR int32_t kScatterProduct = 1;
C10_METAL_CONSTEXPR int32_t kScatterMaximum = 2;
C10_METAL_CONSTEXPR int32_t kScatterMinimum = 3;

struct ScatterPlacesParameters {
  int64_t size;    // of the dimension that indices are of
  int64_t stride;  // of self along it, in bytes
  int32_t dim;     // its number, for messages
  int32_t wraps;   // 1: negative indices count from the end
  int32_t adds;    // 1: places have the offsets along other dimensions
  int32_t unused;
};

struct ScatterParameters {
  int64_t items;      // that have a place
  int64_t spans;      // of kScatterSpan items
  int32_t operation;  // kScatterSum and the like
  int32_t is_mean;    // 1: a sum is divided by the number of its terms
  int32_t has_self;   // 1: what self has is one of them
  int32_t is_sorted;  // 1: places are sorted, and the last item of a place is the one to copy
  // 1: adjacent threads have adjacent items, else adjacent elements of an item.
  int32_t items_first;
  int32_t has_rows;    // 1: items are elements of the source that another tensor numbers
  int32_t has_scales;  // 1: each item of a floating-point dtype has a factor
  int32_t pack;        // elements of an item that a thread copies
};

}  // namespace metalops

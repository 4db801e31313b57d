// Parameters of the kernels of histogram.metal, and the sizes of their threadgroups.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR uint32_t kHistogramThreads = 256;
// Elements that a thread has at least, and counters of a threadgroup.
C10_METAL_CONSTEXPR uint32_t kHistogramSpan = 16;
C10_METAL_CONSTEXPR uint32_t kHistogramSlots = 4096;
C10_METAL_CONSTEXPR uint32_t kMostHistogramAxes = c10::metal::max_ndim;

// How the bin of a number is found.
C10_METAL_CONSTEXPR int32_t kHistogramNumber = 0;  // it is the bin's number
C10_METAL_CONSTEXPR int32_t kHistogramEven = 1;    // bins of one width, by a division
C10_METAL_CONSTEXPR int32_t kHistogramNear = 2;    // the same, but edges decide between neighbours
C10_METAL_CONSTEXPR int32_t kHistogramEdges = 3;   // by a search among the edges

// The bins of one coordinate of the samples.
struct HistogramAxis {
  int64_t bins;
  int64_t step;     // from bin to bin, in elements of the histogram
  int64_t edges;    // where its edges begin among those of all axes
  int64_t lowest;   // the range of integers, of which kHistogramEven takes the upper bits
  int64_t highest;  //
  float low;        // the range of floating-point numbers for kHistogramEven
  float high;       //
  float scale;      // a power of two that keeps products with the number of bins finite
  int32_t shift;    // of integers, for the same purpose
};

struct HistogramParameters {
  int64_t bins;               // of all axes
  int64_t coordinate_stride;  // of the samples, in bytes
  int64_t width;              // of an element of the histogram, in bytes
  int32_t axes;
  int32_t method;  // kHistogramNumber and the like
  int32_t copies;  // of each bin in a threadgroup's counters; 0: bins are counted in device memory
  int32_t unused;
  HistogramAxis axis[kMostHistogramAxes];
};

}  // namespace metalops

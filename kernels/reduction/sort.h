// Parameters of the kernels of sort.metal, and the sizes of their threadgroups.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Elements that a threadgroup sorts or merges, and its threads. A thread has eight of them.
C10_METAL_CONSTEXPR uint32_t kSortBlock = 2048;
C10_METAL_CONSTEXPR uint32_t kSortThreads = 256;

// How the bits of an element become an unsigned key of the same order.
C10_METAL_CONSTEXPR int32_t kSortUnsigned = 0;
C10_METAL_CONSTEXPR int32_t kSortSigned = 1;
C10_METAL_CONSTEXPR int32_t kSortFloat = 2;

// Which of the sorted columns are written: `written` from `first` on; the median, which is the
// first NaN of a row that has one; or the median of the elements that are not NaN.
C10_METAL_CONSTEXPR int32_t kSortColumns = 0;
C10_METAL_CONSTEXPR int32_t kSortMedian = 1;
C10_METAL_CONSTEXPR int32_t kSortNanMedian = 2;

struct SortParameters {
  int64_t rows;
  int64_t strides[3];  // from column to column of self, values and indices, in bytes
  int64_t infinity;    // its bits, of floating-point numbers
  int32_t columns;     // of a row of self
  int32_t first;       // of the sorted columns that are written
  int32_t written;     // their number
  int32_t choice;      // kSortColumns, ...
  int32_t kind;        // kSortUnsigned, ...
  int32_t descending;  // 0 or 1
  int32_t width_log2;  // of the elements in threadgroup memory for each row, of rows in one block
  int32_t is_across;   // 1: adjacent threads load and store elements of adjacent rows
  int32_t blocks;      // of a row of several
  int32_t kept;        // of the sorted elements of a block
};

// Runs of sorted elements, two of which are merged. The first `kept` elements of a merged run are
// written.
struct SortMergeParameters {
  int64_t stride;         // from row to row
  int64_t merged_stride;  // of the merged rows
  int32_t run;            // elements of a run
  int32_t runs;           // of a row
  int32_t last;           // elements of the last run
  int32_t kept;
  int32_t tiles;  // threadgroups for each pair of runs
  int32_t unused;
};

}  // namespace metalops

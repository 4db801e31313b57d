// Parameters of the kernels of eig_large.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Rows of the windows on the diagonal in which sweeps are done, for real and for complex matrices.
C10_METAL_CONSTEXPR int kSchurWindow = 48;
C10_METAL_CONSTEXPR int kComplexSchurWindow = 32;

// Threads of a threadgroup that multiplies rows by a window's transformation.
C10_METAL_CONSTEXPR int kSchurRows = 64;

// The most bulges that are chased one behind the other.
C10_METAL_CONSTEXPR int kMostBulges = 8;

// The blocks that a window's U is applied to: the rows above the window, the vectors, and the
// columns right of it.
enum class SchurBlock : int32_t { kAbove, kVectors, kRight };
C10_METAL_CONSTEXPR int kSchurBlocks = 3;

// The state of the sweeps on a matrix. Begins as {0, n - 1, sweeps, 0 ...}.
struct SchurSweeps {
  int32_t low;  // rows `low` to `high` are the active block
  int32_t high;
  int32_t sweeps;   // sweeps left before the iteration limit
  int32_t stalled;  // sweeps since an eigenvalue was found
  int32_t windows;  // windows of this sweep
  int32_t bulges;   // bulges that are being chased
  int32_t first;    // first row of the window that was last worked on
  int32_t size;     // rows of that window, or 0
  int32_t next;     // the row that the first bulge's next reflector begins with
};

struct SchurParameters {
  int32_t size;
  int32_t stride;  // packs from column to column
  uint32_t with_form;
  int32_t first;  // first of the eigenvectors of a launch
  int32_t count;  // number of them
};

}  // namespace metalops

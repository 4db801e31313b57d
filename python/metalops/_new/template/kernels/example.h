// Parameters shared by the kernels of example.metal and their host stubs in example.mm.
#pragma once

// Threads in a threadgroup of row_max_abs; a power of two. An enumerator, because Metal and C++
// spell constants differently.
enum { kThreads = 64 };

struct RowParams {
  unsigned columns;
  unsigned row_stride;     // in elements
  unsigned column_stride;  // in elements
};

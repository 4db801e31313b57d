// Parameters of the kernels of jagged.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Sequences of different lengths, one after the other as the rows of `values`, of sizes (rows,
// columns): sequence s is from row offsets[s] to row offsets[s + 1]. And the same padded to one
// length, of sizes (sequences, length, columns).
struct JaggedParameters {
  int64_t sequences;
  int64_t length;
  int64_t rows;
  int64_t columns;
  int64_t share;  // of a row's columns that a thread takes
};

}  // namespace metalops

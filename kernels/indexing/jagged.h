// Parameters of the kernels of jagged.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Sequences of different lengths, one after the other as `rows` rows: sequence s is from row
// offsets[s] to row offsets[s + 1]. And the same padded to one length.
struct JaggedParameters {
  int64_t sequences;
  int64_t length;
  int64_t rows;
};

}  // namespace metalops

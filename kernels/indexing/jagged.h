// Parameters of the kernels of jagged.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Sequences of different lengths (jagged tensor), concatenated to `rows` rows: sequence s has rows
// [offsets[s], offsets[s + 1]). The padded tensor has `length` rows per sequence.
struct JaggedParameters {
  int64_t sequences;
  int64_t length;
  int64_t rows;
};

}  // namespace metalops

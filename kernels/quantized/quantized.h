// How quantised weights are stored, and parameters of the kernels that read them.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// What a code stands for before it is scaled. kSigned8: one scale for a line.
enum class CodeFormat : int32_t { kInteger, kE2M1, kE4M3, kNormalFloat4, kFloat4, kSigned8 };

// kElement: the type of what is multiplied with the weights.
enum class ScaleFormat : int32_t { kElement, kFloat, kE8M0, kE4M3 };

// Lines of codes of `bits` bits each, a stream from the lowest bit of the first byte on (in
// kNormalFloat4 and kFloat4 the higher half of a byte is the first), and a scale (and with kInteger
// a bias) for each group of 2^group_shift of them. The last group of a line may be shorter.
struct PackedLayout {
  int64_t line_bytes;
  int64_t line_scales;
  int64_t matrix_bytes;
  int64_t matrix_scales;
  int32_t lines;
  int32_t inner;  // codes of a line: a multiple of 8
  int32_t bits;
  int32_t group_shift;
  CodeFormat format;
  ScaleFormat scale;
  bool has_global;  // whether there is one more number for all scales: see packed::global_factor
  bool is_aligned;  // whether blocks of 32 codes can be read with one vector load
};

// Products of matrices of `rows` lines and matrices of quantised weights: as many as there are
// pairs. indices of the matrices: 64-bit integers, else 0 or the number of the pair.
struct QuantizedProduct {
  PackedLayout right;
  int64_t left_matrix;  // elements between matrices of left
  int64_t left_matrices;
  int64_t right_matrices;
  int32_t rows;
  int32_t columns;  // of the result
  int32_t inner;
  int32_t splits;         // over how many simdgroups a sum is spread, in kernels for few rows
  bool right_transposed;  // whether lines of weights are rows of what is multiplied, not columns
  bool has_bias;
  bool has_left_index;
  bool has_right_index;
};

}  // namespace metalops

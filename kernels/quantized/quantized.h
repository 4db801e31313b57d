// The storage of quantised weights, and parameters of the kernels that read them.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The value of a code before scaling. kSigned8 has one scale per line.
enum class CodeFormat : int32_t { kInteger, kE2M1, kE4M3, kNormalFloat4, kFloat4, kSigned8 };

// The type of scales. kElement: that of the operand multiplied with the weights.
enum class ScaleFormat : int32_t { kElement, kFloat, kE8M0, kE4M3 };

// Lines of codes of `bits` bits, packed from the lowest bit of the first byte on (kNormalFloat4 and
// kFloat4: the high half of a byte comes first). Each group of 2^group_shift codes has a scale and,
// with kInteger, a bias. The last group of a line may be shorter.
struct PackedLayout {
  int64_t line_bytes;
  int64_t line_scales;
  int64_t matrix_bytes;
  int64_t matrix_scales;
  int32_t lines;
  int32_t inner;  // codes per line: a multiple of 8
  int32_t bits;
  int32_t group_shift;
  CodeFormat format;
  ScaleFormat scale;
  bool has_global;  // another factor for all scales: see packed::global_factor
  bool is_aligned;  // blocks of 32 codes can be loaded with vector loads
  uint8_t padding[6];
};

// Batched products of matrices of `rows` lines with matrices of quantised weights, one per pair.
// Matrix indices are 64-bit integers; without them, 0 or the number of the pair is used.
struct QuantizedProduct {
  PackedLayout right;
  int64_t left_matrix;  // stride between matrices of left, in elements
  int64_t left_matrices;
  int64_t right_matrices;
  int32_t rows;
  int32_t columns;  // of the result
  int32_t inner;
  int32_t splits;         // split-K: simdgroups that share a sum (skinny GEMM)
  bool right_transposed;  // lines of weights run along N (x W), not along K (x W^T)
  bool has_bias;
  bool has_left_index;
  bool has_right_index;
  uint8_t padding[4];
};

}  // namespace metalops

// Parameters of the kernels of gguf.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// ggml's quantisation types, with ggml's numbers.
enum class GgufType : int32_t {
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kMXFP4 = 39,
};

// Lines of blocks of 2^block_shift elements each.
struct GgufLayout {
  int64_t line_bytes;
  int64_t lines;
  int32_t inner;
  int32_t block_shift;
  int32_t block_bytes;
  GgufType type;
};

// The product of a rows x inner and a columns x inner matrix, the second one transposed.
struct GgufProduct {
  GgufLayout right;
  int32_t rows;
  int32_t columns;
  int32_t inner;
  int32_t splits;  // split-K: simdgroups that share a sum (skinny GEMM)
  bool has_bias;
  uint8_t padding[7];
};

}  // namespace metalops

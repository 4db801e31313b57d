// Launch plans of kernels/quantized/gguf.metal: weights of GGUF files (ggml's block formats).
#pragma once
#include <csrc/plans/plan.h>
#include <kernels/quantized/gguf.h>

#include <cstdint>

namespace metalops::plans {

// Returns the bytes of a block, 0 for unknown types.
int64_t gguf_block_bytes(GgufType type);

// Returns the layout of `lines` rows of blocks. line_bytes: a multiple of a block's.
GgufLayout gguf_layout(int64_t lines, int64_t line_bytes, GgufType type);

// Dequantises data, (rows, bytes), to result, (rows, K), contiguous; with indices, (rows) of int64,
// the rows that they name. qtype: a GgufType.
struct GgufDequantize {
  View result;
  View data;
  View indices;
  int64_t qtype = 0;
};
void gguf_dequantize(Plan& plan, const GgufDequantize& call, const Device& device);

// Computes x W^T + bias, (M, N). x: (M, K). data: the rows of W, (N, bytes).
struct GgufLinear {
  View result;  // contiguous, with elements; K is not zero
  View x;
  View data;
  View bias;
  int64_t qtype = 0;
};
void gguf_linear(Plan& plan, const GgufLinear& call, const Device& device);

}  // namespace metalops::plans

// Launch plans of kernels/quantized/quantized.metal (quantising and dequantising weights) and of
// kernels/quantized/quantized_matmul.metal (GEMV, skinny GEMM and tile GEMM with quantised
// weights).
#pragma once
#include <csrc/plans/plan.h>
#include <kernels/quantized/quantized.h>

#include <cstdint>

namespace metalops::plans {

enum class QuantizedMode : int64_t { kAffine, kMxfp4, kMxfp8, kNvfp4, kNf4, kFp4, kInt8 };

// Quantised weights of `bits` bits, in groups of group_size along a row. mode: a QuantizedMode.
struct QuantizedWeights {
  View codes;         // (rows, bytes) or (matrices, rows, bytes)
  View scales;        // (..., groups)
  View biases;        // likewise, of mode kAffine only
  View global_scale;  // one float32, or absent
  int64_t bits = 4;
  int64_t group_size = 32;
  int64_t mode = 0;
};

// Returns the layout of `lines` rows of `inner` codes.
PackedLayout packed_layout(int64_t lines, int64_t inner, int64_t bits, int64_t group_size,
                           QuantizedMode mode);

// Returns the dtype of scales. element: that of the weights.
Type scale_type(const PackedLayout& layout, Type element);

inline bool has_biases(const PackedLayout& layout) { return layout.format == CodeFormat::kInteger; }

// Quantises weight, (rows, K). The results are contiguous.
struct QuantizedQuantize {
  QuantizedWeights results;
  View weight;
};
void quantized_quantize(Plan& plan, const QuantizedQuantize& call, const Device& device);

// Dequantises weights of two dimensions to result, (rows, K), contiguous; with indices, (rows) of
// int64, the rows that they name.
struct QuantizedDequantize {
  View result;
  QuantizedWeights weights;
  View indices;
};
void quantized_dequantize(Plan& plan, const QuantizedDequantize& call, const Device& device);

// Computes x W^T, (pairs, M, N), for x (matrices, M, K) and the rows of W (matrices, N, bytes); or,
// without `transpose`, x W, (pairs, M, K), for x (matrices, M, N).
struct QuantizedMatmul {
  View result;  // contiguous, with elements; K is not zero
  View x;
  QuantizedWeights weights;
  View bias;         // one for each column
  View left_index;   // (pairs), int64: the matrix of x of each pair; in order where absent
  View right_index;  // likewise of W
  bool transpose = true;
};
void quantized_matmul(Plan& plan, const QuantizedMatmul& call, const Device& device);

}  // namespace metalops::plans

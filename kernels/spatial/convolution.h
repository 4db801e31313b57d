// Parameters of the kernels of convolution.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Digits of a coordinate: channels or images, then depth, height and width, then channels again. Of
// the two places of channels one has size 1: they come last where they are adjacent in memory.
C10_METAL_CONSTEXPR int kConvolutionDigits = 5;
C10_METAL_CONSTEXPR int kConvolutionDims = 3;

// Sides of a threadgroup's tile, its simdgroups, and the elements of a thread's simdgroup.
C10_METAL_CONSTEXPR int kConvolutionTile = 64;
C10_METAL_CONSTEXPR int kConvolutionSimdgroups = 4;

// How far one step of each digit of a coordinate moves an operand: in elements, and in positions
// along depth, height and width.
struct ConvolutionMoves {
  int64_t strides[5];
  int32_t positions[3];
  int32_t unused;
};

// An operand of the implicit GEMM: a tensor of images, of which line i has the element k at the sum
// of their moves. Elements whose position is outside of [0, limits) count as zero.
struct ConvolutionOperand {
  ConvolutionMoves line;
  ConvolutionMoves inner;
  int64_t begin;  // of line 0 and k = 0 at position `first`, in elements; may lie in the padding
  int64_t group_stride;
  int32_t first[3];
  int32_t limits[3];
};

// The product left right^T of each group. Rows of the result are lines of left, columns those of
// right. K is divided among `splits`, each of which stores its sums for convolution_combine.
struct ConvolutionParameters {
  ConvolutionOperand left;
  ConvolutionOperand right;
  int64_t result_begin;
  int64_t result_group_stride;
  int64_t row_strides[5];
  int64_t column_strides[5];
  int32_t row_sizes[5];
  int32_t column_sizes[5];
  int32_t inner_sizes[5];
  int32_t rows;
  int32_t columns;
  int32_t inner;
  int32_t groups;
  int32_t splits;
  int32_t inner_of_split;
  int32_t bias_of_rows;  // 1 if the bias is of the rows, 0 if it is of the columns
  int32_t has_bias;
};

}  // namespace metalops

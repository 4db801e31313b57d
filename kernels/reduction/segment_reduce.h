// Parameters of the kernels of segment_reduce.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The data are [outer][size][inner], the result [outer][segments][inner], the offsets
// [outer][segments + 1].
struct SegmentReduceParameters {
  int64_t outer;
  int64_t size;
  int64_t inner;
  int64_t segments;
  int64_t first;    // result of this launch
  int64_t alone;    // elements of a segment that one thread reduces; -1 if none does
  int64_t longest;  // elements of a segment that is not divided into pieces
  int64_t piece;    // elements of a piece, at most `longest`
  int64_t pieces;   // of an axis
  float initial;    // what the reduction starts from
  float empty;      // the result for a segment without elements
  int32_t whole;    // whether the segments must cover the axis
  uint32_t share;   // consecutive results that a threadgroup takes
};

// The long segments that a piece of an axis has elements of, counted from 1; 0 if there is none.
// There are at most these two, because a long segment is longer than a piece.
struct PieceOwners {
  int64_t before;  // begins before the piece
  int64_t within;  // begins in the piece
};

// Results of which the threads of short segments note together that they left some to a group.
C10_METAL_CONSTEXPR uint32_t kLeftTogether = 32;

// How many pieces a threadgroup combines.
C10_METAL_CONSTEXPR uint32_t kPiecesOfGroup = 8;

}  // namespace metalops

// Parameters of the kernels of segment_reduce.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The data are [outer][size][inner], the results [outer][segments][inner], the offsets
// [outer][segments + 1].
struct SegmentReduceParameters {
  int64_t outer;
  int64_t size;
  int64_t inner;
  int64_t segments;
  int64_t first;    // first result of this launch
  int64_t alone;    // longest segment that one thread reduces; -1: none
  int64_t longest;  // longest segment that is not divided into pieces
  int64_t piece;    // elements per piece, at most `longest`
  int64_t pieces;   // per axis
  float initial;    // start value of the reduction
  float empty;      // result of an empty segment
  int32_t whole;    // true if the segments must cover the axis
  uint32_t share;   // consecutive results per threadgroup
};

// The long segments that overlap a piece of an axis, numbered from 1; 0: none. There are at most
// these two, because a long segment is longer than a piece.
struct PieceOwners {
  int64_t before;  // begins before the piece
  int64_t within;  // begins in the piece
};

// Results per flag with which the short-segment kernel marks work left to threadgroups.
C10_METAL_CONSTEXPR uint32_t kLeftTogether = 32;

// Pieces that one threadgroup combines.
C10_METAL_CONSTEXPR uint32_t kPiecesOfGroup = 8;

}  // namespace metalops

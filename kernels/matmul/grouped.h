// Groups of a dimension, given by where each one ends, for grouped GEMM. Shared by kernels and host
// code.
#pragma once
#include <c10/metal/common.h>
#ifdef __METAL__
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace metalops {

// The dimension of left right^T that is divided into groups with a product each: none (the operands
// are batches), rows of left (M), rows of right (N), or the reduction dimension (K).
enum class Grouped : int32_t { kNone, kRows, kColumns, kInner };

#ifdef __METAL__
namespace groups {

// Elements [first, first + size) of the dimension, which are one group, and the index of a tile in
// it.
struct Part {
  int group;
  int first;
  int size;
  int tile;
};

// Returns where the group ends that begins at `first`, clamped to valid values whatever `ends`
// holds.
inline int end_of(device const int* ends, int group, int first, int length) {
  return ::metal::clamp(ends[group], first, length);
}

// Finds tile number `tile` of LENGTH elements; no tile has elements of two groups. `count` groups
// of `length` elements in all have at most length / LENGTH + count + 1 tiles. Elements after the
// last group form one more group. For a `tile` past the end, the returned tile * LENGTH is at least
// `size`.
template <int LENGTH>
inline Part part_of_tile(device const int* ends, int count, int length, int tile) {
  int first = 0;
  for (int group = 0; group < count; ++group) {
    const int end = end_of(ends, group, first, length);
    const int tiles = (end - first + LENGTH - 1) / LENGTH;
    if (tile < tiles) {
      return {group, first, end - first, tile};
    }
    tile -= tiles;
    first = end;
  }
  return {count, first, length - first, tile};
}

inline Part part_of_group(device const int* ends, int group, int length) {
  int first = 0;
  for (int before = 0; before < group; ++before) {
    first = end_of(ends, before, first, length);
  }
  return {group, first, end_of(ends, group, first, length) - first, 0};
}

}  // namespace groups
#endif

}  // namespace metalops

// Groups of a dimension that are told apart by where each ends: what kernels of grouped products
// and their host sides share.
#pragma once
#include <c10/metal/common.h>
#ifdef __METAL__
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace metalops {

// Which dimension of left right^T is divided into groups, each of which has a product of its own:
// none, where the operands are batches, the rows of left, those of right, or the inner dimension.
enum class Grouped : int32_t { kNone, kRows, kColumns, kInner };

#ifdef __METAL__
namespace groups {

// Elements [first, first + size) of the dimension, and which tile of them.
struct Part {
  int group;
  int first;
  int size;
  int tile;
};

// Where the group ends that begins at `first`, whatever is written there.
inline int end_of(device const int* ends, int group, int first, int length) {
  return ::metal::clamp(ends[group], first, length);
}

// The tile of LENGTH elements of that number, where none has elements of two groups: of `length`
// elements of `count` groups there are at most length / LENGTH + count + 1. What is behind the last
// group counts as one more; of tiles behind that, `tile * LENGTH` is at least `size`.
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

// Merges of one level of divide and conquer (Cuppen's algorithm): adjacent blocks of `block`
// columns of a matrix are merged in pairs, within regions of `region` columns. The last block of a
// region may be shorter, or have no partner. Arrays with an element per column of the matrices hold
// a merge's data where its columns are.
#pragma once
#include <metal_stdlib>

namespace metalops {

struct Merge {
  int64_t matrix;
  int begin;  // columns of its matrix
  int middle;
  int end;
  int64_t offset;  // index of its first column in such arrays

  int size() const { return end - begin; }
  bool is_one_block() const { return middle >= end; }
};

template <typename Parameters>
inline Merge merge_at(int64_t matrix, int column, constant Parameters& p) {
  const int region = column / p.region * p.region;
  const int begin = region + (column - region) / (2 * p.block) * 2 * p.block;
  return {matrix, begin, begin + p.block, ::metal::min(begin + 2 * p.block, region + p.region),
          matrix * p.size + begin};
}

// Rotates the tips (first and last elements) of two vectors by [c s; -s c], as the vectors
// themselves are rotated.
inline void rotate_tips(device float2* tips, int2 pair, float2 rotation) {
  const float2 x = tips[pair.x];
  const float2 y = tips[pair.y];
  tips[pair.x] = rotation.x * x + rotation.y * y;
  tips[pair.y] = rotation.x * y - rotation.y * x;
}

// Applies the inverse rotation to two rows of a column of factors.
inline void rotate_back(device float* column, int2 pair, float2 rotation) {
  const float a = column[pair.x];
  const float b = column[pair.y];
  column[pair.x] = rotation.x * a - rotation.y * b;
  column[pair.y] = rotation.y * a + rotation.x * b;
}

}  // namespace metalops

// Merges of divide and conquer: neighbouring blocks of `block` columns of a matrix become one.
// Those of a region, of `region` columns, are merged with each other; the last one of it may be
// shorter, or have no neighbour. Numbers of a merge are where its columns are.
#pragma once
#include <metal_stdlib>

namespace metalops {

struct Merge {
  int64_t matrix;
  int begin;  // columns of its matrix
  int middle;
  int end;
  int64_t place;  // of its first number

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

// Turns the tips of two vectors as the vectors are turned, [c s; -s c].
inline void turn_tips(device float2* tips, int2 pair, float2 rotation) {
  const float2 x = tips[pair.x];
  const float2 y = tips[pair.y];
  tips[pair.x] = rotation.x * x + rotation.y * y;
  tips[pair.y] = rotation.x * y - rotation.y * x;
}

// Turns two rows of a column of factors back.
inline void turn_back(device float* column, int2 pair, float2 rotation) {
  const float a = column[pair.x];
  const float b = column[pair.y];
  column[pair.x] = rotation.x * a - rotation.y * b;
  column[pair.y] = rotation.y * a + rotation.x * b;
}

}  // namespace metalops

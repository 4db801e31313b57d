// xLAED1, xLASD1: merges of one level of divide and conquer (Cuppen's algorithm), for eigenvalues
// of tridiagonal and singular values of bidiagonal matrices. Adjacent blocks of `block` columns of
// a matrix are merged in pairs, within regions of `region` columns:
//
//     |        region         |        region         |
//     | block | block | block | block | block | block |   before: a block's vectors are square
//     |     merged    | block |     merged    | block |   after
//
// The last block of a region may be shorter, or have no partner. Arrays with an element per column
// of the matrices hold a merge's data where its columns are. On entry `values` has the values of
// the blocks; then, with k poles that are not deflated,
//
//     poles, z      [ poles of the secular equation, ascending, k  |     anything      ]
//     roots, weights[ distances of roots, exact z, k               |     anything      ]
//     columns       [ columns of the blocks that these belong to   | of deflated poles ]
//     values        [ values of the merged block: roots, k         | deflated poles    ]
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct MergeParameters {
  int32_t size;    // columns of a matrix, padded
  int32_t values;  // rows that are not padding
  int32_t block;
  int32_t region;
  int32_t matrices;
  uint32_t with_vectors;
};

// The result of deflating a merge.
struct Deflation {
  int32_t kept;            // poles that are not deflated
  int32_t on_right;        // rotations of right vectors only, which are the first ones
  int32_t rotation_count;  // rotations
  float rho;               // what z z^T is multiplied by
};

}  // namespace metalops

#ifdef __METAL__
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

inline Merge merge_at(int64_t matrix, int column, constant MergeParameters& p) {
  const int region = column / p.region * p.region;
  const int begin = region + (column - region) / (2 * p.block) * 2 * p.block;
  return {matrix, begin, begin + p.block, ::metal::min(begin + 2 * p.block, region + p.region),
          matrix * p.size + begin};
}

// Returns where a column of factors begins, from the merge's first row on. Factors are a matrix of
// each region, by rows.
inline int64_t factors_at(Merge merge, int column, constant MergeParameters& p) {
  return merge.offset * p.region + column % p.region;
}

// Rotates the tips (first and last elements) of two vectors by [c s; -s c], as the vectors
// themselves are rotated.
inline void rotate_tips(device::metal::float2* tips, int2 pair, ::metal::float2 rotation) {
  const ::metal::float2 x = tips[pair.x];
  const ::metal::float2 y = tips[pair.y];
  tips[pair.x] = rotation.x * x + rotation.y * y;
  tips[pair.y] = rotation.x * y - rotation.y * x;
}

// Applies the inverse rotation to two rows of a column of factors.
inline void rotate_back(device float* column, int2 pair, ::metal::float2 rotation) {
  const float a = column[pair.x];
  const float b = column[pair.y];
  column[pair.x] = rotation.x * a - rotation.y * b;
  column[pair.y] = rotation.y * a + rotation.x * b;
}

// xLAED2, xLASD2: deflation of a merge by one thread, which goes through the poles in ascending
// order. The arrays are the merge's; poles that are kept move to the front. The rest begins as
// zeros.
struct Deflating {
  device float* poles;
  device float* z;
  device::metal::float2* tips;
  device int* columns;
  device float* values;  // of deflated poles
  device int* aside;     // columns of deflated poles
  device::metal::float2* rotations;
  device int2* rotated;
  float tolerance;
  int kept;
  int deflated;
  int rotation_count;
  bool has_last;  // a pole that may still be deflated
  float last_pole;
  float last_weight;
  int last_column;

  void deflate(float value, int column) {
    values[deflated] = value;
    aside[deflated++] = column;
  }

  void rotate(int2 pair, ::metal::float2 rotation) {
    rotations[rotation_count] = rotation;
    rotated[rotation_count] = pair;
    rotate_tips(tips, pair, rotation);
    ++rotation_count;
  }

  void keep_last() {
    if (has_last) {
      poles[kept] = last_pole;
      z[kept] = last_weight;
      columns[kept++] = last_column;
    }
  }

  // Adds the next pole, whose element of z is not negligible. If it is nearly equal to the one
  // before, a rotation makes the element of z of that one zero.
  void add(float pole, float weight, int column) {
    const float length = ::metal::precise::sqrt(weight * weight + last_weight * last_weight);
    const float c = weight / length;
    const float s = -last_weight / length;
    if (has_last && ::metal::abs((pole - last_pole) * c * s) <= tolerance) {
      rotate(int2(last_column, column), ::metal::float2(c, s));
      deflate(last_pole * c * c + pole * s * s, last_column);
      pole = last_pole * s * s + pole * c * c;
      weight = length;
    } else {
      keep_last();
    }
    has_last = true;
    last_pole = pole;
    last_weight = weight;
    last_column = column;
  }

  // Moves deflated poles behind the others, of which there are `end` in all.
  void finish(int end) {
    keep_last();
    for (int i = end - 1; i >= kept; --i) {
      columns[i] = aside[i - kept];
      values[i] = values[i - kept];
    }
  }
};

}  // namespace metalops
#endif

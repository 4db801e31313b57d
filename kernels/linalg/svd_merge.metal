// xLASD1 to xLASD8: divide and conquer for singular values and vectors of bidiagonal matrices (M.
// Gu and S. C. Eisenstat, "A divide-and-conquer algorithm for the bidiagonal SVD", 1995). A block
// has m - 1 rows and m columns, each row with elements in its own column and in the next one; so it
// has m - 1 singular values, and one more right vector, its null vector. Two blocks are merged with
// the row between them. In terms of their singular vectors that makes
//
//     [ z_0 z_1 z_2 ... ]
//     [      d_1        ]
//     [          d_2    ]
//     [              .. ]
//
// a row z above a diagonal matrix D whose first element, in z's row, is zero. Its singular values
// are the roots of the secular equation 1 + sum z_i^2 / (d_i^2 - x^2), one between each two poles.
// Each is kept as the distance from a pole, and z is computed anew from the roots, such that they
// are exact for it.
//
// Blocks begin as single columns without a row, with the null vector 1. Arrays hold a merge's data
// where its columns are; the last element belongs to the null vector, and to the row behind the
// block.
#include <c10/metal/utils.h>
#include <metal_stdlib>

#include <kernels/linalg/common/divide_and_conquer.h>
#include <kernels/linalg/common/rotations.h>
#include <kernels/linalg/common/secular.h>
using namespace metal;
using namespace metalops;

// The value of a row that is padding, and of the null vector: less than all others.
constant constexpr float kNoValue = -1.0f;

// Returns the scale of each matrix, (matrices): the largest magnitude of its elements. bidiagonals:
// (2, matrices, size). A simdgroup per matrix.
kernel void svd_merge_scales(device float* scales [[buffer(0)]],
                             device const float* bidiagonals [[buffer(1)]],
                             constant int& matrices [[buffer(2)]], constant int& size [[buffer(3)]],
                             uint matrix [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  float largest = 0.0f;
  for (int side = 0; side < 2; ++side) {
    device const float* const elements = bidiagonals + (int64_t(side) * matrices + matrix) * size;
    for (int i = int(lane); i < size; i += 32) {
      largest = metal::max(largest, metal::abs(elements[i]));
    }
  }
  largest = simd_max(largest);
  if (lane == 0) {
    scales[matrix] = largest;
  }
}

// Sorts a merge's poles. The first of the m poles is that of the row between the blocks, zero; the
// others follow in ascending order; the last element is that of the null vector of the second
// block. tips: the first and the last element of each right vector. One thread per pole.
kernel void svd_merge_sort(device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
                           device float2* tips [[buffer(2)]], device int* columns [[buffer(3)]],
                           device const float* values [[buffer(4)]],
                           device const float2* ends [[buffer(5)]],
                           device const float* bidiagonals [[buffer(6)]],
                           constant MergeParameters& p [[buffer(7)]],
                           uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = merge.size();
  const int column = int(position.x) - merge.begin;
  const int between = p.block - 1;
  device const float* const value = values + merge.offset;
  const float pole = column == between ? 0.0f : value[column];
  int rank = column == between ? 0 : 1;
  if (column == n - 1) {
    rank = n - 1;
  } else if (column != between) {
    for (int i = 0; i < n - 1; ++i) {
      const float other = value[i];
      rank += i != between && (other < pole || (other == pole && i < column));
    }
  }
  const int64_t row = merge.matrix * p.size + merge.middle - 1;
  const int64_t all = int64_t(p.matrices) * p.size;
  const float2 end = ends[merge.offset + column];
  const bool is_above = column < p.block;
  tips[merge.offset + column] = is_above ? float2(end.x, 0.0f) : float2(0.0f, end.y);
  poles[merge.offset + rank] = pole;
  z[merge.offset + rank] = is_above ? bidiagonals[row] * end.y : bidiagonals[all + row] * end.x;
  columns[merge.offset + rank] = column;
}

// Rotates the right vector of a column such that its element of z becomes zero and that of the
// first column, `first`, grows; returns the latter.
inline float rotate_onto_first(thread Deflating& all, int first_column, int column, float first,
                               float weight) {
  float c;
  float s;
  const float length = rotation_of(first, weight, c, s);
  all.rotate(int2(first_column, column), float2(c, s));
  return length;
}

// xLASD2: moves deflated poles behind the others: those with a negligible element of z, and, after
// Givens rotations, poles that are nearly zero and one of two that are nearly equal. One thread per
// merge, that of its first column.
kernel void svd_merge_deflate(
    device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
    device float2* all_tips [[buffer(2)]], device int* columns [[buffer(3)]],
    device Deflation* deflations [[buffer(4)]], device float2* rotations [[buffer(5)]],
    device int2* rotated [[buffer(6)]], device float* values [[buffer(7)]],
    device int* put_aside [[buffer(8)]], device const float* scales [[buffer(9)]],
    constant MergeParameters& p [[buffer(10)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block() || merge.begin != int(position.x)) {
    return;
  }
  const int n = merge.size();
  const int64_t offset = merge.offset;
  Deflating all = {poles + offset,  z + offset,         all_tips + offset,  columns + offset,
                   values + offset, put_aside + offset, rotations + offset, rotated + offset};
  all.kept = 1;  // the pole of the row between the blocks
  all.tolerance = 8.0f * kSecularEpsilon * scales[merge.matrix];
  const int first_column = all.columns[0];
  float first = all.z[0];
  if (all.z[n - 1] != 0.0f) {
    first = rotate_onto_first(all, first_column, all.columns[n - 1], first, all.z[n - 1]);
  }
  int on_right = all.rotation_count;
  for (int i = 1; i < n - 1; ++i) {
    const float pole = all.poles[i];
    const float weight = all.z[i];
    const int column = all.columns[i];
    if (abs(weight) <= all.tolerance) {
      all.deflate(pole, column);
    } else if (pole <= all.tolerance) {
      first = rotate_onto_first(all, first_column, column, first, weight);
      on_right = all.rotation_count;
      all.deflate(0.0f, column);
    } else {
      all.add(pole, weight, column);
    }
  }
  all.finish(n - 1);
  all.z[0] = all.kept > 1 && abs(first) <= all.tolerance ? copysign(all.tolerance, first) : first;
  all.values[n - 1] = kNoValue;
  deflations[offset] = {all.kept, on_right, all.rotation_count, 1.0f};
}

// xLASD4: solves the secular equation. One thread per root.
kernel void svd_merge_roots(device float* roots [[buffer(0)]], device int* origins [[buffer(1)]],
                            device float* values [[buffer(2)]],
                            device const float* poles [[buffer(3)]],
                            device const float* z [[buffer(4)]],
                            device const Deflation* deflations [[buffer(5)]],
                            constant MergeParameters& p [[buffer(6)]],
                            uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = deflations[merge.offset].kept;
  const int index = int(position.x) - merge.begin;
  if (index >= n) {
    return;
  }
  const SecularPoles all = {poles + merge.offset, z + merge.offset, n};
  SecularRoot root = {0, 0.0f, 0.0f, abs(all.z[0])};  // of a single pole, which is zero
  float value = merge.middle > p.values ? kNoValue : root.distance;
  if (n > 1) {
    root = secular_root(SingularValueEquation{}, all, index);
    value = all.poles[root.origin] + root.distance;
  }
  roots[merge.offset + index] = root.distance;
  origins[merge.offset + index] = root.origin;
  values[merge.offset + index] = value;
}

// xLASD3, first half: computes the z for which the roots are exact. One thread per element.
kernel void svd_merge_weights(
    device float* weights [[buffer(0)]], device const float* roots [[buffer(1)]],
    device const int* origins [[buffer(2)]], device const float* poles [[buffer(3)]],
    device const float* z [[buffer(4)]], device const Deflation* deflations [[buffer(5)]],
    constant MergeParameters& p [[buffer(6)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  store_exact_weight(SingularValueEquation{}, merge, int(position.x) - merge.begin, weights, roots,
                     origins, poles, z, deflations);
}

// xLASD3, second half: computes the first and last elements of the right vectors of the merged
// block and, with_vectors, all of them and the left ones in terms of those of the blocks: as
// columns of a matrix for each region in `factors`, which begins as zeros. All left ones come
// before the right ones. One thread per vector.
kernel void svd_merge_vectors(
    device float* factors [[buffer(0)]], device float2* ends [[buffer(1)]],
    device const float* weights [[buffer(2)]], device const float* roots [[buffer(3)]],
    device const int* origins [[buffer(4)]], device const float* poles [[buffer(5)]],
    device const float2* all_tips [[buffer(6)]], device const int* columns [[buffer(7)]],
    device const Deflation* deflations [[buffer(8)]], device const float2* rotations [[buffer(9)]],
    device const int2* rotated [[buffer(10)]], constant MergeParameters& p [[buffer(11)]],
    uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  const int line = p.region;
  const int index = int(position.x) - merge.begin;
  device float* const left = factors + factors_at(merge, position.x, p);
  device float* const right = left + int64_t(p.matrices) * p.size * line;
  if (merge.is_one_block()) {
    if (p.with_vectors) {
      left[index * line] = 1.0f;
      right[index * line] = 1.0f;
    }
    return;
  }
  const Deflation deflation = deflations[merge.offset];
  const int n = deflation.kept;
  device const int* const column = columns + merge.offset;
  device const float2* const tips = all_tips + merge.offset;
  if (index >= n || n == 1) {
    const float sign = index < n ? copysign(1.0f, weights[merge.offset]) : 1.0f;
    ends[merge.offset + index] = sign * tips[column[index]];
    if (p.with_vectors) {
      left[column[index] * line] = 1.0f;
      right[column[index] * line] = sign;
    }
  } else {
    device const float* const pole = poles + merge.offset;
    device const float* const weight = weights + merge.offset;
    const float from = pole[origins[merge.offset + index]];
    const float root = roots[merge.offset + index];
    float squares_of_left = 0.0f;
    float squares_of_right = 0.0f;
    float2 end(0.0f);
    for (int i = 0; i < n; ++i) {
      const float of_right = weight[i] / SingularValueEquation{}.difference(pole[i], from, root);
      const float of_left = i == 0 ? -1.0f : pole[i] * of_right;
      squares_of_left += of_left * of_left;
      squares_of_right += of_right * of_right;
      end += of_right * tips[column[i]];
      if (p.with_vectors) {
        left[column[i] * line] = of_left;
        right[column[i] * line] = of_right;
      }
    }
    const float length_of_left = precise::sqrt(squares_of_left);
    const float length_of_right = precise::sqrt(squares_of_right);
    ends[merge.offset + index] = end / length_of_right;
    for (int i = 0; i < n && p.with_vectors; ++i) {
      left[column[i] * line] /= length_of_left;
      right[column[i] * line] /= length_of_right;
    }
  }
  for (int i = deflation.rotation_count - 1; i >= 0 && p.with_vectors; --i) {
    const float2 rotation = rotations[merge.offset + i];
    const int2 pair = rotated[merge.offset + i] * line;
    rotate_back(right, pair, rotation);
    if (i >= deflation.on_right) {
      rotate_back(left, pair, rotation);
    }
  }
}

// xLAED1 to xLAED4: divide and conquer for eigenvalues and eigenvectors of symmetric tridiagonal
// matrices. Those of two blocks are merged to those of the matrix that has an off-diagonal element
// e between them:
//
//     [ T1  e ]     [ Q1    ] (  [ D1    ]             ) [ Q1    ]^T
//     [ e  T2 ]  =  [    Q2 ] (  [    D2 ] + rho z z^T ) [    Q2 ]     rho = 2 |e|, z of norm 1
//
// In terms of the blocks' eigenvectors it is a diagonal matrix D and a rank-one update. Its
// eigenvalues are the roots of the secular equation 1 + rho sum z_i^2 / (d_i - x), one between each
// two poles. Each is kept as the distance from the nearest pole, and z is computed anew from the
// roots, such that they are exact for it (Gu and Eisenstat 1995).
//
// Blocks begin as single rows with the vector 1. Rows with which matrices are padded are behind all
// others, have an infinite value, and zeros off the diagonal: so they take part in no merge.
#include <c10/metal/utils.h>
#include <metal_stdlib>

#include <kernels/linalg/common/divide_and_conquer.h>
#include <kernels/linalg/common/secular.h>
using namespace metal;
using namespace metalops;

// Tears matrices into blocks of one row: the magnitudes of the off-diagonal elements are subtracted
// from the diagonal elements beside them. values, edges: (matrices, size), padded. One thread per
// element.
kernel void eigh_merge_tear(device float* values [[buffer(0)]], device float* edges [[buffer(1)]],
                            device const float* diagonals [[buffer(2)]],
                            device const float* off_diagonals [[buffer(3)]],
                            constant int& n [[buffer(4)]], constant int& size [[buffer(5)]],
                            uint2 position [[thread_position_in_grid]]) {
  const int column = int(position.x);
  const int64_t at = int64_t(position.y) * size + column;
  if (column >= n) {
    values[at] = INFINITY;
    edges[at] = 0.0f;
    return;
  }
  const int64_t from = int64_t(position.y) * n + column;
  const float before = column > 0 ? metal::abs(off_diagonals[from - 1]) : 0.0f;
  values[at] = diagonals[from] - metal::abs(off_diagonals[from]) - before;
  edges[at] = off_diagonals[from];
}

// Returns the off-diagonal element between the blocks of a merge.
inline float edge_of(Merge merge, device const float* edges) {
  return edges[merge.offset + merge.middle - merge.begin - 1];
}

// Sorts a merge's poles into ascending order, and finds z and the columns of the merge that they
// belong to. tips: the first and the last element of each vector of the merged block. One thread
// per pole.
kernel void eigh_merge_sort(device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
                            device float2* tips [[buffer(2)]], device int* columns [[buffer(3)]],
                            device const float* values [[buffer(4)]],
                            device const float2* ends [[buffer(5)]],
                            device const float* edges [[buffer(6)]],
                            constant MergeParameters& p [[buffer(7)]],
                            uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int column = int(position.x) - merge.begin;
  const float pole = values[merge.offset + column];
  int rank = 0;
  for (int i = 0; i < merge.size(); ++i) {
    const float other = values[merge.offset + i];
    rank += other < pole || (other == pole && i < column);
  }
  const float2 end = ends[merge.offset + column];
  const bool is_above = column < p.block;
  const float element = is_above ? end.y : end.x;
  const bool is_negated = !is_above && edge_of(merge, edges) < 0.0f;
  tips[merge.offset + column] = is_above ? float2(end.x, 0.0f) : float2(0.0f, end.y);
  poles[merge.offset + rank] = pole;
  z[merge.offset + rank] = (is_negated ? -element : element) * M_SQRT1_2_F;
  columns[merge.offset + rank] = column;
}

// xLAED2: moves deflated poles behind the others: those with a negligible element of z, and, after
// a Givens rotation, one of two poles that are nearly equal. One thread per merge, that of its
// first column.
kernel void eigh_merge_deflate(
    device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
    device float2* all_tips [[buffer(2)]], device int* columns [[buffer(3)]],
    device Deflation* deflations [[buffer(4)]], device float2* rotations [[buffer(5)]],
    device int2* rotated [[buffer(6)]], device float* values [[buffer(7)]],
    device int* put_aside [[buffer(8)]], device const float* edges [[buffer(9)]],
    constant MergeParameters& p [[buffer(10)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block() || merge.begin != int(position.x)) {
    return;
  }
  const int n = merge.size();
  const int64_t offset = merge.offset;
  Deflating all = {poles + offset,  z + offset,         all_tips + offset,  columns + offset,
                   values + offset, put_aside + offset, rotations + offset, rotated + offset};
  const float rho = 2.0f * abs(edge_of(merge, edges));
  float largest = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float pole = all.poles[i];
    largest = max(largest, pole < INFINITY ? max(abs(pole), abs(all.z[i])) : 0.0f);
  }
  all.tolerance = 8.0f * kSecularEpsilon * largest;
  for (int i = 0; i < n; ++i) {
    const float pole = all.poles[i];
    const float weight = all.z[i];
    const int column = all.columns[i];
    if (rho * abs(weight) <= all.tolerance) {
      all.deflate(pole, column);
    } else {
      all.add(pole, weight, column);
    }
  }
  all.finish(n);
  deflations[offset] = {all.kept, 0, all.rotation_count, rho};
}

// xLAED4: solves the secular equation. One thread per root.
kernel void eigh_merge_roots(device float* roots [[buffer(0)]], device int* origins [[buffer(1)]],
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
  const Deflation deflation = deflations[merge.offset];
  const int index = int(position.x) - merge.begin;
  if (index >= deflation.kept) {
    return;
  }
  const SecularPoles all = {poles + merge.offset, z + merge.offset, deflation.kept};
  SecularRoot root = {0, 0.0f, 0.0f, deflation.rho * (all.z[0] * all.z[0])};  // of a single pole
  if (deflation.kept > 1) {
    root = secular_root(EigenvalueEquation{deflation.rho}, all, index);
  }
  roots[merge.offset + index] = root.distance;
  origins[merge.offset + index] = root.origin;
  values[merge.offset + index] = all.poles[root.origin] + root.distance;
}

// xLAED3, first half: computes the z for which the roots are exact, up to a factor. One thread per
// element.
kernel void eigh_merge_weights(
    device float* weights [[buffer(0)]], device const float* roots [[buffer(1)]],
    device const int* origins [[buffer(2)]], device const float* poles [[buffer(3)]],
    device const float* z [[buffer(4)]], device const Deflation* deflations [[buffer(5)]],
    constant MergeParameters& p [[buffer(6)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  store_exact_weight(EigenvalueEquation{0.0f}, merge, int(position.x) - merge.begin, weights, roots,
                     origins, poles, z, deflations);
}

// xLAED3, second half: computes the first and last elements of the eigenvectors of the merged block
// and, with_vectors, all of them in terms of those of the blocks: as columns of a matrix for each
// region in `factors`, which begins as zeros. One thread per vector.
kernel void eigh_merge_vectors(
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
  device float* const factor = factors + factors_at(merge, position.x, p);
  if (merge.is_one_block()) {
    if (p.with_vectors) {
      factor[index * line] = 1.0f;
    }
    return;
  }
  const Deflation deflation = deflations[merge.offset];
  const int n = deflation.kept;
  device const int* const column = columns + merge.offset;
  device const float2* const tips = all_tips + merge.offset;
  if (index >= n) {
    ends[merge.offset + index] = tips[column[index]];
    if (p.with_vectors) {
      factor[column[index] * line] = 1.0f;
    }
  } else {
    device const float* const pole = poles + merge.offset;
    device const float* const weight = weights + merge.offset;
    const float from = pole[origins[merge.offset + index]];
    const float root = roots[merge.offset + index];
    float squares = 0.0f;
    float2 end(0.0f);
    for (int i = 0; i < n; ++i) {
      const float element = weight[i] / ((pole[i] - from) - root);
      squares += element * element;
      end += element * tips[column[i]];
      if (p.with_vectors) {
        factor[column[i] * line] = element;
      }
    }
    const float length = precise::sqrt(squares);
    ends[merge.offset + index] = end / length;
    for (int i = 0; i < n && p.with_vectors; ++i) {
      factor[column[i] * line] /= length;
    }
  }
  for (int i = deflation.rotation_count - 1; i >= 0 && p.with_vectors; --i) {
    rotate_back(factor, rotated[merge.offset + i] * line, rotations[merge.offset + i]);
  }
}

// xLAED1 to xLAED4: divide and conquer for eigenvalues and eigenvectors of symmetric tridiagonal
// matrices. Those of two blocks are merged to those of the matrix that has an off-diagonal element
// between them. In terms of the blocks' eigenvectors it is a diagonal matrix D and a rank-one
// update, D + rho z z^T. Its eigenvalues are the roots of the secular equation 1 + rho sum z_i^2 /
// (d_i - x), one between each two poles. Each is kept as the distance from the nearest pole, and z
// is computed anew from the roots, such that they are exact for it (Gu and Eisenstat 1995).
//
// Blocks begin as single rows with the vector 1. Rows with which matrices are padded are behind all
// others, have an infinite value, and zeros off the diagonal: so they take part in no merge.
#include <c10/metal/utils.h>
#include <metal_stdlib>

#include <kernels/linalg/common/divide_and_conquer.h>
#include <kernels/linalg/common/secular.h>
#include <kernels/linalg/eigh_merge.h>
using namespace metal;
using namespace metalops;

constant constexpr float kEpsilon = 0x1p-24f;

// Returns the off-diagonal element between the blocks of a merge.
inline float edge_of(Merge merge, device const float* edges) {
  return edges[merge.offset + merge.middle - merge.begin - 1];
}

// The result of deflating a merge.
struct Deflation {
  int kept;            // poles that are not deflated
  int rotation_count;  // rotations
};

// Sorts a merge's poles into ascending order, and finds z and the columns of the merge that they
// belong to. tips: the first and the last element of each vector of the merged block. One thread
// per pole.
kernel void eigh_merge_sort(device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
                            device float2* tips [[buffer(2)]], device int* columns [[buffer(3)]],
                            device const float* values [[buffer(4)]],
                            device const float2* ends [[buffer(5)]],
                            device const float* edges [[buffer(6)]],
                            constant EighMergeParameters& p [[buffer(7)]],
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
    constant EighMergeParameters& p [[buffer(10)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block() || merge.begin != int(position.x)) {
    return;
  }
  const int n = merge.size();
  device float* const pole = poles + merge.offset;
  device float* const weight = z + merge.offset;
  device float2* const tips = all_tips + merge.offset;
  device int* const column = columns + merge.offset;
  device float* const value = values + merge.offset;
  device int* const aside = put_aside + merge.offset;
  device float2* const rotation = rotations + merge.offset;
  device int2* const pair = rotated + merge.offset;
  const float rho = 2.0f * abs(edge_of(merge, edges));
  float largest = 0.0f;
  for (int i = 0; i < n; ++i) {
    largest = max(largest, pole[i] < INFINITY ? max(abs(pole[i]), abs(weight[i])) : 0.0f);
  }
  const float tolerance = 8.0f * kEpsilon * largest;
  int kept = 0;
  int deflated = 0;
  int rotation_count = 0;
  bool has_last = false;  // that may still be deflated
  float last_pole = 0.0f;
  float last_weight = 0.0f;
  int last_column = 0;
  for (int i = 0; i < n; ++i) {
    float this_pole = pole[i];
    float this_weight = weight[i];
    const int this_column = column[i];
    if (rho * abs(this_weight) <= tolerance) {
      value[deflated] = this_pole;
      aside[deflated++] = this_column;
      continue;
    }
    if (has_last) {
      const float length = precise::sqrt(this_weight * this_weight + last_weight * last_weight);
      const float c = this_weight / length;
      const float s = -last_weight / length;
      if (abs((this_pole - last_pole) * c * s) <= tolerance) {
        rotation[rotation_count] = float2(c, s);
        pair[rotation_count] = int2(last_column, this_column);
        rotate_tips(tips, pair[rotation_count], rotation[rotation_count]);
        ++rotation_count;
        value[deflated] = last_pole * c * c + this_pole * s * s;
        aside[deflated++] = last_column;
        this_pole = last_pole * s * s + this_pole * c * c;
        this_weight = length;
      } else {
        pole[kept] = last_pole;
        weight[kept] = last_weight;
        column[kept++] = last_column;
      }
    }
    has_last = true;
    last_pole = this_pole;
    last_weight = this_weight;
    last_column = this_column;
  }
  if (has_last) {
    pole[kept] = last_pole;
    weight[kept] = last_weight;
    column[kept++] = last_column;
  }
  for (int i = n - 1; i >= kept; --i) {
    column[i] = aside[i - kept];
    value[i] = value[i - kept];
  }
  deflations[merge.offset] = {kept, rotation_count};
}

// ---- the secular equation -----------------------------------------------------------------------

// Evaluates the secular function at the distance x from the pole `origin`, in two sums: over the
// poles up to `split`, and over those behind it.
inline Secular secular_at(device const float* poles, device const float* z, int n, float rho,
                          int split, float origin, float x) {
  float before = 0.0f;
  float slope_before = 0.0f;
  for (int i = 0; i <= split; ++i) {
    const float quotient = z[i] / ((poles[i] - origin) - x);
    before += z[i] * quotient;
    slope_before += quotient * quotient;
  }
  float behind = 0.0f;
  float slope_behind = 0.0f;
  for (int i = n - 1; i > split; --i) {
    const float quotient = z[i] / ((poles[i] - origin) - x);
    behind += z[i] * quotient;
    slope_behind += quotient * quotient;
  }
  return {1.0f / rho + before + behind, before, slope_before, behind, slope_behind};
}

// xLAED4: solves the secular equation. One thread per root.
kernel void eigh_merge_roots(device float* roots [[buffer(0)]], device int* origins [[buffer(1)]],
                             device float* values [[buffer(2)]],
                             device const float* poles [[buffer(3)]],
                             device const float* z [[buffer(4)]],
                             device const Deflation* deflations [[buffer(5)]],
                             device const float* edges [[buffer(6)]],
                             constant EighMergeParameters& p [[buffer(7)]],
                             uint2 position [[thread_position_in_grid]]) {
  constexpr int kMostSteps = 60;
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = deflations[merge.offset].kept;
  const int index = int(position.x) - merge.begin;
  if (index >= n) {
    return;
  }
  device const float* const pole = poles + merge.offset;
  device const float* const weight = z + merge.offset;
  const float rho = 2.0f * abs(edge_of(merge, edges));
  const bool is_last = index == n - 1;
  // The function is interpolated between these poles, and the sums are split there.
  const int left = is_last ? max(index - 1, 0) : index;
  const int right = is_last ? index : index + 1;
  int origin = index;
  float low = 0.0f;
  float high;
  float x;
  if (is_last) {
    float square = 0.0f;
    for (int i = 0; i < n; ++i) {
      square += weight[i] * weight[i];
    }
    high = 1.001f * rho * square;
    x = n == 1 ? rho * square : 0.5f * high;
  } else {
    const float gap = pole[right] - pole[left];
    const Secular inside = secular_at(pole, weight, n, rho, left, pole[left], 0.5f * gap);
    const float near = weight[left] * weight[left];
    const float far = weight[right] * weight[right];
    const float rest = inside.value + (near - far) / (0.5f * gap);
    if (inside.value >= 0.0f) {
      high = 0.5f * gap;
      x = first_guess_of_root(rest, gap, near, far, true);
    } else {
      origin = right;
      low = -0.5f * gap;
      high = 0.0f;
      x = first_guess_of_root(rest, gap, far, near, false);
    }
    if (!(x > low && x < high)) {
      x = 0.5f * (low + high);
    }
  }
  const float from = pole[origin];
  for (int step = 0; step < kMostSteps && n > 1; ++step) {
    const Secular at = secular_at(pole, weight, n, rho, left, from, x);
    const float rounding =
        8.0f * (abs(at.before) + abs(at.behind) + 1.0f / rho) + abs(x) * at.slope();
    if (abs(at.value) <= kEpsilon * rounding) {
      break;
    }
    low = at.value < 0.0f ? max(low, x) : low;
    high = at.value < 0.0f ? high : min(high, x);
    const float to_left = (pole[left] - from) - x;
    const float to_right = (pole[right] - from) - x;
    float next = x + step_to_root(at, to_left, to_right, is_last);
    if (!(next > low && next < high)) {
      next = 0.5f * (low + high);
    }
    if (next == x || next == low || next == high) {
      break;
    }
    x = next;
  }
  roots[merge.offset + index] = x;
  origins[merge.offset + index] = origin;
  values[merge.offset + index] = from + x;
}

// xLAED3, first half: computes the z for which the roots are exact, up to a factor. One thread per
// element.
kernel void eigh_merge_weights(
    device float* weights [[buffer(0)]], device const float* roots [[buffer(1)]],
    device const int* origins [[buffer(2)]], device const float* poles [[buffer(3)]],
    device const float* z [[buffer(4)]], device const Deflation* deflations [[buffer(5)]],
    constant EighMergeParameters& p [[buffer(6)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = deflations[merge.offset].kept;
  const int index = int(position.x) - merge.begin;
  if (index >= n) {
    return;
  }
  device const float* const pole = poles + merge.offset;
  device const float* const root = roots + merge.offset;
  device const int* const origin = origins + merge.offset;
  const float here = pole[index];
  float product = (pole[origin[index]] - here) + root[index];
  for (int i = 0; i < n; ++i) {
    if (i != index) {
      product *= ((pole[origin[i]] - here) + root[i]) / (pole[i] - here);
    }
  }
  weights[merge.offset + index] = copysign(precise::sqrt(abs(product)), z[merge.offset + index]);
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
    device const int2* rotated [[buffer(10)]], constant EighMergeParameters& p [[buffer(11)]],
    uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  const int line = p.region;
  const int in_region = int(position.x) % line;
  const int64_t region = merge.matrix * p.size + int(position.x) - in_region;
  const int index = int(position.x) - merge.begin;
  device float* const factor = factors + (region + in_region - index) * line + in_region;
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

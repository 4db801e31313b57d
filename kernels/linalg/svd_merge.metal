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
#include <kernels/linalg/svd_merge.h>
using namespace metal;
using namespace metalops;

constant constexpr float kEpsilon = 0x1p-24f;

// The value of a row that is padding, and of the null vector: less than all others.
constant constexpr float kNoValue = -1.0f;

// The result of deflating a merge.
struct Deflation {
  int kept;            // poles that are not deflated
  int on_right;        // rotations of right vectors only, which are the first ones
  int rotation_count;  // rotations
};

// Sorts a merge's poles. The first of the m poles is that of the row between the blocks, zero; the
// others follow in ascending order; the last element is that of the null vector of the second
// block. tips: the first and the last element of each right vector. One thread per pole.
kernel void svd_merge_sort(device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
                           device float2* tips [[buffer(2)]], device int* columns [[buffer(3)]],
                           device const float* values [[buffer(4)]],
                           device const float2* ends [[buffer(5)]],
                           device const float* bidiagonals [[buffer(6)]],
                           constant SvdMergeParameters& p [[buffer(7)]],
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

// Rotates two right vectors such that the second one's element of z becomes zero; returns the first
// one's.
inline float rotate_onto_first(device float2* tips, int2 pair, float first, float second,
                               device float2* rotation) {
  float c;
  float s;
  const float length = rotation_of(first, second, c, s);
  *rotation = float2(c, s);
  rotate_tips(tips, pair, float2(c, s));
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
    constant SvdMergeParameters& p [[buffer(10)]], uint2 position [[thread_position_in_grid]]) {
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
  const float tolerance = 8.0f * kEpsilon * scales[merge.matrix];
  const int first_column = column[0];
  float first = weight[0];
  int kept = 1;
  int deflated = 0;
  int rotation_count = 0;
  if (weight[n - 1] != 0.0f) {
    pair[0] = int2(first_column, column[n - 1]);
    first = rotate_onto_first(tips, pair[0], first, weight[n - 1], rotation);
    rotation_count = 1;
  }
  int on_right = rotation_count;
  bool has_last = false;  // that may still be deflated
  float last_pole = 0.0f;
  float last_weight = 0.0f;
  int last_column = 0;
  for (int i = 1; i < n - 1; ++i) {
    float this_pole = pole[i];
    float this_weight = weight[i];
    const int this_column = column[i];
    if (abs(this_weight) <= tolerance) {
      value[deflated] = this_pole;
      aside[deflated++] = this_column;
      continue;
    }
    if (this_pole <= tolerance) {
      pair[rotation_count] = int2(first_column, this_column);
      first = rotate_onto_first(tips, pair[rotation_count], first, this_weight,
                                rotation + rotation_count);
      on_right = ++rotation_count;
      value[deflated] = 0.0f;
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
  weight[0] = kept > 1 && abs(first) <= tolerance ? copysign(tolerance, first) : first;
  for (int i = n - 2; i >= kept; --i) {
    column[i] = aside[i - kept];
    value[i] = value[i - kept];
  }
  value[n - 1] = kNoValue;
  deflations[merge.offset] = {kept, on_right, rotation_count};
}

// ---- the secular equation -----------------------------------------------------------------------

// Returns d_i^2 - (d_o + x)^2, for the pole o from which the root's distance is x.
inline float squared_distance(float pole, float origin, float x) {
  return ((pole - origin) - x) * ((pole + origin) + x);
}

// Evaluates the secular function at the distance x from the pole `origin`, in two sums: over the
// poles up to `split`, and over those behind it. Derivatives are with respect to the value's
// square.
inline Secular secular_at(device const float* poles, device const float* z, int n, int split,
                          float origin, float x) {
  float before = 0.0f;
  float slope_before = 0.0f;
  for (int i = 0; i <= split; ++i) {
    const float quotient = z[i] / squared_distance(poles[i], origin, x);
    before += z[i] * quotient;
    slope_before += quotient * quotient;
  }
  float behind = 0.0f;
  float slope_behind = 0.0f;
  for (int i = n - 1; i > split; --i) {
    const float quotient = z[i] / squared_distance(poles[i], origin, x);
    behind += z[i] * quotient;
    slope_behind += quotient * quotient;
  }
  return {1.0f + before + behind, before, slope_before, behind, slope_behind};
}

// Returns sqrt(x^2 + change) - x.
inline float change_of_root(float x, float change) {
  return change / (x + precise::sqrt(x * x + change));
}

// xLASD4: solves the secular equation. One thread per root.
kernel void svd_merge_roots(device float* roots [[buffer(0)]], device int* origins [[buffer(1)]],
                            device float* values [[buffer(2)]],
                            device const float* poles [[buffer(3)]],
                            device const float* z [[buffer(4)]],
                            device const Deflation* deflations [[buffer(5)]],
                            constant SvdMergeParameters& p [[buffer(6)]],
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
  if (n == 1) {
    const float value = abs(weight[0]);
    roots[merge.offset] = value;
    origins[merge.offset] = 0;
    values[merge.offset] = merge.middle > p.values ? kNoValue : value;
    return;
  }
  const bool is_last = index == n - 1;
  // The function is interpolated between these poles, and the sums are split there.
  const int left = is_last ? index - 1 : index;
  const int right = left + 1;
  int origin = index;
  float low = 0.0f;
  float high;
  float x;
  if (is_last) {
    float square = 0.0f;
    for (int i = 0; i < n; ++i) {
      square += weight[i] * weight[i];
    }
    high = 1.001f * change_of_root(pole[index], square);
    x = 0.5f * high;
  } else {
    const float between = pole[right] - pole[left];
    const float gap = between * (pole[right] + pole[left]);
    const float middle = change_of_root(pole[left], 0.5f * gap);
    const Secular inside = secular_at(pole, weight, n, left, pole[left], middle);
    const float near = weight[left] * weight[left];
    const float far = weight[right] * weight[right];
    const float rest = inside.value + (near - far) / (0.5f * gap);
    if (inside.value >= 0.0f) {
      high = middle;
      x = change_of_root(pole[left], first_guess_of_root(rest, gap, near, far, true));
    } else {
      origin = right;
      low = middle - between;
      high = 0.0f;
      x = change_of_root(pole[right], first_guess_of_root(rest, gap, far, near, false));
    }
    if (!(x > low && x < high)) {
      x = 0.5f * (low + high);
    }
  }
  const float from = pole[origin];
  for (int step = 0; step < kMostSteps; ++step) {
    const Secular at = secular_at(pole, weight, n, left, from, x);
    const float value = from + x;
    const float rounding =
        8.0f * (abs(at.before) + abs(at.behind) + 1.0f) + 2.0f * value * abs(x) * at.slope();
    if (abs(at.value) <= kEpsilon * rounding) {
      break;
    }
    low = at.value < 0.0f ? max(low, x) : low;
    high = at.value < 0.0f ? high : min(high, x);
    float next =
        x + change_of_root(value, step_to_root(at, squared_distance(pole[left], from, x),
                                               squared_distance(pole[right], from, x), is_last));
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

// xLASD3, first half: computes the z for which the roots are exact. One thread per element.
kernel void svd_merge_weights(
    device float* weights [[buffer(0)]], device const float* roots [[buffer(1)]],
    device const int* origins [[buffer(2)]], device const float* poles [[buffer(3)]],
    device const float* z [[buffer(4)]], device const Deflation* deflations [[buffer(5)]],
    constant SvdMergeParameters& p [[buffer(6)]], uint2 position [[thread_position_in_grid]]) {
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
  float product = squared_distance(here, pole[origin[index]], root[index]);
  for (int i = 0; i < n; ++i) {
    if (i != index) {
      product *=
          squared_distance(here, pole[origin[i]], root[i]) / ((here - pole[i]) * (here + pole[i]));
    }
  }
  weights[merge.offset + index] = copysign(precise::sqrt(abs(product)), z[merge.offset + index]);
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
    device const int2* rotated [[buffer(10)]], constant SvdMergeParameters& p [[buffer(11)]],
    uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  const int line = p.region;
  const int in_region = int(position.x) % line;
  const int64_t region = merge.matrix * p.size + int(position.x) - in_region;
  const int index = int(position.x) - merge.begin;
  device float* const left = factors + (region + in_region - index) * line + in_region;
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
      const float of_right = weight[i] / squared_distance(pole[i], from, root);
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

// Divide and conquer for eigenvectors of symmetric tridiagonal matrices: from those of two blocks
// those of the matrix that has an element beside the diagonal between them (LAPACK's slaed1 to
// slaed4). That is a diagonal matrix D and a product: D + rho z z^T. Its eigenvalues are the roots
// of 1 + rho sum z_i^2 / (d_i - x), one between each two poles; each is kept as the distance from
// the nearest pole, and z is made anew from the roots, for which they are exact (Gu and Eisenstat
// 1995).
//
// Numbers of a merge are where its rows are.
#include <c10/metal/utils.h>
#include <metal_stdlib>

#include "eigh_merge.h"
#include "secular.h"
using namespace metal;
using namespace metalops;

constant constexpr uint kSimdgroup = c10::metal::simdgroup_size;
constant constexpr float kEpsilon = 0x1p-24f;

struct Merge {
  int64_t matrix;
  int number;  // of its matrix
  int begin;   // rows of its matrix
  int middle;
  int end;
  int64_t place;  // of its first number

  int size() const { return end - begin; }
  bool is_one_block() const { return middle >= end; }
};

inline Merge merge_at(int64_t matrix, int row, constant EighMergeParameters& p) {
  const int number = row / (2 * p.block);
  const int begin = number * 2 * p.block;
  return {matrix,
          number,
          begin,
          begin + p.block,
          min(begin + 2 * p.block, p.size),
          matrix * p.size + begin};
}

inline float edge_of(Merge merge, device const float* edges, constant EighMergeParameters& p) {
  return edges[merge.matrix * p.edges + merge.middle / p.leaf - 1];
}

// Poles in ascending order, z, and of which column of the merge they are. A thread for each.
kernel void eigh_merge_sort(device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
                            device int* columns [[buffer(2)]],
                            device const float* diagonals [[buffer(3)]],
                            device const float* vectors [[buffer(4)]],
                            device const float* edges [[buffer(5)]],
                            constant EighMergeParameters& p [[buffer(6)]],
                            uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int column = int(position.x) - merge.begin;
  const float pole = diagonals[merge.place + column];
  int rank = 0;
  for (int i = 0; i < merge.size(); ++i) {
    const float other = diagonals[merge.place + i];
    rank += other < pole || (other == pole && i < column);
  }
  device const float* const vector = vectors + (merge.place + column) * p.row;
  const bool is_above = column < p.block;
  const float element = vector[is_above ? merge.middle - 1 : merge.middle];
  const bool turns = !is_above && edge_of(merge, edges, p) < 0.0f;
  poles[merge.place + rank] = pole;
  z[merge.place + rank] = (turns ? -element : element) * M_SQRT1_2_F;
  columns[merge.place + rank] = column;
}

// What takes no part is put behind the others: poles with nearly nothing of z, and after a rotation
// one of two poles that are nearly equal. A thread for each merge. counts: of poles that stay, of
// rotations.
kernel void eigh_merge_deflate(device float* poles [[buffer(0)]], device float* z [[buffer(1)]],
                               device int* columns [[buffer(2)]], device int2* counts [[buffer(3)]],
                               device float2* rotations [[buffer(4)]],
                               device int2* rotated [[buffer(5)]],
                               device float* diagonals [[buffer(6)]],
                               device int* put_aside [[buffer(7)]],
                               device const float* edges [[buffer(8)]],
                               constant EighMergeParameters& p [[buffer(9)]],
                               uint2 position [[thread_position_in_grid]]) {
  if (int(position.x) >= p.merges) {
    return;
  }
  const Merge merge = merge_at(position.y, position.x * 2 * p.block, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = merge.size();
  device float* const pole = poles + merge.place;
  device float* const weight = z + merge.place;
  device int* const column = columns + merge.place;
  device int* const aside = put_aside + merge.place;
  const float rho = 2.0f * abs(edge_of(merge, edges, p));
  float largest = max(abs(pole[0]), abs(pole[n - 1]));
  for (int i = 0; i < n; ++i) {
    largest = max(largest, abs(weight[i]));
  }
  const float tolerance = 8.0f * kEpsilon * largest;
  int kept = 0;
  int deflated = 0;
  int turned = 0;
  bool has_last = false;  // that may still be put aside
  float last_pole = 0.0f;
  float last_weight = 0.0f;
  int last_column = 0;
  for (int i = 0; i < n; ++i) {
    float this_pole = pole[i];
    float this_weight = weight[i];
    const int this_column = column[i];
    if (rho * abs(this_weight) <= tolerance) {
      diagonals[merge.place + deflated] = this_pole;
      aside[deflated++] = this_column;
      continue;
    }
    if (has_last) {
      const float length = precise::sqrt(this_weight * this_weight + last_weight * last_weight);
      const float c = this_weight / length;
      const float s = -last_weight / length;
      if (abs((this_pole - last_pole) * c * s) <= tolerance) {
        rotations[merge.place + turned] = float2(c, s);
        rotated[merge.place + turned] = int2(last_column, this_column);
        ++turned;
        diagonals[merge.place + deflated] = last_pole * c * c + this_pole * s * s;
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
    diagonals[merge.place + i] = diagonals[merge.place + i - kept];
  }
  counts[merge.matrix * p.merges + merge.number] = int2(kept, turned);
}

// ---- the secular equation -----------------------------------------------------------------------

// At the distance x from a pole, in two sums, up to the pole `split` and behind it.
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

// A thread for each root.
kernel void eigh_merge_roots(device float* roots [[buffer(0)]], device int* origins [[buffer(1)]],
                             device float* diagonals [[buffer(2)]],
                             device const float* poles [[buffer(3)]],
                             device const float* z [[buffer(4)]],
                             device const int2* counts [[buffer(5)]],
                             device const float* edges [[buffer(6)]],
                             constant EighMergeParameters& p [[buffer(7)]],
                             uint2 position [[thread_position_in_grid]]) {
  constexpr int kMostSteps = 60;
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = counts[merge.matrix * p.merges + merge.number].x;
  const int index = int(position.x) - merge.begin;
  if (index >= n) {
    return;
  }
  device const float* const pole = poles + merge.place;
  device const float* const weight = z + merge.place;
  const float rho = 2.0f * abs(edge_of(merge, edges, p));
  const bool is_last = index == n - 1;
  // The poles between which the function is interpolated, and the sums are split.
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
  roots[merge.place + index] = x;
  origins[merge.place + index] = origin;
  diagonals[merge.place + index] = from + x;
}

// The z for which the roots are exact, up to a factor. A thread for each.
kernel void eigh_merge_weights(
    device float* weights [[buffer(0)]], device const float* roots [[buffer(1)]],
    device const int* origins [[buffer(2)]], device const float* poles [[buffer(3)]],
    device const float* z [[buffer(4)]], device const int2* counts [[buffer(5)]],
    constant EighMergeParameters& p [[buffer(6)]], uint2 position [[thread_position_in_grid]]) {
  const Merge merge = merge_at(position.y, position.x, p);
  if (merge.is_one_block()) {
    return;
  }
  const int n = counts[merge.matrix * p.merges + merge.number].x;
  const int index = int(position.x) - merge.begin;
  if (index >= n) {
    return;
  }
  device const float* const pole = poles + merge.place;
  device const float* const root = roots + merge.place;
  device const int* const origin = origins + merge.place;
  const float here = pole[index];
  float product = (pole[origin[index]] - here) + root[index];
  for (int i = 0; i < n; ++i) {
    if (i != index) {
      product *= ((pole[origin[i]] - here) + root[i]) / (pole[i] - here);
    }
  }
  weights[merge.place + index] = copysign(precise::sqrt(abs(product)), z[merge.place + index]);
}

// The eigenvectors in terms of those of the blocks, a column of `factors`, which begin as zeros, by
// each simdgroup.
kernel void eigh_merge_vectors(
    device float* factors [[buffer(0)]], device const float* weights [[buffer(1)]],
    device const float* roots [[buffer(2)]], device const int* origins [[buffer(3)]],
    device const float* poles [[buffer(4)]], device const int* columns [[buffer(5)]],
    device const int2* counts [[buffer(6)]], device const float2* rotations [[buffer(7)]],
    device const int2* rotated [[buffer(8)]], constant EighMergeParameters& p [[buffer(9)]],
    constant int64_t& all [[buffer(10)]], uint2 position [[thread_position_in_grid]],
    uint simd_lane [[thread_index_in_simdgroup]]) {
  const int64_t place = (position.y * (int64_t(1) << 30) + position.x) / kSimdgroup;
  if (place >= all) {
    return;
  }
  const int lane = simd_lane;
  const Merge merge = merge_at(place / p.size, place % p.size, p);
  if (merge.is_one_block()) {
    return;
  }
  const int2 count = counts[merge.matrix * p.merges + merge.number];
  const int index = place - merge.place;
  device const int* const column = columns + merge.place;
  device float* const factor = factors + place * p.row;
  if (index < count.x) {
    device const float* const pole = poles + merge.place;
    device const float* const weight = weights + merge.place;
    const float from = pole[origins[place]];
    const float root = roots[place];
    float squares = 0.0f;
    for (int i = lane; i < count.x; i += kSimdgroup) {
      const float element = weight[i] / ((pole[i] - from) - root);
      squares += element * element;
    }
    const float length = precise::sqrt(simd_sum(squares));
    for (int i = lane; i < count.x; i += kSimdgroup) {
      factor[column[i]] = weight[i] / ((pole[i] - from) - root) / length;
    }
  } else if (lane == 0) {
    factor[column[index]] = 1.0f;
  }
  simdgroup_barrier(mem_flags::mem_device);
  if (lane == 0) {
    for (int i = count.y - 1; i >= 0; --i) {
      const float2 rotation = rotations[merge.place + i];
      const int2 pair = rotated[merge.place + i];
      const float a = factor[pair.x];
      const float b = factor[pair.y];
      factor[pair.x] = rotation.x * a - rotation.y * b;
      factor[pair.y] = rotation.y * a + rotation.x * b;
    }
  }
}

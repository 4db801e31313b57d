// xLARTG, xLASR and xSTEQR: Givens rotations, and the implicit QL and QR iterations on symmetric
// tridiagonal matrices that are made of them. An iteration reads only the two diagonals: one thread
// does a sweep and records its rotations, and then all threads apply them, each to rows of its own.
#pragma once
#include <metal_stdlib>

namespace metalops {

// Finds c and s such that [c s; -s c] [f; g] = [r; 0], and returns r. They do not overflow or
// underflow unless r does (as LAPACK's slartg, up to the signs where f is zero).
inline float rotation_of(float f, float g, thread float& c, thread float& s) {
  if (g == 0.0f) {
    c = 1.0f;
    s = 0.0f;
    return f;
  }
  const float largest = ::metal::max(::metal::abs(f), ::metal::abs(g));
  const float scale = largest < 0x1p-60f ? 0x1p+100f : largest > 0x1p+60f ? 0x1p-100f : 1.0f;
  const float unscale = largest < 0x1p-60f ? 0x1p-100f : largest > 0x1p+60f ? 0x1p+100f : 1.0f;
  const float x = f * scale;
  const float y = g * scale;
  const float r = ::metal::copysign(::metal::precise::sqrt(x * x + y * y), f);
  c = x / r;
  s = y / r;
  return r * unscale;
}

// The eigenvalues of [a b; b c], of larger magnitude first, and (cosine, sine), the eigenvector of
// the first one (LAPACK's slaev2).
struct TwoByTwo {
  float first;
  float second;
  float cosine;
  float sine;
};

inline TwoByTwo eigenvalues_of_two_by_two(float a, float b, float c) {
  const float sum = a + c;
  const float difference = a - c;
  const float twice = b + b;
  const float larger = ::metal::max(::metal::abs(difference), ::metal::abs(twice));
  const float smaller = ::metal::min(::metal::abs(difference), ::metal::abs(twice));
  const float ratio = larger == 0.0f ? 0.0f : smaller / larger;
  const float root = larger * ::metal::precise::sqrt(1.0f + ratio * ratio);
  const bool is_first = ::metal::abs(a) > ::metal::abs(c);
  const float diagonal = is_first ? a : c;
  const float other = is_first ? c : a;
  TwoByTwo result;
  if (sum == 0.0f) {
    result.first = 0.5f * root;
    result.second = -0.5f * root;
  } else {
    result.first = 0.5f * (sum + (sum < 0.0f ? -root : root));
    result.second = (diagonal / result.first) * other - (b / result.first) * b;
  }
  const bool subtracts = sum < 0.0f;
  const bool is_negative = difference < 0.0f;
  const float along = difference + (is_negative ? -root : root);
  float cosine;
  float sine;
  if (::metal::abs(along) > ::metal::abs(twice)) {
    const float cotangent = -twice / along;
    sine = 1.0f / ::metal::precise::sqrt(1.0f + cotangent * cotangent);
    cosine = cotangent * sine;
  } else if (b == 0.0f) {
    cosine = 1.0f;
    sine = 0.0f;
  } else {
    const float tangent = -along / twice;
    cosine = 1.0f / ::metal::precise::sqrt(1.0f + tangent * tangent);
    sine = tangent * cosine;
  }
  const bool rotates = subtracts == is_negative;
  result.cosine = rotates ? -sine : cosine;
  result.sine = rotates ? cosine : sine;
  return result;
}

// Rotations of adjacent columns: first of column `first` and the one `step` (1 or -1) before it,
// then of that one and the one before it, and so on.
struct Sweep {
  int first;
  int step;
  int count;
};

// Applies a sweep to one row, or to a pack of rows, of a matrix whose columns are `stride` apart
// (xLASR). row: points to the element, or the pack, in column 0.
template <typename Pack, typename Row, typename Rotations>
inline void apply_sweep(Row row, int stride, Sweep sweep, Rotations rotations) {
  const int step = sweep.step * stride;
  int offset = sweep.first * stride;
  Pack x = row[offset];
  for (int i = 0; i < sweep.count; ++i) {
    const float c = rotations[i].x;
    const float s = rotations[i].y;
    const Pack y = row[offset - step];
    row[offset] = c * x + s * y;
    x = c * y - s * x;
    offset -= step;
  }
  row[offset] = x;
}

// Applies sweeps, whose rotations follow each other, to one row or pack of rows.
template <typename Pack, typename Row, typename Sweeps, typename Rotations>
inline void apply_sweeps(Row row, int stride, Sweeps sweeps, int count, Rotations rotations) {
  for (int i = 0; i < count; ++i) {
    const Sweep sweep = sweeps[i];
    apply_sweep<Pack>(row, stride, sweep, rotations);
    rotations += sweep.count;
  }
}

// The state of implicit QL and QR iterations (LAPACK's ssteqr) on a symmetric tridiagonal matrix of
// n rows whose elements are at most about 1. `diagonal`, n elements, becomes the eigenvalues;
// `off_diagonal`, the n - 1 off-diagonal elements, becomes zero. The state begins as zeros.
struct TridiagonalIteration {
  int next;  // the first row past the current block
  int at;    // rows `at` to `end`, in steps of `step`, are what is left of the block
  int end;
  int step;
  int sweeps;

  // Returns 0, or if 30 n sweeps did not suffice, how many eigenvalues may be wrong.
  int count_unfinished(int n) const {
    return sweeps < 30 * n ? 0 : ::metal::abs(end - at) + n - next;
  }
};

inline bool is_negligible(float off_diagonal, float above, float below) {
  constexpr float kSquaredEpsilon = 0x1p-48f;
  constexpr float kTiny = 0x1p-126f;
  return off_diagonal * off_diagonal <=
         kSquaredEpsilon * ::metal::abs(above) * ::metal::abs(below) + kTiny;
}

// Begins with the next block, from row iteration.next on.
template <typename Elements>
inline void begin_block(Elements diagonal, Elements off_diagonal, int n,
                        thread TridiagonalIteration& iteration) {
  const int low = iteration.next;
  int high = low;
  while (high < n - 1 && !is_negligible(off_diagonal[high], diagonal[high], diagonal[high + 1])) {
    ++high;
  }
  if (high < n - 1) {
    off_diagonal[high] = 0.0f;
  }
  iteration.next = high + 1;
  const bool from_below = ::metal::abs(diagonal[high]) < ::metal::abs(diagonal[low]);
  iteration.step = from_below ? -1 : 1;
  iteration.at = from_below ? high : low;
  iteration.end = from_below ? low : high;
}

// Does a QL (step > 0) or QR sweep with Wilkinson's shift on the rows from `at` to `split`, in
// steps of `step`, and records its rotations. off_diagonal[i + offset] is between the rows i and i
// + step.
template <typename Elements, typename Rotations>
inline Sweep wilkinson_sweep(Elements diagonal, Elements off_diagonal, int at, int split, int step,
                             Rotations rotations) {
  const int offset = step > 0 ? 0 : -1;
  const float corner = diagonal[at];
  const float half_gap = (diagonal[at + step] - corner) / (2.0f * off_diagonal[at + offset]);
  const float root =
      ::metal::abs(half_gap) > 0x1p+30f
          ? half_gap
          : ::metal::copysign(::metal::precise::sqrt(half_gap * half_gap + 1.0f), half_gap);
  float last = diagonal[split];  // not yet reduced by `shifted`
  float g = last - corner + off_diagonal[at + offset] / (half_gap + root);
  float s = 1.0f;
  float c = 1.0f;
  float shifted = 0.0f;
  int count = 0;
  for (int i = split - step; (i - at) * step >= 0; i -= step) {
    const float between = off_diagonal[i + offset];
    const float f = s * between;
    const float b = c * between;
    const float r = rotation_of(g, f, c, s);
    if (count > 0) {
      off_diagonal[i + step + offset] = r;
    }
    g = last - shifted;
    last = diagonal[i];
    const float t = (last - g) * s + 2.0f * c * b;
    shifted = s * t;
    diagonal[i + step] = g + shifted;
    g = c * t - b;
    if (rotations) {
      rotations[count] = ::metal::float2(c, s);
    }
    ++count;
  }
  diagonal[at] = last - shifted;
  off_diagonal[at + offset] = g;
  return {split, step, count};
}

// Does the next sweep, of at most n - 1 rotations, and records them where `rotations` is not null.
// Returns a sweep of count zero if nothing is left to do, or if 30 n sweeps did not suffice.
template <typename Elements, typename Rotations>
inline Sweep next_sweep(Elements diagonal, Elements off_diagonal, int n,
                        thread TridiagonalIteration& iteration, Rotations rotations) {
  Sweep sweep = {0, 1, 0};
  while (sweep.count == 0 && iteration.sweeps < 30 * n) {
    const int at = iteration.at;
    const int end = iteration.end;
    const int step = iteration.step;
    if ((end - at) * step <= 0) {  // the block is finished
      if (iteration.next >= n) {
        break;
      }
      begin_block(diagonal, off_diagonal, n, iteration);
      continue;
    }
    const int offset = step > 0 ? 0 : -1;
    int split = at;
    while (split != end &&
           !is_negligible(off_diagonal[split + offset], diagonal[split], diagonal[split + step])) {
      split += step;
    }
    if (split != end) {
      off_diagonal[split + offset] = 0.0f;
    }
    if (split == at) {
      iteration.at = at + step;
    } else if (split == at + step) {
      const TwoByTwo found =
          eigenvalues_of_two_by_two(diagonal[at], off_diagonal[at + offset], diagonal[split]);
      diagonal[at] = found.first;
      diagonal[split] = found.second;
      off_diagonal[at + offset] = 0.0f;
      if (rotations) {
        rotations[0] = ::metal::float2(found.cosine, -found.sine);
      }
      sweep = {split, step, 1};
      iteration.at = at + 2 * step;
    } else {
      sweep = wilkinson_sweep(diagonal, off_diagonal, at, split, step, rotations);
      ++iteration.sweeps;
    }
  }
  return sweep;
}

}  // namespace metalops

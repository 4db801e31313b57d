// xBDSQR: singular values of real upper bidiagonal matrices by implicit QR iterations. An iteration
// reads only the two diagonals: one thread does a sweep and records its Givens rotations, and then
// all threads apply them (apply_sweep of rotations.h), each to rows of its own.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/rotations.h>

namespace metalops {

// The SVD of the triangular matrix [f g; 0 h] (LAPACK's slasv2): with left = (cl, sl) and right =
// (cr, sr), [cl sl; -sl cl] [f g; 0 h] [cr -sr; sr cr] is diagonal, with `first`, the value of
// larger magnitude, and `second`.
struct SingularTwoByTwo {
  float first;
  float second;
  ::metal::float2 left;  // cosine, sine
  ::metal::float2 right;
};

inline SingularTwoByTwo singular_values_of_two_by_two(float f, float g, float h) {
  const bool swaps = ::metal::abs(h) > ::metal::abs(f);
  const float along = swaps ? h : f;
  const float other = swaps ? f : h;
  const float larger = ::metal::abs(along);
  const float smaller = ::metal::abs(other);
  const float off_diagonal = ::metal::abs(g);
  float first = larger;
  float second = smaller;
  ::metal::float2 left(1.0f, 0.0f);
  ::metal::float2 right(1.0f, 0.0f);
  if (off_diagonal > larger && larger / off_diagonal < 0x1p-24f) {
    first = off_diagonal;
    second = smaller > 1.0f ? larger / (off_diagonal / smaller) : larger / off_diagonal * smaller;
    left = ::metal::float2(1.0f, other / g);
    right = ::metal::float2(along / g, 1.0f);
  } else if (off_diagonal > 0.0f) {
    const float gap = larger - smaller;
    const float l = gap == larger ? 1.0f : gap / larger;  // smaller may be negligible
    const float m = g / along;
    const float two_less = 2.0f - l;
    const float squared = m * m;
    const float s = ::metal::precise::sqrt(two_less * two_less + squared);
    const float r = l == 0.0f ? ::metal::abs(m) : ::metal::precise::sqrt(l * l + squared);
    const float a = 0.5f * (s + r);
    second = smaller / a;
    first = larger * a;
    float t;
    if (squared != 0.0f) {
      t = (m / (s + two_less) + m / (r + l)) * (1.0f + a);
    } else if (l == 0.0f) {
      t = ::metal::copysign(2.0f, along) * ::metal::copysign(1.0f, g);
    } else {
      t = g / ::metal::copysign(gap, along) + m / two_less;
    }
    const float root = ::metal::precise::sqrt(t * t + 4.0f);
    right = ::metal::float2(2.0f / root, t / root);
    left = ::metal::float2((right.x + right.y * m) / a, other / along * right.y / a);
  }
  SingularTwoByTwo result;
  result.left = swaps ? right.yx : left;
  result.right = swaps ? left.yx : right;
  const bool is_off_diagonal = off_diagonal > larger;
  const float sign =
      ::metal::copysign(1.0f, is_off_diagonal || swaps ? result.right.y : result.right.x) *
      ::metal::copysign(1.0f, swaps && !is_off_diagonal ? result.left.y : result.left.x) *
      ::metal::copysign(1.0f, is_off_diagonal ? g : along);
  result.first = sign * first;
  result.second = ::metal::copysign(1.0f, f) * ::metal::copysign(1.0f, h) * sign * second;
  return result;
}

// Returns the smaller singular value of [f g; 0 h] (LAPACK's slas2).
inline float smaller_singular_value(float f, float g, float h) {
  const float smaller = ::metal::min(::metal::abs(f), ::metal::abs(h));
  const float larger = ::metal::max(::metal::abs(f), ::metal::abs(h));
  const float off_diagonal = ::metal::abs(g);
  if (smaller == 0.0f) {
    return 0.0f;
  }
  const float sum = 1.0f + smaller / larger;
  const float difference = (larger - smaller) / larger;
  if (off_diagonal < larger) {
    const float ratio = off_diagonal / larger;
    const float squared = ratio * ratio;
    return smaller * 2.0f /
           (::metal::precise::sqrt(sum * sum + squared) +
            ::metal::precise::sqrt(difference * difference + squared));
  }
  const float ratio = larger / off_diagonal;
  if (ratio == 0.0f) {
    return smaller * larger / off_diagonal;
  }
  const float x = sum * ratio;
  const float y = difference * ratio;
  return smaller * ratio * 2.0f /
         (::metal::precise::sqrt(1.0f + x * x) + ::metal::precise::sqrt(1.0f + y * y));
}

// The state of implicit QR iterations (LAPACK's sbdsqr), with shifts or without, on a bidiagonal
// matrix of n rows whose elements are at most about 1; small singular values keep relative
// accuracy. `diagonal`, n elements, becomes the singular values, in no order and with signs that
// the caller moves into the left or the right vectors; `superdiagonal`, the n - 1 elements of the
// superdiagonal, becomes zero. The state begins as zeros.
struct BidiagonalIteration {
  int finished;  // converged rows at the end
  int begin;     // the block last worked on: its first row, and one past its last
  int end;
  int step;  // 1 if sweeps go down the block, -1 if up, 0 at the beginning
  int sweeps;
  float negligible;  // superdiagonal elements up to this magnitude become zero

  // Returns 0, or if 30 n sweeps did not suffice, how many singular values may be wrong.
  int count_unfinished(int n) const { return sweeps < 30 * n ? 0 : n - finished; }
};

// Returns the magnitude up to which superdiagonal elements do not matter to the smallest singular
// value, from a lower estimate of that.
template <typename Elements>
inline float negligible_in_bidiagonal(Elements diagonal, Elements superdiagonal, int n) {
  float below = ::metal::abs(diagonal[0]);
  float least = below;
  for (int i = 1; i < n; ++i) {
    below = below > 0.0f
                ? ::metal::abs(diagonal[i]) * (below / (below + ::metal::abs(superdiagonal[i - 1])))
                : 0.0f;
    least = ::metal::min(least, below);
  }
  const float size = n;
  return ::metal::max(10.0f * 0x1p-24f * least / ::metal::precise::sqrt(size),
                      6.0f * size * size * 0x1p-126f);
}

// The block of a sweep, in the order of the sweep, down (step 1) or up (step -1): rows and columns
// `from` to `to`. Going up, the matrix is lower bidiagonal, and left and right change roles.
template <typename Elements>
struct BidiagonalBlock {
  Elements diagonal;
  Elements superdiagonal;
  int from;
  int to;
  int step;
  int offset;  // superdiagonal[i + offset] is between i and i + step

  int count() const { return (to - from) * step; }
};

// Tests for convergence, with lower estimates of the smallest singular value of the rows up to
// each. Returns -1 if an element of the superdiagonal is negligible, and now zero; otherwise the
// lower estimate for the block.
template <typename Elements>
METAL_FUNC float split_or_estimate(BidiagonalBlock<Elements> block, float tolerance) {
  const int last = block.to - block.step + block.offset;
  if (::metal::abs(block.superdiagonal[last]) <=
      tolerance * ::metal::abs(block.diagonal[block.to])) {
    block.superdiagonal[last] = 0.0f;
    return -1.0f;
  }
  float below = ::metal::abs(block.diagonal[block.from]);
  float least = below;
  for (int i = block.from; i != block.to; i += block.step) {
    const float between = ::metal::abs(block.superdiagonal[i + block.offset]);
    if (between <= tolerance * below) {
      block.superdiagonal[i + block.offset] = 0.0f;
      return -1.0f;
    }
    below = ::metal::abs(block.diagonal[i + block.step]) * (below / (below + between));
    least = ::metal::min(least, below);
  }
  return least;
}

// Returns the shift of the next sweep, or zero if it is negligible.
template <typename Elements>
METAL_FUNC float shift_of(BidiagonalBlock<Elements> block) {
  constexpr float kEpsilon = 0x1p-24f;
  const int before = block.to - block.step;
  const float corner = ::metal::abs(block.diagonal[block.from]);
  const float shift = smaller_singular_value(
      block.diagonal[before], block.superdiagonal[before + block.offset], block.diagonal[block.to]);
  const float ratio = shift / corner;
  return corner > 0.0f && ratio * ratio < kEpsilon ? 0.0f : shift;
}

// Does a sweep without a shift (Demmel and Kahan). first, second: where the rotations of each step
// are recorded, if the pointers are not null. The first one acts on columns if the sweep goes down,
// on rows if it goes up.
template <typename Elements, typename Rotations>
METAL_FUNC void zero_shift_sweep(BidiagonalBlock<Elements> block, Rotations first,
                                 Rotations second) {
  const int step = block.step;
  const int count = block.count();
  float c = 1.0f;
  float s = 0.0f;
  float next_c = 1.0f;
  float next_s = 0.0f;
  float d = block.diagonal[block.from];
  for (int k = 0; k < count; ++k) {
    const int i = block.from + k * step;
    const float r = rotation_of(d * c, block.superdiagonal[i + block.offset], c, s);
    if (k > 0) {
      block.superdiagonal[i - step + block.offset] = next_s * r;
    }
    d = block.diagonal[i + step];
    block.diagonal[i] = rotation_of(next_c * r, d * s, next_c, next_s);
    if (first) {
      first[k] = ::metal::float2(c, s);
      second[k] = ::metal::float2(next_c, next_s);
    }
  }
  d *= c;
  block.diagonal[block.to] = d * next_c;
  block.superdiagonal[block.to - step + block.offset] = d * next_s;
}

template <typename Elements, typename Rotations>
METAL_FUNC void shifted_sweep(BidiagonalBlock<Elements> block, float shift, Rotations first,
                              Rotations second) {
  const int step = block.step;
  const int count = block.count();
  float c = 1.0f;
  float s = 0.0f;
  float next_c = 1.0f;
  float next_s = 0.0f;
  float d = block.diagonal[block.from];
  float e = block.superdiagonal[block.from + block.offset];
  float f = (::metal::abs(d) - shift) * (::metal::copysign(1.0f, d) + shift / d);
  float g = e;
  for (int k = 0; k < count; ++k) {
    const int i = block.from + k * step;
    float r = rotation_of(f, g, c, s);
    if (k > 0) {
      block.superdiagonal[i - step + block.offset] = r;
    }
    f = c * d + s * e;
    e = c * e - s * d;
    const float below_it = block.diagonal[i + step];
    g = s * below_it;
    d = c * below_it;
    r = rotation_of(f, g, next_c, next_s);
    block.diagonal[i] = r;
    f = next_c * e + next_s * d;
    d = next_c * d - next_s * e;
    if (k < count - 1) {
      e = block.superdiagonal[i + step + block.offset];
      g = next_s * e;
      e *= next_c;
    }
    if (first) {
      first[k] = ::metal::float2(c, s);
      second[k] = ::metal::float2(next_c, next_s);
    }
  }
  block.diagonal[block.to] = d;
  block.superdiagonal[block.to - step + block.offset] = f;
}

// Does the next sweep, of at most n - 1 rotations of columns of the left vectors and as many of the
// right ones, and records them where those pointers are not null. Returns a sweep of count zero if
// nothing is left to do, or if 30 n sweeps did not suffice.
template <typename Elements, typename Rotations>
inline Sweep next_sweep(Elements diagonal, Elements superdiagonal, int n,
                        thread BidiagonalIteration& iteration, Rotations left, Rotations right) {
  constexpr float kEpsilon = 0x1p-24f;
  constexpr float kTolerance = 10.0f * kEpsilon;
  int end = n - iteration.finished;  // one past the last unconverged row
  Sweep sweep = {0, -1, 0};
  if (iteration.step == 0) {
    iteration.negligible = negligible_in_bidiagonal(diagonal, superdiagonal, n);
  }
  const float negligible = iteration.negligible;
  while (sweep.count == 0 && end > 1 && iteration.sweeps < 30 * n) {
    float largest = ::metal::abs(diagonal[end - 1]);
    int begin = end - 1;
    while (begin > 0 && ::metal::abs(superdiagonal[begin - 1]) > negligible) {
      --begin;
      largest = ::metal::max(
          largest, ::metal::max(::metal::abs(diagonal[begin]), ::metal::abs(superdiagonal[begin])));
    }
    if (begin > 0) {
      superdiagonal[begin - 1] = 0.0f;
    }
    if (begin == end - 1) {
      --end;
      continue;
    }
    if (begin == end - 2) {
      const SingularTwoByTwo found =
          singular_values_of_two_by_two(diagonal[begin], superdiagonal[begin], diagonal[begin + 1]);
      diagonal[begin] = found.first;
      diagonal[begin + 1] = found.second;
      superdiagonal[begin] = 0.0f;
      if (left) {
        left[0] = found.left;
        right[0] = found.right;
      }
      sweep = {begin, -1, 1};
      end = begin;
      continue;
    }
    if (iteration.step == 0 || begin >= iteration.end || end <= iteration.begin) {
      // The bulge is chased from the larger end to the smaller one.
      iteration.step = ::metal::abs(diagonal[begin]) >= ::metal::abs(diagonal[end - 1]) ? 1 : -1;
    }
    const bool goes_down = iteration.step > 0;
    const BidiagonalBlock<Elements> block = {
        diagonal,       superdiagonal,     goes_down ? begin : end - 1, goes_down ? end - 1 : begin,
        iteration.step, goes_down ? 0 : -1};
    const float least = split_or_estimate(block, kTolerance);
    if (least < 0.0f) {
      continue;
    }
    iteration.begin = begin;
    iteration.end = end;
    // The shift is used only if small singular values keep their relative accuracy.
    const bool is_accurate = float(n) * kTolerance * (least / largest) > kEpsilon;
    const float shift = is_accurate ? shift_of(block) : 0.0f;
    const Rotations first = goes_down ? right : left;
    const Rotations second = goes_down ? left : right;
    if (shift == 0.0f) {
      zero_shift_sweep(block, first, second);
    } else {
      shifted_sweep(block, shift, first, second);
    }
    sweep = {block.from, -block.step, block.count()};
    ++iteration.sweeps;
  }
  iteration.finished = n - end;
  return sweep;
}

}  // namespace metalops

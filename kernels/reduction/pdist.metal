// pdist: the p-norm distances between all pairs of rows, in the order (0, 1), (0, 2), ..., (1, 2),
// ..., and the gradient. Coordinates are loaded eight at a time.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/pdist.h>
using namespace metal;
using namespace metalops;

struct Coordinates {
  float4 low;
  float4 high;
};

// Loads eight coordinates.
inline Coordinates load(constant float* x) {
  constant packed_float4* whole = reinterpret_cast<constant packed_float4*>(x);
  return {float4(whole[0]), float4(whole[1])};
}

// Loads up to `count` of eight coordinates; the others are zero.
inline Coordinates load(constant float* x, int64_t count) {
  if (count >= 8) {
    return load(x);
  }
  Coordinates some = {float4(0.0f), float4(0.0f)};
  for (int64_t i = 0; i < count; ++i) {
    if (i < 4) {
      some.low[i & 3] = x[i];
    } else {
      some.high[i & 3] = x[i];
    }
  }
  return some;
}

template <typename V>
inline V sign_or_nan(V x) {
  return select(sign(x), x, isnan(x));
}

// ---- norms --------------------------------------------------------------------------------------

// A norm has: term() of the coordinates' differences; combine() of terms; finish(), which turns the
// combined terms into the norm; and slope(), the derivative by the differences for a given gradient
// of the distance, where V is float or float4.

struct SumOfTerms {
  static float4 combine(float4 a, float4 b) { return a + b; }
};

struct ZeroNorm : SumOfTerms {
  static float4 term(float4 x, float) { return select(sign(abs(x)), x, isnan(x)); }
  static float finish(float total, float) { return total; }
};

struct OneNorm : SumOfTerms {
  static float4 term(float4 x, float) { return abs(x); }
  static float finish(float total, float) { return total; }
  template <typename V>
  static V slope(V x, float grad, float, float) {
    return grad * sign_or_nan(x);
  }
};

struct TwoNorm : SumOfTerms {
  static float4 term(float4 x, float) { return x * x; }
  static float finish(float total, float) { return precise::sqrt(total); }
  template <typename V>
  static V slope(V x, float grad, float distance, float) {
    return (distance == 0.0f ? 0.0f : grad / distance) * x;
  }
};

struct InfinityNorm {
  static float4 term(float4 x, float) { return abs(x); }
  static float4 combine(float4 a, float4 b) { return select(a, b, b > a || isnan(b)); }
  static float finish(float total, float) { return total; }
  template <typename V>
  static V slope(V x, float grad, float distance, float) {
    return grad * select(select(V(0.0f), sign(x), abs(x) == distance), x, isnan(x));
  }
};

struct GeneralNorm : SumOfTerms {
  static float4 term(float4 x, float p) { return precise::pow(abs(x), float4(p)); }
  static float finish(float total, float p) { return precise::pow(total, 1.0f / p); }
  // The quotient is at most one, so its power does not overflow.
  template <typename V>
  static V slope(V x, float grad, float distance, float p) {
    if (distance == 0.0f) {
      return V(0.0f);
    }
    const V power = precise::pow(abs(x) / distance, V(p - 1.0f));
    return grad * select(sign_or_nan(x) * power, V(0.0f), x == 0.0f);
  }
};

// ---- kernels ------------------------------------------------------------------------------------

// Accumulates the terms of one distance.
template <typename Norm>
struct DistanceSum {
  float4 low = float4(0.0f);
  float4 high = float4(0.0f);

  void add(Coordinates a, Coordinates b, float p) {
    low = Norm::combine(low, Norm::term(a.low - b.low, p));
    high = Norm::combine(high, Norm::term(a.high - b.high, p));
  }

  float distance(float p) const {
    float4 total = Norm::combine(low, high);
    total = Norm::combine(total, total.zwxy);
    return Norm::finish(Norm::combine(total, total.yxwz).x, p);
  }
};

// Computes one distance per thread. Row y of the grid holds the pairs of the point as far from the
// end as y is from the start, then those of point y: together, these have the same number for all
// y.
template <typename Norm>
kernel void pdist(device float* distances [[buffer(0)]], constant float* x [[buffer(1)]],
                  constant PdistParameters& parameters [[buffer(2)]],
                  uint2 position [[thread_position_in_grid]]) {
  const int64_t n = parameters.points;
  const int64_t columns = parameters.columns;
  const int64_t even = 1 - (n & 1);
  int64_t i = position.y;
  int64_t j = position.x + even;
  if (j <= i) {
    i = n - 2 + even - i;
    j = n - 1 + even - j;
  }
  constant float* a = x + i * columns;
  constant float* b = x + j * columns;
  DistanceSum<Norm> total;
  int64_t k = 0;
  for (; k + 8 <= columns; k += 8) {
    total.add(load(a + k), load(b + k), parameters.p);
  }
  if (k < columns) {
    total.add(load(a + k, columns - k), load(b + k, columns - k), parameters.p);
  }
  distances[i * (2 * n - i - 1) / 2 + j - i - 1] = total.distance(parameters.p);
}

// Up to eight coordinates of a point, and their gradient's sum.
template <typename Norm>
struct PointGradient {
  Coordinates here;
  Coordinates sum;
  int64_t count;

  PointGradient(constant float* x, int64_t coordinates) {
    here = load(x, coordinates);
    sum = {float4(0.0f), float4(0.0f)};
    count = coordinates;
  }

  // Adds the contribution of the pair with another point, whose distance has this gradient.
  void add(constant float* other, float grad, float distance, float p) {
    const Coordinates there = load(other, count);
    sum.low += Norm::slope(here.low - there.low, grad, distance, p);
    sum.high += Norm::slope(here.high - there.high, grad, distance, p);
  }

  void store(device float* result) const {
    for (int64_t i = 0; i < min(count, static_cast<int64_t>(8)); ++i) {
      result[i] = i < 4 ? sum.low[i & 3] : sum.high[i & 3];
    }
  }
};

// Gradient for points with few coordinates: a thread has eight coordinates of a point and loops
// over its pairs with all others. No element is added to by two threads, so the result is
// deterministic.
template <typename Norm>
kernel void pdist_backward_narrow(device float* grad_input [[buffer(0)]],
                                  constant float* grad [[buffer(1)]],
                                  constant float* x [[buffer(2)]],
                                  constant float* distances [[buffer(3)]],
                                  constant PdistParameters& parameters [[buffer(4)]],
                                  uint2 position [[thread_position_in_grid]],
                                  uint2 grid [[threads_per_grid]]) {
  const int64_t n = parameters.points;
  const int64_t columns = parameters.columns;
  const int64_t blocks = (columns + 7) / 8;
  const int64_t index = thread_index(position, grid);
  const int64_t self = index / blocks;
  if (self >= n) {
    return;
  }
  const int64_t column = (index - self * blocks) * 8;
  constant float* first = x + column;
  PointGradient<Norm> point(first + self * columns, columns - column);
  int64_t pair = self - 1;  // (0, self)
  for (int64_t other = 0; other < self; ++other) {
    point.add(first + other * columns, grad[pair * parameters.grad_stride], distances[pair],
              parameters.p);
    pair += n - 2 - other;
  }
  pair = self * (2 * n - self - 1) / 2;  // (self, self + 1)
  for (int64_t other = self + 1; other < n; ++other) {
    point.add(first + other * columns, grad[pair * parameters.grad_stride], distances[pair],
              parameters.p);
    ++pair;
  }
  point.store(grad_input + self * columns + column);
}

// Returns the index-th point other than `self`.
inline int64_t other_point(int64_t index, int64_t self) { return index < self ? index : index + 1; }

// Gradient for points with many coordinates: a threadgroup has a point, or as many of its
// coordinates as it has threads, one each. Its threads load the gradients and distances of a batch
// of pairs together, then loop over these pairs.
template <typename Norm>
kernel void pdist_backward(device float* grad_input [[buffer(0)]],
                           constant float* grad [[buffer(1)]], constant float* x [[buffer(2)]],
                           constant float* distances [[buffer(3)]],
                           constant PdistParameters& parameters [[buffer(4)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint lane [[thread_position_in_threadgroup]],
                           uint lanes [[threads_per_threadgroup]]) {
  threadgroup float grads[kMostCoordinates];
  threadgroup float lengths[kMostCoordinates];
  const int64_t n = parameters.points;
  const int64_t columns = parameters.columns;
  const int64_t blocks = (columns + lanes - 1) / lanes;
  const int64_t self = group / blocks;
  const int64_t first = (group - self * blocks) * lanes;
  const uint count = columns - first < lanes ? columns - first : lanes;
  constant float* block = x + first;
  constant float* here = block + self * columns;
  const float p = parameters.p;
  float sum = 0.0f;
  for (int64_t start = 0; start < n - 1; start += lanes) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (start + lane < n - 1) {
      const int64_t other = other_point(start + lane, self);
      const int64_t a = min(other, self);
      const int64_t b = max(other, self);
      const int64_t pair = a * (2 * n - a - 1) / 2 + b - a - 1;
      grads[lane] = grad[pair * parameters.grad_stride];
      lengths[lane] = distances[pair];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint others = n - 1 - start < lanes ? n - 1 - start : lanes;
    const uint whole = others / 4 * 4;
    for (uint i = 0; i < whole; i += 4) {
      constant float* there0 = block + other_point(start + i, self) * columns;
      constant float* there1 = block + other_point(start + i + 1, self) * columns;
      constant float* there2 = block + other_point(start + i + 2, self) * columns;
      constant float* there3 = block + other_point(start + i + 3, self) * columns;
      const float4 grad4 = float4(grads[i], grads[i + 1], grads[i + 2], grads[i + 3]);
      const float4 length4 = float4(lengths[i], lengths[i + 1], lengths[i + 2], lengths[i + 3]);
      for (uint k = lane; k < count; k += lanes) {
        sum += (Norm::slope(here[k] - there0[k], grad4.x, length4.x, p) +
                Norm::slope(here[k] - there1[k], grad4.y, length4.y, p)) +
               (Norm::slope(here[k] - there2[k], grad4.z, length4.z, p) +
                Norm::slope(here[k] - there3[k], grad4.w, length4.w, p));
      }
    }
    for (uint i = whole; i < others; ++i) {
      constant float* there = block + other_point(start + i, self) * columns;
      const float grad1 = grads[i];
      const float length = lengths[i];
      for (uint k = lane; k < count; k += lanes) {
        sum += Norm::slope(here[k] - there[k], grad1, length, p);
      }
    }
  }
  if (lane < count) {
    grad_input[self * columns + first + lane] = sum;
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_PDIST(NAME, NORM) REGISTER_KERNEL("pdist_" #NAME, pdist, NORM)
#define REGISTER_PDIST_BACKWARD(NAME, NORM)                       \
  REGISTER_KERNEL("pdist_backward_" #NAME, pdist_backward, NORM); \
  REGISTER_KERNEL("pdist_backward_narrow_" #NAME, pdist_backward_narrow, NORM)

REGISTER_PDIST(zero, ZeroNorm);
REGISTER_PDIST(one, OneNorm);
REGISTER_PDIST(two, TwoNorm);
REGISTER_PDIST(infinity, InfinityNorm);
REGISTER_PDIST(general, GeneralNorm);
REGISTER_PDIST_BACKWARD(one, OneNorm);
REGISTER_PDIST_BACKWARD(two, TwoNorm);
REGISTER_PDIST_BACKWARD(infinity, InfinityNorm);
REGISTER_PDIST_BACKWARD(general, GeneralNorm);

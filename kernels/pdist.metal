// pdist: the p-norm distances between all pairs of rows, (0, 1), (0, 2), ..., (1, 2), ... in this
// order, and the gradient. Coordinates are taken eight at a time.
#include <metalops/strided.h>
#include <metal_stdlib>

#include "pdist.h"
using namespace metal;
using namespace metalops;

struct Coordinates {
  float4 low;
  float4 high;
};

// The next eight coordinates.
inline Coordinates load(constant float* x) {
  constant packed_float4* whole = reinterpret_cast<constant packed_float4*>(x);
  return {float4(whole[0]), float4(whole[1])};
}

// The next eight coordinates, of which only `count` may exist; the others are zero.
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

inline float4 sign_or_nan(float4 x) { return select(sign(x), x, isnan(x)); }

// ---- norms: term() of the coordinates' differences; how terms are combined; what a norm makes of
//      all; slope() is the derivative by the differences, for a gradient of the distance ----------

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
  static float4 slope(float4 x, float grad, float, float) { return grad * sign_or_nan(x); }
};

struct TwoNorm : SumOfTerms {
  static float4 term(float4 x, float) { return x * x; }
  static float finish(float total, float) { return precise::sqrt(total); }
  static float4 slope(float4 x, float grad, float distance, float) {
    return (distance == 0.0f ? 0.0f : grad / distance) * x;
  }
};

struct InfinityNorm {
  static float4 term(float4 x, float) { return abs(x); }
  static float4 combine(float4 a, float4 b) { return select(a, b, b > a || isnan(b)); }
  static float finish(float total, float) { return total; }
  static float4 slope(float4 x, float grad, float distance, float) {
    return grad * select(float4(0.0f), sign_or_nan(x), abs(x) == distance || isnan(x));
  }
};

struct GeneralNorm : SumOfTerms {
  static float4 term(float4 x, float p) { return precise::pow(abs(x), float4(p)); }
  static float finish(float total, float p) { return precise::pow(total, 1.0f / p); }
  // The quotient is at most one: its power does not overflow.
  static float4 slope(float4 x, float grad, float distance, float p) {
    if (distance == 0.0f) {
      return float4(0.0f);
    }
    const float4 power = precise::pow(abs(x) / distance, float4(p - 1.0f));
    return grad * select(sign_or_nan(x) * power, float4(0.0f), x == 0.0f);
  }
};

// ---- kernels ------------------------------------------------------------------------------------

// What is added up, or compared, for a distance.
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

// A thread for each pair. Row y of the grid is as long as the pairs of point y and those of the
// point that is as far from the end take together, the latter first.
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

// Eight coordinates of a point, or as many as there are, and what is added up for them.
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

  // The share of the pair with another point, whose distance has this gradient.
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

// A thread for eight coordinates of a point: its pairs with all others in turn, so that nothing is
// added by two threads and the result does not depend on their order.
template <typename Norm>
kernel void pdist_backward(device float* grad_input [[buffer(0)]],
                           constant float* grad [[buffer(1)]], constant float* x [[buffer(2)]],
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

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_PDIST(NAME, NORM)                                                               \
  template [[host_name("pdist_" #NAME)]] kernel void pdist<NORM>(device float*, constant float*, \
                                                                 constant PdistParameters&, uint2)
#define REGISTER_PDIST_BACKWARD(NAME, NORM)                                                        \
  template [[host_name("pdist_backward_" #NAME)]] kernel void pdist_backward<NORM>(                \
      device float*, constant float*, constant float*, constant float*, constant PdistParameters&, \
      uint2, uint2)

REGISTER_PDIST(zero, ZeroNorm);
REGISTER_PDIST(one, OneNorm);
REGISTER_PDIST(two, TwoNorm);
REGISTER_PDIST(infinity, InfinityNorm);
REGISTER_PDIST(general, GeneralNorm);
REGISTER_PDIST_BACKWARD(one, OneNorm);
REGISTER_PDIST_BACKWARD(two, TwoNorm);
REGISTER_PDIST_BACKWARD(infinity, InfinityNorm);
REGISTER_PDIST_BACKWARD(general, GeneralNorm);

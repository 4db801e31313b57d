// pdist: the p-norm distances between all pairs of rows, (0, 1), (0, 2), ..., (1, 2), ... in this
// order, and the gradient. Coordinates are taken eight at a time.
#include <metal_stdlib>
#include <metalops/strided.h>

#include "pdist.h"
using namespace metal;
using namespace metalops;

// The next four coordinates, of which only `count` may exist; the others are zero.
inline float4 load(constant float* x, int64_t count) {
  if (count >= 4) {
    return float4(*reinterpret_cast<constant packed_float4*>(x));
  }
  return float4(count > 0 ? x[0] : 0.0f, count > 1 ? x[1] : 0.0f, count > 2 ? x[2] : 0.0f, 0.0f);
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

// A thread for each pair.
template <typename Norm>
kernel void pdist(device float* distances [[buffer(0)]], constant float* x [[buffer(1)]],
                  constant PdistParameters& parameters [[buffer(2)]],
                  uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t pair = thread_index(position, grid);
  const int64_t n = parameters.points;
  // Counted from the last pair, those of the points from n - 2 - block on precede the
  // block (block + 1) / 2-th: a square root that is rounded is at most a little off.
  const int64_t from_end = n * (n - 1) / 2 - 1 - pair;
  if (from_end < 0) {
    return;
  }
  int64_t block =
      static_cast<int64_t>((precise::sqrt(8.0f * static_cast<float>(from_end) + 1.0f) - 1.0f) / 2);
  while (block * (block + 1) / 2 > from_end) {
    --block;
  }
  while ((block + 1) * (block + 2) / 2 <= from_end) {
    ++block;
  }
  const int64_t columns = parameters.columns;
  constant float* a = x + (n - 2 - block) * columns;
  constant float* b = x + (n - 1 - (from_end - block * (block + 1) / 2)) * columns;
  float4 low = float4(0.0f);
  float4 high = float4(0.0f);
  for (int64_t i = 0; i < columns; i += 8) {
    const int64_t count = columns - i;
    low = Norm::combine(low, Norm::term(load(a + i, count) - load(b + i, count), parameters.p));
    if (count > 4) {
      const float4 difference = load(a + i + 4, count - 4) - load(b + i + 4, count - 4);
      high = Norm::combine(high, Norm::term(difference, parameters.p));
    }
  }
  low = Norm::combine(low, high);
  low = Norm::combine(low, low.zwxy);
  distances[pair] = Norm::finish(Norm::combine(low, low.yxwz).x, parameters.p);
}

// Eight coordinates of a point, or as many as there are, and what is added up for them.
template <typename Norm>
struct PointGradient {
  float4 low;
  float4 high;
  float4 sum_low = float4(0.0f);
  float4 sum_high = float4(0.0f);
  int64_t count;

  PointGradient(constant float* x, int64_t coordinates) {
    count = coordinates;
    low = load(x, count);
    high = load(x + 4, count - 4);
  }

  // The share of the pair with another point, whose distance has this gradient.
  void add(constant float* other, float grad, float distance, float p) {
    sum_low += Norm::slope(low - load(other, count), grad, distance, p);
    if (count > 4) {
      sum_high += Norm::slope(high - load(other + 4, count - 4), grad, distance, p);
    }
  }

  void store(device float* result) const {
    for (int64_t i = 0; i < min(count, static_cast<int64_t>(8)); ++i) {
      result[i] = i < 4 ? sum_low[i] : sum_high[i - 4];
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

#define REGISTER_PDIST(NAME, NORM)                                                             \
  template [[host_name("pdist_" #NAME)]] kernel void pdist<NORM>(                              \
      device float*, constant float*, constant PdistParameters&, uint2, uint2)
#define REGISTER_PDIST_BACKWARD(NAME, NORM)                                                    \
  template [[host_name("pdist_backward_" #NAME)]] kernel void pdist_backward<NORM>(            \
      device float*, constant float*, constant float*, constant float*,                        \
      constant PdistParameters&, uint2, uint2)

REGISTER_PDIST(zero, ZeroNorm);
REGISTER_PDIST(one, OneNorm);
REGISTER_PDIST(two, TwoNorm);
REGISTER_PDIST(infinity, InfinityNorm);
REGISTER_PDIST(general, GeneralNorm);
REGISTER_PDIST_BACKWARD(one, OneNorm);
REGISTER_PDIST_BACKWARD(two, TwoNorm);
REGISTER_PDIST_BACKWARD(infinity, InfinityNorm);
REGISTER_PDIST_BACKWARD(general, GeneralNorm);

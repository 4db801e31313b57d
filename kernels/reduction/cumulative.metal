// Cumulative sums, products and logarithms of sums of exponentials of rows. Integers wrap around;
// floating-point numbers are accumulated in float.
//
// A threadgroup has a row, or a span of a long one, and goes through it in tiles; what the spans in
// front of it amount to is known from a launch before. Rows whose elements are far apart in memory,
// and short ones, have a thread each.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/accumulated.h>
#include <kernels/reduction/cumulative.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kPerThread = kCumulativeTile / kCumulativeThreads;

// Where an element is in threadgroup memory, so that the first elements of adjacent threads are not
// in the same bank.
inline uint padded(uint i) { return i + i / kPerThread; }

// Returns log(1 + x), for x of at least -1.
inline float log_one_plus(float x) {
  const float sum = 1.0f + x;
  return sum == 1.0f ? x : precise::log(sum) * (x / (sum - 1.0f));
}

inline bool has_nan(float x) { return isnan(x); }
inline bool has_nan(float2 x) { return isnan(x.x) || isnan(x.y); }

// Returns log(1 + exp(x)), for x of at most 0.
inline float log1p_exp(float x) { return log_one_plus(precise::exp(x)); }

// Returns log(1 + exp(x)) of a complex number, whose real part is at most 0.
inline float2 log1p_exp(float2 x) {
  const float size = precise::exp(x.x);
  const float real = size * precise::cos(x.y);
  const float imaginary = size * precise::sin(x.y);
  // |1 + z|^2 - 1, without the cancellation where z is near -1.
  const float square = fma(imaginary, imaginary, real * (2.0f + real));
  return float2(0.5f * log_one_plus(square), precise::atan2(imaginary, 1.0f + real));
}

// The logarithm of the sum of two exponentials.
struct LogSumExp {
  template <typename A>
  static inline A identity() {
    return lowest(A(0));
  }
  static inline float lowest(float) { return -INFINITY; }
  static inline float2 lowest(float2) { return float2(-INFINITY, 0.0f); }

  static inline float combine(float a, float b) {
    if (has_nan(a) || has_nan(b)) {
      return NAN;
    }
    const float larger = max(a, b);
    return isinf(larger) ? larger : larger + log1p_exp(min(a, b) - larger);
  }
  static inline float2 combine(float2 a, float2 b) {
    if (has_nan(a) || has_nan(b)) {
      return float2(NAN);
    }
    const float2 larger = a.x < b.x ? b : a;
    const float2 smaller = a.x < b.x ? a : b;
    if (isinf(larger.x)) {
      return larger;
    }
    return smaller.x == -INFINITY ? larger : larger + log1p_exp(smaller - larger);
  }
};

// Combines the values of all threads of the threadgroup.
template <typename Op, typename A>
inline A combined(A value, threadgroup A* values, uint thread_index) {
  values[thread_index] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = kCumulativeThreads / 2; step > 0; step /= 2) {
    if (thread_index < step) {
      values[thread_index] = Op::combine(values[thread_index], values[thread_index + step]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const A result = values[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return result;
}

// Combines the elements of each span.
template <typename T, typename Op>
kernel void cumulative_spans(device typename Accumulated<T>::Type* totals [[buffer(0)]],
                             constant T* self [[buffer(1)]],
                             constant CumulativeParameters& p [[buffer(2)]],
                             constant StridedLayout<2>& layout [[buffer(3)]],
                             uint group [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_position_in_threadgroup]]) {
  using A = typename Accumulated<T>::Type;
  threadgroup A values[kCumulativeThreads];
  const uint spans = static_cast<uint>(p.spans);
  const auto offsets = offsets_of(group / spans, layout);
  const int64_t begin = group % spans * p.span;
  const int64_t end = min(begin + p.span, p.columns);
  A total = Op::template identity<A>();
  for (int64_t i = begin + thread_index; i < end; i += kCumulativeThreads) {
    const T x = element_at(self, offsets[1] + i * p.strides[1]);
    total = Op::combine(total, Accumulated<T>::from(x));
  }
  total = combined<Op>(total, values, thread_index);
  if (thread_index == 0) {
    totals[group] = total;
  }
}

template <typename T, typename Op>
kernel void cumulative_rows(device T* out [[buffer(0)]], constant T* self [[buffer(1)]],
                            device const typename Accumulated<T>::Type* totals [[buffer(2)]],
                            constant CumulativeParameters& p [[buffer(3)]],
                            constant StridedLayout<2>& layout [[buffer(4)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_position_in_threadgroup]]) {
  using A = typename Accumulated<T>::Type;
  threadgroup A tile[kCumulativeTile + kCumulativeThreads];
  threadgroup A values[kCumulativeThreads];
  const uint spans = static_cast<uint>(p.spans);
  const uint span = group % spans;
  const auto offsets = offsets_of(group / spans, layout);
  const int64_t end = min((span + 1) * p.span, p.columns);
  A before = Op::template identity<A>();
  if (spans > 1) {
    for (uint i = thread_index; i < span; i += kCumulativeThreads) {
      before = Op::combine(before, totals[group - span + i]);
    }
    before = combined<Op>(before, values, thread_index);
  }
  for (int64_t first = span * p.span; first < end; first += kCumulativeTile) {
    for (uint i = thread_index; i < kCumulativeTile; i += kCumulativeThreads) {
      A x = Op::template identity<A>();
      if (first + i < end) {
        x = Accumulated<T>::from(element_at(self, offsets[1] + (first + i) * p.strides[1]));
      }
      tile[padded(i)] = x;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup A* const own = tile + padded(thread_index * kPerThread);
    A sum = own[0];
    for (uint i = 1; i < kPerThread; ++i) {
      sum = Op::combine(sum, own[i]);
    }
    values[thread_index] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 1; step < kCumulativeThreads; step *= 2) {
      const A other =
          thread_index >= step ? values[thread_index - step] : Op::template identity<A>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      values[thread_index] = Op::combine(other, values[thread_index]);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    A running = thread_index > 0 ? Op::combine(before, values[thread_index - 1]) : before;
    before = Op::combine(before, values[kCumulativeThreads - 1]);
    for (uint i = 0; i < kPerThread; ++i) {
      running = Op::combine(running, own[i]);
      own[i] = running;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < kCumulativeTile && first + i < end; i += kCumulativeThreads) {
      element_at(out, offsets[0] + (first + i) * p.strides[0]) = static_cast<T>(tile[padded(i)]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <typename T, typename Op>
kernel void cumulative_threads(device T* out [[buffer(0)]], constant T* self [[buffer(1)]],
                               constant CumulativeParameters& p [[buffer(2)]],
                               constant StridedLayout<2>& layout [[buffer(3)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 grid [[threads_per_grid]]) {
  using A = typename Accumulated<T>::Type;
  const int64_t row = thread_index(position, grid);
  if (row >= p.rows) {
    return;
  }
  const auto offsets = offsets_of(row, layout);
  A running = Op::template identity<A>();
  for (int64_t i = 0; i < p.columns; ++i) {
    const T x = element_at(self, offsets[1] + i * p.strides[1]);
    running = Op::combine(running, Accumulated<T>::from(x));
    element_at(out, offsets[0] + i * p.strides[0]) = static_cast<T>(running);
  }
}

#define REGISTER_OPERATOR(NAME, OP, T)                                        \
  REGISTER_KERNEL("cumulative_spans_" #NAME "_" #T, cumulative_spans, T, OP); \
  REGISTER_KERNEL("cumulative_rows_" #NAME "_" #T, cumulative_rows, T, OP);   \
  REGISTER_KERNEL("cumulative_threads_" #NAME "_" #T, cumulative_threads, T, OP)
#define REGISTER_CUMULATIVE(T)    \
  REGISTER_OPERATOR(sum, Sum, T); \
  REGISTER_OPERATOR(product, Product, T)
#define REGISTER_FLOATING(T) \
  REGISTER_CUMULATIVE(T);    \
  REGISTER_OPERATOR(logsumexp, LogSumExp, T)

REGISTER_FLOATING(float);
REGISTER_FLOATING(half);
REGISTER_FLOATING(bfloat);
REGISTER_FLOATING(float2);
REGISTER_CUMULATIVE(long);
REGISTER_CUMULATIVE(int);
REGISTER_CUMULATIVE(short);
REGISTER_CUMULATIVE(char);
REGISTER_CUMULATIVE(uchar);

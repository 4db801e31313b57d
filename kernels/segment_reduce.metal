// segment_reduce and its gradient: reductions of consecutive segments of an axis.
//
// An element of the result is the work of a threadgroup, or of a single thread where segments are
// short. The threads of a group take blocks of the segment in turn. Results are computed in float
// whatever the tensors are.
#include <c10/metal/error.h>
#include <c10/metal/reduction_utils.h>

#include <metalops/strided.h>
#include <metal_stdlib>

#include "blocks.h"
#include "segment_reduce.h"
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

// ---- segments -----------------------------------------------------------------------------------

inline bool is_segment(constant long* bounds, constant SegmentReduceParameters& parameters) {
  return bounds[0] >= 0 && bounds[0] <= bounds[1] && bounds[1] <= parameters.size;
}

// The elements that an element of the result is made of: `length` of them from data[first] on,
// `stride` apart. None, if the offsets are wrong.
struct Segment {
  int64_t first;
  int64_t length;
  int64_t stride;

  Segment(int64_t result, constant long* offsets, constant SegmentReduceParameters& parameters) {
    const int64_t row = result / parameters.inner;
    const int64_t outer = row / parameters.segments;
    constant long* bounds = offsets + row + outer;
    const bool valid = is_segment(bounds, parameters);
    const int64_t begin = valid ? bounds[0] : 0;
    first = (outer * parameters.size + begin) * parameters.inner + result - row * parameters.inner;
    length = valid ? bounds[1] - begin : 0;
    stride = parameters.inner;
  }
};

// A thread for each segment of each row of offsets: reports those that are none.
kernel void check_segments(constant long* offsets [[buffer(0)]],
                           constant SegmentReduceParameters& parameters [[buffer(1)]],
                           device ErrorMessages* errors [[buffer(2)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  const int64_t outer = row / parameters.segments;
  if (outer >= parameters.outer) {
    return;
  }
  const int64_t segment = row - outer * parameters.segments;
  constant long* bounds = offsets + row + outer;
  if (bounds[0] > bounds[1]) {
    TORCH_REPORT_ERROR(errors, "segment_reduce(): lengths contains negative value! Segment ",
                       segment, " is from ", bounds[0], " to ", bounds[1]);
  } else if (!is_segment(bounds, parameters)) {
    TORCH_REPORT_ERROR(errors, "segment_reduce(): segment ", segment, " is from ", bounds[0],
                       " to ", bounds[1], ", out of range of an axis of size ", parameters.size);
  } else if (parameters.whole != 0 && segment == parameters.segments - 1 &&
             bounds[1] != parameters.size) {
    TORCH_REPORT_ERROR(errors, "segment_reduce(): Expected all rows of lengths along axis to sum ",
                       "to data.size(lengths.dim()-1) when !unsafe. Row ", outer, " sums to ",
                       bounds[1], ", the size is ", parameters.size);
  }
}

// ---- reductions: of a thread's elements one by one, and of what the threads of a group have -----

struct Sum {
  static float identity() { return 0.0f; }
  template <typename V>
  static V combine(V a, V b) {
    return a + b;
  }
  static float combine_threads(threadgroup float* shared, float value, uint lane, uint lanes) {
    return c10::metal::threadgroup_sum(shared, value, lane, lanes);
  }
  static float finish(float total, int64_t) { return total; }
};

struct Mean : Sum {
  static float finish(float total, int64_t length) { return total / static_cast<float>(length); }
};

struct Product {
  static float identity() { return 1.0f; }
  template <typename V>
  static V combine(V a, V b) {
    return a * b;
  }
  static float combine_threads(threadgroup float* shared, float value, uint lane, uint lanes) {
    return c10::metal::threadgroup_prod(shared, value, lane, lanes);
  }
  static float finish(float total, int64_t) { return total; }
};

struct Maximum {
  static float identity() { return -INFINITY; }
  template <typename V>
  static V combine(V a, V b) {
    return select(select(b, a, a > b), a, isnan(a));  // NaN wins
  }
  static float combine_threads(threadgroup float* shared, float value, uint lane, uint lanes) {
    return c10::metal::threadgroup_max(shared, value, lane, lanes);
  }
  static float finish(float total, int64_t) { return total; }
};

struct Minimum {
  static float identity() { return INFINITY; }
  template <typename V>
  static V combine(V a, V b) {
    return select(select(b, a, a < b), a, isnan(a));
  }
  static float combine_threads(threadgroup float* shared, float value, uint lane, uint lanes) {
    return c10::metal::threadgroup_min(shared, value, lane, lanes);
  }
  static float finish(float total, int64_t) { return total; }
};

// Of a whole segment, by one thread.
template <typename Reduction, typename T>
inline float reduce_segment(Segment segment, constant T* data) {
  float total = Reduction::identity();
  for (int64_t j = 0; j < segment.length; ++j) {
    const float x = static_cast<float>(data[segment.first + j * segment.stride]);
    total = Reduction::combine(total, x);
  }
  return total;
}

// Of the blocks of a segment that belong to thread `lane` of `lanes`.
template <typename Reduction, typename T>
inline float reduce_blocks(Segment segment, constant T* data, uint lane, uint lanes) {
  float4 totals[4];
  for (uint i = 0; i < 4; ++i) {
    totals[i] = float4(Reduction::identity());
  }
  float total = Reduction::identity();
  constant T* x = data + segment.first;
  for (int64_t block = lane * kBlock; block < segment.length; block += lanes * kBlock) {
    if (segment.stride == 1 && block + kBlock <= segment.length) {
      for (uint i = 0; i < 4; ++i) {
        totals[i] = Reduction::combine(totals[i], four(x + block + 4 * i));
      }
    } else {
      const int64_t end = min(block + kBlock, segment.length);
      for (int64_t j = block; j < end; ++j) {
        total = Reduction::combine(total, static_cast<float>(x[j * segment.stride]));
      }
    }
  }
  float4 rest = Reduction::combine(Reduction::combine(totals[0], totals[1]),
                                   Reduction::combine(totals[2], totals[3]));
  rest = Reduction::combine(rest, rest.zwxy);
  return Reduction::combine(total, Reduction::combine(rest.x, rest.y));
}

template <typename Reduction>
inline float finish(Segment segment, float total, constant SegmentReduceParameters& parameters) {
  return segment.length == 0
             ? parameters.empty
             : Reduction::finish(Reduction::combine(parameters.initial, total), segment.length);
}

template <typename Reduction, typename T>
kernel void segment_reduce_short_rows(device T* results [[buffer(0)]],
                                      constant T* data [[buffer(1)]],
                                      constant long* offsets [[buffer(2)]],
                                      constant SegmentReduceParameters& parameters [[buffer(3)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint2 grid [[threads_per_grid]]) {
  const int64_t result = thread_index(position, grid);
  if (result >= parameters.outer * parameters.segments * parameters.inner) {
    return;
  }
  const Segment segment(result, offsets, parameters);
  const float total = reduce_segment<Reduction>(segment, data);
  results[result] = static_cast<T>(finish<Reduction>(segment, total, parameters));
}

template <typename Reduction, typename T>
kernel void segment_reduce_rows(device T* results [[buffer(0)]], constant T* data [[buffer(1)]],
                                constant long* offsets [[buffer(2)]],
                                constant SegmentReduceParameters& parameters [[buffer(3)]],
                                uint result [[threadgroup_position_in_grid]],
                                uint lane [[thread_position_in_threadgroup]],
                                uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[c10::metal::simdgroup_size];
  const Segment segment(result, offsets, parameters);
  const float part = reduce_blocks<Reduction>(segment, data, lane, lanes);
  const float total = Reduction::combine_threads(shared, part, lane, lanes);
  if (lane == 0) {
    results[result] = static_cast<T>(finish<Reduction>(segment, total, parameters));
  }
}

// ---- gradients ----------------------------------------------------------------------------------

// What an element's gradient needs to know of the others of its segment.
struct Tally {
  float product = 1.0f;  // of those that are not counted
  int64_t matches = 0;   // elements equal to the result (maximum, minimum) or to zero (product)
  int64_t nans = 0;
};

// Counts of all threads are added as floats, exactly up to 2^24: they only serve as divisors, or to
// tell whether there is more than one.
struct SharedTally {
  float product[c10::metal::simdgroup_size];
  float matches[c10::metal::simdgroup_size];
  float nans[c10::metal::simdgroup_size];
};

struct WithoutTally {
  static void add(thread Tally&, float, float) {}
  static Tally combine_threads(threadgroup SharedTally&, Tally part, uint, uint) { return part; }
};

struct SumGradient : WithoutTally {
  static float gradient(float grad, float, float, Tally, float, int64_t) { return grad; }
};

struct MeanGradient : WithoutTally {
  static float gradient(float grad, float, float, Tally, float, int64_t length) {
    return grad / static_cast<float>(length);
  }
};

struct ExtremumGradient {
  static void add(thread Tally& tally, float x, float result) {
    tally.matches += x == result || isnan(x) ? 1 : 0;
  }
  static Tally combine_threads(threadgroup SharedTally& shared, Tally part, uint lane, uint lanes) {
    const float matches = static_cast<float>(part.matches);
    part.matches = c10::metal::threadgroup_sum(shared.matches, matches, lane, lanes);
    return part;
  }
  // Elements that share the extremum share its gradient. But as in torch, on every device, a
  // negative gradient is not divided among them.
  static float gradient(float grad, float x, float result, Tally tally, float, int64_t) {
    const float share = grad > 0.0f ? grad / static_cast<float>(tally.matches) : grad;
    return x == result || isnan(x) ? share : 0.0f;
  }
};

struct ProductGradient {
  static void add(thread Tally& tally, float x, float) {
    tally.matches += x == 0.0f ? 1 : 0;
    tally.nans += isnan(x) ? 1 : 0;
    tally.product *= x == 0.0f || isnan(x) ? 1.0f : x;
  }
  static Tally combine_threads(threadgroup SharedTally& shared, Tally part, uint lane, uint lanes) {
    const auto counts =
        c10::metal::threadgroup_sum2(shared.matches, shared.nans, static_cast<float>(part.matches),
                                     static_cast<float>(part.nans), lane, lanes);
    const float product = c10::metal::threadgroup_prod(shared.product, part.product, lane, lanes);
    return {product, static_cast<int64_t>(counts[0]), static_cast<int64_t>(counts[1])};
  }
  static float gradient(float grad, float x, float result, Tally tally, float initial, int64_t) {
    const bool zero = x == 0.0f;
    if (!zero && !isnan(x)) {
      return grad * result / x;
    }
    // The product of all but x.
    float product = initial * tally.product;
    product *= tally.matches > (zero ? 1 : 0) ? 0.0f : 1.0f;
    product *= tally.nans > (zero ? 0 : 1) ? NAN : 1.0f;
    return grad * product;
  }
};

// Calls visit(place) for the place in memory of each element of a segment.
template <typename Visit>
inline void for_elements(Segment segment, thread Visit& visit) {
  for (int64_t j = 0; j < segment.length; ++j) {
    visit(segment.first + j * segment.stride);
  }
}

template <typename Reduction, typename T>
struct AddToTally {
  constant T* data;
  float result;
  Tally tally;

  void operator()(int64_t place) { Reduction::add(tally, static_cast<float>(data[place]), result); }
};

template <typename Reduction, typename T>
struct WriteGradient {
  device T* grad_data;
  constant T* data;
  float grad;
  float result;
  Tally tally;
  float initial;
  int64_t length;

  void operator()(int64_t place) {
    grad_data[place] = static_cast<T>(
        Reduction::gradient(grad, static_cast<float>(data[place]), result, tally, initial, length));
  }
};

template <typename Reduction, typename T>
kernel void segment_reduce_backward_short_rows(
    device T* grad_data [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant T* data [[buffer(3)]],
    constant long* offsets [[buffer(4)]],
    constant SegmentReduceParameters& parameters [[buffer(5)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.outer * parameters.segments * parameters.inner) {
    return;
  }
  const Segment segment(index, offsets, parameters);
  const float grad = static_cast<float>(grads[index]);
  const float result = static_cast<float>(results[index]);
  AddToTally<Reduction, T> add{data, result, {}};
  for_elements(segment, add);
  WriteGradient<Reduction, T> write{grad_data,          data,          grad, result, add.tally,
                                    parameters.initial, segment.length};
  for_elements(segment, write);
}

template <typename Reduction, typename T>
kernel void segment_reduce_backward_rows(device T* grad_data [[buffer(0)]],
                                         constant T* grads [[buffer(1)]],
                                         constant T* results [[buffer(2)]],
                                         constant T* data [[buffer(3)]],
                                         constant long* offsets [[buffer(4)]],
                                         constant SegmentReduceParameters& parameters [[buffer(5)]],
                                         uint index [[threadgroup_position_in_grid]],
                                         uint lane [[thread_position_in_threadgroup]],
                                         uint lanes [[threads_per_threadgroup]]) {
  threadgroup SharedTally shared;
  const Segment segment(index, offsets, parameters);
  const float grad = static_cast<float>(grads[index]);
  const float result = static_cast<float>(results[index]);
  AddToTally<Reduction, T> add{data, result, {}};
  for_blocks(segment.first, segment.length, segment.stride, lane, lanes, add);
  const Tally tally = Reduction::combine_threads(shared, add.tally, lane, lanes);
  WriteGradient<Reduction, T> write{grad_data,          data,          grad, result, tally,
                                    parameters.initial, segment.length};
  for_blocks(segment.first, segment.length, segment.stride, lane, lanes, write);
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_FORWARD(NAME, REDUCTION, T)                                                \
  template [[host_name("segment_reduce_" #NAME "_short_rows_" #T)]] kernel void             \
  segment_reduce_short_rows<REDUCTION, T>(device T*, constant T*, constant long*,           \
                                          constant SegmentReduceParameters&, uint2, uint2); \
  template [[host_name("segment_reduce_" #NAME "_rows_" #T)]] kernel void                   \
  segment_reduce_rows<REDUCTION, T>(device T*, constant T*, constant long*,                 \
                                    constant SegmentReduceParameters&, uint, uint, uint)

#define REGISTER_BACKWARD(NAME, REDUCTION, T)                                                   \
  template [[host_name("segment_reduce_backward_" #NAME "_short_rows_" #T)]] kernel void        \
  segment_reduce_backward_short_rows<REDUCTION, T>(                                             \
      device T*, constant T*, constant T*, constant T*, constant long*,                         \
      constant SegmentReduceParameters&, uint2, uint2);                                         \
  template [[host_name("segment_reduce_backward_" #NAME "_rows_" #T)]] kernel void              \
  segment_reduce_backward_rows<REDUCTION, T>(device T*, constant T*, constant T*, constant T*,  \
                                             constant long*, constant SegmentReduceParameters&, \
                                             uint, uint, uint)

#define REGISTER_SEGMENT_REDUCE(T)             \
  REGISTER_FORWARD(sum, Sum, T);               \
  REGISTER_FORWARD(mean, Mean, T);             \
  REGISTER_FORWARD(prod, Product, T);          \
  REGISTER_FORWARD(max, Maximum, T);           \
  REGISTER_FORWARD(min, Minimum, T);           \
  REGISTER_BACKWARD(sum, SumGradient, T);      \
  REGISTER_BACKWARD(mean, MeanGradient, T);    \
  REGISTER_BACKWARD(prod, ProductGradient, T); \
  REGISTER_BACKWARD(extremum, ExtremumGradient, T)

REGISTER_SEGMENT_REDUCE(float);
REGISTER_SEGMENT_REDUCE(half);
REGISTER_SEGMENT_REDUCE(bfloat);

// segment_reduce and its gradient: reductions of consecutive segments of an axis.
//
// A short segment is reduced by one thread, a longer one by a threadgroup, and a long one by many
// threadgroups: the axis is divided into pieces, each threadgroup reduces the parts of long
// segments in its piece, and another kernel combines the parts of a segment in a fixed order.
// Results are computed in float for all dtypes.
#include <c10/metal/error.h>
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/segment_reduce.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

constant constexpr uint kLanes = c10::metal::simdgroup_size;

// ---- segments -----------------------------------------------------------------------------------

inline bool is_segment(constant long* bounds, constant SegmentReduceParameters& parameters) {
  return bounds[0] >= 0 && bounds[0] <= bounds[1] && bounds[1] <= parameters.size;
}

// Returns index / size, in 32 bits where possible: a 64-bit division is slow on a GPU.
inline int64_t quotient(int64_t index, int64_t size) {
  if (size == 1) {
    return index;
  }
  return (index | size) <= 0xffffffff ? static_cast<uint>(index) / static_cast<uint>(size)
                                      : index / size;
}

inline int64_t remainder(int64_t index, int64_t size) {
  return index - quotient(index, size) * size;
}

// The elements that are reduced to one result: `length` elements from data[first] on, with stride
// parameters.inner. It is empty if the offsets are invalid.
struct Segment {
  int64_t begin;  // position on the axis
  int64_t first;
  int64_t length;
  int64_t outer;
  int64_t row;  // outer * segments + number of the segment
  int64_t column;

  Segment(int64_t row, int64_t column, constant long* offsets,
          constant SegmentReduceParameters& parameters)
      : row(row), column(column) {
    outer = parameters.outer == 1 ? 0 : quotient(row, parameters.segments);
    constant long* bounds = offsets + row + outer;
    const bool valid = is_segment(bounds, parameters);
    begin = valid ? bounds[0] : 0;
    first = (outer * parameters.size + begin) * parameters.inner + column;
    length = valid ? bounds[1] - begin : 0;
  }
  Segment(int64_t result, constant long* offsets, constant SegmentReduceParameters& parameters)
      : Segment(quotient(result, parameters.inner), remainder(result, parameters.inner), offsets,
                parameters) {}
};

// Reports invalid segments. One thread per segment and row of offsets.
kernel void segment_reduce_check_segments(constant long* offsets [[buffer(0)]],
                                          constant SegmentReduceParameters& parameters
                                          [[buffer(1)]],
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

// ---- pieces of long segments --------------------------------------------------------------------

// Notes a long segment in the pieces that it overlaps; called by all threads of a group.
inline void note_owner(Segment segment, device PieceOwners* owners,
                       constant SegmentReduceParameters& parameters, uint lane, uint lanes) {
  const int64_t first = quotient(segment.begin, parameters.piece);
  const int64_t last = quotient(segment.begin + segment.length - 1, parameters.piece);
  device PieceOwners* of_axis = owners + segment.outer * parameters.pieces;
  const int64_t number = segment.row - segment.outer * parameters.segments + 1;
  if (segment.column != 0) {
    return;
  }
  if (lane == 0) {
    of_axis[first].within = number;
  }
  for (int64_t piece = first + 1 + lane; piece <= last; piece += lanes) {
    of_axis[piece].before = number;
  }
}

// One piece of one column of an axis.
struct Piece {
  int64_t index;  // (outer * pieces + number) * inner + column
  int64_t column;
  int64_t row;  // outer * pieces + number
  int64_t outer;
  int64_t number;

  Piece(int64_t index, constant SegmentReduceParameters& parameters)
      : index(index),
        column(remainder(index, parameters.inner)),
        row(quotient(index, parameters.inner)),
        outer(quotient(row, parameters.pieces)),
        number(row - outer * parameters.pieces) {}
};

// Returns the row of a long segment (see Segment), given its number `owner` from 1 in the axis.
inline int64_t row_of(Piece piece, int64_t owner, constant SegmentReduceParameters& parameters) {
  return piece.outer * parameters.segments + owner - 1;
}

// Returns the part of a segment that lies in a piece.
inline Segment part_of(Piece piece, Segment segment, constant SegmentReduceParameters& parameters) {
  const int64_t begin = piece.number * parameters.piece;
  const int64_t skipped = begin > segment.begin ? begin - segment.begin : 0;
  const int64_t beyond = segment.begin + segment.length - (begin + parameters.piece);
  segment.first += skipped * parameters.inner;
  segment.length -= skipped + (beyond > 0 ? beyond : 0);
  return segment;
}

// ---- reductions ---------------------------------------------------------------------------------

// A reduction has: of(), the value with which an element enters, given the result of its segment if
// kNeedsResult; combine() for two values; and combine_lanes() for those of a simdgroup.

struct OfElements {
  using Value = float;
  static constexpr constant bool kNeedsResult = false;
  static float of(float x, float) { return x; }
};

struct Sum : OfElements {
  static float identity() { return 0.0f; }
  static float combine(float a, float b) { return a + b; }
  static float combine_lanes(float value) { return c10::metal::simd_sum(value); }
  static float finish(float total, int64_t) { return total; }
};

struct Mean : Sum {
  static float finish(float total, int64_t length) { return total / static_cast<float>(length); }
};

struct Product : OfElements {
  static float identity() { return 1.0f; }
  static float combine(float a, float b) { return a * b; }
  static float combine_lanes(float value) { return c10::metal::simd_prod(value); }
  static float finish(float total, int64_t) { return total; }
};

struct Maximum : OfElements {
  static float identity() { return -INFINITY; }
  static float combine(float a, float b) {
    return select(select(b, a, a > b), a, isnan(a));
  }  // NaN wins
  static float combine_lanes(float value) { return c10::metal::simd_max(value); }
  static float finish(float total, int64_t) { return total; }
};

struct Minimum : OfElements {
  static float identity() { return INFINITY; }
  static float combine(float a, float b) { return select(select(b, a, a < b), a, isnan(a)); }
  static float combine_lanes(float value) { return c10::metal::simd_min(value); }
  static float finish(float total, int64_t) { return total; }
};

// Reduces a whole segment in one thread. result: that of the segment, for the gradient.
template <typename Reduction, typename T>
inline typename Reduction::Value reduce_alone(Segment segment, constant T* data, int64_t stride,
                                              float result) {
  typename Reduction::Value total = Reduction::identity();
  for (int64_t j = 0; j < segment.length; ++j) {
    const float x = static_cast<float>(data[segment.first + j * stride]);
    total = Reduction::combine(total, Reduction::of(x, result));
  }
  return total;
}

// Combines the values of the threads of a group; the first thread has the result.
template <typename Reduction>
inline typename Reduction::Value combine_group(threadgroup typename Reduction::Value* shared,
                                               typename Reduction::Value value, uint lane,
                                               uint lanes) {
  typename Reduction::Value total = Reduction::combine_lanes(value);
  if (lanes > kLanes) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane % kLanes == 0) {
      shared[lane / kLanes] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) {
      for (uint i = 1; i < lanes / kLanes; ++i) {
        total = Reduction::combine(total, shared[i]);
      }
    }
  }
  return total;
}

// Reduces a segment, or a part of one, in a threadgroup: adjacent threads load adjacent elements,
// and each has several loads in flight. shared: one value per simdgroup.
template <typename Reduction, typename T>
inline typename Reduction::Value reduce_by_group(Segment segment, constant T* data, int64_t stride,
                                                 float result,
                                                 threadgroup typename Reduction::Value* shared,
                                                 uint lane, uint lanes) {
  constant T* x = data + segment.first;
  const uint length = static_cast<uint>(segment.length);
  typename Reduction::Value total = Reduction::identity();
  if (stride == 1) {
    for (uint j = lane; j < length; j += lanes) {
      total = Reduction::combine(total, Reduction::of(static_cast<float>(x[j]), result));
    }
  } else {
    for (uint j = lane; j < length; j += lanes) {
      total = Reduction::combine(total, Reduction::of(static_cast<float>(x[j * stride]), result));
    }
  }
  return combine_group<Reduction>(shared, total, lane, lanes);
}

// ---- kernels ------------------------------------------------------------------------------------

template <typename Reduction>
inline float finish(int64_t length, float total, constant SegmentReduceParameters& parameters) {
  return length == 0 ? parameters.empty
                     : Reduction::finish(Reduction::combine(parameters.initial, total), length);
}

// Marks a result that is too long for one thread, for the threadgroup kernel.
inline void leave_to_group(int64_t result, device atomic_uint* left) {
  atomic_store_explicit(left + result / kLeftTogether, 1u, memory_order_relaxed);
}

// Returns true if the threadgroup has any results left to compute.
inline bool is_needed(constant uint* left, uint group,
                      constant SegmentReduceParameters& parameters) {
  return parameters.alone < 0 || left[parameters.first / kLeftTogether + group] != 0;
}

// Reduces short segments. One thread per result.
template <typename Reduction, typename T>
kernel void segment_reduce_short(device T* results [[buffer(0)]], constant T* data [[buffer(1)]],
                                 constant long* offsets [[buffer(2)]],
                                 constant SegmentReduceParameters& parameters [[buffer(3)]],
                                 device atomic_uint* left [[buffer(4)]],
                                 uint2 position [[thread_position_in_grid]],
                                 uint2 grid [[threads_per_grid]]) {
  const int64_t result = thread_index(position, grid);
  if (result >= parameters.outer * parameters.segments * parameters.inner) {
    return;
  }
  const Segment segment(result, offsets, parameters);
  if (segment.length > parameters.alone) {
    leave_to_group(result, left);
    return;
  }
  const float total = reduce_alone<Reduction>(segment, data, parameters.inner, 0.0f);
  results[result] = static_cast<T>(finish<Reduction>(segment.length, total, parameters));
}

// Reduces segments of medium length, and notes long ones in their pieces. A threadgroup has
// parameters.share consecutive results.
template <typename Reduction, typename T>
kernel void segment_reduce(device T* results [[buffer(0)]], constant T* data [[buffer(1)]],
                           constant long* offsets [[buffer(2)]],
                           constant SegmentReduceParameters& parameters [[buffer(3)]],
                           device PieceOwners* owners [[buffer(4)]],
                           constant uint* left [[buffer(5)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint lane [[thread_position_in_threadgroup]],
                           uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[kLanes];
  if (!is_needed(left, group, parameters)) {
    return;
  }
  const int64_t first = parameters.first + static_cast<int64_t>(group) * parameters.share;
  const int64_t count = parameters.outer * parameters.segments * parameters.inner;
  const int64_t end = first + parameters.share < count ? first + parameters.share : count;
  for (int64_t result = first; result < end; ++result) {
    const Segment segment(result, offsets, parameters);
    if (segment.length > parameters.longest) {
      note_owner(segment, owners, parameters, lane, lanes);
    } else if (segment.length > parameters.alone) {
      const float total =
          reduce_by_group<Reduction>(segment, data, parameters.inner, 0.0f, shared, lane, lanes);
      if (lane == 0) {
        results[result] = static_cast<T>(finish<Reduction>(segment.length, total, parameters));
      }
    }
  }
}

// Reduces the parts of long segments in a piece. One threadgroup per piece and column. results:
// those of the segments, for the gradient.
template <typename Reduction, typename T>
kernel void segment_reduce_pieces(device typename Reduction::Value* parts [[buffer(0)]],
                                  constant T* results [[buffer(1)]], constant T* data [[buffer(2)]],
                                  constant long* offsets [[buffer(3)]],
                                  constant SegmentReduceParameters& parameters [[buffer(4)]],
                                  constant PieceOwners* all_owners [[buffer(5)]],
                                  uint group [[threadgroup_position_in_grid]],
                                  uint lane [[thread_position_in_threadgroup]],
                                  uint lanes [[threads_per_threadgroup]]) {
  threadgroup typename Reduction::Value shared[kLanes];
  const Piece piece(group, parameters);
  const PieceOwners owners = all_owners[piece.row];
  for (uint i = 0; i < 2; ++i) {
    const int64_t owner = i == 0 ? owners.before : owners.within;
    typename Reduction::Value total = Reduction::identity();
    if (owner != 0) {
      const Segment segment(row_of(piece, owner, parameters), piece.column, offsets, parameters);
      const int64_t index = segment.row * parameters.inner + piece.column;
      const float result = Reduction::kNeedsResult ? static_cast<float>(results[index]) : 0.0f;
      const Segment part = part_of(piece, segment, parameters);
      total = reduce_by_group<Reduction>(part, data, parameters.inner, result, shared, lane, lanes);
    }
    if (lane == 0) {
      parts[2 * piece.index + i] = total;
    }
  }
}

// Combines a thread's share of the parts of the segment that begins in a piece.
template <typename Reduction>
inline typename Reduction::Value combine_pieces(Piece piece, Segment segment,
                                                constant typename Reduction::Value* parts,
                                                constant SegmentReduceParameters& parameters,
                                                uint lane, uint lanes) {
  const int64_t last = quotient(segment.begin + segment.length - 1, parameters.piece);
  const int64_t others = last - piece.number;
  typename Reduction::Value total = Reduction::identity();
  if (lane == 0) {
    total = parts[2 * piece.index + 1];
  }
  for (int64_t i = 1 + lane; i <= others; i += lanes) {
    total = Reduction::combine(total, parts[2 * (piece.index + i * parameters.inner)]);
  }
  return total;
}

// Computes the results of the long segments that begin in kPiecesOfGroup pieces. One threadgroup
// for these pieces.
template <typename Reduction, typename T>
kernel void segment_reduce_combine(device T* results [[buffer(0)]],
                                   constant float* parts [[buffer(1)]],
                                   constant long* offsets [[buffer(2)]],
                                   constant SegmentReduceParameters& parameters [[buffer(3)]],
                                   constant PieceOwners* owners [[buffer(4)]],
                                   uint group [[threadgroup_position_in_grid]],
                                   uint lane [[thread_position_in_threadgroup]],
                                   uint lanes [[threads_per_threadgroup]]) {
  threadgroup float shared[kLanes];
  for (uint i = 0; i < kPiecesOfGroup; ++i) {
    const Piece piece(static_cast<int64_t>(group) * kPiecesOfGroup + i, parameters);
    const int64_t owner = piece.outer < parameters.outer ? owners[piece.row].within : 0;
    if (owner != 0) {
      const Segment segment(row_of(piece, owner, parameters), piece.column, offsets, parameters);
      const float part = combine_pieces<Reduction>(piece, segment, parts, parameters, lane, lanes);
      const float total = combine_group<Reduction>(shared, part, lane, lanes);
      if (lane == 0) {
        results[segment.row * parameters.inner + piece.column] =
            static_cast<T>(finish<Reduction>(segment.length, total, parameters));
      }
    }
  }
}

// ---- gradients ----------------------------------------------------------------------------------

struct SumGradient {
  static constexpr constant bool kNeedsResult = false;
  using Value = float;  // unused
  static float identity() { return 0.0f; }
  static float of(float, float) { return 0.0f; }
  static float combine(float, float) { return 0.0f; }
  static float combine_lanes(float) { return 0.0f; }
  static float gradient(float grad, float, float, float, float, int64_t) { return grad; }
};

struct MeanGradient : SumGradient {
  static float gradient(float grad, float, float, float, float, int64_t length) {
    return grad / static_cast<float>(length);
  }
};

// Counts the elements that are equal to the result, or NaN.
struct ExtremumGradient {
  static constexpr constant bool kNeedsResult = true;
  using Value = uint;
  static uint identity() { return 0; }
  static uint of(float x, float result) { return x == result || isnan(x) ? 1 : 0; }
  static uint combine(uint a, uint b) { return a + b; }
  static uint combine_lanes(uint value) { return simd_sum(value); }
  // Elements that share the extremum share its gradient. As in torch on all devices, a negative
  // gradient is not divided among them.
  static float gradient(float grad, float x, float result, uint matches, float, int64_t) {
    const float share = grad > 0.0f ? grad / static_cast<float>(matches) : grad;
    return x == result || isnan(x) ? share : 0.0f;
  }
};

// The product of the elements that are neither zero nor NaN, and the numbers of zeros and NaNs.
struct Tally {
  float product;
  uint zeros;
  uint nans;
};

struct ProductGradient {
  static constexpr constant bool kNeedsResult = true;
  using Value = Tally;
  static Tally identity() { return {1.0f, 0, 0}; }
  static Tally of(float x, float) {
    const bool zero = x == 0.0f;
    const bool nan = isnan(x);
    return {zero || nan ? 1.0f : x, zero ? 1u : 0u, nan ? 1u : 0u};
  }
  static Tally combine(Tally a, Tally b) {
    return {a.product * b.product, a.zeros + b.zeros, a.nans + b.nans};
  }
  static Tally combine_lanes(Tally value) {
    return {simd_product(value.product), simd_sum(value.zeros), simd_sum(value.nans)};
  }
  static float gradient(float grad, float x, float result, Tally tally, float initial, int64_t) {
    const bool zero = x == 0.0f;
    if (!zero && !isnan(x)) {
      return grad * result / x;
    }
    // Multiplies all elements except x.
    float product = initial * tally.product;
    product *= tally.zeros > (zero ? 1 : 0) ? 0.0f : 1.0f;
    product *= tally.nans > (zero ? 0 : 1) ? NAN : 1.0f;
    return grad * product;
  }
};

// Writes the gradients of a segment, or of a part of one with `length` elements, in a threadgroup.
// tally: the reduction of the whole segment; only the first thread's value is used.
template <typename Reduction, typename T>
inline void write_by_group(Segment part, int64_t length, device T* grad_data, constant T* data,
                           float grad, float result, typename Reduction::Value tally,
                           constant SegmentReduceParameters& parameters,
                           threadgroup typename Reduction::Value* shared, uint lane, uint lanes) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    shared[0] = tally;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const typename Reduction::Value all = shared[0];
  constant T* x = data + part.first;
  device T* y = grad_data + part.first;
  const float initial = parameters.initial;
  const uint count = static_cast<uint>(part.length);
  if (parameters.inner == 1) {
    for (uint j = lane; j < count; j += lanes) {
      y[j] = static_cast<T>(
          Reduction::gradient(grad, static_cast<float>(x[j]), result, all, initial, length));
    }
  } else {
    for (uint j = lane; j < count; j += lanes) {
      const int64_t place = j * parameters.inner;
      y[place] = static_cast<T>(
          Reduction::gradient(grad, static_cast<float>(x[place]), result, all, initial, length));
    }
  }
}

// Computes the gradients of short segments. One thread per result.
template <typename Reduction, typename T>
kernel void segment_reduce_backward_short(
    device T* grad_data [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant T* data [[buffer(3)]],
    constant long* offsets [[buffer(4)]],
    constant SegmentReduceParameters& parameters [[buffer(5)]],
    device atomic_uint* left [[buffer(6)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.outer * parameters.segments * parameters.inner) {
    return;
  }
  const Segment segment(index, offsets, parameters);
  if (segment.length > parameters.alone) {
    leave_to_group(index, left);
    return;
  }
  const float grad = static_cast<float>(grads[index]);
  const float result = static_cast<float>(results[index]);
  const typename Reduction::Value tally =
      reduce_alone<Reduction>(segment, data, parameters.inner, result);
  for (int64_t j = 0; j < segment.length; ++j) {
    const int64_t place = segment.first + j * parameters.inner;
    grad_data[place] = static_cast<T>(Reduction::gradient(
        grad, static_cast<float>(data[place]), result, tally, parameters.initial, segment.length));
  }
}

// Computes the gradients of segments of medium length, and notes long ones. A threadgroup has
// parameters.share consecutive results.
template <typename Reduction, typename T>
kernel void segment_reduce_backward(
    device T* grad_data [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant T* data [[buffer(3)]],
    constant long* offsets [[buffer(4)]],
    constant SegmentReduceParameters& parameters [[buffer(5)]],
    device PieceOwners* owners [[buffer(6)]], constant uint* left [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup typename Reduction::Value shared[kLanes];
  if (!is_needed(left, group, parameters)) {
    return;
  }
  const int64_t first = parameters.first + static_cast<int64_t>(group) * parameters.share;
  const int64_t count = parameters.outer * parameters.segments * parameters.inner;
  const int64_t end = first + parameters.share < count ? first + parameters.share : count;
  for (int64_t index = first; index < end; ++index) {
    const Segment segment(index, offsets, parameters);
    if (segment.length > parameters.longest) {
      note_owner(segment, owners, parameters, lane, lanes);
    } else if (segment.length > parameters.alone) {
      const float grad = static_cast<float>(grads[index]);
      const float result = static_cast<float>(results[index]);
      typename Reduction::Value tally = Reduction::identity();
      if (Reduction::kNeedsResult) {
        tally = reduce_by_group<Reduction>(segment, data, parameters.inner, result, shared, lane,
                                           lanes);
      }
      write_by_group<Reduction>(segment, segment.length, grad_data, data, grad, result, tally,
                                parameters, shared, lane, lanes);
    }
  }
}

// Combines the parts that segment_reduce_pieces computed for the gradients of long segments.
template <typename Reduction>
kernel void segment_reduce_backward_combine(
    device typename Reduction::Value* totals [[buffer(0)]],
    constant typename Reduction::Value* parts [[buffer(1)]], constant long* offsets [[buffer(2)]],
    constant SegmentReduceParameters& parameters [[buffer(3)]],
    constant PieceOwners* owners [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_position_in_threadgroup]], uint lanes [[threads_per_threadgroup]]) {
  threadgroup typename Reduction::Value shared[kLanes];
  for (uint i = 0; i < kPiecesOfGroup; ++i) {
    const Piece piece(static_cast<int64_t>(group) * kPiecesOfGroup + i, parameters);
    const int64_t owner = piece.outer < parameters.outer ? owners[piece.row].within : 0;
    typename Reduction::Value total = Reduction::identity();
    if (owner != 0) {
      const Segment segment(row_of(piece, owner, parameters), piece.column, offsets, parameters);
      const typename Reduction::Value part =
          combine_pieces<Reduction>(piece, segment, parts, parameters, lane, lanes);
      total = combine_group<Reduction>(shared, part, lane, lanes);
    }
    if (lane == 0 && piece.outer < parameters.outer) {
      totals[piece.index] = total;
    }
  }
}

// Computes the gradients of the parts of long segments in a piece. One threadgroup per piece and
// column. totals: those of the segments, stored at the pieces in which they begin.
template <typename Reduction, typename T>
kernel void segment_reduce_backward_pieces(
    device T* grad_data [[buffer(0)]], constant T* grads [[buffer(1)]],
    constant T* results [[buffer(2)]], constant T* data [[buffer(3)]],
    constant long* offsets [[buffer(4)]],
    constant SegmentReduceParameters& parameters [[buffer(5)]],
    constant PieceOwners* all_owners [[buffer(6)]],
    constant typename Reduction::Value* totals [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]],
    uint lanes [[threads_per_threadgroup]]) {
  threadgroup typename Reduction::Value shared[1];
  const Piece piece(group, parameters);
  const PieceOwners owners = all_owners[piece.row];
  for (uint i = 0; i < 2; ++i) {
    const int64_t owner = i == 0 ? owners.before : owners.within;
    if (owner != 0) {
      const Segment segment(row_of(piece, owner, parameters), piece.column, offsets, parameters);
      const int64_t index = segment.row * parameters.inner + piece.column;
      const int64_t begin = quotient(segment.begin, parameters.piece);
      const Segment part = part_of(piece, segment, parameters);
      write_by_group<Reduction>(part, segment.length, grad_data, data,
                                static_cast<float>(grads[index]),
                                static_cast<float>(results[index]),
                                totals[piece.index - (piece.number - begin) * parameters.inner],
                                parameters, shared, lane, lanes);
    }
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_PIECES(NAME, REDUCTION, T) \
  REGISTER_KERNEL("segment_reduce_" #NAME "_pieces_" #T, segment_reduce_pieces, REDUCTION, T)

#define REGISTER_FORWARD(NAME, REDUCTION, T)                                                 \
  REGISTER_KERNEL("segment_reduce_" #NAME "_short_" #T, segment_reduce_short, REDUCTION, T); \
  REGISTER_KERNEL("segment_reduce_" #NAME "_" #T, segment_reduce, REDUCTION, T);             \
  REGISTER_PIECES(NAME, REDUCTION, T);                                                       \
  REGISTER_KERNEL("segment_reduce_" #NAME "_combine_" #T, segment_reduce_combine, REDUCTION, T)

#define REGISTER_BACKWARD(NAME, REDUCTION, T)                                                      \
  REGISTER_KERNEL("segment_reduce_backward_" #NAME "_short_" #T, segment_reduce_backward_short,    \
                  REDUCTION, T);                                                                   \
  REGISTER_KERNEL("segment_reduce_backward_" #NAME "_" #T, segment_reduce_backward, REDUCTION, T); \
  REGISTER_KERNEL("segment_reduce_backward_" #NAME "_pieces_" #T, segment_reduce_backward_pieces,  \
                  REDUCTION, T)

#define REGISTER_BACKWARD_COMBINE(NAME, REDUCTION)                                              \
  REGISTER_KERNEL("segment_reduce_backward_" #NAME "_combine", segment_reduce_backward_combine, \
                  REDUCTION)

#define REGISTER_SEGMENT_REDUCE(T)                  \
  REGISTER_FORWARD(sum, Sum, T);                    \
  REGISTER_FORWARD(mean, Mean, T);                  \
  REGISTER_FORWARD(prod, Product, T);               \
  REGISTER_FORWARD(max, Maximum, T);                \
  REGISTER_FORWARD(min, Minimum, T);                \
  REGISTER_BACKWARD(sum, SumGradient, T);           \
  REGISTER_BACKWARD(mean, MeanGradient, T);         \
  REGISTER_BACKWARD(prod, ProductGradient, T);      \
  REGISTER_BACKWARD(extremum, ExtremumGradient, T); \
  REGISTER_PIECES(tally_prod, ProductGradient, T);  \
  REGISTER_PIECES(tally_extremum, ExtremumGradient, T)

REGISTER_SEGMENT_REDUCE(float);
REGISTER_SEGMENT_REDUCE(half);
REGISTER_SEGMENT_REDUCE(bfloat);
REGISTER_BACKWARD_COMBINE(prod, ProductGradient);
REGISTER_BACKWARD_COMBINE(extremum, ExtremumGradient);

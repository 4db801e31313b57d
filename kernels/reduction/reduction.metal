// Reductions along any dimensions: sums, products, extrema, norms, variances. Integers are added
// in 64 bits, floating-point numbers in float.
//
// The threads of a threadgroup are divided among results: those of one result go through its units
// side by side, and what they have is combined. Where the results are adjacent in memory and the
// units are not, adjacent threads have adjacent results. If there are too few results for a GPU,
// or too many units for the precision of a sum in one thread, a result has several spans, each a
// threadgroup's, and a second launch combines these.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/accumulated.h>
#include <kernels/reduction/reduction.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kThreadsLog2 = 8;
constant constexpr uint kThreads = kReductionThreads;
static_assert(kThreads == 1u << kThreadsLog2, "a threadgroup's threads are divided by shifts");
constant constexpr uint kQuad = kReductionQuad;

template <typename T>
struct Quad {
  T of[kQuad];
};

// Where units of a result are, in bytes from the start of self. Most are in one line, whose places
// take no division.
struct Line {
  int64_t first;
  int64_t stride;
  Line(int64_t first, constant StridedLayout<1>& reduced)
      : first(first), stride(reduced.strides[0][0]) {}
  int64_t place(int64_t i, constant StridedLayout<1>&) const { return first + i * stride; }
};

struct Lines {
  int64_t first;
  Lines(int64_t first, constant StridedLayout<1>&) : first(first) {}
  int64_t place(int64_t i, constant StridedLayout<1>& reduced) const {
    const auto offsets = offsets_of(i, reduced);
    return first + offsets[0];
  }
};

template <typename T>
inline Quad<T> quad_at(constant T* self, int64_t place) {
  const vec<T, kQuad> x = element_at(reinterpret_cast<constant vec<T, kQuad>*>(self), place);
  return {{x[0], x[1], x[2], x[3]}};
}
inline Quad<float2> quad_at(constant float2* self, int64_t place) {
  constant float4* const pairs = reinterpret_cast<constant float4*>(self);
  const float4 a = element_at(pairs, place);
  const float4 b = element_at(pairs, place + static_cast<int64_t>(sizeof(float4)));
  return {{a.xy, a.zw, b.xy, b.zw}};
}

// ---- reductions ---------------------------------------------------------------------------------
//
// A reduction of elements T has the type A of what some elements amount to: of() one, combine() for
// those of two sets, identity() of none, and finish(), which gives the result.

inline float divided(float a, float by) { return a / by; }
inline float2 divided(float2 a, float by) { return a / by; }
inline ulong divided(ulong a, float) { return a; }

template <typename T>
struct Total {
  using A = typename Accumulated<T>::Type;
  static inline A identity() { return Sum::identity<A>(); }
  static inline A of(T x, constant ReductionParameters&) { return Accumulated<T>::from(x); }
  static inline A combine(A a, A b) { return Sum::combine(a, b); }
  static inline A finish(A a, constant ReductionParameters& p) { return divided(a, p.parameter); }
};

template <typename T>
struct NumbersTotal : Total<T> {
  static inline float of(T x, constant ReductionParameters&) {
    const float number = static_cast<float>(x);
    return isnan(number) ? 0.0f : number;
  }
};

template <typename T>
struct ProductOfAll {
  using A = typename Accumulated<T>::Type;
  static inline A identity() { return Product::identity<A>(); }
  static inline A of(T x, constant ReductionParameters&) { return Accumulated<T>::from(x); }
  static inline A combine(A a, A b) { return Product::combine(a, b); }
  static inline A finish(A a, constant ReductionParameters&) { return a; }
};

template <typename T>
inline bool is_nonzero(T x) {
  return x != T(0);
}
inline bool is_nonzero(float2 x) { return x.x != 0.0f || x.y != 0.0f; }

template <typename T>
struct Nonzeros {
  using A = ulong;
  static inline A identity() { return 0; }
  static inline A of(T x, constant ReductionParameters&) { return is_nonzero(x) ? 1 : 0; }
  static inline A combine(A a, A b) { return a + b; }
  static inline A finish(A a, constant ReductionParameters&) { return a; }
};

// NaN is larger and smaller than any number.
inline float larger(float a, float b) { return a > b || isnan(a) ? a : b; }
inline float smaller(float a, float b) { return a < b || isnan(a) ? a : b; }
inline ulong larger(ulong a, ulong b) {
  return static_cast<long>(a) > static_cast<long>(b) ? a : b;
}
inline ulong smaller(ulong a, ulong b) {
  return static_cast<long>(a) < static_cast<long>(b) ? a : b;
}

inline float lowest(float) { return -INFINITY; }
inline ulong lowest(ulong) { return ulong(1) << 63; }
inline float highest(float) { return INFINITY; }
inline ulong highest(ulong) { return ~(ulong(1) << 63); }

template <typename T>
struct Largest {
  using A = typename Accumulated<T>::Type;
  static inline A identity() { return lowest(A(0)); }
  static inline A of(T x, constant ReductionParameters&) { return Accumulated<T>::from(x); }
  static inline A combine(A a, A b) { return larger(a, b); }
  static inline A finish(A a, constant ReductionParameters&) { return a; }
};

template <typename T>
struct Smallest {
  using A = typename Accumulated<T>::Type;
  static inline A identity() { return highest(A(0)); }
  static inline A of(T x, constant ReductionParameters&) { return Accumulated<T>::from(x); }
  static inline A combine(A a, A b) { return smaller(a, b); }
  static inline A finish(A a, constant ReductionParameters&) { return a; }
};

template <typename T>
inline float magnitude(T x) {
  return abs(static_cast<float>(x));
}
// Without overflow, as long as the magnitude itself is a float.
inline float magnitude(float2 x) {
  const float large = max(abs(x.x), abs(x.y));
  if (isinf(large)) {
    return large;
  }
  if (isnan(x.x) || isnan(x.y)) {
    return NAN;
  }
  const float ratio = large == 0.0f ? 0.0f : min(abs(x.x), abs(x.y)) / large;
  return large * precise::sqrt(1.0f + ratio * ratio);
}

template <typename T>
inline float squared(T x) {
  return static_cast<float>(x) * static_cast<float>(x);
}
inline float squared(float2 x) { return x.x * x.x + x.y * x.y; }

template <typename T>
struct SquareNorm {
  using A = float;
  static inline A identity() { return 0.0f; }
  static inline A of(T x, constant ReductionParameters&) { return squared(x); }
  static inline A combine(A a, A b) { return a + b; }
  static inline A finish(A a, constant ReductionParameters&) { return precise::sqrt(a); }
};

template <typename T>
struct PowerNorm {
  using A = float;
  static inline A identity() { return 0.0f; }
  static inline A of(T x, constant ReductionParameters& p) {
    const float size = magnitude(x);
    if (p.parameter == 0.0f) {
      return size != 0.0f ? 1.0f : 0.0f;
    }
    return p.parameter == 1.0f ? size : precise::pow(size, p.parameter);
  }
  static inline A combine(A a, A b) { return a + b; }
  static inline A finish(A a, constant ReductionParameters& p) {
    const bool is_sum = p.parameter == 0.0f || p.parameter == 1.0f;
    return is_sum ? a : precise::pow(a, 1.0f / p.parameter);
  }
};

template <typename T>
struct LargestNorm {
  using A = float;
  static inline A identity() { return 0.0f; }
  static inline A of(T x, constant ReductionParameters&) { return magnitude(x); }
  static inline A combine(A a, A b) { return larger(a, b); }
  static inline A finish(A a, constant ReductionParameters&) { return a; }
};

template <typename T>
struct SmallestNorm {
  using A = float;
  static inline A identity() { return INFINITY; }
  static inline A of(T x, constant ReductionParameters&) { return magnitude(x); }
  static inline A combine(A a, A b) { return smaller(a, b); }
  static inline A finish(A a, constant ReductionParameters&) { return a; }
};

struct MeanAndSquares {
  float count;
  float mean;
  float squares;  // of the differences from the mean
};

// Sets are combined as by T. F. Chan, G. H. Golub and R. J. LeVeque (1979). Of sets whose sizes the
// compiler knows, the quotients are constants.
template <typename T>
struct Variance {
  using A = MeanAndSquares;
  static inline A identity() { return {0.0f, 0.0f, 0.0f}; }
  static inline A of(T x, constant ReductionParameters&) {
    return {1.0f, static_cast<float>(x), 0.0f};
  }
  static inline A combine(A a, A b) {
    const float count = a.count + b.count;
    const float share = count > 0.0f ? b.count / count : 0.0f;
    const float difference = b.mean - a.mean;
    return {count, a.mean + difference * share,
            a.squares + b.squares + difference * (difference * (a.count * share))};
  }
  static inline float finish(A a, constant ReductionParameters& p) {
    const bool is_defined = a.count > 0.0f && isfinite(a.mean);
    const float variance = is_defined ? a.squares / max(a.count - p.parameter, 0.0f) : NAN;
    return p.has_root != 0 ? precise::sqrt(variance) : variance;
  }
};

template <typename T>
struct MeanOfVariance : Variance<T> {
  static inline float finish(MeanAndSquares a, constant ReductionParameters&) {
    return a.count > 0.0f ? a.mean : NAN;
  }
};

template <typename Op>
inline typename Op::A combine_four(typename Op::A a, typename Op::A b, typename Op::A c,
                                   typename Op::A d) {
  return Op::combine(Op::combine(a, b), Op::combine(c, d));
}

template <typename Op, typename T>
inline typename Op::A of_quad(Quad<T> x, constant ReductionParameters& p) {
  return combine_four<Op>(Op::of(x.of[0], p), Op::of(x.of[1], p), Op::of(x.of[2], p),
                          Op::of(x.of[3], p));
}

// ---- threads ------------------------------------------------------------------------------------

// Where a thread is in its threadgroup: `member` is the result that it has part in, among those of
// the threadgroup, and `lane` its number among the `width` threads of that result.
struct Place {
  uint member;
  uint lane;
  uint width;
  uint together;  // results
  uint distance;  // from lane to lane

  Place(uint thread_index, constant ReductionParameters& p)
      : width(1u << p.width_log2), together(kThreads >> p.width_log2) {
    const bool is_across = p.is_across != 0;
    member = is_across ? thread_index % together : thread_index / width;
    lane = is_across ? thread_index / together : thread_index % width;
    distance = is_across ? together : 1;
  }
};

// Returns how many threadgroups have all results between them: a division by a power of two.
inline int64_t blocks_of(constant ReductionParameters& p) {
  const int64_t together = kThreads >> p.width_log2;
  return (p.results + together - 1) >> (kThreadsLog2 - p.width_log2);
}

// Combines what the threads of each result have; its first lane gets it.
template <typename Op>
inline typename Op::A combine_lanes(typename Op::A value, threadgroup typename Op::A* values,
                                    Place place, uint thread_index) {
  if (place.width == 1) {
    return value;
  }
  values[thread_index] = value;
  for (uint step = place.width / 2; step > 0; step /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (place.lane < step) {
      value = Op::combine(value, values[thread_index + step * place.distance]);
      values[thread_index] = value;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return value;
}

// ---- one result at a time -----------------------------------------------------------------------

// The units of a thread: those from `begin` to `end` that are `width` apart.
struct Share {
  int64_t begin;
  int64_t end;
  uint width;
};

template <typename T, typename Op, typename Places>
inline typename Op::A reduce_quads(constant T* self, Places places, Share share,
                                   constant ReductionParameters& p,
                                   constant StridedLayout<1>& reduced) {
  typename Op::A total = Op::identity();
  const uint width = share.width;
  int64_t i = share.begin;
  for (; i + 3 * width < share.end; i += 4 * width) {
    const Quad<T> a = quad_at(self, places.place(i, reduced));
    const Quad<T> b = quad_at(self, places.place(i + width, reduced));
    const Quad<T> c = quad_at(self, places.place(i + 2 * width, reduced));
    const Quad<T> d = quad_at(self, places.place(i + 3 * width, reduced));
    total = Op::combine(total, combine_four<Op>(of_quad<Op>(a, p), of_quad<Op>(b, p),
                                                of_quad<Op>(c, p), of_quad<Op>(d, p)));
  }
  for (; i < share.end; i += width) {
    total = Op::combine(total, of_quad<Op>(quad_at(self, places.place(i, reduced)), p));
  }
  return total;
}

template <typename T, typename Op, typename Places>
inline typename Op::A reduce_elements(constant T* self, Places places, Share share,
                                      constant ReductionParameters& p,
                                      constant StridedLayout<1>& reduced) {
  typename Op::A total = Op::identity();
  const uint width = share.width;
  int64_t i = share.begin;
  for (; i + 3 * width < share.end; i += 4 * width) {
    Quad<T> x;
    for (uint j = 0; j < kQuad; ++j) {
      x.of[j] = element_at(self, places.place(i + j * width, reduced));
    }
    total = Op::combine(total, of_quad<Op>(x, p));
  }
  for (; i < share.end; i += width) {
    total = Op::combine(total, Op::of(element_at(self, places.place(i, reduced)), p));
  }
  return total;
}

template <typename T, typename Op, typename Places>
inline typename Op::A reduce_units(constant T* self, int64_t first, Share share,
                                   constant ReductionParameters& p,
                                   constant StridedLayout<1>& reduced) {
  const Places places(first, reduced);
  return p.is_packed != 0 ? reduce_quads<T, Op>(self, places, share, p, reduced)
                          : reduce_elements<T, Op>(self, places, share, p, reduced);
}

template <typename T, typename O, typename Op>
kernel void reduction_elements(
    device O* out [[buffer(0)]], device typename Op::A* partials [[buffer(1)]],
    constant T* self [[buffer(2)]], constant ReductionParameters& p [[buffer(3)]],
    constant StridedLayout<2>& kept [[buffer(4)]], constant StridedLayout<1>& reduced [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
    uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup typename Op::A values[kThreads];
  const Place place(thread_index, p);
  const int64_t blocks = blocks_of(p);
  for (int64_t part = group; part < blocks * p.spans; part += groups) {
    const int64_t block = p.spans == 1 ? part : part / p.spans;
    const int64_t span = part - block * p.spans;
    const int64_t result = block * place.together + place.member;
    const bool exists = result < p.results;
    typename Op::A total = Op::identity();
    const auto offsets = offsets_of(exists ? result : 0, kept);
    if (exists) {
      const Share share{span * p.span + place.lane, min((span + 1) * p.span, p.units), place.width};
      total = reduced.dimensions == 1
                  ? reduce_units<T, Op, Line>(self, offsets[1], share, p, reduced)
                  : reduce_units<T, Op, Lines>(self, offsets[1], share, p, reduced);
    }
    total = combine_lanes<Op>(total, values, place, thread_index);
    if (exists && place.lane == 0) {
      if (p.is_partial != 0) {
        partials[span * p.results + result] = total;
      } else {
        element_at(out, offsets[0]) = static_cast<O>(Op::finish(total, p));
      }
    }
  }
}

// ---- four adjacent results at a time ------------------------------------------------------------

template <typename T, typename Op>
struct FourTotals {
  typename Op::A of[kQuad];

  FourTotals() {
    for (uint j = 0; j < kQuad; ++j) {
      of[j] = Op::identity();
    }
  }

  template <typename Places>
  void add(constant T* self, Places places, Share share, constant ReductionParameters& p,
           constant StridedLayout<1>& reduced) {
    const uint width = share.width;
    int64_t i = share.begin;
    for (; i + 3 * width < share.end; i += 4 * width) {
      const Quad<T> a = quad_at(self, places.place(i, reduced));
      const Quad<T> b = quad_at(self, places.place(i + width, reduced));
      const Quad<T> c = quad_at(self, places.place(i + 2 * width, reduced));
      const Quad<T> d = quad_at(self, places.place(i + 3 * width, reduced));
      for (uint j = 0; j < kQuad; ++j) {
        of[j] = Op::combine(of[j], combine_four<Op>(Op::of(a.of[j], p), Op::of(b.of[j], p),
                                                    Op::of(c.of[j], p), Op::of(d.of[j], p)));
      }
    }
    for (; i < share.end; i += width) {
      const Quad<T> x = quad_at(self, places.place(i, reduced));
      for (uint j = 0; j < kQuad; ++j) {
        of[j] = Op::combine(of[j], Op::of(x.of[j], p));
      }
    }
  }
};

template <typename T, typename O, typename Op>
kernel void reduction_columns(
    device O* out [[buffer(0)]], device typename Op::A* partials [[buffer(1)]],
    constant T* self [[buffer(2)]], constant ReductionParameters& p [[buffer(3)]],
    constant StridedLayout<2>& kept [[buffer(4)]], constant StridedLayout<1>& reduced [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
    uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup typename Op::A values[kThreads];
  const Place place(thread_index, p);
  const int64_t blocks = blocks_of(p);
  for (int64_t part = group; part < blocks * p.spans; part += groups) {
    const int64_t block = p.spans == 1 ? part : part / p.spans;
    const int64_t span = part - block * p.spans;
    const int64_t result = block * place.together + place.member;
    const bool exists = result < p.results;
    FourTotals<T, Op> totals;
    const auto offsets = offsets_of(exists ? result : 0, kept);
    if (exists) {
      const Share share{span * p.span + place.lane, min((span + 1) * p.span, p.units), place.width};
      if (reduced.dimensions == 1) {
        totals.add(self, Line(offsets[1], reduced), share, p, reduced);
      } else {
        totals.add(self, Lines(offsets[1], reduced), share, p, reduced);
      }
    }
    for (uint j = 0; j < kQuad; ++j) {
      const auto total = combine_lanes<Op>(totals.of[j], values, place, thread_index);
      if (exists && place.lane == 0) {
        if (p.is_partial != 0) {
          partials[(span * p.results + result) * kQuad + j] = total;
        } else {
          element_at(out, offsets[0] + j * p.out_stride) = static_cast<O>(Op::finish(total, p));
        }
      }
    }
  }
}

// ---- spans --------------------------------------------------------------------------------------

// Combines what the spans of each result amount to: partials[span][result].
template <typename O, typename Op>
kernel void reduction_partials(device O* out [[buffer(0)]],
                               device const typename Op::A* partials [[buffer(1)]],
                               constant ReductionParameters& p [[buffer(2)]],
                               constant StridedLayout<2>& kept [[buffer(3)]],
                               uint group [[threadgroup_position_in_grid]],
                               uint groups [[threadgroups_per_grid]],
                               uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup typename Op::A values[kThreads];
  const Place place(thread_index, p);
  const int64_t blocks = blocks_of(p);
  for (int64_t block = group; block < blocks; block += groups) {
    const int64_t result = block * place.together + place.member;
    const bool exists = result < p.results;
    typename Op::A total = Op::identity();
    for (int64_t span = place.lane; exists && span < p.units; span += place.width) {
      total = Op::combine(total, partials[span * p.results + result]);
    }
    total = combine_lanes<Op>(total, values, place, thread_index);
    if (exists && place.lane == 0) {
      const auto offsets = offsets_of(result, kept);
      element_at(out, offsets[0]) = static_cast<O>(Op::finish(total, p));
    }
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_REDUCTION(NAME, OP, T, O)                                                     \
  REGISTER_KERNEL("reduction_elements_" #NAME "_" #T "_" #O, reduction_elements, T, O, OP<T>); \
  REGISTER_KERNEL("reduction_columns_" #NAME "_" #T "_" #O, reduction_columns, T, O, OP<T>)
#define REGISTER_PARTIALS(NAME, OP, T, O) \
  REGISTER_KERNEL("reduction_partials_" #NAME "_" #O, reduction_partials, O, OP<T>)

#define REGISTER_FLOATS(NAME, OP)               \
  REGISTER_REDUCTION(NAME, OP, float, float);   \
  REGISTER_REDUCTION(NAME, OP, half, half);     \
  REGISTER_REDUCTION(NAME, OP, bfloat, bfloat); \
  REGISTER_PARTIALS(NAME, OP, float, float);    \
  REGISTER_PARTIALS(NAME, OP, float, half);     \
  REGISTER_PARTIALS(NAME, OP, float, bfloat)
#define REGISTER_INTO(NAME, OP, O)        \
  REGISTER_REDUCTION(NAME, OP, long, O);  \
  REGISTER_REDUCTION(NAME, OP, int, O);   \
  REGISTER_REDUCTION(NAME, OP, short, O); \
  REGISTER_REDUCTION(NAME, OP, char, O);  \
  REGISTER_REDUCTION(NAME, OP, uchar, O); \
  REGISTER_PARTIALS(NAME, OP, long, O)
#define REGISTER_COMPLEX(NAME, OP)              \
  REGISTER_REDUCTION(NAME, OP, float2, float2); \
  REGISTER_PARTIALS(NAME, OP, float2, float2)
#define REGISTER_INTEGER(NAME, OP, T) \
  REGISTER_REDUCTION(NAME, OP, T, T); \
  REGISTER_PARTIALS(NAME, OP, long, T)
#define REGISTER_EXTREMUM(NAME, OP)  \
  REGISTER_FLOATS(NAME, OP);         \
  REGISTER_INTEGER(NAME, OP, long);  \
  REGISTER_INTEGER(NAME, OP, int);   \
  REGISTER_INTEGER(NAME, OP, short); \
  REGISTER_INTEGER(NAME, OP, char);  \
  REGISTER_INTEGER(NAME, OP, uchar)
#define REGISTER_NORM(NAME, OP) \
  REGISTER_FLOATS(NAME, OP);    \
  REGISTER_REDUCTION(NAME, OP, float2, float)

REGISTER_FLOATS(sum, Total);
REGISTER_REDUCTION(sum, Total, half, float);
REGISTER_REDUCTION(sum, Total, bfloat, float);
REGISTER_INTO(sum, Total, long);
REGISTER_COMPLEX(sum, Total);
REGISTER_FLOATS(nansum, NumbersTotal);
REGISTER_FLOATS(prod, ProductOfAll);
REGISTER_INTO(prod, ProductOfAll, long);
REGISTER_COMPLEX(prod, ProductOfAll);
REGISTER_INTO(count_nonzero, Nonzeros, long);
REGISTER_REDUCTION(count_nonzero, Nonzeros, float, long);
REGISTER_REDUCTION(count_nonzero, Nonzeros, half, long);
REGISTER_REDUCTION(count_nonzero, Nonzeros, bfloat, long);
REGISTER_REDUCTION(count_nonzero, Nonzeros, float2, long);
REGISTER_EXTREMUM(amax, Largest);
REGISTER_EXTREMUM(amin, Smallest);
REGISTER_NORM(norm2, SquareNorm);
REGISTER_NORM(norm, PowerNorm);
REGISTER_NORM(norm_largest, LargestNorm);
REGISTER_NORM(norm_smallest, SmallestNorm);
REGISTER_FLOATS(var, Variance);
REGISTER_PARTIALS(mean_of_var, MeanOfVariance, float, float);
REGISTER_PARTIALS(mean_of_var, MeanOfVariance, float, half);
REGISTER_PARTIALS(mean_of_var, MeanOfVariance, float, bfloat);

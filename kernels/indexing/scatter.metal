// Gathers, and writes and reductions at indices: index_fill_, index_copy, index_add, index_put_,
// scatter and its reductions. Indices become places first, which are offsets in self. An index out
// of range is reported to the host, and nothing is read or written for it.
//
// Reductions sort the places, so that the items of one place are a run, and reduce runs in their
// order: results are the same each time, whatever the dtype and alignment. Sorting is what takes
// the time of items of few elements. In 32 bits, these are reduced by atomics: to maxima and
// minima, which are the same in any order, and to sums, unless torch must be deterministic.
#include <c10/metal/atomic.h>
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/indexing/scatter.h>
#include <kernels/reduction/accumulated.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

// Returns where an index is along its dimension, in bytes; negative if it is out of range.
inline int64_t place_of(int64_t index, constant ScatterPlacesParameters& p,
                        device ErrorMessages* errors) {
  if (index < (p.wraps != 0 ? -p.size : 0) || index >= p.size) {
    TORCH_REPORT_ERROR(errors, "index ", index, " is out of bounds for dimension ", p.dim,
                       " with size ", p.size);
    return -1;
  }
  return (index < 0 ? index + p.size : index) * p.stride;
}

// Adds what is along one dimension to places, or begins with it. layout: of the indices, and of
// self where they do not index it.
template <typename I>
kernel void scatter_places(device long* places [[buffer(0)]], constant I* indices [[buffer(1)]],
                           constant ScatterPlacesParameters& p [[buffer(2)]],
                           constant StridedLayout<2>& layout [[buffer(3)]],
                           device ErrorMessages* errors [[buffer(4)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t item = thread_index(position, grid);
  if (item >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(item, layout);
  const int64_t before = p.adds != 0 ? places[item] : offsets[1];
  const int64_t place = place_of(element_at(indices, offsets[0]), p, errors);
  places[item] = before < 0 || place < 0 ? -1 : before + place;
}

// layout: of the output, of the indices, and of self without the dimension.
template <typename T, typename I>
kernel void scatter_gather(device T* output [[buffer(0)]], constant T* self [[buffer(1)]],
                           constant I* indices [[buffer(2)]],
                           constant ScatterPlacesParameters& p [[buffer(3)]],
                           constant StridedLayout<3>& layout [[buffer(4)]],
                           device ErrorMessages* errors [[buffer(5)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(element, layout);
  const int64_t place = place_of(element_at(indices, offsets[1]), p, errors);
  element_at(output, offsets[0]) = place < 0 ? T(0) : element_at(self, offsets[2] + place);
}

// The item, or the span of items, of a thread, and the element of the item's row.
struct ScatterPart {
  int64_t item;
  int64_t column;
};

inline ScatterPart scatter_part(int64_t thread_index, int64_t items, int64_t columns,
                                bool items_first) {
  const int64_t fast = items_first ? items : columns;
  const int64_t slow = quotient(thread_index, fast, items * columns);
  const int64_t rest = thread_index - slow * fast;
  return items_first ? ScatterPart{rest, slow} : ScatterPart{slow, rest};
}

// Copies items to their places. items: the layout of their first elements in the source; columns:
// that of the elements of an item, in self and the source, or of packs of p.pack adjacent ones,
// which are 16 bytes.
template <typename T>
kernel void scatter_copy(device T* self [[buffer(0)]], constant T* source [[buffer(1)]],
                         device const long* places [[buffer(2)]],
                         device const long* order [[buffer(3)]],
                         constant ScatterParameters& p [[buffer(4)]],
                         constant StridedLayout<1>& items [[buffer(5)]],
                         constant StridedLayout<2>& columns [[buffer(6)]],
                         uint2 position [[thread_position_in_grid]],
                         uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= p.items * columns.count) {
    return;
  }
  const auto part = scatter_part(index, p.items, columns.count, p.items_first != 0);
  const int64_t place = places[part.item];
  const bool is_last =
      p.is_sorted == 0 || part.item + 1 == p.items || places[part.item + 1] != place;
  if (place < 0 || !is_last) {
    return;
  }
  const auto offsets = offsets_of(part.column, columns);
  const auto item = offsets_of(p.is_sorted != 0 ? order[part.item] : part.item, items);
  const int64_t to = place + offsets[0];
  const int64_t from = item[0] + offsets[1];
  if (p.pack == 1) {
    element_at(self, to) = element_at(source, from);
  } else if (place % 16 == 0) {
    element_at(reinterpret_cast<device uint4*>(self), to) =
        element_at(reinterpret_cast<constant uint4*>(source), from);
  } else {
    for (int64_t byte = 0; byte < 16; byte += sizeof(T)) {
      element_at(self, to + byte) = element_at(source, from + byte);
    }
  }
}

// Replaces an element by a value that is larger, or smaller. NaN is larger and smaller than all
// numbers, zero larger than -0.
inline void atomic_extremum(device int* to, int value, bool is_maximum) {
  device atomic_int* const element = reinterpret_cast<device atomic_int*>(to);
  if (is_maximum) {
    atomic_fetch_max_explicit(element, value, memory_order_relaxed);
  } else {
    atomic_fetch_min_explicit(element, value, memory_order_relaxed);
  }
}
inline void atomic_extremum(device float* to, float value, bool is_maximum) {
  device atomic_uint* const element = reinterpret_cast<device atomic_uint*>(to);
  const float before = as_type<float>(atomic_load_explicit(element, memory_order_relaxed));
  // Most items change nothing. A NaN of self may have the sign with which it compares as the least.
  if (isnan(before) || (is_maximum ? before > value : before < value)) {
    return;
  }
  const uint nan = is_maximum ? 0x7fc00000u : 0xffc00000u;
  const uint bits = isnan(value) ? nan : as_type<uint>(value);
  // As signed integers, numbers that are not negative are larger than negative ones and in order;
  // as unsigned integers, negative numbers are larger than others and in the opposite order.
  if (static_cast<int>(bits) >= 0) {
    atomic_extremum(reinterpret_cast<device int*>(to), static_cast<int>(bits), is_maximum);
  } else if (is_maximum) {
    atomic_fetch_min_explicit(element, bits, memory_order_relaxed);
  } else {
    atomic_fetch_max_explicit(element, bits, memory_order_relaxed);
  }
}

// Functors that reduce an element with a value by an atomic operation.
struct AddAtomically {
  template <typename T>
  inline void operator()(device T* to, T value, int32_t) const {
    typedef c10::metal::AtomicType<T> Atomic;
    Atomic::atomic_add(reinterpret_cast<device typename Atomic::type*>(to), 0, value);
  }
};
struct KeepExtremum {
  template <typename T>
  inline void operator()(device T* to, T value, int32_t operation) const {
    atomic_extremum(to, value, operation == kScatterMaximum);
  }
};

// Reduces items at their places by atomics.
template <typename T, typename Reduce>
kernel void scatter_atomically(device T* self [[buffer(0)]], constant T* source [[buffer(1)]],
                               device const long* places [[buffer(2)]],
                               constant ScatterParameters& p [[buffer(3)]],
                               constant StridedLayout<1>& items [[buffer(4)]],
                               constant StridedLayout<2>& columns [[buffer(5)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= p.items * columns.count) {
    return;
  }
  const auto part = scatter_part(index, p.items, columns.count, p.items_first != 0);
  const int64_t place = places[part.item];
  if (place < 0) {
    return;
  }
  const auto offsets = offsets_of(part.column, columns);
  Reduce()(&element_at(self, place + offsets[0]),
           element_at(source, offsets_of(part.item, items)[0] + offsets[1]), p.operation);
}

// ---- reductions ---------------------------------------------------------------------------------

// Values in the type in which they are reduced; integers have their sign, so that they can be
// compared.
template <typename T>
struct Reduced {
  using Type = long;
};
template <>
struct Reduced<float> {
  using Type = float;
};
template <>
struct Reduced<half> {
  using Type = float;
};
template <>
struct Reduced<bfloat> {
  using Type = float;
};
template <>
struct Reduced<float2> {
  using Type = float2;
};

inline float2 extremum(float2 a, float2, bool) { return a; }

inline long extremum(long a, long b, bool is_maximum) { return is_maximum ? max(a, b) : min(a, b); }

// NaN is larger and smaller than all numbers.
inline float extremum(float a, float b, bool is_maximum) {
  return isnan(a) || (is_maximum ? a > b : a < b) ? a : b;
}

// Integers wrap around.
inline long combined_sum(long a, long b) {
  return static_cast<long>(Sum::combine(static_cast<ulong>(a), static_cast<ulong>(b)));
}
inline float combined_sum(float a, float b) { return a + b; }
inline float2 combined_sum(float2 a, float2 b) { return a + b; }
inline long combined_product(long a, long b) {
  return static_cast<long>(Product::combine(static_cast<ulong>(a), static_cast<ulong>(b)));
}
inline float combined_product(float a, float b) { return a * b; }
inline float2 combined_product(float2 a, float2 b) { return Product::combine(a, b); }

template <typename A>
inline A combined(A a, A b, int32_t operation) {
  if (operation == kScatterSum) {
    return combined_sum(a, b);
  }
  return operation == kScatterProduct ? combined_product(a, b)
                                      : extremum(a, b, operation == kScatterMaximum);
}

inline float scaled(float a, float scale) { return a * scale; }
inline float2 scaled(float2 a, float scale) { return a * scale; }
inline long scaled(long a, float) { return a; }

inline float quotient_of(float sum, int64_t count) { return sum / static_cast<float>(count); }
inline float2 quotient_of(float2 sum, int64_t count) { return sum / static_cast<float>(count); }
inline long quotient_of(long sum, int64_t count) { return sum / count - (sum % count < 0 ? 1 : 0); }

// Writes what the items of a place are reduced to.
template <typename T, typename A>
inline void write_reduced(device T& self, A value, int64_t count, constant ScatterParameters& p) {
  A result = p.has_self != 0 ? combined(static_cast<A>(self), value, p.operation) : value;
  if (p.is_mean != 0) {
    result = quotient_of(result, count + p.has_self);
  }
  self = static_cast<T>(result);
}

// A thread's part of an item: adjacent elements.
template <typename A, int PACK>
struct ItemPack {
  A of[PACK];
};

template <typename A, int PACK>
inline void combine(thread ItemPack<A, PACK>& a, ItemPack<A, PACK> b, int32_t operation) {
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    a.of[e] = combined(a.of[e], b.of[e], operation);
  }
}

template <typename A, int PACK>
inline void put(device A* to, ItemPack<A, PACK> from) {
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    to[e] = from.of[e];
  }
}

template <typename T, typename A, int PACK>
inline void write_pack(device T* self, ItemPack<A, PACK> value, int64_t count,
                       constant ScatterParameters& p) {
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    write_reduced(self[e], value.of[e], count, p);
  }
}

// Loads one element, or four.
template <typename T, typename A>
inline void load_elements(thread A (&to)[1], constant T* source, int64_t offset) {
  to[0] = static_cast<A>(element_at(source, offset));
}
template <typename T, typename A>
inline void load_elements(thread A (&to)[4], constant T* source, int64_t offset) {
  const vec<T, 4> four = element_at(reinterpret_cast<constant vec<T, 4>*>(source), offset);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    to[e] = static_cast<A>(four[e]);
  }
}

// Loads a pack of item i of the sorted ones. offset: of the pack in its row, in bytes.
template <typename T, typename A, int PACK>
inline void load_item(thread ItemPack<A, PACK>& to, constant T* source, device const long* order,
                      device const long* rows, device const float* scales,
                      constant ScatterParameters& p, constant StridedLayout<1>& items, int64_t i,
                      int64_t offset) {
  const int64_t number = order[i];
  const int64_t from = offsets_of(p.has_rows != 0 ? rows[number] : number, items)[0] + offset;
  load_elements(to.of, source, from);
  if (p.has_scales != 0) {
#pragma unroll
    for (int e = 0; e < PACK; ++e) {
      to.of[e] = scaled(to.of[e], scales[number]);
    }
  }
}

// Reduces spans of sorted items. The runs that lie in one are written to self; what a span has of a
// run that begins before it, and of one that goes on behind it, are partial results for the next
// kernel. partials: those of all spans for runs that begin before, then those of all for runs that
// go on. columns: of packs of PACK adjacent elements.
template <typename T, int PACK>
kernel void scatter_spans(
    device T* self [[buffer(0)]], device typename Reduced<T>::Type* partials [[buffer(1)]],
    constant T* source [[buffer(2)]], device const long* places [[buffer(3)]],
    device const long* order [[buffer(4)]], constant ScatterParameters& p [[buffer(5)]],
    constant StridedLayout<1>& items [[buffer(6)]],
    constant StridedLayout<2>& columns [[buffer(7)]], device const long* rows [[buffer(8)]],
    device const float* scales [[buffer(9)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]]) {
  typedef ItemPack<typename Reduced<T>::Type, PACK> Pack;
  const int64_t index = thread_index(position, grid);
  if (index >= p.spans * columns.count) {
    return;
  }
  const auto part = scatter_part(index, p.spans, columns.count, p.items_first != 0);
  const auto offsets = offsets_of(part.column, columns);
  const int64_t first = part.item * kScatterSpan;
  const int64_t end = min(first + kScatterSpan, p.items);
  device typename Reduced<T>::Type* const partial =
      partials + (part.item * columns.count + part.column) * PACK;
  bool begins_before = first > 0 && places[first - 1] == places[first];
  int64_t begin = first;
  Pack value;
  Pack next;
  load_item(next, source, order, rows, scales, p, items, first, offsets[1]);
  for (int64_t i = first; i < end; ++i) {
    const Pack now = next;
    // Loaded before what follows waits for places: most of the time is that of loads.
    if (i + 1 < end) {
      load_item(next, source, order, rows, scales, p, items, i + 1, offsets[1]);
    }
    if (i == begin) {
      value = now;
    } else {
      combine(value, now, p.operation);
    }
    const int64_t place = places[i];
    if (i + 1 < p.items && places[i + 1] == place) {
      if (i + 1 == end) {
        put(partial + (begins_before ? 0 : p.spans * columns.count * PACK), value);
      }
      continue;
    }
    if (begins_before) {
      put(partial, value);
    } else if (place >= 0) {
      write_pack(&element_at(self, place + offsets[0]), value, i + 1 - begin, p);
    }
    begins_before = false;
    begin = i + 1;
  }
}

template <typename A, int PACK>
inline void get(thread ItemPack<A, PACK>& to, device const A* from) {
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    to.of[e] = from[e];
  }
}

// Combines the partial results of the run that begins in a span and goes on behind it. columns: of
// packs, as before.
template <typename T, int PACK>
kernel void scatter_runs(device T* self [[buffer(0)]],
                         device const typename Reduced<T>::Type* partials [[buffer(1)]],
                         device const long* places [[buffer(2)]],
                         constant ScatterParameters& p [[buffer(3)]],
                         constant StridedLayout<2>& columns [[buffer(4)]],
                         uint2 position [[thread_position_in_grid]],
                         uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= p.spans * columns.count) {
    return;
  }
  const auto part = scatter_part(index, p.spans, columns.count, p.items_first != 0);
  int64_t begin = part.item * kScatterSpan;
  int64_t end = begin + kScatterSpan;
  if (end >= p.items) {
    return;
  }
  const int64_t place = places[end];
  const bool begins_here = begin == 0 || places[begin - 1] != place;
  if (place < 0 || places[end - 1] != place || !begins_here) {
    return;
  }
  while (places[begin] != place) {
    ++begin;
  }
  ItemPack<typename Reduced<T>::Type, PACK> value;
  get(value, partials + ((p.spans + part.item) * columns.count + part.column) * PACK);
  for (int64_t span = part.item + 1; end < p.items && places[end] == place; ++span) {
    ItemPack<typename Reduced<T>::Type, PACK> next;
    get(next, partials + (span * columns.count + part.column) * PACK);
    combine(value, next, p.operation);
    const int64_t next_end = min(end + kScatterSpan, p.items);
    if (places[next_end - 1] != place) {
      while (places[end] == place) {
        ++end;
      }
      break;
    }
    end = next_end;
  }
  const auto offsets = offsets_of(part.column, columns);
  write_pack(&element_at(self, place + offsets[0]), value, end - begin, p);
}

REGISTER_KERNEL("scatter_places_long", scatter_places, long);
REGISTER_KERNEL("scatter_places_int", scatter_places, int);
REGISTER_KERNEL("scatter_add_float", scatter_atomically, float, AddAtomically);
REGISTER_KERNEL("scatter_add_int", scatter_atomically, int, AddAtomically);
REGISTER_KERNEL("scatter_extremum_float", scatter_atomically, float, KeepExtremum);
REGISTER_KERNEL("scatter_extremum_int", scatter_atomically, int, KeepExtremum);

#define REGISTER_WIDTH(T)                                                 \
  REGISTER_KERNEL("scatter_copy_" #T, scatter_copy, T);                   \
  REGISTER_KERNEL("scatter_gather_" #T "_long", scatter_gather, T, long); \
  REGISTER_KERNEL("scatter_gather_" #T "_int", scatter_gather, T, int)

REGISTER_WIDTH(uchar);
REGISTER_WIDTH(short);
REGISTER_WIDTH(int);
REGISTER_WIDTH(long);

#define REGISTER_REDUCTION(T)                                \
  REGISTER_KERNEL("scatter_spans_" #T, scatter_spans, T, 1); \
  REGISTER_KERNEL("scatter_runs_" #T, scatter_runs, T, 1)

REGISTER_REDUCTION(float);
REGISTER_REDUCTION(half);
REGISTER_REDUCTION(bfloat);
REGISTER_REDUCTION(float2);
REGISTER_REDUCTION(long);
REGISTER_REDUCTION(int);
REGISTER_REDUCTION(short);
REGISTER_REDUCTION(char);
REGISTER_REDUCTION(uchar);
REGISTER_REDUCTION(bool);

#define REGISTER_PACKS(T)                                          \
  REGISTER_KERNEL("scatter_spans_packs_" #T, scatter_spans, T, 4); \
  REGISTER_KERNEL("scatter_runs_packs_" #T, scatter_runs, T, 4)

REGISTER_PACKS(float);
REGISTER_PACKS(half);
REGISTER_PACKS(bfloat);

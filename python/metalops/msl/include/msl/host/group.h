// Work-item loops: one CPU thread runs all threads of a threadgroup, statement by statement.
// Emitted code for the group engine uses this header.
//
// A kernel that synchronises is split at the synchronising calls (region splitting, as in pocl).
// Each region runs as a work-item loop over the threads of the group (each()), which compilers
// vectorise. Varying values that live across regions are privatised: kept for every thread in
// context arrays (Lanes), arrays mostly element by element (Spread). Uniform values are plain
// variables. Where threads diverge, a Mask says which of them are active.
#pragma once

#include <msl/host/launch.h>
#include <msl/simdgroup_matrix.h>

#define MSL_LANE_LOOP __attribute__((always_inline))

namespace msl::msl_support {

// The thread that a work-item loop is at, with only the indices that the loop's body uses: if the
// linear index is enough, loops need not go row by row.
struct Numbered {
  u32 index;  // thread_index_in_threadgroup
  u64 slot;   // the same, as an index into Lanes that compilers need not expect to wrap
  u32 lane;   // thread_index_in_simdgroup, in loops of one simdgroup (one_simdgroup.h)
  // Returns index number K of a loop's body.
  template <u32 K, class T>
  MSL_INLINE T place(T index) const {
    return index;
  }
};
struct InRow : Numbered {
  u32 x;  // thread_position_in_threadgroup
};
struct Lane : InRow {
  u32 y, z;
};
// The thread in a strided loop in which all indices grow with the loop variable. It shows compilers
// that adjacent threads access adjacent memory: a 32-bit index that is the sum of a uniform value
// and the thread's index might wrap between two threads.
template <class L>
struct Striding : L {
  const u64* first;  // the indices at the beginning of the loop
  u64 offset;        // distance from the beginning
  template <u32 K, class T>
  MSL_INLINE u64 place(T) const {
    return first[K] + offset;
  }
};

constexpr u32 kMaxSimdgroups = 32;
constexpr u32 kMaxThreads = kMaxSimdgroups * abi::kSimdWidth;

// The threads that were at the last threadgroup barrier, if that was not all of them.
struct Barriers {
  bool missed = false;        // some threads did not reach a barrier
  u32 site;                   // of the last barrier that some threads did not reach
  u32 words[kMaxSimdgroups];  // like those of a Mask
};

// The threads of the running group.
struct Threads {
  const Launch* launch;
  abi::Group* group;
  abi::Scratch* scratch;
  u32 count;
  mutable Barriers barriers;

  MSL_INLINE Threads(const Launch* of, abi::Group* in, abi::Scratch* with)
      : launch(of), group(in), scratch(with), count(volume(in->size)) {}
  MSL_INLINE u32 simdgroups() const { return divide_up(count, abi::kSimdWidth); }
  // Returns the lanes of a simdgroup that exist.
  MSL_INLINE u32 present(u32 simdgroup) const {
    const u32 left = count - simdgroup * abi::kSimdWidth;
    return left >= abi::kSimdWidth ? ~0u : (1u << left) - 1u;
  }
};

// ---- masks --------------------------------------------------------------------------------------

// The mask of all threads of the group.
struct Everyone {
  static MSL_INLINE u32 word(const Threads& threads, u32 simdgroup) {
    return threads.present(simdgroup);
  }
};

struct Mask {
  u32 words[kMaxSimdgroups];  // a bit per lane, by simdgroup
  u32 simdgroups;

  explicit Mask(const Threads& threads) : simdgroups(threads.simdgroups()) {}
  template <class M>
  Mask(const Threads& threads, const M& from) : Mask(threads) {
    for (u32 s = 0; s < simdgroups; ++s) words[s] = from.word(threads, s);
  }
  MSL_INLINE u32 word(const Threads&, u32 simdgroup) const { return words[simdgroup]; }
  bool any() const {
    u32 all = 0;
    for (u32 s = 0; s < simdgroups; ++s) all |= words[s];
    return all != 0;
  }
  void remove(const Mask& other) {
    for (u32 s = 0; s < simdgroups; ++s) words[s] &= ~other.words[s];
  }
  void add(const Mask& other) {
    for (u32 s = 0; s < simdgroups; ++s) words[s] |= other.words[s];
  }
  void clear() {
    for (u32 s = 0; s < simdgroups; ++s) words[s] = 0;
  }
};

// The threads of a mask that are lane `lane` of their simdgroup.
template <class M>
struct OfEverySimdgroup {
  const Threads& threads;
  const M& mask;
  u64 lane;

  MSL_INLINE u32 word(const Threads&, u32 simdgroup) const {
    return lane < abi::kSimdWidth ? mask.word(threads, simdgroup) & (1u << lane) : 0;
  }
  MSL_INLINE bool any() const {
    u32 all = 0;
    for (u32 s = 0; s < threads.simdgroups(); ++s) all |= word(threads, s);
    return all != 0;
  }
};
template <class M>
MSL_INLINE OfEverySimdgroup<M> of_every_simdgroup(const Threads& threads, const M& mask, u64 lane) {
  return {threads, mask, lane};
}
// Returns the threads of a mask in simdgroup number `simdgroup`.
template <class M>
MSL_INLINE Mask of_simdgroup(const Threads& threads, const M& mask, u64 simdgroup) {
  Mask only(threads);
  only.clear();
  if (simdgroup < only.simdgroups) only.words[simdgroup] = mask.word(threads, u32(simdgroup));
  return only;
}
// Returns the thread of a mask with index `index` in the group.
template <class M>
MSL_INLINE Mask of_index(const Threads& threads, const M& mask, u64 index) {
  Mask only(threads);
  only.clear();
  if (index < threads.count) {
    const u32 s = u32(index) / abi::kSimdWidth;
    only.words[s] = mask.word(threads, s) & (1u << (u32(index) & kSimdMask));
  }
  return only;
}
// Returns the threads of a mask at x.
template <class M>
MSL_INLINE Mask of_x(const Threads& threads, const M& mask, u64 x) {
  const u32 width = threads.group->size[0];
  Mask only(threads);
  only.clear();
  for (u64 index = x; x < width && index < threads.count; index += width) {
    const u32 s = u32(index) / abi::kSimdWidth;
    only.words[s] |= mask.word(threads, s) & (1u << (u32(index) & kSimdMask));
  }
  return only;
}

// A mask for shuffles, and the threads that have the variable which is shuffled, active or not.
template <class M, class K>
struct Shuffling {
  const M& mask;
  const K& known;
  MSL_INLINE u32 word(const Threads& threads, u32 simdgroup) const {
    return mask.word(threads, simdgroup);
  }
};
template <class M, class K>
MSL_INLINE Shuffling<M, K> shuffling(const M& mask, const K& known) {
  return {mask, known};
}
// Returns the lanes of a simdgroup that pass an operand.
template <class M>
MSL_INLINE u32 known_lanes(const M&, const Threads&, u32, u32 active) {
  return active;
}
template <class M, class K>
MSL_INLINE u32 known_lanes(const Shuffling<M, K>& mask, const Threads& threads, u32 simdgroup,
                           u32 active) {
  return active | mask.known.word(threads, simdgroup);
}

// A run of consecutive active threads: the remainder of [at, end), and of that the part [first,
// last) in the row at (y, z).
struct Run {
  u32 first, last, y, z;
  u32 base;         // the index of the row's thread at x = 0
  u32 at, end;      // across rows
  u32 count;        // only threads before this one are visited
  const u32* bits;  // words of the mask
};

// Not inlined: these calls surround the loops that matter, and would make them slow to compile.
__attribute__((noinline)) inline bool next_run(Run& run) {
  if (run.end >= run.count) return false;
  u32 s = run.end / 32;
  u32 bits = run.bits[s] & (~0u << (run.end & 31));
  while (bits == 0) {
    if (++s * 32 >= run.count) return false;
    bits = run.bits[s];
  }
  run.at = s * 32 + u32(__builtin_ctz(bits));
  u32 off = ~(run.bits[s] >> (run.at & 31));
  run.end = run.at + (off == 0 ? 32 : u32(__builtin_ctz(off)));
  if ((run.end & 31) == 0) {
    for (s = run.end / 32; s * 32 < run.count && run.bits[s] == ~0u;) ++s;
    run.end = s * 32;
    if (run.end < run.count) run.end += u32(__builtin_ctz(~run.bits[s]));
  }
  if (run.end > run.count) run.end = run.count;
  return run.at < run.end;
}
__attribute__((noinline)) inline bool next_run_of_row(Run& run, const u32* size) {
  if (run.at == run.end && !next_run(run)) return false;
  const u32 row = size[1] * size[2] == 1 ? 0 : run.at / size[0];
  run.base = row * size[0];
  run.z = row < size[1] ? 0 : row / size[1];
  run.y = row - run.z * size[1];
  run.first = run.at - run.base;
  run.last = run.end - run.base < size[0] ? run.end - run.base : size[0];
  run.at = run.base + run.last;
  return true;
}

// ---- barriers -----------------------------------------------------------------------------------

// Checks that the threads of a mask, which reach a threadgroup barrier, were all at the previous
// one. There is nothing to wait for, because they have all run the code before it; but a thread
// that misses a barrier must not reach a later one: it may only return.
template <class M>
__attribute__((noinline)) void check_barrier(const Threads& threads, const M& mask, u32 site) {
  Barriers& barriers = threads.barriers;
  const u32 simdgroups = threads.simdgroups();
  if (!barriers.missed) {
    for (u32 s = 0; s < simdgroups; ++s) barriers.words[s] = threads.present(s);
  }
  bool fewer = false;
  for (u32 s = 0; s < simdgroups; ++s) {
    const u32 here = mask.word(threads, s), before = barriers.words[s];
    fewer |= here != before;
    if (__builtin_expect((here & ~before) != 0, 0)) {
      u32 other = s;
      if (before == 0) {
        for (other = 0; barriers.words[other] == 0;) ++other;
      }
      msl_runtime->different_barriers(s, {site, 0}, other, {barriers.site, 0});
    }
  }
  if (!fewer) return;
  for (u32 s = 0; s < simdgroups; ++s) barriers.words[s] = mask.word(threads, s);
  barriers.site = site;
  barriers.missed = true;
}
MSL_INLINE void barrier(const Threads& threads, const Everyone& mask, u32 site) {
  if (__builtin_expect(threads.barriers.missed, 0)) check_barrier(threads, mask, site);
}
MSL_INLINE void barrier(const Threads& threads, const Mask& mask, u32 site) {
  check_barrier(threads, mask, site);
}

// ---- work-item loops ----------------------------------------------------------------------------

// The indices that a loop's body takes.
template <class F, class L>
constexpr auto takes(int) -> decltype(void(made_up<const F&>()(L())), true) {
  return true;
}
template <class F, class L>
constexpr bool takes(...) {
  return false;
}
template <class F>
using lane_for = metal::conditional_t<takes<F, Numbered>(0), Numbered,
                                      metal::conditional_t<takes<F, InRow>(0), InRow, Lane>>;

// Runs f(lane(i)) for the threads [first, last). Independent: no two threads have conflicting
// memory accesses, so compilers need not check.
template <bool Independent, class L, class F>
MSL_INLINE void along(u64 first, u64 last, const L& lane, const F& f) {
  if (first > kMaxThreads || last > kMaxThreads) __builtin_unreachable();
  if constexpr (Independent) {
    MSL_INDEPENDENT
    for (u64 i = first; i < last; ++i) f(lane(i));
  } else {
    for (u64 i = first; i < last; ++i) f(lane(i));
  }
}
// Runs f for the threads [first, last) in x of the row at (y, z). base: the index of the thread at
// x = 0.
template <bool Independent, class F>
MSL_INLINE void along_row(u64 first, u64 last, u32 y, u32 z, u64 base, const F& f) {
  if (base > kMaxThreads) __builtin_unreachable();
  along<Independent>(
      first, last, [=](u64 x) { return Lane{{{u32(base + x), base + x}, u32(x)}, y, z}; }, f);
}
// Runs f for the threads of a group that is a column, one thread wide.
template <bool Independent, class F>
MSL_INLINE void along_column(u64 first, u64 last, const F& f) {
  along<Independent>(first, last, [](u64 y) { return Lane{{{u32(y), y}, 0}, u32(y), 0}; }, f);
}
MSL_INLINE bool is_column(const u32* size) { return size[0] == 1 && size[2] == 1; }

// Runs f(lane) for the threads of a mask with an index below `count`.
template <bool Independent, class F>
MSL_INLINE void each(const Threads& threads, const Everyone&, u32 count, const F& f) {
  if constexpr (__is_same(lane_for<F>, Numbered)) {
    along<Independent>(0, count, [](u64 i) { return Numbered{u32(i), i}; }, f);
  } else {
    const u32* const size = threads.group->size;
    if constexpr (__is_same(lane_for<F>, Lane)) {
      if (is_column(size)) return along_column<Independent>(0, count, f);
    }
    const u32 width = size[0], height = size[1];
    u32 y = 0, z = 0;
    for (u32 base = 0; base < count; base += width) {
      const u32 left = count - base;
      along_row<Independent>(0, left < width ? left : width, y, z, base, f);
      if (++y == height) {
        y = 0;
        ++z;
      }
    }
  }
}
template <bool Independent, class F>
MSL_INLINE void each(const Threads& threads, const Mask& mask, u32 count, const F& f) {
  const u32* const size = threads.group->size;
  Run run;
  run.at = run.end = 0;
  run.count = count;
  run.bits = mask.words;
  if constexpr (__is_same(lane_for<F>, Numbered)) {
    while (next_run(run)) {
      along<Independent>(run.at, run.end, [](u64 i) { return Numbered{u32(i), i}; }, f);
    }
  } else {
    if constexpr (__is_same(lane_for<F>, Lane)) {
      if (is_column(size)) {
        while (next_run(run)) along_column<Independent>(run.at, run.end, f);
        return;
      }
    }
    while (next_run_of_row(run, size)) {
      along_row<Independent>(run.first, run.last, run.y, run.z, run.base, f);
    }
  }
}
// Too few threads for vectors: a scalar loop.
template <bool Independent, class M, class F>
MSL_INLINE void each(const Threads& threads, const OfEverySimdgroup<M>& mask, u32 count,
                     const F& f) {
  const u32 width = threads.group->size[0], height = threads.group->size[1];
  for (u32 s = 0; s < threads.simdgroups(); ++s) {
    const u32 index = s * abi::kSimdWidth + u32(mask.lane);
    if (mask.word(threads, s) == 0 || index >= count) continue;
    const u32 row = width == threads.count ? 0 : index / width;
    const u32 z = row < height ? 0 : row / height;
    f(Lane{{{index, index}, index - row * width}, row - z * height, z});
  }
}
template <bool Independent, class M, class F>
MSL_INLINE void each(const Threads& threads, const M& mask, const F& f) {
  each<Independent>(threads, mask, threads.count, f);
}

// Context array: a value for every thread of the group. Memory is released in reverse order (a
// stack).
template <class T>
class Lanes {
 public:
  typedef T type;

  MSL_INLINE explicit Lanes(const Threads& threads)
      // Padded, so that variables of large groups do not all fall into the same cache sets.
      : Lanes(threads, (u64(threads.count) * sizeof(T) + 191) / 64 * 64) {}
  // bytes: a multiple of 64.
  MSL_INLINE Lanes(const Threads& threads, u64 bytes) : scratch_(threads.scratch) {
    u8* const start = scratch_->next;
    if (__builtin_expect(bytes > u64(scratch_->end - start), 0)) {
      msl_runtime->fail("the variables of a threadgroup's threads need too much memory");
    }
    scratch_->next = start + bytes;
    data_ = reinterpret_cast<T*>(start);
  }
  MSL_INLINE Lanes(Lanes&& other) : scratch_(other.scratch_), data_(other.data_) {
    other.data_ = nullptr;
  }
  Lanes(const Lanes&) = delete;
  MSL_INLINE ~Lanes() {
    if (data_ != nullptr) scratch_->next = reinterpret_cast<u8*>(data_);
  }

  MSL_INLINE T& operator[](u64 index) const { return data_[index]; }

 private:
  abi::Scratch* scratch_;
  T* data_;
};

// The result of a function that returns void.
struct Nothing {
  MSL_INLINE const Nothing& operator[](u32) const { return *this; }
};

// Accessors of a value for work-item loops and calls: small, and kept in registers.
template <class T>
MSL_INLINE T* at(const Lanes<T>& lanes) {
  return &lanes[0];
}
template <class T>
struct Same {
  T& value;
  MSL_INLINE T& operator[](u64) const { return value; }
};
template <class T>
MSL_INLINE Same<T> same(T& value) {
  return {value};
}
template <class T>
struct Referred {
  T* const* pointers;
  MSL_INLINE T& operator[](u64 index) const { return *pointers[index]; }
};
template <class T>
MSL_INLINE Referred<T> referred(const Lanes<T*>& pointers) {
  return {&pointers[0]};
}
template <class A>
MSL_INLINE A at(A accessor) {
  return accessor;
}

// One thread's share of an array (of arrays) A that is stored element by element (structure of
// arrays): element i of all threads is contiguous. Elements are `stride` apart.
template <class A>
struct element_of {
  typedef A type;
};
template <class A, auto N>
struct element_of<A[N]> : element_of<A> {};
template <class A>
struct Elements;
template <class A, auto N>
struct Elements<A[N]> {
  typedef typename element_of<A>::type T;
  T* first;
  u64 stride;
  MSL_INLINE decltype(auto) operator[](u64 index) const {
    if constexpr (__is_same(A, T)) {
      return (first[index * stride]);
    } else {
      return Elements<A>{first + index * stride * (sizeof(A) / sizeof(T)), stride};
    }
  }
};
template <class A>
struct ElementsAt {
  typename element_of<A>::type* data;
  u64 stride;
  MSL_INLINE Elements<A> operator[](u64 index) const { return {data + index, stride}; }
};
// A privatised array for every thread of the group.
template <class A>
class Spread {
 public:
  typedef typename element_of<A>::type T;

  MSL_INLINE explicit Spread(const Threads& threads)
      : stride_(apart(threads.count)), lanes_(threads, (u64(stride_) * sizeof(A) + 63) / 64 * 64) {}
  MSL_INLINE Elements<A> operator[](u64 index) const { return {&lanes_[index], stride_}; }
  MSL_INLINE ElementsAt<A> accessor() const { return {&lanes_[0], stride_}; }

 private:
  // Padded, so that elements of large groups do not all fall into the same cache sets.
  static MSL_INLINE u32 apart(u32 count) {
    const u32 rounded = (count + 15) / 16 * 16;
    return rounded % 64 == 0 ? rounded + 16 : rounded;
  }
  u32 stride_;
  Lanes<T> lanes_;
};
template <class A>
MSL_INLINE ElementsAt<A> at(const Spread<A>& spread) {
  return spread.accessor();
}

// A local copy of a thread's array during an iteration of a work-item loop: it does not escape, so
// compilers keep it in registers.
template <class A, bool IsSmall = (sizeof(A) <= 512)>
struct Taken {
  A& from;
  A array;

  MSL_INLINE explicit Taken(A& kept) : from(kept) { __builtin_memcpy(array, kept, sizeof(A)); }
  Taken(const Taken&) = delete;
  MSL_INLINE ~Taken() { __builtin_memcpy(from, array, sizeof(A)); }
};
template <class A>
struct Taken<A, false> {
  A& array;

  MSL_INLINE explicit Taken(A& kept) : array(kept) {}
};
template <class A>
Taken(A&) -> Taken<A>;
// A local copy of a variable that is no array.
template <class A>
struct Local {
  A& from;
  A value;

  MSL_INLINE explicit Local(A& kept) : from(kept), value(kept) {}
  Local(const Local&) = delete;
  MSL_INLINE ~Local() {
    __builtin_memcpy(static_cast<void*>(&from), static_cast<const void*>(&value), sizeof(A));
  }
};
template <class A>
Local(A&) -> Local<A>;

template <class... A>
struct Pack {
  template <class F, class... B>
  MSL_INLINE decltype(auto) apply(u64, const F& f, B&... before) const {
    return f(before...);
  }
};
template <class A, class... R>
struct Pack<A, R...> {
  A first;
  Pack<R...> rest;
  template <u32 I>
  MSL_INLINE auto get() const {
    if constexpr (I == 0) {
      return first;
    } else {
      return rest.template get<I - 1>();
    }
  }
  // Calls f with the arguments of one thread.
  template <class F, class... B>
  MSL_INLINE decltype(auto) apply(u64 index, const F& f, B&... before) const {
    return rest.apply(index, f, before..., first[index]);
  }
};
MSL_INLINE Pack<> pack() { return {}; }
template <class A, class... R>
MSL_INLINE Pack<A, R...> pack(A first, R... rest) {
  return {first, pack(rest...)};
}

// How the arguments of a call vary: 0 for uniform, 1 for varying.
template <u32... Kind>
struct Kinds {};

template <class T>
T decayed(T);
template <class T>
using decayed_t = decltype(decayed(made_up<T>()));
template <class T>
struct without_const {
  typedef T type;
};
template <class T>
struct without_const<const T> {
  typedef T type;
};
template <class T, auto N>
struct without_const<const T[N]> {
  typedef T type[N];
};
template <class T>
using variable = Lanes<typename without_const<T>::type>;
template <class A>
using spread = Spread<typename without_const<A>::type>;

// The context array for a function's result, or nothing.
struct NoLanes {
  MSL_INLINE explicit NoLanes(const Threads&) {}
};
MSL_INLINE int at(const NoLanes&) { return 0; }
template <class R>
struct meeting {
  typedef Lanes<R> lanes;
};
template <>
struct meeting<void> {
  typedef NoLanes lanes;
};

template <class T, class U>
MSL_INLINE void copy(T& to, const U& from) {
  static_assert(sizeof(T) == sizeof(U));
  __builtin_memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(T));
}
// Initialises a variable.
template <class T>
MSL_INLINE void put(T& to, const T& from) {
  if constexpr (__is_trivially_assignable(T&, const T&)) {
    to = from;
  } else {
    copy(to, from);
  }
}

// Computes f(lane) for every thread of the mask into a context array.
template <bool Independent, class M, class F>
MSL_INLINE auto evaluate(const Threads& threads, const M& mask, const F& f) {
  typedef decayed_t<decltype(f(Lane()))> T;
  Lanes<T> result(threads);
  T* const to = at(result);
  each<Independent>(threads, mask,
                    [=](lane_for<F> lane) MSL_LANE_LOOP { put(to[lane.slot], T(f(lane))); });
  return result;
}

// Default-initialises a variable that is declared without a value.
template <class T>
MSL_INLINE void begin(T& variable) {
  if constexpr (!__is_trivially_constructible(T)) {
    T begun;
    copy(variable, begun);
  }
}

template <class A, auto N, class B>
MSL_INLINE void copy(const Elements<A[N]>& to, const B (&from)[N]) {
  for (u64 i = 0; i < N; ++i) {
    copy(to[i], from[i]);
  }
}
template <class A, auto N>
MSL_INLINE void begin(const Elements<A[N]>& array) {
  if constexpr (!__is_trivially_constructible(typename element_of<A>::type)) {
    for (u64 i = 0; i < N; ++i) begin(array[i]);
  }
}

// Diverges: splits a mask by the condition f.
template <bool Independent, class M, class F>
MSL_INLINE void part(const Threads& threads, const M& mask, Mask& yes, Mask& no, const F& f) {
  const Lanes<u8> kept(threads);
  u8* const answers = at(kept);
  each<Independent>(threads, mask,
                    [&](lane_for<F> lane) MSL_LANE_LOOP { answers[lane.slot] = f(lane) ? 1 : 0; });
  for (u32 s = 0; s < yes.simdgroups; ++s) {
    const u32 lanes = mask.word(threads, s);
    const u32 bits = lanes == 0 ? 0 : msl_impl::gather_bits(&answers[s * 32]);
    yes.words[s] = lanes & bits;
    no.words[s] = lanes & ~bits;
  }
}

// Add to a mask the threads of `lanes` whose value is `label`; remove them.
template <class M, class T, class U>
MSL_INLINE void add_where(const Threads& threads, const M& lanes, Mask& mask, const T* values,
                          const U& label) {
  Mask yes(threads), no(threads);
  part<true>(threads, lanes, yes, no,
             [&](Numbered lane) MSL_LANE_LOOP { return values[lane.slot] == label; });
  mask.add(yes);
}
template <class T, class U>
MSL_INLINE void remove_where(const Threads& threads, Mask& mask, const T* values, const U& label) {
  Mask yes(threads), no(threads);
  part<true>(threads, mask, yes, no,
             [&](Numbered lane) MSL_LANE_LOOP { return values[lane.slot] == label; });
  mask.remove(yes);
}

// Consecutive threads, all of which are active.
struct Span {
  u64 first;
  u32 count;
};
struct WholeSimdgroup;
MSL_INLINE Span span_of(const Threads& threads, const Everyone&) { return {0, threads.count}; }
template <bool Independent, class F>
MSL_INLINE void each_at_first(const Threads& threads, const Everyone& mask, u64 count, const F& f) {
  each<Independent>(threads, mask, count < threads.count ? u32(count) : threads.count, f);
}

// Strided loop: `for (T i = start(lane); i < bound; i += step) body(lane, i)`. If consecutive
// threads start at consecutive values, the loops are interchanged: the threads of an iteration run
// side by side. L: the indices that start and body use. places(i, to): the indices that the body
// computes from i and takes from its lane, in order; see Striding. start is evaluated more than
// once.
template <bool Independent, u32 Places, class L, class M, class I, class B, class S, class P,
          class F>
MSL_INLINE void stride(const Threads& threads, const M& mask, const I& start, const B& bound,
                       const S& step, const P& places, const F& body) {
  typedef decayed_t<decltype(start(Lane()))> T;
  constexpr bool kIsSimdgroup = __is_same(M, WholeSimdgroup) && __is_same(L, Numbered);
  if constexpr ((__is_same(M, Everyone) || kIsSimdgroup) && metal::is_integral_v<T> &&
                metal::is_integral_v<B> && metal::is_integral_v<S>) {
    // Half of the variable's range: up to here it cannot wrap.
    constexpr u64 kFar = sizeof(T) >= 4 ? 0x7fffffff : (u64(1) << (sizeof(T) * 8 - 1)) - 1;
    const Span span = span_of(threads, mask);
    const T base = start(Lane{{{u32(span.first), span.first}, 0}, 0, 0});
    u64 differ = 0;  // nonzero if the threads do not start at consecutive values
    each<false>(threads, mask, [&](L lane) MSL_LANE_LOOP {
      differ |= u64(T(start(lane) - base)) ^ (lane.slot - span.first);
    });
    if (differ == 0 && base >= 0 && base < bound && step > 0 && u64(bound) <= kFar &&
        u64(step) <= kFar && u64(bound) + u64(step) + span.count <= kFar) {
      const u64 length = u64(bound) - u64(base);
      u64 first[Places + 1], last[Places + 1];
      places(base, first);
      places(T(base + T(length - 1)), last);
      bool grow = true;
      for (u32 k = 0; k < Places; ++k) grow &= last[k] - first[k] == length - 1;
      if (__builtin_expect(grow, 1)) {
        for (u64 done = 0; done < length; done += u64(step)) {
          each_at_first<Independent>(threads, mask, length - done, [&](L lane) MSL_LANE_LOOP {
            const u64 at = done + (lane.slot - span.first);
            body(Striding<L>{lane, first, at}, T(u64(base) + at));
          });
        }
        return;
      }
    }
  }
  each<Independent>(threads, mask, [&](L lane) MSL_LANE_LOOP {
    for (T i = start(lane); i < bound; i += step) body(lane, i);
  });
}

// Calls f(index, site) for every thread, where f is a simdgroup function that calls together().
template <class M, class F>
MSL_INLINE auto meet(const Threads& threads, const M& mask, const F& f) {
  using msl_impl::Capture, msl_impl::Completion, msl_impl::Replay;
  typedef decltype(f(u64(0), Replay())) Result;
  constexpr bool kHasResult = !__is_same(Result, void);
  typename meeting<Result>::lanes kept(threads);
  const auto results = at(kept);
  for (u32 s = 0; s < threads.simdgroups(); ++s) {
    const u32 mine = mask.word(threads, s);
    if (mine == 0) continue;
    const u64 first = u64(s) * abi::kSimdWidth;
    msl_impl::Gathered gathered;
    const auto replay = [&](u32 lane) MSL_LANE_LOOP {
      if constexpr (kHasResult) {
        results[first + lane] = f(first + lane, Replay{&gathered, lane});
      } else {
        f(first + lane, Replay{&gathered, lane});
      }
    };
    if (mine == ~0u) {
      MSL_INDEPENDENT MSL_NOT_UNROLLED for (u32 lane = 0; lane < 32; ++lane)
          f(first + lane, Capture{&gathered, lane});
      f(first, Completion{&gathered, mine, mine});
      MSL_INDEPENDENT MSL_NOT_UNROLLED for (u32 lane = 0; lane < 32; ++lane) replay(lane);
    } else {
      const u32 known = known_lanes(mask, threads, s, mine);
      msl_impl::for_lanes(known, [&](u32 lane) { f(first + lane, Capture{&gathered, lane}); });
      f(first + u32(__builtin_ctz(mine)), Completion{&gathered, mine, known});
      msl_impl::for_lanes(mine, replay);
    }
  }
  return kept;
}
// Calls a function that needs its lane but does not synchronise.
template <class M, class F>
MSL_INLINE void with_lane(const Threads& threads, const M& mask, const F& f) {
  for (u32 s = 0; s < threads.simdgroups(); ++s) {
    msl_impl::for_lanes(mask.word(threads, s),
                        [&](u32 lane) { f(s * abi::kSimdWidth + lane, lane); });
  }
}

// ---- matrices of whole simdgroups ---------------------------------------------------------------

// Calls f(first thread) for each simdgroup whose lanes are all active. Returns the active threads
// for which f returned false, or was not called.
template <class M, class F>
MSL_INLINE Mask in_full_simdgroups(const Threads& threads, const M& mask, const F& f) {
  Mask rest(threads, mask);
  for (u32 s = 0; s < rest.simdgroups; ++s) {
    if (rest.words[s] == ~0u && f(s * abi::kSimdWidth)) rest.words[s] = 0;
  }
  return rest;
}

// Returns 32 threads' values as an array; copies them to `copies` if they are not contiguous.
template <class T>
MSL_INLINE T* side_by_side(T* kept, u32 first, decayed_t<T>*) {
  return kept + first;
}
template <class A, class T>
MSL_INLINE T* side_by_side(const A& accessor, u32 first, T* copies) {
  for (u32 lane = 0; lane < 32; ++lane) copies[lane] = accessor[first + lane];
  return copies;
}
template <class A>
using value_of = decayed_t<decltype(made_up<A&>()[0])>;

// D = A B, or D = A B + C.
template <class D, class A, class B, class... C>
MSL_INLINE void multiply(u32 first, const D& d, const Pack<A, B, C...>& pack) {
  msl_impl::MatrixRow a[8], b[8], sum[8] = {};
  const auto read = [&](const auto& accessor, msl_impl::MatrixRow* rows) MSL_LANE_LOOP {
    value_of<decltype(accessor)> copies[32];
    msl_impl::read_rows(side_by_side(accessor, first, copies), rows);
  };
  read(pack.template get<0>(), a);
  read(pack.template get<1>(), b);
  if constexpr (sizeof...(C) != 0) read(pack.template get<2>(), sum);
  msl_impl::multiply_accumulate_rows(a, b, sum);
  value_of<D> copies[32];
  if constexpr (__is_same(D, value_of<D>*)) {
    msl_impl::write_rows(sum, &d[first]);
  } else {
    msl_impl::write_rows(sum, copies);
    for (u32 lane = 0; lane < 32; ++lane) d[first + lane] = copies[lane];
  }
}

// Returns true if 32 threads have the same value.
template <class T>
MSL_INLINE bool agree(const Same<T>&, u32) {
  return true;
}
template <class A>
MSL_INLINE bool agree(const A& accessor, u32 first) {
  u32 differing = 0;
  for (u32 lane = 1; lane < 32; ++lane) {
    differing |= u32(
        __builtin_memcmp(&accessor[first], &accessor[first + lane], sizeof(accessor[first])) != 0);
  }
  return differing == 0;
}
MSL_INLINE bool all_agree(const Pack<>&, u32) { return true; }
template <class A, class... R>
MSL_INLINE bool all_agree(const Pack<A, R...>& pack, u32 first) {
  return agree(pack.first, first) && all_agree(pack.rest, first);
}
// Calls f(the 32 parts of a matrix, the other arguments) and returns true, if the other arguments
// are uniform in the simdgroup and the parts are contiguous.
template <class T, class... A, class F>
MSL_INLINE bool with_matrix(u32 first, T* matrices, const Pack<A...>& others, const F& f) {
  if (!all_agree(others, first)) return false;
  others.apply(first, [&](auto&... of) MSL_LANE_LOOP { f(matrices + first, of...); });
  return true;
}
template <class D, class... A, class F>
MSL_INLINE bool with_matrix(u32, const D&, const Pack<A...>&, const F&) {
  return false;
}

}  // namespace msl::msl_support

#include <msl/host/one_simdgroup.h>

// ---- simdgroup functions, for all threads of a group --------------------------------------------

namespace msl::metal {

// NAME_in_group(kinds, threads, mask, pack, one thread's arguments): overload resolution on the
// latter chooses between this function and what the front end emits for a program's own functions
// of that name.
#define MSL_MEETING(NAME)                                                                     \
  template <class K, class M, class P, class... W,                                            \
            class = decltype(NAME(msl_support::made_up<W&>()..., msl_impl::Capture()))>       \
  MSL_INLINE auto NAME##_in_group(K, const msl_support::Threads& threads, const M& mask,      \
                                  const P& pack, W&&...) {                                    \
    return msl_support::meet(threads, mask, [&](abi::u64 index, auto site) MSL_LANE_LOOP {    \
      return pack.apply(index, [&](auto&... of) MSL_LANE_LOOP { return NAME(of..., site); }); \
    });                                                                                       \
  }
#define MSL_IN_BOTH(NAME) MSL_MEETING(simd_##NAME) MSL_MEETING(quad_##NAME)
MSL_IN_BOTH(sum)
MSL_IN_BOTH(product)
MSL_IN_BOTH(max)
MSL_IN_BOTH(min)
MSL_IN_BOTH(and)
MSL_IN_BOTH(or)
MSL_IN_BOTH(xor)
MSL_IN_BOTH(any)
MSL_IN_BOTH(all)
MSL_IN_BOTH(ballot)
MSL_IN_BOTH(is_first)
MSL_IN_BOTH(active_threads_mask)
MSL_IN_BOTH(broadcast)
MSL_IN_BOTH(broadcast_first)
MSL_IN_BOTH(shuffle)
MSL_IN_BOTH(shuffle_up)
MSL_IN_BOTH(shuffle_down)
MSL_IN_BOTH(shuffle_xor)
MSL_IN_BOTH(shuffle_rotate_up)
MSL_IN_BOTH(shuffle_rotate_down)
MSL_IN_BOTH(shuffle_and_fill_up)
MSL_IN_BOTH(shuffle_and_fill_down)
MSL_IN_BOTH(prefix_exclusive_sum)
MSL_IN_BOTH(prefix_inclusive_sum)
MSL_IN_BOTH(prefix_exclusive_product)
MSL_IN_BOTH(prefix_inclusive_product)
#undef MSL_IN_BOTH
#undef MSL_MEETING

#define MSL_MULTIPLYING(NAME)                                                                 \
  template <class K, class M, class... A, class... W,                                         \
            class = decltype(NAME(msl_support::made_up<W&>()..., msl_impl::Capture()))>       \
  MSL_INLINE void NAME##_in_group(K, const msl_support::Threads& threads, const M& mask,      \
                                  const msl_support::Pack<A...>& pack, W&&...) {              \
    const msl_support::Mask rest =                                                            \
        msl_support::in_full_simdgroups(threads, mask, [&](abi::u32 first) MSL_LANE_LOOP {    \
          msl_support::multiply(first, pack.first, pack.rest);                                \
          return true;                                                                        \
        });                                                                                   \
    if (!rest.any()) return;                                                                  \
    msl_support::meet(threads, rest, [&](abi::u32 index, auto site) MSL_LANE_LOOP {           \
      return pack.apply(index, [&](auto&... of) MSL_LANE_LOOP { return NAME(of..., site); }); \
    });                                                                                       \
  }
MSL_MULTIPLYING(simdgroup_multiply)
MSL_MULTIPLYING(simdgroup_multiply_accumulate)
#undef MSL_MULTIPLYING

#define MSL_WITH_LANE(NAME, FUNCTION)                                                         \
  template <class K, class M, class P, class... W>                                            \
  MSL_INLINE void NAME##_in_group(K, const msl_support::Threads& threads, const M& mask,      \
                                  const P& pack, W&&...) {                                    \
    const msl_support::Mask rest =                                                            \
        msl_support::in_full_simdgroups(threads, mask, [&](abi::u32 first) MSL_LANE_LOOP {    \
          return msl_support::with_matrix(first, pack.first, pack.rest,                       \
                                          [](auto* matrices, auto&... of) MSL_LANE_LOOP {     \
                                            msl_impl::FUNCTION##_all(matrices, of...);        \
                                          });                                                 \
        });                                                                                   \
    if (!rest.any()) return;                                                                  \
    msl_support::with_lane(threads, rest, [&](abi::u64 index, abi::u32 lane) MSL_LANE_LOOP {  \
      pack.apply(index, [&](auto&... of) MSL_LANE_LOOP { msl_impl::FUNCTION(lane, of...); }); \
    });                                                                                       \
  }
MSL_WITH_LANE(simdgroup_load, matrix_load)
MSL_WITH_LANE(simdgroup_store, matrix_store)
#undef MSL_WITH_LANE

}  // namespace msl::metal

namespace msl {

#define MSL_THREAD_NUMBER(NAME, VALUE)                                                  \
  template <class K, class M, class P, class T>                                         \
  MSL_INLINE auto __metal_get_##NAME##_in_group(K, const msl_support::Threads& threads, \
                                                const M& mask, const P&, const T&) {    \
    msl_support::Lanes<T> numbers(threads);                                             \
    for (abi::u32 s = 0; s < threads.simdgroups(); ++s) {                               \
      msl_impl::for_lanes(mask.word(threads, s), [&](abi::u32 lane) MSL_LANE_LOOP {     \
        const abi::u32 index = s * abi::kSimdWidth + lane;                              \
        numbers[index] = T(VALUE);                                                      \
      });                                                                               \
    }                                                                                   \
    return numbers;                                                                     \
  }
MSL_THREAD_NUMBERS(MSL_THREAD_NUMBER)
#undef MSL_THREAD_NUMBER

}  // namespace msl

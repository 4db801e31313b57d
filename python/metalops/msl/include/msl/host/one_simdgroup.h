// Loops that a simdgroup runs by itself, before the next one does: no thread waits for another
// simdgroup in them. What is uniform in a simdgroup is then a plain variable, and branches on it
// need no mask. The front end emits them beside the form in which all threads run together, which
// runs the lanes of incomplete simdgroups. group.h includes this header.
#pragma once

namespace msl::msl_support {

MSL_INLINE Numbered numbered(u32 thread) { return {thread, thread, thread & kSimdMask}; }

// The mask of one simdgroup, all of whose lanes are active.
struct WholeSimdgroup {
  u32 number;

  static MSL_INLINE u32 lanes() { return ~0u; }
  static MSL_INLINE bool any() { return true; }
  MSL_INLINE u32 word(const Threads&, u32 simdgroup) const { return simdgroup == number ? ~0u : 0; }
};
// A mask of lanes of one simdgroup.
struct LaneMask {
  u32 number, bits;

  MSL_INLINE explicit LaneMask(const Threads&) : number(0), bits(0) {}
  template <class M>
  MSL_INLINE LaneMask(const Threads&, const M& from) : number(from.number), bits(from.lanes()) {}
  MSL_INLINE u32 lanes() const { return bits; }
  MSL_INLINE bool any() const { return bits != 0; }
  MSL_INLINE u32 word(const Threads&, u32 simdgroup) const {
    return simdgroup == number ? bits : 0;
  }
  template <class M>
  MSL_INLINE void remove(const M& other) {
    bits &= ~other.lanes();
  }
  MSL_INLINE void clear() { bits = 0; }
};
// The lane of a simdgroup with some number, if it is active.
struct OneLane : LaneMask {
  template <class M>
  MSL_INLINE OneLane(const Threads& threads, const M& from, u64 lane) : LaneMask(threads, from) {
    bits &= lane < abi::kSimdWidth ? 1u << lane : 0;
  }
};
MSL_INLINE Numbered first_of(const WholeSimdgroup& mask) {
  const u64 first = u64(mask.number) * abi::kSimdWidth;
  return {u32(first), first, 0};
}
MSL_INLINE OneLane of_every_simdgroup(const Threads& threads, const WholeSimdgroup& mask,
                                      u64 lane) {
  return {threads, mask, lane};
}
MSL_INLINE OneLane of_every_simdgroup(const Threads& threads, const LaneMask& mask, u64 lane) {
  return {threads, mask, lane};
}

// Runs f(lane) for the consecutive threads [first, last).
template <bool Independent, class F>
MSL_INLINE void each_of(const Threads& threads, u32 first, u32 last, const F& f) {
  if constexpr (__is_same(lane_for<F>, Numbered)) {
    along<Independent>(first, last, [](u64 i) { return numbered(u32(i)); }, f);
  } else {
    const u32* const size = threads.group->size;
    if constexpr (__is_same(lane_for<F>, Lane)) {
      if (is_column(size)) {
        return along<Independent>(
            first, last,
            [](u64 y) { return Lane{{{u32(y), y, u32(y) & kSimdMask}, 0}, u32(y), 0}; }, f);
      }
    }
    Run run;
    run.at = first;
    run.end = last;
    run.count = 0;  // there is no other run
    const auto in_lane = [&](Lane lane) MSL_LANE_LOOP {
      lane.lane = lane.index & kSimdMask;
      f(lane);
    };
    while (next_run_of_row(run, size)) {
      along_row<Independent>(run.first, run.last, run.y, run.z, run.base, in_lane);
    }
  }
}
template <bool Independent, class F>
MSL_INLINE void each(const Threads& threads, const WholeSimdgroup& mask, u32, const F& f) {
  const u64 first = u64(mask.number) * abi::kSimdWidth;
  if constexpr (!__is_same(lane_for<F>, Numbered)) {
    each_of<Independent>(threads, u32(first), u32(first + abi::kSimdWidth), f);
  } else if constexpr (Independent) {
    MSL_INDEPENDENT MSL_NOT_UNROLLED for (u32 lane = 0; lane < abi::kSimdWidth; ++lane)
        f(Numbered{u32(first) + lane, first + lane, lane});
  } else {
    MSL_NOT_UNROLLED for (u32 lane = 0; lane < abi::kSimdWidth; ++lane)
        f(Numbered{u32(first) + lane, first + lane, lane});
  }
}
MSL_INLINE Span span_of(const Threads&, const WholeSimdgroup& mask) {
  return {u64(mask.number) * abi::kSimdWidth, abi::kSimdWidth};
}
template <bool Independent, class F>
MSL_INLINE void each_at_first(const Threads& threads, const WholeSimdgroup& mask, u64 count,
                              const F& f) {
  if (count >= abi::kSimdWidth) return each<Independent>(threads, mask, 0, f);
  const u32 first = mask.number * abi::kSimdWidth;
  each_of<Independent>(threads, first, first + u32(count), f);
}
template <bool Independent, class F>
MSL_INLINE void each(const Threads& threads, const LaneMask& mask, u32, const F& f) {
  const u32 first = mask.number * abi::kSimdWidth;
  for (u32 bits = mask.bits; bits != 0;) {
    const u32 at = u32(__builtin_ctz(bits)), off = ~(bits >> at);
    const u32 end = off == 0 ? abi::kSimdWidth : at + u32(__builtin_ctz(off));
    bits &= end < abi::kSimdWidth ? ~0u << end : 0;
    each_of<Independent>(threads, first + at, first + end, f);
  }
}
template <bool Independent, class F>
MSL_INLINE void each(const Threads& threads, const OneLane& mask, u32, const F& f) {
  const u32 index = mask.number * abi::kSimdWidth + u32(__builtin_ctz(mask.bits));
  const u32 width = threads.group->size[0], height = threads.group->size[1];
  const u32 row = index < width ? 0 : index / width, z = row < height ? 0 : row / height;
  f(Lane{{{index, index, index & kSimdMask}, index - row * width}, row - z * height, z});
}

template <bool Independent, class M, class F>
MSL_INLINE void part(const Threads& threads, const M& mask, LaneMask& yes, LaneMask& no,
                     const F& f) {
  const Lanes<u8> kept(threads);
  u8* const answers = at(kept);
  each<Independent>(threads, mask,
                    [&](lane_for<F> lane) MSL_LANE_LOOP { answers[lane.slot] = f(lane) ? 1 : 0; });
  const u32 lanes = mask.lanes(), number = mask.number;
  const u32 bits = msl_impl::gather_bits(&answers[number * abi::kSimdWidth]);
  yes.number = no.number = number;
  yes.bits = lanes & bits;
  no.bits = lanes & ~bits;
}

template <class F>
MSL_INLINE auto meet(const Threads& threads, const WholeSimdgroup& mask, const F& f) {
  using msl_impl::Capture, msl_impl::Completion, msl_impl::Replay;
  typedef decltype(f(u64(0), Replay())) Result;
  typename meeting<Result>::lanes kept(threads);
  const auto results = at(kept);
  const u64 first = u64(mask.number) * abi::kSimdWidth;
  msl_impl::Gathered gathered;
  MSL_INDEPENDENT MSL_NOT_UNROLLED for (u32 lane = 0; lane < 32; ++lane)
      f(first + lane, Capture{&gathered, lane});
  f(first, Completion{&gathered, ~0u, ~0u});
  MSL_INDEPENDENT MSL_NOT_UNROLLED for (u32 lane = 0; lane < 32; ++lane) {
    if constexpr (__is_same(Result, void)) {
      f(first + lane, Replay{&gathered, lane});
    } else {
      results[first + lane] = f(first + lane, Replay{&gathered, lane});
    }
  }
  return kept;
}
// The mask of an operation whose result is the same for all lanes: meet() returns it once.
template <class M>
struct Once {
  const M& mask;
};
template <class M>
MSL_INLINE Once<M> once(const M& mask) {
  return {mask};
}
template <class M, class F>
MSL_INLINE auto meet(const Threads&, const Once<M>& once, const F& f) {
  using msl_impl::Capture, msl_impl::Completion, msl_impl::Replay;
  const u32 mine = once.mask.lanes(), lane = u32(__builtin_ctz(mine));
  const u64 first = u64(once.mask.number) * abi::kSimdWidth;
  msl_impl::Gathered gathered;
  if (mine == ~0u) {
    MSL_INDEPENDENT MSL_NOT_UNROLLED for (u32 i = 0; i < 32; ++i)
        f(first + i, Capture{&gathered, i});
  } else {
    msl_impl::for_lanes(mine, [&](u32 i) { f(first + i, Capture{&gathered, i}); });
  }
  f(first + lane, Completion{&gathered, mine, mine});
  return f(first + lane, Replay{&gathered, lane});
}

// Returns true if the threads of the simdgroup that begins with thread `first` have the same value.
template <class T>
MSL_INLINE bool is_uniform(const T* values, u32 first) {
  u32 differing = 0;
  for (u32 lane = 1; lane < 32; ++lane) {
    differing |= u32(__builtin_memcmp(&values[first], &values[first + lane], sizeof(T)) != 0);
  }
  return differing == 0;
}
// Returns true if their pointers are the same apart from an offset that shift(thread) returns.
template <class T, class F>
MSL_INLINE bool is_shifted(T* const* pointers, u32 first, const F& shift) {
  const auto place = [&](u32 i) MSL_LANE_LOOP {
    return reinterpret_cast<u64>(pointers[i]) - u64(shift(numbered(i))) * sizeof(T);
  };
  const u64 base = place(first);
  u64 differing = 0;
  for (u32 lane = 1; lane < 32; ++lane) differing |= place(first + lane) ^ base;
  return differing == 0;
}

// Chooses the simdgroups of a mask that are complete and for whose first thread ready(thread) is
// true; removes them from the mask. Returns a bit for each.
template <class C>
MSL_INLINE u32 take_simdgroups(Mask& rest, const C& ready) {
  static_assert(kMaxSimdgroups == 32);
  u32 taken = 0;
  for (u32 s = 0; s < rest.simdgroups; ++s) {
    if (rest.words[s] != ~0u || !ready(s * abi::kSimdWidth)) continue;
    rest.words[s] = 0;
    taken |= 1u << s;
  }
  return taken;
}
// Runs f(WholeSimdgroup) for simdgroups of a mask. Returns the other threads.
template <class M, class C, class F>
MSL_INLINE Mask each_simdgroup(const Threads& threads, const M& mask, const C& ready, const F& f) {
  Mask rest(threads, mask);
  msl_impl::for_lanes(take_simdgroups(rest, ready),
                      [&](u32 s) MSL_LANE_LOOP { f(WholeSimdgroup{s}); });
  return rest;
}
// Runs a loop whose iterations simdgroups run by turns, so that they read memory in the
// order in which all threads together would: begin(WholeSimdgroup), then turn(WholeSimdgroup),
// which returns false after the last iteration, and end(WholeSimdgroup).
template <class M, class C, class B, class F, class E>
MSL_INLINE Mask each_simdgroup(const Threads& threads, const M& mask, const C& ready,
                               const B& begin, const F& turn, const E& end) {
  Mask rest(threads, mask);
  const u32 taken = take_simdgroups(rest, ready);
  msl_impl::for_lanes(taken, [&](u32 s) MSL_LANE_LOOP { begin(WholeSimdgroup{s}); });
  for (u32 running = taken; running != 0;) {
    msl_impl::for_lanes(running, [&](u32 s) MSL_LANE_LOOP {
      if (!turn(WholeSimdgroup{s})) running &= ~(1u << s);
    });
  }
  msl_impl::for_lanes(taken, [&](u32 s) MSL_LANE_LOOP { end(WholeSimdgroup{s}); });
  return rest;
}

}  // namespace msl::msl_support

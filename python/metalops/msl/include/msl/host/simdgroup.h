// How the threads of a simdgroup meet on the host: each hands its operand to the runtime, which
// waits until every lane that can come has come, and then lets one lane compute the results of all
// (abi::SimdFunction).
#pragma once

#include <msl/simd.h>

namespace msl::metal {

// ---- barriers
// -----------------------------------------------------------------------------------------------

MSL_INLINE void threadgroup_barrier(mem_flags flags, abi::Site site = {}) {
  msl_runtime->threadgroup_barrier({site.id, uint(flags)});
}
MSL_INLINE void threadgroup_barrier(mem_flags flags, thread_scope, abi::Site site = {}) {
  msl_runtime->threadgroup_barrier({site.id, uint(flags)});
}
MSL_INLINE void simdgroup_barrier(mem_flags flags, abi::Site site = {}) {
  msl_runtime->simdgroup_barrier({site.id, uint(flags)});
}
MSL_INLINE void simdgroup_barrier(mem_flags flags, thread_scope, abi::Site site = {}) {
  msl_runtime->simdgroup_barrier({site.id, uint(flags)});
}

}  // namespace msl::metal

namespace msl::msl_impl {

MSL_INLINE u32 lane_in_simdgroup() { return msl_runtime->lane(); }
MSL_INLINE u32 index_in_threadgroup() { return msl_runtime->thread()->index; }

// Calls f(lane) for each lane in the mask, lowest first.
template <class F>
MSL_INLINE void for_lanes(u32 mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(u32(__builtin_ctz(mask)));
}

// Runs Operation::run(in, out, mask) once for the simdgroup; the value it leaves for this lane.
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(abi::Site site, const Operand& operand) {
  Result result;
  msl_runtime->simd(site, &operand, &result, &Operation::run);
  return result;
}

// Where one CPU thread runs all lanes of a simdgroup (group.h), it calls a function three times:
// for each lane with a Capture for a site, then once with a Completion, then for each lane with a
// Replay.
struct Gathered {
  static constexpr u32 kBytes = 64;  // at most, of an operand or a result
  alignas(64) unsigned char operands[32 * kBytes];
  alignas(64) unsigned char results[32 * kBytes];
};
struct Capture {
  Gathered* gathered;
  u32 lane;
};
struct Completion {
  Gathered* gathered;
  u32 mask;
};
struct Replay {
  Gathered* gathered;
  u32 lane;
};
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(Capture site, const Operand& operand) {
  static_assert(sizeof(Operand) <= Gathered::kBytes && sizeof(Result) <= Gathered::kBytes);
  reinterpret_cast<Operand*>(site.gathered->operands)[site.lane] = operand;
  return Result();
}
// Operation::run_all, where there is one.
template <class Operation, class Operand, class Result>
MSL_INLINE auto run_all(const Operand* in, Result* out, int)
    -> decltype(Operation::run_all(in, out), true) {
  Operation::run_all(in, out);
  return true;
}
template <class Operation, class Operand, class Result>
MSL_INLINE bool run_all(const Operand*, Result*, long) {
  return false;
}
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(Completion site, const Operand&) {
  auto* const operands = reinterpret_cast<Operand*>(site.gathered->operands);
  auto* const results = reinterpret_cast<Result*>(site.gathered->results);
  if (site.mask == ~0u && run_all<Operation>(operands, results, 0)) return Result();
  const void* in[32];
  void* out[32];
  for (u32 lane = 0; lane < 32; ++lane) {
    in[lane] = &operands[lane];
    out[lane] = &results[lane];
  }
  Operation::run(in, out, site.mask);
  return Result();
}
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(Replay site, const Operand&) {
  return reinterpret_cast<const Result*>(site.gathered->results)[site.lane];
}

template <class T>
MSL_INLINE const T& operand_of(const void* const* in, u32 lane) {
  return *static_cast<const T*>(in[lane]);
}
template <class T>
MSL_INLINE T& result_of(void* const* out, u32 lane) {
  return *static_cast<T*>(out[lane]);
}

// Width: how many neighbouring lanes work together, 32 (simdgroup) or 4 (quadgroup).
template <u32 Width>
MSL_INLINE u32 lanes_of(u32 part) {
  return Width == 32 ? ~0u : ((1u << (Width & 31)) - 1u) << (part * Width);
}

// The upper half is combined with the lower one, lane by lane, until one lane is left: the order of
// a GPU's shuffles. Lanes that take no part are passed over.
template <class Op, class T, u32 Width>
struct Reduction {
  static void run(const void* const* in, void* const* out, u32 mask) {
    for (u32 part = 0; part < 32 / Width; ++part) {
      const u32 lanes = mask & lanes_of<Width>(part);
      if (lanes == 0) continue;
      T values[Width];
      for_lanes(lanes, [&](u32 lane) { values[lane % Width] = operand_of<T>(in, lane); });
      u32 present = lanes >> (part * Width % 32);
      for (u32 half = Width / 2; half != 0; half /= 2) {
        const u32 upper = present >> half;
        for_lanes(upper, [&](u32 i) {
          const bool both = (present >> i) & 1u;
          values[i] = both ? Op::combine(values[i], values[i + half]) : values[i + half];
        });
        present = (present | upper) & ((1u << half) - 1u);
      }
      for_lanes(lanes, [&](u32 lane) { result_of<T>(out, lane) = values[0]; });
    }
  }
  // The same where every lane takes part, in loops that compilers vectorise.
  MSL_INLINE static void run_all(const T* in, T* out) {
    T values[32];
    for (u32 i = 0; i < 32; ++i) values[i] = in[i];
    for (u32 part = 0; part < 32; part += Width) {
      halve<Width / 2>(values + part);
      for (u32 i = part; i < part + Width; ++i) out[i] = values[part];
    }
  }
  template <u32 Half>
  MSL_INLINE static void halve(T* values) {
    MSL_NOT_UNROLLED
    for (u32 i = 0; i < Half; ++i) values[i] = Op::combine(values[i], values[i + Half]);
    if constexpr (Half > 1) halve<Half / 2>(values);
  }
};

template <class Op, class T, u32 Width, bool Inclusive>
struct Prefix {
  static void run(const void* const* in, void* const* out, u32 mask) {
    for (u32 part = 0; part < 32 / Width; ++part) {
      T total = Op::template identity<T>();
      for_lanes(mask & lanes_of<Width>(part), [&](u32 lane) {
        const T before = total;
        total = Op::combine(total, operand_of<T>(in, lane));
        result_of<T>(out, lane) = Inclusive ? total : before;
      });
    }
  }
};

// ---- shuffles
// -----------------------------------------------------------------------------------------------

// The value of lane `source` for lane `lane`. One that takes no part gives an undefined value in
// Metal; here zeros.
template <class T>
MSL_INLINE T value_at(const void* const* in, u32 mask, u32 lane, u32 source) {
  if ((mask >> source) & 1u) return operand_of<Moved<T>>(in, source).value;
  msl_runtime->undefined(abi::Undefined::kAbsentLane, lane, source);
  return T{};
}

// Reports amounts that differ within the `Width` lanes that must agree.
template <class Operand, u32 Width>
void check_uniform(const void* const* in, u32 mask) {
  for (u32 part = 0; part < 32 / Width; ++part) {
    const u32 lanes = mask & lanes_of<Width>(part);
    if (lanes == 0) continue;
    const ushort amount = operand_of<Operand>(in, u32(__builtin_ctz(lanes))).amount;
    for_lanes(lanes, [&](u32 lane) {
      const ushort other = operand_of<Operand>(in, lane).amount;
      if (other != amount) msl_runtime->undefined(abi::Undefined::kNotUniform, lane, amount);
    });
  }
}

template <Shuffle Kind, class T, u32 Width>
struct Shuffled {
  static void run(const void* const* in, void* const* out, u32 mask) {
#if MSL_INSTRUMENTED
    if (Kind != Shuffle::kDirect) check_uniform<Moved<T>, Width>(in, mask);
#endif
    for_lanes(mask, [&](u32 lane) {
      const Moved<T>& mine = operand_of<Moved<T>>(in, lane);
      const SourceLane source = source_lane<Kind, Width>(lane, mine.amount);
      if ((Kind == Shuffle::kDirect || Kind == Shuffle::kBroadcast) && mine.amount >= Width) {
        msl_runtime->undefined(abi::Undefined::kNoSuchLane, lane, mine.amount);
      }
      result_of<T>(out, lane) =
          source.outside ? mine.value : value_at<T>(in, mask, lane, source.lane);
    });
  }
};

// The lanes that a shift empties take, in order, the values that fall out of the other end of
// `filling`.
template <class T, bool Down>
struct ShiftedAndFilled {
  static void run(const void* const* in, void* const* out, u32 mask) {
#if MSL_INSTRUMENTED
    check_uniform<Filled<T>, 32>(in, mask);
#endif
    for_lanes(mask, [&](u32 lane) {
      const Filled<T>& mine = operand_of<Filled<T>>(in, lane);
      const SourceLane source = source_lane_of_filled<Down>(lane, mine.amount, mine.modulo);
      T value{};
      if ((mask >> source.lane) & 1u) {
        const Filled<T>& other = operand_of<Filled<T>>(in, source.lane);
        value = source.outside ? other.filling : other.value;
      } else {
        msl_runtime->undefined(abi::Undefined::kAbsentLane, lane, source.lane);
        if (source.outside) value = mine.filling;
      }
      result_of<T>(out, lane) = value;
    });
  }
};

template <class T, u32 Width>
struct First {
  static void run(const void* const* in, void* const* out, u32 mask) {
    for (u32 part = 0; part < 32 / Width; ++part) {
      const u32 lanes = mask & lanes_of<Width>(part);
      if (lanes == 0) continue;
      const T value = operand_of<T>(in, u32(__builtin_ctz(lanes)));
      for_lanes(lanes, [&](u32 lane) { result_of<T>(out, lane) = value; });
    }
  }
};

// ---- votes
// --------------------------------------------------------------------------------------------------

struct Ballot {
  static void run(const void* const* in, void* const* out, u32 mask) {
    u32 yes = 0;
    for_lanes(mask, [&](u32 lane) { yes |= u32(operand_of<bool>(in, lane)) << lane; });
    for_lanes(mask, [&](u32 lane) { result_of<Votes>(out, lane) = {yes, mask, lane}; });
  }
};

}  // namespace msl::msl_impl

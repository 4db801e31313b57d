// Simdgroup operations on the host: each thread passes its operand to the runtime, which waits
// until every lane that can arrive has arrived, and then lets one lane compute the results of all
// (abi::SimdFunction).
#pragma once

#include <msl/simd.h>

namespace msl::metal {

// ---- barriers -----------------------------------------------------------------------------------

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

// Runs Operation::run(in, out, mask) once for the simdgroup; returns the result for this lane.
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(abi::Site site, const Operand& operand) {
  Result result;
  msl_runtime->simd(site, &operand, &result, &Operation::run);
  return result;
}

// Where one CPU thread runs all lanes of a simdgroup (group.h), it calls a function three times:
// for each lane with a Capture as the site, then once with a Completion, then for each lane with a
// Replay.
struct Gathered {
  static constexpr u32 kBytes = 64;  // maximum size of an operand or a result
  alignas(64) unsigned char operands[32 * kBytes];
  alignas(64) unsigned char results[32 * kBytes];
};
// The operands of the lanes, as a structure of arrays.
template <class Operand>
struct Operands {
  Operand values[32];
  MSL_INLINE void put(u32 lane, const Operand& operand) { values[lane] = operand; }
  MSL_INLINE Operand get(u32 lane) const { return values[lane]; }
};
template <class T>
struct Operands<Moved<T>> {
  T values[32];
  ushort amounts[32];
  MSL_INLINE void put(u32 lane, const Moved<T>& operand) {
    values[lane] = operand.value;
    amounts[lane] = operand.amount;
  }
  MSL_INLINE Moved<T> get(u32 lane) const { return {values[lane], amounts[lane]}; }
};
template <class T>
struct Operands<Filled<T>> {
  T values[32], fillings[32];
  ushort amounts[32], modulos[32];
  MSL_INLINE void put(u32 lane, const Filled<T>& operand) {
    values[lane] = operand.value;
    fillings[lane] = operand.filling;
    amounts[lane] = operand.amount;
    modulos[lane] = operand.modulo;
  }
  MSL_INLINE Filled<T> get(u32 lane) const {
    return {values[lane], fillings[lane], amounts[lane], modulos[lane]};
  }
};
struct Capture {
  Gathered* gathered;
  u32 lane;
};
struct Completion {
  Gathered* gathered;
  u32 mask;
  u32 known;  // the lanes that passed an operand
};
struct Replay {
  Gathered* gathered;
  u32 lane;
};
// The results of the lanes.
template <class Result>
struct Results {
  Result values[32];
  MSL_INLINE void put(u32 lane, const Result& result) { values[lane] = result; }
  MSL_INLINE Result get(u32 lane) const { return values[lane]; }
};
template <>
struct Results<Votes> {
  u32 yes, present;
  MSL_INLINE void put(u32, const Votes& votes) { yes = votes.yes, present = votes.present; }
  MSL_INLINE Votes get(u32 lane) const { return {yes, present, lane}; }
};
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(Capture site, const Operand& operand) {
  static_assert(sizeof(Operands<Operand>) <= sizeof(Gathered::operands) &&
                sizeof(Results<Result>) <= sizeof(Gathered::results));
  reinterpret_cast<Operands<Operand>*>(site.gathered->operands)->put(site.lane, operand);
  return Result();
}
// Calls Operation::run_all, if it exists; returns false if it leaves the work to Operation::run.
template <class Operation, class Operand, class Result>
MSL_INLINE auto run_all(const Operands<Operand>& in, Results<Result>& out, int)
    -> decltype(Operation::run_all(in, out)) {
  return Operation::run_all(in, out);
}
template <class Operation, class Operand, class Result>
MSL_INLINE bool run_all(const Operands<Operand>&, Results<Result>&, long) {
  return false;
}
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(Completion site, const Operand&) {
  const auto& operands = *reinterpret_cast<Operands<Operand>*>(site.gathered->operands);
  auto& results = *reinterpret_cast<Results<Result>*>(site.gathered->results);
  if (site.mask == ~0u && run_all<Operation>(operands, results, 0)) return Result();
  Operand handed[32];
  Result given[32];
  const void* in[32] = {};
  void* out[32];
  for_lanes(site.known, [&](u32 lane) {
    handed[lane] = operands.get(lane);
    in[lane] = &handed[lane];
    out[lane] = &given[lane];
  });
  Operation::run(in, out, site.mask);
  for_lanes(site.mask, [&](u32 lane) { results.put(lane, given[lane]); });
  return Result();
}
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(Replay site, const Operand&) {
  return reinterpret_cast<const Results<Result>*>(site.gathered->results)->get(site.lane);
}

template <class T>
MSL_INLINE const T& operand_of(const void* const* in, u32 lane) {
  return *static_cast<const T*>(in[lane]);
}
template <class T>
MSL_INLINE T& result_of(void* const* out, u32 lane) {
  return *static_cast<T*>(out[lane]);
}

// Width: the number of adjacent lanes that work together, 32 (simdgroup) or 4 (quadgroup).
template <u32 Width>
MSL_INLINE u32 lanes_of(u32 part) {
  return Width == 32 ? ~0u : ((1u << (Width & 31)) - 1u) << (part * Width);
}

// The upper half is combined with the lower one, lane by lane, until one lane is left: the order of
// a GPU's shuffles. Inactive lanes are skipped.
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
  // The reduction with all lanes active, in loops that compilers vectorise.
  MSL_INLINE static bool run_all(const Operands<T>& in, Results<T>& out) {
    T values[32];
    for (u32 i = 0; i < 32; ++i) values[i] = in.values[i];
    for (u32 part = 0; part < 32; part += Width) {
      halve<Width / 2>(values + part);
      for (u32 i = part; i < part + Width; ++i) out.put(i, values[part]);
    }
    return true;
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
  MSL_INLINE static bool run_all(const Operands<T>& in, Results<T>& out) {
    for (u32 part = 0; part < 32; part += Width) {
      T total = Op::template identity<T>();
      for (u32 lane = part; lane < part + Width; ++lane) {
        const T before = total;
        total = Op::combine(total, in.values[lane]);
        out.put(lane, Inclusive ? total : before);
      }
    }
    return true;
  }
};

// ---- shuffles -----------------------------------------------------------------------------------

// Returns the value of lane `source` for lane `lane`. That of an inactive lane is undefined in
// Metal; here, as on a GPU, it is the last value of its variable where that is known, and otherwise
// zero. Operand: with the value as its first member.
template <class Operand, class T>
MSL_INLINE T value_at(const void* const* in, u32 mask, u32 lane, u32 source) {
  static_assert(__builtin_offsetof(Operand, value) == 0);
  if ((mask >> source) & 1u) return operand_of<Operand>(in, source).value;
  msl_runtime->undefined(abi::Undefined::kAbsentLane, lane, source);
  return in[source] != nullptr ? operand_of<T>(in, source) : T{};
}

// Returns true if every lane passes the same number.
MSL_INLINE bool agree(const ushort (&numbers)[32]) {
  ushort differ = 0;
  for (u32 lane = 0; lane < 32; ++lane) differ |= ushort(numbers[lane] ^ numbers[0]);
  return differ == 0;
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
          source.outside ? mine.value : value_at<Moved<T>, T>(in, mask, lane, source.lane);
    });
  }
  // The shuffle with all lanes active and nothing to report.
  MSL_INLINE static bool run_all(const Operands<Moved<T>>& in, Results<T>& out) {
    if constexpr (Kind == Shuffle::kDirect) {
      ushort bits = 0;
      for (u32 lane = 0; lane < 32; ++lane) bits |= in.amounts[lane];
      if (bits >= Width) return false;
      for (u32 lane = 0; lane < 32; ++lane) {
        out.put(lane, in.values[source_lane<Kind, Width>(lane, in.amounts[lane]).lane]);
      }
    } else {
      const u32 amount = in.amounts[0];
      if (!agree(in.amounts) || (Kind == Shuffle::kBroadcast && amount >= Width)) return false;
      if constexpr (Width == 32 && Kind != Shuffle::kBroadcast && Kind != Shuffle::kXor) {
        T twice[64];  // so that the values for 32 lanes are contiguous
        for (u32 i = 0; i < 32; ++i) twice[i] = twice[i + 32] = in.values[i];
        const T* const taken = twice + source_lane<Kind, Width>(0, amount).lane;
        for (u32 lane = 0; lane < 32; ++lane) {
          const bool outside = source_lane<Kind, Width>(lane, amount).outside;
          out.put(lane, outside ? twice[lane] : taken[lane]);
        }
      } else {
        for (u32 lane = 0; lane < 32; ++lane) {
          const SourceLane source = source_lane<Kind, Width>(lane, amount);
          out.put(lane, in.values[source.outside ? lane : source.lane]);
        }
      }
    }
    return true;
  }
};

// Lanes that a shift leaves empty take, in order, the values that are shifted out of the other end
// of `filling`.
template <class T, bool Down>
struct ShiftedAndFilled {
  static void run(const void* const* in, void* const* out, u32 mask) {
#if MSL_INSTRUMENTED
    check_uniform<Filled<T>, 32>(in, mask);
#endif
    for_lanes(mask, [&](u32 lane) {
      const Filled<T>& mine = operand_of<Filled<T>>(in, lane);
      const SourceLane source = source_lane_of_filled<Down>(lane, mine.amount, mine.modulo);
      T value = value_at<Filled<T>, T>(in, mask, lane, source.lane);
      if (source.outside) {
        const bool is_there = (mask >> source.lane) & 1u;
        value = is_there ? operand_of<Filled<T>>(in, source.lane).filling : mine.filling;
      }
      result_of<T>(out, lane) = value;
    });
  }
  MSL_INLINE static bool run_all(const Operands<Filled<T>>& in, Results<T>& out) {
    if (!agree(in.amounts) || !agree(in.modulos)) return false;
    const u32 amount = in.amounts[0], modulo = in.modulos[0];
    for (u32 lane = 0; lane < 32; ++lane) {
      const SourceLane source = source_lane_of_filled<Down>(lane, amount, modulo);
      out.put(lane, source.outside ? in.fillings[source.lane] : in.values[source.lane]);
    }
    return true;
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
  MSL_INLINE static bool run_all(const Operands<T>& in, Results<T>& out) {
    for (u32 lane = 0; lane < 32; ++lane) out.put(lane, in.values[lane & ~(Width - 1)]);
    return true;
  }
};

// ---- votes --------------------------------------------------------------------------------------

// Gathers 32 bytes to a bit mask; each is 0 or 1 (or anything, for an inactive thread).
MSL_INLINE u32 gather_bits(const unsigned char* answers) {
  u32 bits = 0;
  for (u32 byte = 0; byte < 4; ++byte) {
    abi::u64 eight;
    __builtin_memcpy(&eight, answers + byte * 8, 8);
    bits |= u32(((eight & 0x0101010101010101ull) * 0x0102040810204080ull) >> 56) << (byte * 8);
  }
  return bits;
}

struct Ballot {
  static void run(const void* const* in, void* const* out, u32 mask) {
    u32 yes = 0;
    for_lanes(mask, [&](u32 lane) { yes |= u32(operand_of<bool>(in, lane)) << lane; });
    for_lanes(mask, [&](u32 lane) { result_of<Votes>(out, lane) = {yes, mask, lane}; });
  }
  MSL_INLINE static bool run_all(const Operands<bool>& in, Results<Votes>& out) {
    const u32 yes = gather_bits(reinterpret_cast<const unsigned char*>(in.values));
    out = {yes, ~0u};
    return true;
  }
};

}  // namespace msl::msl_impl

// Simdgroup operations on NVIDIA's GPUs, where a simdgroup is a warp: shuffles among the lanes of a
// mask that the emitted code knows.
#pragma once

#include <msl/simd.h>

namespace msl::metal {

MSL_INLINE void threadgroup_barrier(mem_flags, abi::Site = {}) { ::__syncthreads(); }
MSL_INLINE void threadgroup_barrier(mem_flags, thread_scope, abi::Site = {}) { ::__syncthreads(); }
MSL_INLINE void simdgroup_barrier(mem_flags, abi::Site site = {}) { ::__syncwarp(site.mask); }
MSL_INLINE void simdgroup_barrier(mem_flags, thread_scope, abi::Site site = {}) {
  ::__syncwarp(site.mask);
}

}  // namespace msl::metal

namespace msl::msl_impl {

// The lanes that run an operation together: all lanes that call it.
struct Lanes {
  u32 mask;
  u32 lane;  // this one
  u32 warp_mask;

  MSL_INLINE bool are_all() const { return mask == ~0u; }
  MSL_INLINE bool have(u32 other) const { return (mask >> other) & 1u; }
};
MSL_INLINE u32 lane_in_simdgroup() {
  u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return abi::lane_of(lane);
}
MSL_INLINE u32 index_in_threadgroup() {
  const u32 index = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return (index & ~(abi::kSimdWidth - 1)) | lane_in_simdgroup();
}

template <class Operation, class Result, class Operand>
MSL_INLINE Result together(abi::Site site, const Operand& operand) {
  return Operation::run(operand, Lanes{abi::lanes_of(site.mask), lane_in_simdgroup(), site.mask});
}

// Returns the value of another lane, of any type.
template <class T>
MSL_INLINE T from_lane(const Lanes& lanes, const T& value, u32 source) {
  const u32 warp_lane = abi::warp_lane_of(source);
  u32 words[(sizeof(T) + 3) / 4] = {};
  ::memcpy(words, &value, sizeof(T));
  for (u32& word : words) word = ::__shfl_sync(lanes.warp_mask, word, int(warp_lane));
  T result;
  ::memcpy(&result, words, sizeof(T));
  return result;
}

template <u32 Width>
MSL_INLINE u32 lanes_around(const Lanes& lanes) {
  if (Width == 32) return lanes.mask;
  return lanes.mask & (((1u << (Width & 31)) - 1u) << (lanes.lane & ~(Width - 1)));
}

// Returns the lanes whose indices are congruent to `lane` modulo a power of two.
MSL_INLINE constexpr u32 lanes_modulo(u32 lane, u32 modulus) {
  const u32 every = modulus == 32   ? 1u
                    : modulus == 16 ? 0x00010001u
                    : modulus == 8  ? 0x01010101u
                    : modulus == 4  ? 0x11111111u
                                    : 0x55555555u;
  return every << (lane & (modulus - 1));
}

// Butterfly reduction: the upper half is combined with the lower one, lane by lane, until one lane
// is left. Inactive lanes are skipped: each lane holds the value of its position, and takes that of
// the other half from the first lane that has it.
template <class Op, class T, u32 Width>
struct Reduction {
  MSL_INLINE static T run(T value, const Lanes& lanes) {
    if (lanes.are_all()) return run_all(value, {~0u, lanes.lane, ~0u});
    const u32 mine = lanes_around<Width>(lanes);
#pragma unroll
    for (u32 half = Width / 2; half != 0; half /= 2) {
      const u32 others = mine & lanes_modulo(lanes.lane ^ half, 2 * half);
      const bool both = others != 0;
      const T other = from_lane(lanes, value, both ? u32(__builtin_ctz(others)) : lanes.lane);
      if (both) value = combined(lanes, half, value, other);
    }
    return value;
  }

 private:
  // Reduces with a full mask, known at compile time, for which a GPU need not synchronise before
  // each step.
  MSL_INLINE static T run_all(T value, const Lanes& lanes) {
#pragma unroll
    for (u32 half = Width / 2; half != 0; half /= 2) {
      value = combined(lanes, half, value, from_lane(lanes, value, lanes.lane ^ half));
    }
    return value;
  }
  MSL_INLINE static T combined(const Lanes& lanes, u32 half, const T& value, const T& other) {
    return lanes.lane & half ? Op::combine(other, value) : Op::combine(value, other);
  }
};

#if __CUDA_ARCH__ >= 800
// Integers of 32 bits are reduced by one instruction, in whatever lanes there are.
#define MSL_REDUCED_AT_ONCE(OP, T, NAME)                          \
  template <>                                                     \
  struct Reduction<OP, T, 32> {                                   \
    MSL_INLINE static T run(T value, const Lanes& lanes) {        \
      return T(::__reduce_##NAME##_sync(lanes.warp_mask, value)); \
    }                                                             \
  };
MSL_REDUCED_AT_ONCE(Sum, u32, add)
MSL_REDUCED_AT_ONCE(Sum, int, add)
MSL_REDUCED_AT_ONCE(Minimum, u32, min)
MSL_REDUCED_AT_ONCE(Minimum, int, min)
MSL_REDUCED_AT_ONCE(Maximum, u32, max)
MSL_REDUCED_AT_ONCE(Maximum, int, max)
MSL_REDUCED_AT_ONCE(And, u32, and)
MSL_REDUCED_AT_ONCE(Or, u32, or)
MSL_REDUCED_AT_ONCE(Xor, u32, xor)
#undef MSL_REDUCED_AT_ONCE
#endif

// Prefix sum: Hillis-Steele over distances 1, 2, 4, ... if all lanes are active; otherwise lane by
// lane.
template <class Op, class T, u32 Width, bool Inclusive>
struct Prefix {
  MSL_INLINE static T run(const T& value, const Lanes& lanes) {
    const u32 lane = lanes.lane;
    if (lanes.are_all()) {
      const u32 place = lane & (Width - 1);
      T total = value;
#pragma unroll
      for (u32 distance = 1; distance < Width; distance *= 2) {
        const T other = from_lane(lanes, total, place >= distance ? lane - distance : lane);
        if (place >= distance) total = Op::combine(other, total);
      }
      if (Inclusive) return total;
      const T before = from_lane(lanes, total, place == 0 ? lane : lane - 1);
      return place == 0 ? Op::template identity<T>() : before;
    }
    const u32 mine = lanes_around<Width>(lanes);
    T total = Op::template identity<T>();
    T result = total;
#pragma unroll 1
    for (u32 place = 0; place < Width; ++place) {
      const u32 source = (lane & ~(Width - 1)) + place;
      const bool takes_part = (mine >> source) & 1u;
      const T other = from_lane(lanes, value, takes_part ? source : lane);
      if (!takes_part) continue;
      if (source == lane && !Inclusive) result = total;
      total = Op::combine(total, other);
      if (source == lane && Inclusive) result = total;
    }
    return result;
  }
};

// ---- shuffles -----------------------------------------------------------------------------------

// Returns a lane's value. That of an inactive lane is undefined in Metal; here it is zero.
template <class T>
MSL_INLINE T value_at(const Lanes& lanes, const T& value, u32 source) {
  const bool takes_part = lanes.have(source);
  const T other = from_lane(lanes, value, takes_part ? source : lanes.lane);
  return takes_part ? other : T{};
}

template <Shuffle Kind, class T, u32 Width>
struct Shuffled {
  MSL_INLINE static T run(const Moved<T>& mine, const Lanes& lanes) {
    const SourceLane source = source_lane<Kind, Width>(lanes.lane, mine.amount);
    const T other = value_at(lanes, mine.value, source.lane);
    return source.outside ? mine.value : other;
  }
};

// Lanes that a shift leaves empty take, in order, the values that are shifted out of the other end
// of `filling`.
template <class T, bool Down>
struct ShiftedAndFilled {
  MSL_INLINE static T run(const Filled<T>& mine, const Lanes& lanes) {
    const SourceLane source = source_lane_of_filled<Down>(lanes.lane, mine.amount, mine.modulo);
    const T value = value_at(lanes, mine.value, source.lane);
    const T filling = value_at(lanes, mine.filling, source.lane);
    if (!source.outside) return value;
    return lanes.have(source.lane) ? filling : mine.filling;
  }
};

template <class T, u32 Width>
struct First {
  MSL_INLINE static T run(const T& value, const Lanes& lanes) {
    return from_lane(lanes, value, u32(__builtin_ctz(lanes_around<Width>(lanes))));
  }
};

struct Ballot {
  MSL_INLINE static Votes run(bool yes, const Lanes& lanes) {
    return {abi::lanes_of(::__ballot_sync(lanes.warp_mask, yes)), lanes.mask, lanes.lane};
  }
};

}  // namespace msl::msl_impl

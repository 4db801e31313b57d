// How the threads of a simdgroup meet on NVIDIA's GPUs, where it is a warp: by shuffles among the
// lanes of a mask that the emitted code knows.
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

MSL_INLINE u32 lane_in_simdgroup() {
  u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Operation::run for all lanes of the site's mask, which are all that call it.
template <class Operation, class Result, class Operand>
MSL_INLINE Result together(abi::Site site, const Operand& operand) {
  return Operation::run(operand, site.mask, lane_in_simdgroup());
}

// The value of another lane, whatever its type.
template <class T>
MSL_INLINE T from_lane(u32 mask, const T& value, u32 source) {
  u32 words[(sizeof(T) + 3) / 4] = {};
  ::memcpy(words, &value, sizeof(T));
  for (u32& word : words) word = ::__shfl_sync(mask, word, int(source));
  T result;
  ::memcpy(&result, words, sizeof(T));
  return result;
}

template <u32 Width>
MSL_INLINE u32 lanes_around(u32 mask, u32 lane) {
  return Width == 32 ? mask : mask & (((1u << (Width & 31)) - 1u) << (lane & ~(Width - 1)));
}

// Lanes whose numbers are the same modulo a power of two.
MSL_INLINE constexpr u32 lanes_modulo(u32 lane, u32 modulus) {
  const u32 every = modulus == 32   ? 1u
                    : modulus == 16 ? 0x00010001u
                    : modulus == 8  ? 0x01010101u
                    : modulus == 4  ? 0x11111111u
                                    : 0x55555555u;
  return every << (lane & (modulus - 1));
}

// The upper half is combined with the lower one, lane by lane, until one lane is left. Lanes that
// take no part are passed over: each lane has the value of its place, and takes that of the other
// half from the first lane that has it.
template <class Op, class T, u32 Width>
struct Reduction {
  MSL_INLINE static T run(T value, u32 mask, u32 lane) {
    const u32 mine = lanes_around<Width>(mask, lane);
#pragma unroll
    for (u32 half = Width / 2; half != 0; half /= 2) {
      u32 source = lane ^ half;
      bool both = true;
      if (mask != ~0u) {
        const u32 others = mine & lanes_modulo(source, 2 * half);
        both = others != 0;
        source = both ? u32(__builtin_ctz(others)) : lane;
      }
      const T other = from_lane(mask, value, source);
      if (both) value = lane & half ? Op::combine(other, value) : Op::combine(value, other);
    }
    return value;
  }
};

// Where all lanes take part, sums over 1, 2, 4, ... lanes; else lane by lane.
template <class Op, class T, u32 Width, bool Inclusive>
struct Prefix {
  MSL_INLINE static T run(const T& value, u32 mask, u32 lane) {
    if (mask == ~0u) {
      const u32 place = lane & (Width - 1);
      T total = value;
#pragma unroll
      for (u32 distance = 1; distance < Width; distance *= 2) {
        const T other = from_lane(mask, total, place >= distance ? lane - distance : lane);
        if (place >= distance) total = Op::combine(other, total);
      }
      if (Inclusive) return total;
      const T before = from_lane(mask, total, place == 0 ? lane : lane - 1);
      return place == 0 ? Op::template identity<T>() : before;
    }
    const u32 mine = lanes_around<Width>(mask, lane);
    T total = Op::template identity<T>();
    T result = total;
#pragma unroll 1
    for (u32 place = 0; place < Width; ++place) {
      const u32 source = (lane & ~(Width - 1)) + place;
      const bool takes_part = (mine >> source) & 1u;
      const T other = from_lane(mask, value, takes_part ? source : lane);
      if (!takes_part) continue;
      if (source == lane && !Inclusive) result = total;
      total = Op::combine(total, other);
      if (source == lane && Inclusive) result = total;
    }
    return result;
  }
};

// ---- shuffles
// -----------------------------------------------------------------------------------------------

// The value of a lane that takes no part is undefined in Metal; here zeros.
template <class T>
MSL_INLINE T value_at(u32 mask, const T& value, u32 source, u32 lane) {
  const bool takes_part = (mask >> source) & 1u;
  const T other = from_lane(mask, value, takes_part ? source : lane);
  return takes_part ? other : T{};
}

template <Shuffle Kind, class T, u32 Width>
struct Shuffled {
  MSL_INLINE static T run(const Moved<T>& mine, u32 mask, u32 lane) {
    const u32 first = lane & ~(Width - 1);
    const u32 place = lane & (Width - 1);
    const u32 amount = mine.amount;
    u32 source = place;
    bool outside = false;  // shifted past an end: the lane keeps its own value
    switch (Kind) {
      case Shuffle::kDirect:
      case Shuffle::kBroadcast:
        source = amount & (Width - 1);
        break;
      case Shuffle::kXor:
        source = (place ^ amount) & (Width - 1);
        break;
      case Shuffle::kUp:
        outside = amount > place;
        source = (place - amount) & (Width - 1);
        break;
      case Shuffle::kDown:
        outside = place + amount >= Width;
        source = (place + amount) & (Width - 1);
        break;
      case Shuffle::kRotateUp:
        source = (place - amount) & (Width - 1);
        break;
      case Shuffle::kRotateDown:
        source = (place + amount) & (Width - 1);
        break;
    }
    const T other = value_at(mask, mine.value, first + source, lane);
    return outside ? mine.value : other;
  }
};

// The lanes that a shift empties take, in order, the values that fall out of the other end of
// `filling`.
template <class T, bool Down>
struct ShiftedAndFilled {
  MSL_INLINE static T run(const Filled<T>& mine, u32 mask, u32 lane) {
    const u32 width = mine.modulo;
    const u32 place = lane & (width - 1);
    const u32 source = (Down ? place + mine.amount : place - mine.amount) & (width - 1);
    const bool empty = Down ? place + mine.amount >= width : place < mine.amount;
    const u32 from = (lane & ~(width - 1)) + source;
    const T value = value_at(mask, mine.value, from, lane);
    const T filling = value_at(mask, mine.filling, from, lane);
    if (!empty) return value;
    return (mask >> from) & 1u ? filling : mine.filling;
  }
};

template <class T, u32 Width>
struct First {
  MSL_INLINE static T run(const T& value, u32 mask, u32 lane) {
    return from_lane(mask, value, u32(__builtin_ctz(lanes_around<Width>(mask, lane))));
  }
};

struct Ballot {
  MSL_INLINE static Votes run(bool yes, u32 mask, u32 lane) {
    return {::__ballot_sync(mask, yes), mask, lane};
  }
};

}  // namespace msl::msl_impl

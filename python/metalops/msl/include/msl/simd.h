// metal_compute, metal_simdgroup, metal_quadgroup: barriers, and functions in which the threads of
// a simdgroup or of a quadgroup work together.
//
// Each of them hands its operand to the runtime, which waits until every lane that can come has
// come, and then lets one lane compute the results of all (abi::SimdFunction). Lanes that do not
// exist, have returned or are elsewhere take no part. There are overloads for each type, without
// bool, bfloat and 64-bit integers, as in Metal: c10 and MLX add theirs.
#pragma once

#include <msl/atomic.h>

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

using abi::u32;

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

// ---- how two values combine
// ---------------------------------------------------------------------------------

// Sums and products of integers wrap around. Smaller types are computed in int, which is wide
// enough but for products of ushort.
template <class T, bool Wraps = metal::is_integral_v<T> && sizeof(metal::make_scalar_t<T>) >= 4>
struct wrapping {
  typedef T type;
};
template <class T>
struct wrapping<T, true> : metal::make_unsigned<T> {};
template <>
struct wrapping<ushort, false> {
  typedef uint type;
};
template <int N>
struct wrapping<metal::vec<ushort, N>, false> {
  typedef metal::vec<uint, N> type;
};
struct Sum {
  template <class T>
  static T combine(const T& a, const T& b) {
    typedef typename wrapping<T>::type U;
    return T(U(a) + U(b));
  }
  template <class T>
  static T identity() {
    return T(0);
  }
};
struct Product {
  template <class T>
  static T combine(const T& a, const T& b) {
    typedef typename wrapping<T>::type U;
    return T(U(a) * U(b));
  }
  template <class T>
  static T identity() {
    return T(1);
  }
};
struct Maximum {
  template <class T>
  static T combine(const T& a, const T& b) {
    return T(metal::max(a, b));
  }
};
struct Minimum {
  template <class T>
  static T combine(const T& a, const T& b) {
    return T(metal::min(a, b));
  }
};
struct And {
  template <class T>
  static T combine(const T& a, const T& b) {
    return T(a & b);
  }
};
struct Or {
  template <class T>
  static T combine(const T& a, const T& b) {
    return T(a | b);
  }
};
struct Xor {
  template <class T>
  static T combine(const T& a, const T& b) {
    return T(a ^ b);
  }
};

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

enum class Shuffle { kDirect, kBroadcast, kXor, kUp, kDown, kRotateUp, kRotateDown };

template <class T>
struct Moved {
  T value;
  ushort amount;  // the lane asked for, or the distance
};
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
      const u32 first = lane & ~(Width - 1);
      const u32 place = lane & (Width - 1);
      const u32 amount = mine.amount;
      u32 source = place;
      bool outside = false;  // shifted past an end: the lane keeps its own value
      switch (Kind) {
        case Shuffle::kDirect:
        case Shuffle::kBroadcast:
          if (amount >= Width) msl_runtime->undefined(abi::Undefined::kNoSuchLane, lane, amount);
          source = amount & (Width - 1);
          break;
        case Shuffle::kXor:
          source = (place ^ amount) & (Width - 1);
          break;
        case Shuffle::kUp:
          outside = amount > place;
          source = place - amount;
          break;
        case Shuffle::kDown:
          outside = place + amount >= Width;
          source = place + amount;
          break;
        case Shuffle::kRotateUp:
          source = (place - amount) & (Width - 1);
          break;
        case Shuffle::kRotateDown:
          source = (place + amount) & (Width - 1);
          break;
      }
      result_of<T>(out, lane) = outside ? mine.value : value_at<T>(in, mask, lane, first + source);
    });
  }
};

template <class T>
struct Filled {
  T value;
  T filling;
  ushort amount;
  ushort modulo;
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
      const u32 width = mine.modulo;
      const u32 first = lane & ~(width - 1);
      const u32 place = lane & (width - 1);
      const u32 source = (Down ? place + mine.amount : place - mine.amount) & (width - 1);
      const bool empty = Down ? place + mine.amount >= width : place < mine.amount;
      const u32 from = first + source;
      T value{};
      if ((mask >> from) & 1u) {
        const Filled<T>& other = operand_of<Filled<T>>(in, from);
        value = empty ? other.filling : other.value;
      } else {
        msl_runtime->undefined(abi::Undefined::kAbsentLane, lane, from);
        if (empty) value = mine.filling;
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

struct Votes {
  u32 yes;      // lanes that voted true
  u32 present;  // lanes that voted
  u32 lane;     // this lane
};
struct Ballot {
  static void run(const void* const* in, void* const* out, u32 mask) {
    u32 yes = 0;
    for_lanes(mask, [&](u32 lane) { yes |= u32(operand_of<bool>(in, lane)) << lane; });
    for_lanes(mask, [&](u32 lane) { result_of<Votes>(out, lane) = {yes, mask, lane}; });
  }
};
template <class S>
MSL_INLINE Votes vote(bool yes, S site) {
  return together<Ballot, Votes>(site, yes);
}
// The same for the four lanes of one's quadgroup.
template <class S>
MSL_INLINE Votes quad_vote(bool yes, S site) {
  const Votes all = vote(yes, site);
  const u32 first = all.lane & ~3u;
  return {(all.yes >> first) & 15u, (all.present >> first) & 15u, all.lane & 3u};
}

}  // namespace msl::msl_impl

namespace msl::metal {

// The result of a ballot: one bit for each lane.
struct simd_vote {
  using vote_t = ulong;
  simd_vote() = default;
  MSL_INLINE explicit constexpr simd_vote(vote_t bits) : bits_(bits) {}
  MSL_INLINE explicit constexpr operator vote_t() const { return bits_; }
  MSL_INLINE constexpr bool all() const { return bits_ == 0xffffffffu; }
  MSL_INLINE constexpr bool any() const { return bits_ != 0; }

 private:
  vote_t bits_;
};
struct quad_vote {
  using vote_t = ushort;
  quad_vote() = default;
  MSL_INLINE explicit constexpr quad_vote(vote_t bits) : bits_(bits) {}
  MSL_INLINE explicit constexpr operator vote_t() const { return bits_; }
  MSL_INLINE constexpr bool all() const { return bits_ == 15; }
  MSL_INLINE constexpr bool any() const { return bits_ != 0; }

 private:
  vote_t bits_;
};

// Apple's name for the types that the functions below take.
template <class T>
struct __is_valid_simdgroup_type
    : bool_constant<is_arithmetic_v<T> && msl_impl::element_kind<T> != msl_impl::Kind::kBool &&
                    sizeof(typename msl_impl::element<remove_cv_t<T>>::type) <= 4> {};

template <class S = abi::Site>
MSL_INLINE simd_vote simd_ballot(bool yes, S site = {}) {
  return simd_vote(msl_impl::vote(yes, site).yes);
}
template <class S = abi::Site>
MSL_INLINE simd_vote simd_active_threads_mask(S site = {}) {
  return simd_vote(msl_impl::vote(true, site).present);
}
template <class S = abi::Site>
MSL_INLINE bool simd_any(bool yes, S site = {}) {
  return msl_impl::vote(yes, site).yes != 0;
}
template <class S = abi::Site>
MSL_INLINE bool simd_all(bool yes, S site = {}) {
  const msl_impl::Votes votes = msl_impl::vote(yes, site);
  return votes.yes == votes.present;
}
template <class S = abi::Site>
MSL_INLINE bool simd_is_first(S site = {}) {
  const msl_impl::Votes votes = msl_impl::vote(true, site);
  return abi::u32(__builtin_ctz(votes.present)) == votes.lane;
}
MSL_INLINE bool simd_is_helper_thread(abi::Site = {}) { return false; }

template <class S = abi::Site>
MSL_INLINE quad_vote quad_ballot(bool yes, S site = {}) {
  return quad_vote(ushort(msl_impl::quad_vote(yes, site).yes));
}
template <class S = abi::Site>
MSL_INLINE quad_vote quad_active_threads_mask(S site = {}) {
  return quad_vote(ushort(msl_impl::quad_vote(true, site).present));
}
template <class S = abi::Site>
MSL_INLINE bool quad_any(bool yes, S site = {}) {
  return msl_impl::quad_vote(yes, site).yes != 0;
}
template <class S = abi::Site>
MSL_INLINE bool quad_all(bool yes, S site = {}) {
  const msl_impl::Votes votes = msl_impl::quad_vote(yes, site);
  return votes.yes == votes.present;
}
template <class S = abi::Site>
MSL_INLINE bool quad_is_first(S site = {}) {
  const msl_impl::Votes votes = msl_impl::quad_vote(true, site);
  return abi::u32(__builtin_ctz(votes.present)) == votes.lane;
}
MSL_INLINE bool quad_is_helper_thread(abi::Site = {}) { return false; }

// ---- the functions, for each type
// ---------------------------------------------------------------------------

// S: what together() takes for a site.
// FORM: SCALAR, with the type T; or VECTOR, a template over vec<E, N>. PREFIX and WIDTH: simd, 32
// or quad, 4. Templates with nothing to deduce: they convert their arguments as plain functions do,
// and give way to a plain function of the user's with the same parameters.
#define MSL_HEAD_SCALAR template <class S = abi::Site>
#define MSL_HEAD_VECTOR template <class E, int N, class S = abi::Site>
#define MSL_TYPE_SCALAR(T) T
#define MSL_TYPE_VECTOR(T) vec<E, N>

#define MSL_REDUCE(FORM, T, PREFIX, WIDTH, NAME, OP)                                        \
  MSL_HEAD_##FORM MSL_INLINE MSL_TYPE_##FORM(T)                                             \
      PREFIX##_##NAME(MSL_TYPE_##FORM(T) value, S site = {}) {                              \
    using R = MSL_TYPE_##FORM(T);                                                           \
    return msl_impl::together<msl_impl::Reduction<msl_impl::OP, R, WIDTH>, R>(site, value); \
  }
#define MSL_SCAN(FORM, T, PREFIX, WIDTH, NAME, OP, INCLUSIVE)                                 \
  MSL_HEAD_##FORM MSL_INLINE MSL_TYPE_##FORM(T)                                               \
      PREFIX##_prefix_##NAME(MSL_TYPE_##FORM(T) value, S site = {}) {                         \
    using R = MSL_TYPE_##FORM(T);                                                             \
    return msl_impl::together<msl_impl::Prefix<msl_impl::OP, R, WIDTH, INCLUSIVE>, R>(site,   \
                                                                                      value); \
  }
#define MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, NAME, KIND)                                  \
  MSL_HEAD_##FORM MSL_INLINE MSL_TYPE_##FORM(T)                                          \
      PREFIX##_##NAME(MSL_TYPE_##FORM(T) value, ushort amount, S site = {}) {            \
    using R = MSL_TYPE_##FORM(T);                                                        \
    return msl_impl::together<msl_impl::Shuffled<msl_impl::Shuffle::KIND, R, WIDTH>, R>( \
        site, msl_impl::Moved<R>{value, amount});                                        \
  }
#define MSL_SHIFT_AND_FILL(FORM, T, PREFIX, WIDTH, NAME, DOWN)                               \
  MSL_HEAD_##FORM MSL_INLINE MSL_TYPE_##FORM(T)                                              \
      PREFIX##_shuffle_and_fill_##NAME(MSL_TYPE_##FORM(T) value, MSL_TYPE_##FORM(T) filling, \
                                       ushort amount, ushort modulo, S site = {}) {          \
    using R = MSL_TYPE_##FORM(T);                                                            \
    return msl_impl::together<msl_impl::ShiftedAndFilled<R, DOWN>, R>(                       \
        site, msl_impl::Filled<R>{value, filling, amount, modulo});                          \
  }                                                                                          \
  MSL_HEAD_##FORM MSL_INLINE MSL_TYPE_##FORM(T) PREFIX##_shuffle_and_fill_##NAME(            \
      MSL_TYPE_##FORM(T) value, MSL_TYPE_##FORM(T) filling, ushort amount, S site = {}) {    \
    return PREFIX##_shuffle_and_fill_##NAME(value, filling, amount, ushort(WIDTH), site);    \
  }

#define MSL_MOVING(FORM, T, PREFIX, WIDTH)                                \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, shuffle, kDirect)                   \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, broadcast, kBroadcast)              \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, shuffle_xor, kXor)                  \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, shuffle_up, kUp)                    \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, shuffle_down, kDown)                \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, shuffle_rotate_up, kRotateUp)       \
  MSL_SHUFFLE(FORM, T, PREFIX, WIDTH, shuffle_rotate_down, kRotateDown)   \
  MSL_SHIFT_AND_FILL(FORM, T, PREFIX, WIDTH, up, false)                   \
  MSL_SHIFT_AND_FILL(FORM, T, PREFIX, WIDTH, down, true)                  \
  MSL_HEAD_##FORM MSL_INLINE MSL_TYPE_##FORM(T)                           \
      PREFIX##_broadcast_first(MSL_TYPE_##FORM(T) value, S site = {}) {   \
    using R = MSL_TYPE_##FORM(T);                                         \
    return msl_impl::together<msl_impl::First<R, WIDTH>, R>(site, value); \
  }
#define MSL_ARITHMETIC(FORM, T, PREFIX, WIDTH)                       \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, sum, Sum)                       \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, product, Product)               \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, max, Maximum)                   \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, min, Minimum)                   \
  MSL_SCAN(FORM, T, PREFIX, WIDTH, inclusive_sum, Sum, true)         \
  MSL_SCAN(FORM, T, PREFIX, WIDTH, exclusive_sum, Sum, false)        \
  MSL_SCAN(FORM, T, PREFIX, WIDTH, inclusive_product, Product, true) \
  MSL_SCAN(FORM, T, PREFIX, WIDTH, exclusive_product, Product, false)
#define MSL_BITWISE(FORM, T, PREFIX, WIDTH)    \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, and, And) \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, or, Or)   \
  MSL_REDUCE(FORM, T, PREFIX, WIDTH, xor, Xor)

#define MSL_FLOATING(FORM, T)       \
  MSL_MOVING(FORM, T, simd, 32)     \
  MSL_MOVING(FORM, T, quad, 4)      \
  MSL_ARITHMETIC(FORM, T, simd, 32) \
  MSL_ARITHMETIC(FORM, T, quad, 4)
#define MSL_INTEGRAL(FORM, T)    \
  MSL_FLOATING(FORM, T)          \
  MSL_BITWISE(FORM, T, simd, 32) \
  MSL_BITWISE(FORM, T, quad, 4)
MSL_INTEGRAL(SCALAR, char)
MSL_INTEGRAL(SCALAR, int8_t)
MSL_INTEGRAL(SCALAR, uchar)
MSL_INTEGRAL(SCALAR, short)
MSL_INTEGRAL(SCALAR, ushort)
MSL_INTEGRAL(SCALAR, int)
MSL_INTEGRAL(SCALAR, uint)
MSL_FLOATING(SCALAR, half)
MSL_FLOATING(SCALAR, bfloat)
MSL_FLOATING(SCALAR, float)
MSL_INTEGRAL(VECTOR, )

#undef MSL_HEAD_SCALAR
#undef MSL_HEAD_VECTOR
#undef MSL_TYPE_SCALAR
#undef MSL_TYPE_VECTOR
#undef MSL_REDUCE
#undef MSL_SCAN
#undef MSL_SHUFFLE
#undef MSL_SHIFT_AND_FILL
#undef MSL_MOVING
#undef MSL_ARITHMETIC
#undef MSL_BITWISE
#undef MSL_FLOATING
#undef MSL_INTEGRAL

}  // namespace msl::metal

// metal_compute, metal_simdgroup, metal_quadgroup: barriers, and functions in which the threads of
// a simdgroup or of a quadgroup work together.
//
// Each of them passes its operand to together(), which each target defines. Lanes that do not
// exist, have returned or have diverged take no part. There are overloads for each type, without
// bool, bfloat and 64-bit integers, as in Metal: c10 and MLX add theirs.
#pragma once

#include <msl/atomic.h>

namespace msl::msl_impl {

using abi::u32;

// ---- combining two values -----------------------------------------------------------------------

// Sums and products of integers wrap around. Smaller types are computed in int, which is wide
// enough except for products of ushort.
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

// ---- operands and results of lanes --------------------------------------------------------------

enum class Shuffle { kDirect, kBroadcast, kXor, kUp, kDown, kRotateUp, kRotateDown };

template <class T>
struct Moved {
  T value;
  ushort amount;  // the requested lane, or the distance
};
template <class T>
struct Filled {
  T value;
  T filling;
  ushort amount;
  ushort modulo;
};
// The lane from which a shuffle takes a value. outside: shifted beyond an end.
struct SourceLane {
  u32 lane;
  bool outside;
};
template <Shuffle Kind, u32 Width>
MSL_INLINE constexpr SourceLane source_lane(u32 lane, u32 amount) {
  const u32 place = lane & (Width - 1);
  u32 source = amount;
  bool outside = false;
  switch (Kind) {
    case Shuffle::kDirect:
    case Shuffle::kBroadcast:
      break;
    case Shuffle::kXor:
      source = place ^ amount;
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
      source = place - amount;
      break;
    case Shuffle::kRotateDown:
      source = place + amount;
      break;
  }
  return {lane - place + (source & (Width - 1)), outside};
}
// The source lane of a shift that fills the lanes left empty.
template <bool Down>
MSL_INLINE constexpr SourceLane source_lane_of_filled(u32 lane, u32 amount, u32 width) {
  const u32 place = lane & (width - 1);
  const u32 source = Down ? place + amount : place - amount;
  return {lane - place + (source & (width - 1)), Down ? source >= width : amount > place};
}
template <class T>
inline constexpr bool is_long_integer =
    metal::is_integral_v<T> && sizeof(metal::make_scalar_t<T>) == 8;

struct Votes {
  u32 yes;      // lanes that voted true
  u32 present;  // lanes that voted
  u32 lane;     // this lane
};

}  // namespace msl::msl_impl

#if defined(__CUDACC_RTC__)
#include <msl/cuda/simdgroup.h>
#else
#include <msl/host/simdgroup.h>
#endif

namespace msl::msl_impl {

template <class S>
MSL_INLINE Votes vote(bool yes, S site) {
  return together<Ballot, Votes>(site, yes);
}
// Votes among the four lanes of a quadgroup.
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

// Apple's name for the trait of types that the functions below take.
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

// ---- the functions, for each type ---------------------------------------------------------------

// S: the site that together() takes. FORM: SCALAR, with the type T; VECTOR, a template over vec<E,
// N>; or INTEGERS, one over such vectors of integers. PREFIX and WIDTH: simd, 32 or quad, 4.
// Templates without deduction: they convert their arguments as plain functions do, and a user's
// plain function with the same parameters is preferred.
#define MSL_HEAD_SCALAR template <class S = abi::Site>
#define MSL_HEAD_VECTOR                          \
  template <class E, int N, class S = abi::Site, \
            class = metal::enable_if_t<(sizeof(E) <= 4 && !metal::is_same_v<E, bool>)>>
#define MSL_HEAD_INTEGERS                                                               \
  template <class E, int N, class S = abi::Site,                                        \
            class = metal::enable_if_t<(sizeof(E) <= 4 && !metal::is_same_v<E, bool> && \
                                        metal::is_integral_v<E>)>>
#define MSL_TYPE_SCALAR(T) T
#define MSL_TYPE_VECTOR(T) vec<E, N>
#define MSL_TYPE_INTEGERS(T) vec<E, N>

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
MSL_FLOATING(VECTOR, )
MSL_BITWISE(INTEGERS, , simd, 32)
MSL_BITWISE(INTEGERS, , quad, 4)

// bool would be promoted to int.
#define MSL_NO_BOOL(NAME, ...)                  \
  template <class S = abi::Site>                \
  bool NAME(bool __VA_ARGS__, S = {}) = delete; \
  template <int N, class S = abi::Site>         \
  vec<bool, N> NAME(vec<bool, N> __VA_ARGS__, S = {}) = delete;
#define MSL_NO_MOVING_OF_BOOL(PREFIX)                 \
  MSL_NO_BOOL(PREFIX##_shuffle, , ushort)             \
  MSL_NO_BOOL(PREFIX##_broadcast, , ushort)           \
  MSL_NO_BOOL(PREFIX##_shuffle_xor, , ushort)         \
  MSL_NO_BOOL(PREFIX##_shuffle_up, , ushort)          \
  MSL_NO_BOOL(PREFIX##_shuffle_down, , ushort)        \
  MSL_NO_BOOL(PREFIX##_shuffle_rotate_up, , ushort)   \
  MSL_NO_BOOL(PREFIX##_shuffle_rotate_down, , ushort) \
  MSL_NO_BOOL(PREFIX##_broadcast_first)
MSL_NO_MOVING_OF_BOOL(simd)
MSL_NO_MOVING_OF_BOOL(quad)
#undef MSL_NO_BOOL
#undef MSL_NO_MOVING_OF_BOOL

// 64-bit integers would be converted to some other type. The parameter pack makes any function of a
// program that takes them, a template too, the better choice. Functions with an amount are left to
// the ambiguity of their overloads: a program's own function to which an amount is converted would
// be no better than one here that takes it as it is.
#define MSL_NO_LONG(NAME)                                                                     \
  template <class T, class... Rest, class = metal::enable_if_t<msl_impl::is_long_integer<T>>> \
  T NAME(T, Rest...) = delete;
#define MSL_NO_LONGS(PREFIX)                     \
  MSL_NO_LONG(PREFIX##_broadcast_first)          \
  MSL_NO_LONG(PREFIX##_sum)                      \
  MSL_NO_LONG(PREFIX##_product)                  \
  MSL_NO_LONG(PREFIX##_max)                      \
  MSL_NO_LONG(PREFIX##_min)                      \
  MSL_NO_LONG(PREFIX##_prefix_inclusive_sum)     \
  MSL_NO_LONG(PREFIX##_prefix_exclusive_sum)     \
  MSL_NO_LONG(PREFIX##_prefix_inclusive_product) \
  MSL_NO_LONG(PREFIX##_prefix_exclusive_product) \
  MSL_NO_LONG(PREFIX##_and)                      \
  MSL_NO_LONG(PREFIX##_or)                       \
  MSL_NO_LONG(PREFIX##_xor)
MSL_NO_LONGS(simd)
MSL_NO_LONGS(quad)
#undef MSL_NO_LONG
#undef MSL_NO_LONGS

#undef MSL_HEAD_SCALAR
#undef MSL_HEAD_VECTOR
#undef MSL_HEAD_INTEGERS
#undef MSL_TYPE_SCALAR
#undef MSL_TYPE_VECTOR
#undef MSL_TYPE_INTEGERS
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

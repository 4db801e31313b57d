// Lambdas and functions that contain synchronising calls, as objects that all threads of a group
// call together.
#pragma once

#include <msl/host/group.h>

namespace msl::msl_support {

// The emitted form of a lambda, or of a function passed on. in_group is its group form (for all
// threads); Plain is what one thread would call, used only for the type of the result.
template <class Together, class Plain>
struct Closure {
  Together in_group;

  template <class... A>
  auto operator()(A&&... arguments) const
      -> decltype(made_up<Plain&>()(static_cast<A&&>(arguments)...)) {
    msl_runtime->fail("a lambda in which threads synchronise, called by one of them");
    __builtin_unreachable();
  }
};
// make: creates the one-thread form; it is never called.
template <class Together, class Make>
MSL_INLINE auto closure(const Together& together, const Make& make) {
  return Closure<Together, decltype(make())>{together};
}

// Copies the current values of a variable, for a lambda that captures them.
template <class M, class A>
MSL_INLINE auto captured(const Threads& threads, const M& mask, const A& variable) {
  typedef metal::remove_cvref_t<decltype(variable[0])> T;
  Lanes<T> result(threads);
  T* const to = at(result);
  each<false>(threads, mask,
              [=](Lane lane) MSL_LANE_LOOP { copy(to[lane.slot], variable[lane.slot]); });
  return result;
}

// ---- calls of an object of any class ------------------------------------------------------------

// Detects whether a class has a group form of its operator().
struct NamesForm {
  int msl_call_in_group;
};
template <class T>
struct LacksForm : T, NamesForm {};
template <class T, class = void>
struct has_form {
  static constexpr bool value = __is_class(T);
};
template <class T>
struct has_form<T, decltype(void(&LacksForm<T>::msl_call_in_group))> {
  static constexpr bool value = false;
};

// Returns a thread of the mask, which must not be empty.
template <class M>
MSL_INLINE u32 one_of(const Threads& threads, const M& mask) {
  for (u32 s = 0;; ++s) {
    if (const u32 lanes = mask.word(threads, s)) {
      return s * abi::kSimdWidth + u32(__builtin_ctz(lanes));
    }
  }
}

template <class T>
inline constexpr bool is_closure = false;
template <class Together, class Plain>
inline constexpr bool is_closure<Closure<Together, Plain>> = true;

// Calls each thread's object. objects: one per thread. one: the arguments of one thread.
template <class T, class K, class M, class P, class O, class... A>
MSL_INLINE auto call_object(T&, K kinds, const Threads& threads, const M& mask, const P& pack,
                            const O& objects, A&&... one) {
  typedef metal::remove_cv_t<T> C;
  if constexpr (is_closure<C>) {
    return objects[one_of(threads, mask)].in_group(kinds, threads, mask, pack, one...);
  } else if constexpr (has_form<C>::value) {
    return C::msl_call_in_group(kinds, threads, mask, pack, objects, one...);
  } else {
    // Contains no synchronising calls: it has no group form.
    typedef decltype(made_up<T&>()(one...)) Result;
    const auto call = [&](Lane lane) MSL_LANE_LOOP -> Result {
      threads.scratch->lane = lane.index & kSimdMask;
      return pack.apply(lane.slot, [&](auto&... of) MSL_LANE_LOOP -> Result {
        return objects[lane.slot](of...);
      });
    };
    if constexpr (__is_same(Result, void)) {
      each<false>(threads, mask, call);
      return Nothing();
    } else {
      return evaluate<false>(threads, mask, call);
    }
  }
}

}  // namespace msl::msl_support

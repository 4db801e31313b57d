// metal_atomic: atomic<T> for int, uint, bool, float, ulong (and long), and the functions on it.
//
// Threadgroups run on several CPU threads, so device memory needs real atomics. Address spaces are
// erased by now: the same functions serve device and threadgroup memory.
#pragma once

#include <msl/conversion.h>
#include <msl/integer.h>
#if defined(__CUDACC_RTC__)
#include <msl/cuda/atomic.h>
#else
#include <msl/instrument.h>
#endif

namespace msl::metal {

enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};

// The memory that a barrier or fence orders, and the scope in which it does.
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
MSL_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
MSL_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) & uint(b));
}
MSL_INLINE constexpr mem_flags& operator|=(mem_flags& a, mem_flags b) { return a = a | b; }
// Scope 3, the whole system, has no name in Metal; code in the wild defines it.
enum thread_scope : int {
  thread_scope_thread = 0,
  thread_scope_threadgroup = 1,
  thread_scope_device = 2,
  thread_scope_simdgroup = 4,
};

template <class T>
struct atomic {
  static_assert(is_integral_v<T> || is_same_v<T, float>, "Metal has no atomic of this type");
  using value_type = T;
  alignas(sizeof(T)) T value;
};
template <class T>
using _atomic = atomic<T>;  // Apple's name; code in the wild has it
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<long> atomic_long;
typedef atomic<ulong> atomic_ulong;

}  // namespace msl::metal

// The compiler's builtin __atomic_NAME, or its replacement in instrument.h.
#if defined(MSL_SANITIZE_ADDRESS) || defined(__CUDACC_RTC__)
#define MSL_ATOMIC(NAME) msl_support::atomic_##NAME
#else
#define MSL_ATOMIC(NAME) __atomic_##NAME
#endif

namespace msl::msl_impl {

MSL_INLINE constexpr int builtin_order(metal::memory_order order) {
  switch (order) {
    case metal::memory_order_relaxed:
      return __ATOMIC_RELAXED;
    case metal::memory_order_acquire:
      return __ATOMIC_ACQUIRE;
    case metal::memory_order_release:
      return __ATOMIC_RELEASE;
    case metal::memory_order_acq_rel:
      return __ATOMIC_ACQ_REL;
    default:
      return __ATOMIC_SEQ_CST;
  }
}
// A load cannot release and a store cannot acquire.
MSL_INLINE constexpr int load_order(metal::memory_order order) {
  return order == metal::memory_order_relaxed ? __ATOMIC_RELAXED : __ATOMIC_SEQ_CST;
}

// The unsigned integer of the same size: the compiler's builtins take integers.
template <class T>
using atomic_bits =
    metal::conditional_t<sizeof(T) == 1, uchar, metal::conditional_t<sizeof(T) == 4, uint, ulong>>;
template <class T>
MSL_INLINE atomic_bits<T>* bits_of(const volatile metal::atomic<T>* object) {
  return reinterpret_cast<atomic_bits<T>*>(const_cast<T*>(&object->value));
}

template <class T>
MSL_INLINE T atomic_load(const volatile metal::atomic<T>* object, metal::memory_order order) {
  return bit_cast<T>(MSL_ATOMIC(load_n)(bits_of(object), load_order(order)));
}
template <class T>
MSL_INLINE bool atomic_compare_exchange(volatile metal::atomic<T>* object, T* expected, T desired,
                                        metal::memory_order success, metal::memory_order failure) {
  auto seen = bit_cast<atomic_bits<T>>(*expected);
  const bool done =
      MSL_ATOMIC(compare_exchange_n)(bits_of(object), &seen, bit_cast<atomic_bits<T>>(desired),
                                     false, builtin_order(success), load_order(failure));
  if (!done) *expected = bit_cast<T>(seen);
  return done;
}
// Replaces the value by update(value) and returns the old value. Does not store if nothing changes.
template <class T, class F>
MSL_INLINE T atomic_update(volatile metal::atomic<T>* object, metal::memory_order order, F update) {
  T old = atomic_load(object, metal::memory_order_relaxed);
  for (;;) {
    const T updated = update(old);
    if (bit_cast<atomic_bits<T>>(updated) == bit_cast<atomic_bits<T>>(old) &&
        order == metal::memory_order_relaxed) {
      return old;
    }
    if (atomic_compare_exchange(object, &old, updated, order, metal::memory_order_relaxed)) {
      return old;
    }
  }
}

}  // namespace msl::msl_impl

namespace msl::metal {

template <class T, class U>
MSL_INLINE void atomic_store_explicit(volatile atomic<T>* object, U desired, memory_order order) {
  MSL_ATOMIC(store_n)(
      msl_impl::bits_of(object),
      msl_impl::bit_cast<msl_impl::atomic_bits<T>>(msl_impl::conversion::converted<T>(desired)),
      msl_impl::load_order(order));
}
template <class T>
MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order order) {
  return msl_impl::atomic_load(object, order);
}
template <class T, class U>
MSL_INLINE T atomic_exchange_explicit(volatile atomic<T>* object, U desired, memory_order order) {
  return msl_impl::bit_cast<T>(MSL_ATOMIC(exchange_n)(
      msl_impl::bits_of(object),
      msl_impl::bit_cast<msl_impl::atomic_bits<T>>(msl_impl::conversion::converted<T>(desired)),
      msl_impl::builtin_order(order)));
}
template <class T, class U>
MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected,
                                                      U desired, memory_order success,
                                                      memory_order failure) {
  return msl_impl::atomic_compare_exchange(
      object, expected, msl_impl::conversion::converted<T>(desired), success, failure);
}

// Returns by an instruction of the GPU, which cuda/atomic.h has where IS_OF_GPU is true.
#if defined(__CUDACC_RTC__)
#define MSL_FETCH_ON_GPU(NAME, IS_OF_GPU)                                        \
  if constexpr (IS_OF_GPU) {                                                     \
    return T(msl_support::atomic_fetch_##NAME(const_cast<T*>(&object->value), b, \
                                              msl_impl::builtin_order(order)));  \
  } else
#else
#define MSL_FETCH_ON_GPU(NAME, IS_OF_GPU)
#endif
#define MSL_FETCH(NAME, ...)                                                            \
  template <class T, class U>                                                           \
  MSL_INLINE T atomic_fetch_##NAME##_explicit(volatile atomic<T>* object, U operand,    \
                                              memory_order order) {                     \
    const T b = msl_impl::conversion::converted<T>(operand);                            \
    MSL_FETCH_ON_GPU(NAME, is_integral_v<T> && sizeof(T) >= 4)                          \
    return msl_impl::atomic_update(object, order, [=](T a) { return T(__VA_ARGS__); }); \
  }
#define MSL_FETCH_BUILTIN(NAME, ...)                                                            \
  template <class T, class U>                                                                   \
  MSL_INLINE T atomic_fetch_##NAME##_explicit(volatile atomic<T>* object, U operand,            \
                                              memory_order order) {                             \
    const T b = msl_impl::conversion::converted<T>(operand);                                    \
    MSL_FETCH_ON_GPU(NAME, (is_same_v<T, float>))                                               \
    if constexpr (is_integral_v<T> && !is_same_v<T, bool>) {                                    \
      return T(MSL_ATOMIC(fetch_##NAME)(msl_impl::bits_of(object), msl_impl::atomic_bits<T>(b), \
                                        msl_impl::builtin_order(order)));                       \
    } else {                                                                                    \
      return msl_impl::atomic_update(object, order, [=](T a) { return T(__VA_ARGS__); });       \
    }                                                                                           \
  }
MSL_FETCH_BUILTIN(add, a + b)
MSL_FETCH_BUILTIN(sub, a - b)
MSL_FETCH_BUILTIN(and, a& b)
MSL_FETCH_BUILTIN(or, a | b)
MSL_FETCH_BUILTIN(xor, a ^ b)
MSL_FETCH(max, a < b ? b : a)
MSL_FETCH(min, b < a ? b : a)
#undef MSL_FETCH
#undef MSL_FETCH_BUILTIN
#undef MSL_FETCH_ON_GPU

// 64-bit minimum and maximum return nothing.
MSL_INLINE void atomic_max_explicit(volatile atomic<ulong>* object, ulong operand,
                                    memory_order order) {
  atomic_fetch_max_explicit(object, operand, order);
}
MSL_INLINE void atomic_min_explicit(volatile atomic<ulong>* object, ulong operand,
                                    memory_order order) {
  atomic_fetch_min_explicit(object, operand, order);
}

MSL_INLINE void atomic_thread_fence(mem_flags flags, memory_order order = memory_order_seq_cst,
                                    thread_scope = thread_scope_device) {
#if MSL_INSTRUMENTED
  msl_runtime->fence(uint(flags), msl_impl::builtin_order(order));
#endif
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace msl::metal

// Functions that a sanitizer's instrumentation calls, for kernels compiled with -fsanitize=thread,
// or with -fsanitize=address and outlined checks (--param
// asan-instrumentation-with-call-threshold=0). They are the library's own, hidden, and pass every
// access on to the device with its position in the code. So the device sees each access in both
// modes, passes it to the sanitizer's runtime (which keeps one state per GPU thread), and checks
// for reads of memory that nothing has written.
#pragma once

#include <msl/config.h>

#if MSL_INSTRUMENTED

#ifdef __clang__
#define MSL_UNINSTRUMENTED disable_sanitizer_instrumentation
#else
#define MSL_UNINSTRUMENTED no_sanitize("thread", "address", "undefined")
#endif
#define MSL_HOOK \
  extern "C" __attribute__((visibility("hidden"), used, noinline, MSL_UNINSTRUMENTED))
#define MSL_PLACE __builtin_return_address(0)

// ---- memory -------------------------------------------------------------------------------------

// After an access: AddressSanitizer's own check, which its inlined code would have made, of the
// bytes that are needed.
#if defined(MSL_SANITIZE_ADDRESS)
extern "C" void* __asan_region_is_poisoned(void* begin, __SIZE_TYPE__ bytes);
extern "C" void __asan_report_error(const void* pc, void* frame, void* stack, void* address,
                                    int is_write, __SIZE_TYPE__ bytes, unsigned experiment);
namespace msl::msl_support {
inline __attribute__((always_inline, MSL_UNINSTRUMENTED)) void check(const void* address,
                                                                     __SIZE_TYPE__ needed,
                                                                     __SIZE_TYPE__ bytes,
                                                                     abi::Access access,
                                                                     void* place, void* frame) {
  void* const bad = __asan_region_is_poisoned(const_cast<void*>(address), needed);
  if (__builtin_expect(bad == nullptr, 1)) return;
  __asan_report_error(place, frame, &place, bad, access == abi::Access::kWrite, bytes, 0);
}
}  // namespace msl::msl_support
#define MSL_CHECK(ADDRESS, BYTES, KIND)                                             \
  msl::msl_support::check(ADDRESS, BYTES, BYTES, msl::abi::Access::KIND, MSL_PLACE, \
                          *static_cast<void**>(__builtin_frame_address(0)))
#else
#define MSL_CHECK(ADDRESS, BYTES, KIND) (void)0
#endif

#define MSL_ACCESS_HOOK(NAME, BYTES, KIND)                                                   \
  MSL_HOOK void NAME(void* address) {                                                        \
    if (msl_runtime) msl_runtime->access(address, BYTES, msl::abi::Access::KIND, MSL_PLACE); \
    MSL_CHECK(address, BYTES, KIND);                                                         \
  }
#define MSL_RANGE_HOOK(NAME, KIND)                                                           \
  MSL_HOOK void NAME(void* address, __SIZE_TYPE__ bytes) {                                   \
    if (msl_runtime) msl_runtime->access(address, bytes, msl::abi::Access::KIND, MSL_PLACE); \
    MSL_CHECK(address, bytes, KIND);                                                         \
  }

#if defined(MSL_SANITIZE_THREAD)
#define MSL_ACCESS_HOOKS(BYTES)                               \
  MSL_ACCESS_HOOK(__tsan_read##BYTES, BYTES, kRead)           \
  MSL_ACCESS_HOOK(__tsan_write##BYTES, BYTES, kWrite)         \
  MSL_ACCESS_HOOK(__tsan_unaligned_read##BYTES, BYTES, kRead) \
  MSL_ACCESS_HOOK(__tsan_unaligned_write##BYTES, BYTES, kWrite)
MSL_ACCESS_HOOKS(1)
MSL_ACCESS_HOOKS(2)
MSL_ACCESS_HOOKS(4)
MSL_ACCESS_HOOKS(8)
MSL_ACCESS_HOOKS(16)
MSL_RANGE_HOOK(__tsan_read_range, kRead)
MSL_RANGE_HOOK(__tsan_write_range, kWrite)
MSL_HOOK void __tsan_func_entry(void*) {}
MSL_HOOK void __tsan_func_exit() {}

#elif defined(MSL_SANITIZE_ADDRESS)
// With and without recovery, which is part of the name; the device always recovers.
#define MSL_ACCESS_HOOKS(BYTES)                               \
  MSL_ACCESS_HOOK(__asan_load##BYTES, BYTES, kRead)           \
  MSL_ACCESS_HOOK(__asan_store##BYTES, BYTES, kWrite)         \
  MSL_ACCESS_HOOK(__asan_load##BYTES##_noabort, BYTES, kRead) \
  MSL_ACCESS_HOOK(__asan_store##BYTES##_noabort, BYTES, kWrite)
MSL_ACCESS_HOOKS(1)
MSL_ACCESS_HOOKS(2)
MSL_ACCESS_HOOKS(4)
MSL_ACCESS_HOOKS(8)
MSL_ACCESS_HOOKS(16)
MSL_RANGE_HOOK(__asan_loadN, kRead)
MSL_RANGE_HOOK(__asan_storeN, kWrite)
MSL_RANGE_HOOK(__asan_loadN_noabort, kRead)
MSL_RANGE_HOOK(__asan_storeN_noabort, kWrite)
#endif
#undef MSL_ACCESS_HOOKS
#undef MSL_ACCESS_HOOK
#undef MSL_RANGE_HOOK

// ---- whole ranges: struct copies are compiled to calls of these ---------------------------------

#define MSL_COPY_HOOK(NAME)                                              \
  MSL_HOOK void* NAME(void* to, const void* from, __SIZE_TYPE__ bytes) { \
    MSL_CHECK(from, bytes, kRead);                                       \
    MSL_CHECK(to, bytes, kWrite);                                        \
    msl_runtime->copy(to, from, bytes, MSL_PLACE);                       \
    return to;                                                           \
  }
#define MSL_FILL_HOOK(NAME)                                      \
  MSL_HOOK void* NAME(void* to, int byte, __SIZE_TYPE__ bytes) { \
    MSL_CHECK(to, bytes, kWrite);                                \
    msl_runtime->fill(to, byte, bytes, MSL_PLACE);               \
    return to;                                                   \
  }
MSL_COPY_HOOK(memcpy)
MSL_COPY_HOOK(memmove)
MSL_FILL_HOOK(memset)
#if defined(__clang__) && defined(MSL_SANITIZE_THREAD)
MSL_COPY_HOOK(__tsan_memcpy)
MSL_COPY_HOOK(__tsan_memmove)
MSL_FILL_HOOK(__tsan_memset)
#elif defined(__clang__)
MSL_COPY_HOOK(__asan_memcpy)
MSL_COPY_HOOK(__asan_memmove)
MSL_FILL_HOOK(__asan_memset)
#endif
#undef MSL_COPY_HOOK
#undef MSL_FILL_HOOK

// ---- atomics ------------------------------------------------------------------------------------

#if defined(MSL_SANITIZE_THREAD)
// The operation itself is done here: one CPU thread runs all GPU threads of a sanitized launch.
#define MSL_ATOMIC_NOTE(T, KIND) \
  msl_runtime->atomic(const_cast<const T*>(at), sizeof(T), msl::abi::Access::KIND, order, MSL_PLACE)
#define MSL_ATOMIC_FETCH(BITS, T, NAME)                                                 \
  MSL_HOOK T __tsan_atomic##BITS##_fetch_##NAME(volatile T* at, T operand, int order) { \
    MSL_ATOMIC_NOTE(T, kUpdate);                                                        \
    return __atomic_fetch_##NAME(at, operand, __ATOMIC_RELAXED);                        \
  }
#define MSL_ATOMIC_EXCHANGE(BITS, T, STRENGTH)                                                \
  MSL_HOOK int __tsan_atomic##BITS##_compare_exchange_##STRENGTH(volatile T* at, T* expected, \
                                                                 T desired, int order, int) { \
    MSL_ATOMIC_NOTE(T, kUpdate);                                                              \
    return __atomic_compare_exchange_n(at, expected, desired, false, __ATOMIC_RELAXED,        \
                                       __ATOMIC_RELAXED);                                     \
  }
#define MSL_ATOMICS(BITS, T)                                                                   \
  MSL_HOOK T __tsan_atomic##BITS##_load(const volatile T* at, int order) {                     \
    MSL_ATOMIC_NOTE(T, kRead);                                                                 \
    return __atomic_load_n(at, __ATOMIC_RELAXED);                                              \
  }                                                                                            \
  MSL_HOOK void __tsan_atomic##BITS##_store(volatile T* at, T value, int order) {              \
    MSL_ATOMIC_NOTE(T, kWrite);                                                                \
    __atomic_store_n(at, value, __ATOMIC_RELAXED);                                             \
  }                                                                                            \
  MSL_HOOK T __tsan_atomic##BITS##_exchange(volatile T* at, T value, int order) {              \
    MSL_ATOMIC_NOTE(T, kUpdate);                                                               \
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);                                   \
  }                                                                                            \
  MSL_ATOMIC_FETCH(BITS, T, add)                                                               \
  MSL_ATOMIC_FETCH(BITS, T, sub)                                                               \
  MSL_ATOMIC_FETCH(BITS, T, and)                                                               \
  MSL_ATOMIC_FETCH(BITS, T, or)                                                                \
  MSL_ATOMIC_FETCH(BITS, T, xor)                                                               \
  MSL_ATOMIC_EXCHANGE(BITS, T, strong)                                                         \
  MSL_ATOMIC_EXCHANGE(BITS, T, weak)                                                           \
  MSL_HOOK T __tsan_atomic##BITS##_compare_exchange_val(volatile T* at, T expected, T desired, \
                                                        int order, int) {                      \
    MSL_ATOMIC_NOTE(T, kUpdate);                                                               \
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED,               \
                                __ATOMIC_RELAXED);                                             \
    return expected;                                                                           \
  }
MSL_ATOMICS(8, __UINT8_TYPE__)
MSL_ATOMICS(32, __UINT32_TYPE__)
MSL_ATOMICS(64, __UINT64_TYPE__)
MSL_HOOK void __tsan_atomic_thread_fence(int) {}  // atomic_thread_fence itself notifies the device
#undef MSL_ATOMIC_NOTE
#undef MSL_ATOMIC_FETCH
#undef MSL_ATOMIC_EXCHANGE
#undef MSL_ATOMICS

#elif defined(MSL_SANITIZE_ADDRESS)
// Replacements for the compiler's builtins in atomic.h, whose instrumentation would require every
// byte to be in the buffer. An atomic operation on 8 or 16 bits is one on the word around them
// (c10/metal/atomic.h): the last word of a buffer may end after it, in memory that an allocation
// always has. It must begin in it.
namespace msl::msl_support {
#define MSL_ATOMIC_FUNCTION(RESULT) \
  template <class T>                \
  __attribute__((visibility("hidden"), noinline, MSL_UNINSTRUMENTED)) RESULT
#define MSL_ATOMIC_NOTE(KIND, ORDER)                                                               \
  if (msl_runtime) {                                                                               \
    msl_runtime->atomic(const_cast<const T*>(at), sizeof(T), abi::Access::KIND, ORDER, MSL_PLACE); \
  }                                                                                                \
  check(const_cast<const T*>(at), 1, sizeof(T), abi::Access::KIND, MSL_PLACE,                      \
        *static_cast<void**>(__builtin_frame_address(0)))
MSL_ATOMIC_FUNCTION(T) atomic_load_n(const volatile T* at, int order) {
  MSL_ATOMIC_NOTE(kRead, order);
  return __atomic_load_n(at, order);
}
MSL_ATOMIC_FUNCTION(void) atomic_store_n(volatile T* at, T value, int order) {
  MSL_ATOMIC_NOTE(kWrite, order);
  __atomic_store_n(at, value, order);
}
MSL_ATOMIC_FUNCTION(T) atomic_exchange_n(volatile T* at, T value, int order) {
  MSL_ATOMIC_NOTE(kUpdate, order);
  return __atomic_exchange_n(at, value, order);
}
MSL_ATOMIC_FUNCTION(bool)
atomic_compare_exchange_n(volatile T* at, T* expected, T desired, bool weak, int success,
                          int failure) {
  MSL_ATOMIC_NOTE(kUpdate, success);
  return __atomic_compare_exchange_n(at, expected, desired, weak, success, failure);
}
#define MSL_ATOMIC_FETCH(NAME)                                                       \
  MSL_ATOMIC_FUNCTION(T) atomic_fetch_##NAME(volatile T* at, T operand, int order) { \
    MSL_ATOMIC_NOTE(kUpdate, order);                                                 \
    return __atomic_fetch_##NAME(at, operand, order);                                \
  }
MSL_ATOMIC_FETCH(add)
MSL_ATOMIC_FETCH(sub)
MSL_ATOMIC_FETCH(and)
MSL_ATOMIC_FETCH(or)
MSL_ATOMIC_FETCH(xor)
#undef MSL_ATOMIC_FUNCTION
#undef MSL_ATOMIC_NOTE
#undef MSL_ATOMIC_FETCH
}  // namespace msl::msl_support
#endif

#undef MSL_HOOK
#undef MSL_CHECK
#undef MSL_UNINSTRUMENTED
#undef MSL_PLACE
#endif

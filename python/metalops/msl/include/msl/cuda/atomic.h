// The host compilers' atomic builtins for CUDA, on objects of 1, 4 and 8 bytes in any memory.
#pragma once

#include <msl/config.h>

#define __ATOMIC_RELAXED 0
#define __ATOMIC_ACQUIRE 2
#define __ATOMIC_RELEASE 3
#define __ATOMIC_ACQ_REL 4
#define __ATOMIC_SEQ_CST 5
#define __atomic_thread_fence(order) ::__threadfence()

namespace msl::msl_support {

using abi::u32;
using abi::u64;
using abi::u8;

// Fences around a relaxed operation that implement the requested memory order.
class Fences {
 public:
  MSL_INLINE explicit Fences(int order) : ordered_(order != __ATOMIC_RELAXED) {
    if (ordered_) ::__threadfence();
  }
  MSL_INLINE ~Fences() {
    if (ordered_) ::__threadfence();
  }

 private:
  const bool ordered_;
};

MSL_INLINE u32 atomic_load_n(const u32* at, int order) {
  const Fences fences(order);
  u32 value;
  asm volatile("ld.relaxed.gpu.b32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
MSL_INLINE u64 atomic_load_n(const u64* at, int order) {
  const Fences fences(order);
  u64 value;
  asm volatile("ld.relaxed.gpu.b64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
MSL_INLINE void atomic_store_n(u32* at, u32 value, int order) {
  const Fences fences(order);
  asm volatile("st.relaxed.gpu.b32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
MSL_INLINE void atomic_store_n(u64* at, u64 value, int order) {
  const Fences fences(order);
  asm volatile("st.relaxed.gpu.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

#define MSL_ATOMIC_FUNCTION(NAME, FUNCTION, OPERAND)                                             \
  MSL_INLINE u32 atomic_##NAME(u32* at, u32 operand, int order) {                                \
    const Fences fences(order);                                                                  \
    return ::FUNCTION(at, OPERAND);                                                              \
  }                                                                                              \
  MSL_INLINE u64 atomic_##NAME(u64* at, u64 operand, int order) {                                \
    const Fences fences(order);                                                                  \
    return ::FUNCTION(reinterpret_cast<unsigned long long*>(at), (unsigned long long)(OPERAND)); \
  }
MSL_ATOMIC_FUNCTION(exchange_n, atomicExch, operand)
MSL_ATOMIC_FUNCTION(fetch_add, atomicAdd, operand)
MSL_ATOMIC_FUNCTION(fetch_sub, atomicAdd, 0 - operand)
MSL_ATOMIC_FUNCTION(fetch_and, atomicAnd, operand)
MSL_ATOMIC_FUNCTION(fetch_or, atomicOr, operand)
MSL_ATOMIC_FUNCTION(fetch_xor, atomicXor, operand)
#undef MSL_ATOMIC_FUNCTION

// Operations that the compilers' builtins lack and GPUs have: without them, each would be a loop of
// compare-and-swap.
#define MSL_ATOMIC_COMPARED(TYPE, AS)                                 \
  MSL_INLINE TYPE atomic_fetch_max(TYPE* at, TYPE value, int order) { \
    const Fences fences(order);                                       \
    return TYPE(::atomicMax(reinterpret_cast<AS*>(at), (AS)value));   \
  }                                                                   \
  MSL_INLINE TYPE atomic_fetch_min(TYPE* at, TYPE value, int order) { \
    const Fences fences(order);                                       \
    return TYPE(::atomicMin(reinterpret_cast<AS*>(at), (AS)value));   \
  }
MSL_ATOMIC_COMPARED(int, int)
MSL_ATOMIC_COMPARED(u32, unsigned)
MSL_ATOMIC_COMPARED(long, long long)
MSL_ATOMIC_COMPARED(u64, unsigned long long)
#undef MSL_ATOMIC_COMPARED

// In device memory, subnormal operands and sums are zero, as Metal permits.
MSL_INLINE float atomic_fetch_add(float* at, float operand, int order) {
  const Fences fences(order);
  return ::atomicAdd(at, operand);
}
MSL_INLINE float atomic_fetch_sub(float* at, float operand, int order) {
  return atomic_fetch_add(at, -operand, order);
}

MSL_INLINE bool atomic_compare_exchange_n(u32* at, u32* expected, u32 desired, bool, int order,
                                          int) {
  const Fences fences(order);
  const u32 seen = ::atomicCAS(at, *expected, desired);
  const bool done = seen == *expected;
  *expected = seen;
  return done;
}
MSL_INLINE bool atomic_compare_exchange_n(u64* at, u64* expected, u64 desired, bool, int order,
                                          int) {
  const Fences fences(order);
  const u64 seen = ::atomicCAS(reinterpret_cast<unsigned long long*>(at),
                               (unsigned long long)*expected, (unsigned long long)desired);
  const bool done = seen == *expected;
  *expected = seen;
  return done;
}

// Returns the 32-bit word that contains a byte.
MSL_INLINE u32* word_around(const u8* at) {
  return reinterpret_cast<u32*>(reinterpret_cast<u64>(at) & ~u64(3));
}
MSL_INLINE u32 shift_in_word(const u8* at) { return u32(reinterpret_cast<u64>(at) & 3) * 8; }
MSL_INLINE u8 atomic_load_n(const u8* at, int order) {
  return u8(atomic_load_n(word_around(at), order) >> shift_in_word(at));
}
MSL_INLINE bool atomic_compare_exchange_n(u8* at, u8* expected, u8 desired, bool, int order, int) {
  u32* const word = word_around(at);
  const u32 shift = shift_in_word(at);
  u32 seen = atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    if (u8(seen >> shift) != *expected) {
      *expected = u8(seen >> shift);
      return false;
    }
    const u32 wanted = (seen & ~(0xffu << shift)) | (u32(desired) << shift);
    if (atomic_compare_exchange_n(word, &seen, wanted, false, order, order)) return true;
  }
}
MSL_INLINE u8 atomic_exchange_n(u8* at, u8 desired, int order) {
  u8 expected = atomic_load_n(at, __ATOMIC_RELAXED);
  while (!atomic_compare_exchange_n(at, &expected, desired, false, order, order)) {
  }
  return expected;
}
MSL_INLINE void atomic_store_n(u8* at, u8 value, int order) { atomic_exchange_n(at, value, order); }

}  // namespace msl::msl_support

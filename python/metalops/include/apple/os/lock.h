// Apple's small lock.
#pragma once
#include <stdbool.h>

typedef struct os_unfair_lock_s {
  int held;
} os_unfair_lock, *os_unfair_lock_t;
#define OS_UNFAIR_LOCK_INIT ((os_unfair_lock){0})

static inline bool os_unfair_lock_trylock(os_unfair_lock_t lock) {
  return __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE) == 0;
}
static inline void os_unfair_lock_lock(os_unfair_lock_t lock) {
  while (!os_unfair_lock_trylock(lock)) {
  }
}
static inline void os_unfair_lock_unlock(os_unfair_lock_t lock) {
  __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}

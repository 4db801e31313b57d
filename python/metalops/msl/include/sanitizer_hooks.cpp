// Hooks of the compiler's sanitizer runtimes. This library is preloaded in front of them, and they
// call its functions when they report something. The hooks pass reports on to the functions that
// the device sets below (csrc/host/exec/sanitize), and can make the same place be reported again.
//
// UndefinedBehaviorSanitizer reports each place once in the life of a process: it overwrites the
// column in the compiler's description of the place. The column is restored between launches, so
// that each launch of a wrong kernel fails.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
#define EXPORT __attribute__((visibility("default")))

// Set while kernels run; called by the runtimes under their own locks.
EXPORT void (*metalops_on_undefined)(void* pc, void* frame) = nullptr;
EXPORT void (*metalops_on_race)(void* report) = nullptr;

static thread_local void* caller = nullptr;
static thread_local void* caller_frame = nullptr;

EXPORT void __ubsan_on_report() {
  if (metalops_on_undefined != nullptr) metalops_on_undefined(caller, caller_frame);
}
EXPORT void __tsan_on_report(void* report) {
  if (metalops_on_race != nullptr) metalops_on_race(report);
}

// The common beginning of all descriptions of undefined behaviour.
struct Place {
  const char* file;
  uint32_t line;
  uint32_t column;
};
static const uint32_t kReported = ~0u;

struct Reported {
  struct Place* place;
  uint32_t column;
};
static pthread_mutex_t reported_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct Reported* reported = nullptr;
static size_t reported_count = 0, reported_room = 0;

static void remember(struct Place* place, uint32_t column) {
  pthread_mutex_lock(&reported_mutex);
  if (reported_count == reported_room) {
    const size_t room = reported_room == 0 ? 64 : 2 * reported_room;
    void* larger = realloc(reported, room * sizeof(struct Reported));
    if (larger != nullptr) {
      reported = static_cast<struct Reported*>(larger);
      reported_room = room;
    }
  }
  if (reported_count < reported_room) {
    reported[reported_count].place = place;
    reported[reported_count].column = column;
    ++reported_count;
  }
  pthread_mutex_unlock(&reported_mutex);
}

// Makes every place be reported again. Called before the libraries that contain them can be
// unloaded.
EXPORT void metalops_report_again() {
  pthread_mutex_lock(&reported_mutex);
  for (size_t i = 0; i < reported_count; ++i) {
    __atomic_store_n(&reported[i].place->column, reported[i].column, __ATOMIC_RELAXED);
  }
  reported_count = 0;
  pthread_mutex_unlock(&reported_mutex);
}

// The handlers that compiled code calls: the first argument describes the place, up to three more
// are values. The runtime's own handler does the work.
#define HANDLER(NAME)                                                                            \
  EXPORT void __ubsan_handle_##NAME(void* data, uintptr_t a, uintptr_t b, uintptr_t c) {         \
    typedef void (*Handler)(void*, uintptr_t, uintptr_t, uintptr_t);                             \
    static Handler real = nullptr;                                                               \
    if (real == nullptr) real = (Handler)dlsym(RTLD_NEXT, "__ubsan_handle_" #NAME);              \
    struct Place* place = static_cast<struct Place*>(data);                                      \
    const uint32_t column = __atomic_load_n(&place->column, __ATOMIC_RELAXED);                   \
    if (column == kReported || real == nullptr) return;                                          \
    caller = __builtin_return_address(0);                                                        \
    caller_frame = __builtin_frame_address(0);                                                   \
    real(data, a, b, c);                                                                         \
    if (__atomic_load_n(&place->column, __ATOMIC_RELAXED) == kReported) remember(place, column); \
  }

HANDLER(type_mismatch_v1)
HANDLER(add_overflow)
HANDLER(sub_overflow)
HANDLER(mul_overflow)
HANDLER(negate_overflow)
HANDLER(divrem_overflow)
HANDLER(out_of_bounds)
HANDLER(float_cast_overflow)
HANDLER(load_invalid_value)
HANDLER(pointer_overflow)
HANDLER(vla_bound_not_positive)
HANDLER(invalid_builtin)
HANDLER(nonnull_arg)
HANDLER(nullability_arg)
HANDLER(alignment_assumption)
HANDLER(implicit_conversion)
}

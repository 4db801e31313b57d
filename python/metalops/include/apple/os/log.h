// Apple's unified log, which does not exist here: what is logged is dropped.
#pragma once
#include <stdint.h>
#include <time.h>

typedef struct os_log_s* os_log_t;
#define OS_LOG_DEFAULT ((os_log_t)0)
#define os_log_create(SUBSYSTEM, CATEGORY) ((os_log_t)0)
#define os_log(LOG, ...) ((void)0)
#define os_log_info(LOG, ...) ((void)0)
#define os_log_debug(LOG, ...) ((void)0)
#define os_log_error(LOG, ...) ((void)0)
#define os_log_fault(LOG, ...) ((void)0)

#ifndef CLOCK_UPTIME_RAW
#define CLOCK_UPTIME_RAW CLOCK_MONOTONIC
#endif
static inline uint64_t clock_gettime_nsec_np(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// Questions of a program to the system about the machine. Names that are not below do not exist.
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline int metalops_sysctl_answer(const void* value, size_t bytes, void* to,
                                         size_t* length) {
  const size_t room = to == 0 ? 0 : *length;
  if (length != 0) *length = bytes;
  if (to == 0) return 0;
  if (room < bytes) {
    errno = ENOMEM;
    return -1;
  }
  memcpy(to, value, bytes);
  return 0;
}

// The processor's name, as the system writes it.
static inline void metalops_processor_name(char* name, size_t room) {
  char line[512];
  FILE* file = fopen("/proc/cpuinfo", "r");
  name[0] = 0;
  while (file != 0 && fgets(line, sizeof line, file) != 0) {
    const char* colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == 0) continue;
    snprintf(name, room, "%s", colon + 2);
    name[strcspn(name, "\n")] = 0;
    break;
  }
  if (file != 0) fclose(file);
}

static inline int sysctlbyname(const char* name, void* to, size_t* length, void* from,
                               size_t from_length) {
  (void)from_length;
  if (from != 0) {
    errno = EPERM;
    return -1;
  }
  if (strcmp(name, "hw.memsize") == 0) {
    const uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return metalops_sysctl_answer(&bytes, sizeof bytes, to, length);
  }
  if (strcmp(name, "hw.pagesize") == 0) {
    const uint64_t bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return metalops_sysctl_answer(&bytes, sizeof bytes, to, length);
  }
  if (strcmp(name, "hw.ncpu") == 0 || strcmp(name, "hw.logicalcpu") == 0 ||
      strcmp(name, "hw.activecpu") == 0) {
    const int32_t count = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    return metalops_sysctl_answer(&count, sizeof count, to, length);
  }
  if (strcmp(name, "machdep.cpu.brand_string") == 0) {
    char model[256];
    metalops_processor_name(model, sizeof model);
    if (model[0] != 0) return metalops_sysctl_answer(model, strlen(model) + 1, to, length);
  }
  errno = ENOENT;
  return -1;
}

#ifdef __cplusplus
}
#endif

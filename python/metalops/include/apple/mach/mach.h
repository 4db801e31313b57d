// Functions with which programs for Macs allocate whole pages.
#pragma once
#include <mach/mach_time.h>
#include <mach/vm_page_size.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int kern_return_t;
typedef unsigned mach_port_t, vm_map_t, task_id_token_t;
typedef uintptr_t vm_address_t, vm_size_t;
#define KERN_SUCCESS 0
#define KERN_NO_SPACE 3
#define VM_FLAGS_ANYWHERE 1

static inline mach_port_t mach_task_self(void) { return 0; }
static inline kern_return_t vm_allocate(vm_map_t task, vm_address_t* address, vm_size_t size,
                                        int flags) {
  void* memory = 0;
  (void)task, (void)flags;
  size = (size + vm_page_size - 1) / vm_page_size * vm_page_size;
  if (posix_memalign(&memory, vm_page_size, size) != 0) return KERN_NO_SPACE;
  memset(memory, 0, size);
  *address = (vm_address_t)memory;
  return KERN_SUCCESS;
}
static inline kern_return_t vm_deallocate(vm_map_t task, vm_address_t address, vm_size_t size) {
  (void)task, (void)size;
  free((void*)address);
  return KERN_SUCCESS;
}

// What the parts of the execution engine share.
#pragma once

#include <cstdint>
#include <string>

#include "exec.h"

namespace metalops::exec {

// The functions that kernels call.
const msl::abi::Runtime& runtime();

// "file:line:column" of a synchronising call in the kernel's source, for messages.
std::string describe(const Kernel& kernel, msl::abi::Site site);

// The kernel library that an instruction belongs to.
struct Module {
  uintptr_t base = 0;  // where it is loaded; 0 for instructions of none
  std::string file;    // that has its debug information
  const void* positions =
      nullptr;  // see sanitize/source_positions.h; null when built without a sanitizer
};
Module module_of(const void* instruction);
// Only its base, without allocating.
uintptr_t library_base(const void* instruction);

// The number of threads in the launch's grid.
uint64_t threads_in_grid(const Launch& launch);

// The engines. Launch::groups is filled in and sizes are checked already.
void run_loop(const Kernel& kernel, const Launch& launch, int threads);
void run_fibers(const Kernel& kernel, const Launch& launch, int threads);
void run_sanitizing(const Kernel& kernel, const Launch& launch);

// The kernel that this CPU thread runs in a loop, so that a synchronising call in it can be
// reported; null otherwise.
extern thread_local const Kernel* kernel_in_loop;

}  // namespace metalops::exec

// Internal interfaces shared by the engines.
#pragma once

#include <cstdint>
#include <string>

#include <exec/exec.h>

namespace metalops::exec {

// Returns the table of functions that kernels call.
const msl::abi::Runtime& runtime();

// Returns "file:line:column" of a synchronising call in the kernel's source, for messages.
std::string describe(const Kernel& kernel, msl::abi::Site site);

// Returns a kernel whose threads can run on fibers: this one, or that which is compiled from its
// source the first time, if its library has it as a group loop alone. Lives as long as the kernel.
// Throws what compile_left_out throws.
const Kernel& on_fibers(const Kernel& kernel);

// The kernel library that contains an instruction.
struct Module {
  uintptr_t base = 0;  // load address; 0 for instructions outside of kernel libraries
  std::string file;    // contains its debug information
  const void* positions =
      nullptr;  // see sanitize/source_positions.h; null when built without a sanitizer
};
Module module_of(const void* instruction);
// Returns only the load address, without allocating.
uintptr_t library_base(const void* instruction);

// Returns the number of threads in the launch's grid.
uint64_t threads_in_grid(const Launch& launch);

// Throws for threads of one or two simdgroups that wait for each other at different barriers.
[[noreturn]] void report_different_barriers(const Kernel& kernel, const msl::abi::Group& group,
                                            uint32_t simdgroup, msl::abi::Site site,
                                            uint32_t other_simdgroup, msl::abi::Site other_site);

// The engines. Launch::groups is filled in and sizes have been checked. `one_by_one`: calls the
// loop for each thread alone, because buffers overlap and iterations are not independent.
void run_loop(const Kernel& kernel, const Launch& launch, int threads, bool one_by_one);
void run_groups(const Kernel& kernel, const Launch& launch, int threads);
void run_fibers(const Kernel& kernel, const Launch& launch, int threads);
void run_sanitizing(const Kernel& kernel, const Launch& launch);

// Fills in the position and size of a threadgroup of the launch; it has no variables yet.
void place_group(const Launch& launch, uint64_t index, msl::abi::Group& group);
// Implements Runtime::place_variable, without gaps between variables.
uint32_t place_variable(msl::abi::Group& group, uint32_t bytes, uint32_t alignment);

// State of the group engine: true if this CPU thread runs a group with one call; and the lane that
// a function of a simdgroup has come to.
bool runs_group();
uint32_t lane_of_group();
// Implements Runtime::different_barriers.
void on_different_barriers(uint32_t simdgroup, msl::abi::Site site, uint32_t before_simdgroup,
                           msl::abi::Site before);

// The kernel that this CPU thread runs in a loop, over a grid or a group, for messages; otherwise
// null.
extern thread_local const Kernel* kernel_in_loop;

// RAII: sets kernel_in_loop, and restores it also when the kernel throws.
class InLoop {
 public:
  explicit InLoop(const Kernel& kernel) : before_(kernel_in_loop) { kernel_in_loop = &kernel; }
  ~InLoop() { kernel_in_loop = before_; }
  InLoop(const InLoop&) = delete;

 private:
  const Kernel* before_;
};

}  // namespace metalops::exec

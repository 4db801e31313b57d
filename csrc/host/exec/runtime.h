// What the parts of the execution engine share.
#pragma once

#include <cstdint>
#include <string>

#include <exec/exec.h>

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

// Where threads of two simdgroups, or of one, wait for each other at different barriers. Throws.
[[noreturn]] void report_different_barriers(const Kernel& kernel, const msl::abi::Group& group,
                                            uint32_t simdgroup, msl::abi::Site site,
                                            uint32_t other_simdgroup, msl::abi::Site other_site);

// The engines. Launch::groups is filled in and sizes are checked already. one_by_one: the loop is
// called for each thread alone, since it is not right for several.
void run_loop(const Kernel& kernel, const Launch& launch, int threads, bool one_by_one);
void run_groups(const Kernel& kernel, const Launch& launch, int threads);
void run_fibers(const Kernel& kernel, const Launch& launch, int threads);
void run_sanitizing(const Kernel& kernel, const Launch& launch);

// Fills in where a threadgroup of the launch lies and how large it is; it has no variables yet.
void place_group(const Launch& launch, uint64_t index, msl::abi::Group& group);
// Runtime::place_variable, without room between variables.
uint32_t place_variable(msl::abi::Group& group, uint32_t bytes, uint32_t alignment);

// Whether this CPU thread runs a group in one go, and the lane that it has come to in a function of
// a simdgroup.
bool runs_group();
uint32_t lane_of_group();
// Runtime::different_barriers.
void on_different_barriers(uint32_t simdgroup, msl::abi::Site site, uint32_t before_simdgroup,
                           msl::abi::Site before);

// The kernel that this CPU thread runs in a loop, over a grid or a group, for messages; null
// otherwise.
extern thread_local const Kernel* kernel_in_loop;

// Sets it, and restores it also when the kernel throws.
class InLoop {
 public:
  explicit InLoop(const Kernel& kernel) : before_(kernel_in_loop) { kernel_in_loop = &kernel; }
  ~InLoop() { kernel_in_loop = before_; }
  InLoop(const InLoop&) = delete;

 private:
  const Kernel* before_;
};

}  // namespace metalops::exec

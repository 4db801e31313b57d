// Positions in the Metal source, for instructions of kernel libraries that were built with a
// sanitizer.
#pragma once
#include <string>
#include <vector>

namespace metalops::exec {

// The call stack of an instruction, innermost call first. All entries are return addresses, as
// sanitizers report them; for the first one that is the address after the instruction.
using Stack = std::vector<const void*>;

// Returns "file:line:column (called at file:line:column, ...)", or "an unknown line". Starts a
// process that reads debug information: use it rarely, and not in a sanitizer's callback.
std::string describe(const Stack& stack);

// Returns the return addresses above a stack frame that belong to the same kernel library as `pc`,
// which comes first. Kernels are built with frame pointers for this.
Stack stack_of(const void* pc, const void* frame);

// Sets the program that reads debug information; it is called like addr2line.
void set_address_reader(std::string path);

}  // namespace metalops::exec

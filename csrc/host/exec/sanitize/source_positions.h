// Places in the Metal source, for instructions of kernel libraries that were built with a
// sanitizer.
#pragma once
#include <string>
#include <vector>

namespace metalops::exec {

// The instructions that were being executed, innermost call first; each but the first is a return
// address. The first one is a return address too, as sanitizers report it.
using Stack = std::vector<const void*>;

// "file:line:column (called at file:line:column, ...)", or "an unknown line". Starts a process that
// reads debug information: seldom, and not from a sanitizer's callback.
std::string describe(const Stack& stack);

// The return addresses above a stack frame, as far as they belong to the same kernel library as
// `pc`, which comes first. Kernels are built with frame pointers for this.
Stack stack_of(const void* pc, const void* frame);

// The program that reads debug information, called as addr2line is.
void set_address_reader(std::string path);

}  // namespace metalops::exec

// The entries for mps in torch's DispatchStubs.
#pragma once
#include <string>
#include <vector>

namespace metalops::device {

// Returns the stubs ("at::native::fill_stub") that run the CPU kernel on the memory of mps tensors,
// as recordings of stand-ins name them.
const std::vector<std::string>& dispatch_stubs();

}  // namespace metalops::device

// The entries for mps in torch's DispatchStubs.
#pragma once
#include <string>
#include <vector>

namespace metalops::device {

// "at::native::fill_stub": those that run the CPU's kernel on the memory of mps tensors, as
// recordings of stand-ins name them.
const std::vector<std::string>& dispatch_stubs();

}  // namespace metalops::device

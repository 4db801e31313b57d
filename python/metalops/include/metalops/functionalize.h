// Functionalization: torch.compile and torch.export replace an operator that writes to a tensor by
// one that returns its results. torch generates this for ATen's operators; for the out= and
// in-place overloads of others, the kernel here calls the functional overload.
#pragma once
#include <metalops/library.h>
#include <torch/library.h>

#include <string>

namespace metalops {

// Registers the functionalization kernel of an overload. overload: the one that writes,
// "ns::name.out" or "ns::name_". functional: the overload whose arguments are the first arguments
// of that one. written: position of the first argument that results are written to. resizes: true
// if these arguments take on the results' shapes.
METALOPS_HIDDEN void implement_functionalization(torch::Library& m, const std::string& overload,
                                                 const c10::OperatorHandle& functional,
                                                 size_t written, bool resizes);

}  // namespace metalops

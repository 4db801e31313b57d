// torch.compile and torch.export replace what writes to a tensor by a function of its inputs. For
// operators of ATen torch generates this; for the out= and in-place overloads of others the kernel
// here calls the functional overload.
#pragma once
#include <metalops/library.h>
#include <torch/library.h>

#include <string>

namespace metalops {

// overload: the one that writes, "ns::name.out" or "ns::name_". functional: the overload whose
// arguments are the first ones of the one that writes. written: position of the first of the
// arguments that the latter writes its results to. resizes: whether they take on the results'
// shapes.
METALOPS_HIDDEN void implement_functionalization(torch::Library& m, const std::string& overload,
                                                 const c10::OperatorHandle& functional,
                                                 size_t written, bool resizes);

}  // namespace metalops

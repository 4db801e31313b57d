// torch's tensors for kernels that take Metal 4's tensors by a handle.
#pragma once
#include <msl/abi.h>

#include <exec/exec.h>

namespace at {
class TensorBase;
}  // namespace at

namespace metalops {

// The argument of the kernel in that buffer that is a tensor, or null.
const msl::abi::Argument* tensor_argument(const exec::Kernel& kernel, unsigned buffer);

// What is bound there for a tensor on mps: its dimensions in reverse order. Bytes hold as many
// elements of a format as fit. Raises TypeError for a dtype other than the elements', ValueError
// for another rank or static extent, sizes that the index type does not hold, and rows whose
// elements do not follow each other.
msl::abi::Tensor as_argument(const at::TensorBase& tensor, const msl::abi::Argument& argument,
                             const exec::Kernel& kernel);

}  // namespace metalops

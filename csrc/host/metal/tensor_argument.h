// torch tensors for kernels that take Metal 4 tensors by a handle.
#pragma once
#include <msl/abi.h>

#include <exec/exec.h>

namespace at {
class TensorBase;
}  // namespace at

namespace metalops {

// Returns the kernel's tensor argument in that buffer, or null.
const msl::abi::Argument* tensor_argument(const exec::Kernel& kernel, unsigned buffer);

// Returns the description that is bound for an mps tensor: its dimensions in reverse order. Bytes
// hold as many elements of a format as fit. Raises TypeError for a dtype other than the elements',
// ValueError for another rank or static extent, sizes that do not fit in the index type, and rows
// whose elements are not contiguous.
msl::abi::Tensor as_argument(const at::TensorBase& tensor, const msl::abi::Argument& argument,
                             const exec::Kernel& kernel);

}  // namespace metalops

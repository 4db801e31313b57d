// Launch of elementwise kernels that are neither unary, binary nor ternary in torch's sense: they
// have several results, more inputs or more scalars. They come in three variants, of which
// <metalops/backward.h> has examples:
//
//   NAME_dense_TYPE     all operands are contiguous
//   NAME_rows_TYPE      matrices whose rows are contiguous
//   NAME_strided_TYPE   everything else
#pragma once
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <metalops/kernel_name.h>
#include <metalops/library.h>

namespace metalops {

// Binds a kernel's scalars to its buffers from `index` on and returns the index of the next buffer.
using SetScalars =
    c10::function_ref<unsigned(at::native::mps::MetalKernelFunction& kernel, unsigned index)>;

// Launches a kernel. Its buffers are the iterator's operands, outputs first; the scalars; and the
// layout (none, the row strides, or the sizes, strides and number of dimensions).
METALOPS_HIDDEN void launch_elementwise(at::native::mps::MetalShaderLibrary& library,
                                        at::TensorIteratorBase& iter, const KernelName& name,
                                        const KernelName& type, SetScalars set_scalars);

// Launches a backward kernel. name: as registered in the kernel file. The iterator's operands are
// the gradients, grad_output and the inputs, in this order, all of one floating dtype and on the
// device. scalars: as passed to pointwise::Launch; the first of several is the kernel's alpha.
METALOPS_HIDDEN void launch_backward(at::native::mps::MetalShaderLibrary& library,
                                     at::TensorIteratorBase& iter, const KernelName& name,
                                     c10::ArrayRef<c10::Scalar> scalars);

}  // namespace metalops

// Launches the kernels that <metalops/backward.h> registers: backward operators with more than one
// gradient.
#pragma once
#include <ATen/TensorIterator.h>
#include <metalops/elementwise_launch.h>
#include <metalops/library.h>
#include <metalops/strided_launch.h>

#include <string>

namespace metalops {

// name: as registered in the kernel file. The iterator's operands are the gradients, grad_output
// and the inputs, in this order, all of the same floating dtype and on the device.
METALOPS_HIDDEN inline void launch_backward(at::native::mps::MetalShaderLibrary& library,
                                            at::TensorIteratorBase& iter, const std::string& name,
                                            float alpha = 0) {
  launch_elementwise(library, iter, name, metal_type(iter.dtype(0)),
                     [&](at::native::mps::MetalKernelFunction& kernel, unsigned index) {
                       kernel.setArg(index, alpha);
                       return index + 1;
                     });
}

}  // namespace metalops

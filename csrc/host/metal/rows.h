// Strided elementwise calls as dense ones, row by row.
#pragma once
#include <ATen/TensorIterator.h>
#include <c10/util/FunctionRef.h>

#include <metal/encoder.h>

namespace metalops {

// A strided kernel works out every element's place with divisions, and no compiler vectorises that:
// it is many times slower than the dense kernel of the same functor. So the device runs the dense
// kernel on pieces of the iterator's innermost dimension, and copies those operands that are not
// dense there into and out of a small buffer. (Later versions of torch have an "inner_contiguous"
// flavour, which does so on the GPU where no copies are needed.) True where this pays.
bool runs_by_rows(const at::TensorIteratorBase& iter);

// `kernel` is the dense counterpart of the strided kernel to be replaced; `set_arguments` binds
// what it takes after the operands.
void run_rows(at::TensorIteratorBase& iter, const exec::Kernel& kernel,
              c10::function_ref<void(Encoder&)> set_arguments);

}  // namespace metalops

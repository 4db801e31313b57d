// Strided elementwise calls as dense ones, row by row.
#pragma once
#include <ATen/TensorIterator.h>
#include <c10/util/FunctionRef.h>

#include <metal/encoder.h>

namespace metalops {

// Returns true where it pays to replace a strided kernel by the dense kernel of the same functor. A
// strided kernel computes every element's offset with divisions, and no compiler vectorises that:
// it is many times slower. So the device runs the dense kernel on pieces of the iterator's
// innermost dimension, and copies operands that are not dense there into and out of a small buffer.
// (Later versions of torch have an "inner_contiguous" flavour, which does so on the GPU where no
// copies are needed.)
bool runs_by_rows(const at::TensorIteratorBase& iter);

// Runs `kernel`, the dense counterpart of a strided kernel; `set_arguments` binds what it takes
// after the operands.
void run_rows(at::TensorIteratorBase& iter, const exec::Kernel& kernel,
              c10::function_ref<void(Encoder&)> set_arguments);

}  // namespace metalops

// Retrying a CPU kernel in a wider type, for dtypes that the stock MPS kernel takes and torch's CPU
// kernel refuses.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

namespace metalops::device {

// Calls the CPU kernel of `op` with the CPU arguments on top of the stack. When the kernel refuses
// a dtype ("not implemented for 'Half'"), the arguments of that dtype are computed in a wider one
// and the results are cast back; arguments that the operator writes get the cast result.
void call_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace metalops::device

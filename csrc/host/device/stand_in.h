// Stock MPS operators, served by torch's CPU kernels on the same memory; and the error for
// operators that stock MPS lacks.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace metalops::device {

struct StockOperators {
  std::vector<std::string> stand_ins;       // served by a CPU kernel
  std::vector<std::string> without_kernel;  // no kernel can serve them; calls raise
};

// Registers those of these overloads ("aten::sin.out") on the MPS key that have no kernel there yet
// and are not composed of other operators.
StockOperators register_stock_operators(const std::vector<std::string>& overloads);

using BoxedKernel = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack* stack)>;

// Returns a kernel that calls an operator's CPU or SparseCPU kernel on the memory of its mps
// arguments.
BoxedKernel stand_in_for(const c10::OperatorHandle& op, c10::DispatchKey cpu_key);

// Returns the overload ("aten::sin.out"), if it exists.
std::optional<c10::OperatorHandle> find_overload(const std::string& overload);

}  // namespace metalops::device

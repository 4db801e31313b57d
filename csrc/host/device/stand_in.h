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
  std::vector<std::string> without_kernel;  // nothing can serve them; they say so
};

// Registers every one of these overloads ("aten::sin.out") on the MPS key that has no kernel there
// yet and is not composed of others.
StockOperators register_stock_operators(const std::vector<std::string>& overloads);

using BoxedKernel = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack* stack)>;

// Calls an operator's kernel for CPU or SparseCPU on the memory of its mps arguments.
BoxedKernel stand_in_for(const c10::OperatorHandle& op, c10::DispatchKey cpu_key);

// "aten::sin.out", if there is one.
std::optional<c10::OperatorHandle> find_overload(const std::string& overload);

}  // namespace metalops::device

// Stock MPS operators, served by torch's CPU kernels on the same memory; and the error for
// operators that stock MPS lacks.
#pragma once
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

}  // namespace metalops::device

// Operators on sparse COO tensors, the only sparse ones that torch makes on mps.
#pragma once
#include <string>
#include <vector>

namespace metalops::device {

// Registers overloads on the SparseMPS key. `common_overloads`: operators for which torch has one
// device-independent kernel, composed of operators on indices and values. `others`: operators with
// a kernel of their own on a Mac; the SparseCPU kernel stands in for it.
void register_sparse_operators(const std::vector<std::string>& common_overloads,
                               const std::vector<std::string>& others);

}  // namespace metalops::device

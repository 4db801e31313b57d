// Operators on sparse tensors in COO, the only sparse ones that torch makes on mps.
#pragma once
#include <string>
#include <vector>

namespace metalops::device {

// Registers overloads on the SparseMPS key. common_overloads: those whose kernel is torch's for
// every device, which knows nothing of where its tensors lie and is made of operators on indices
// and values. others: those with a kernel of a Mac's own, which that of SparseCPU stands in for.
void register_sparse_operators(const std::vector<std::string>& common_overloads,
                               const std::vector<std::string>& others);

}  // namespace metalops::device

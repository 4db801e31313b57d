// Launch plan of kernels/linalg/eig.metal: eigenvalues and eigenvectors of general matrices that a
// thread or a simdgroup holds. Larger ones: eig_large.h.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// Returns true if the matrices are too large for eig().
bool is_large_for_eig(int64_t rows);

// a: (batch, n, n) of any strides, with elements. values: (batch, n), complex; vectors: (batch, n,
// n), complex, of contiguous columns, or absent if they are not wanted. infos: (batch), int32:
// zero, kEigNotFinite, or how many eigenvalues were not found.
struct Eig {
  View values;
  View vectors;
  View infos;
  View a;
};
void eig(Plan& plan, const Eig& call, const Device& device);

}  // namespace metalops::plans

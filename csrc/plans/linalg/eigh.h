// Launch plan of kernels/linalg/eigh.metal: eigenvalues and eigenvectors of Hermitian matrices.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// a: (batch, n, n) of any strides, with elements, of which one triangle is read. values: (batch,
// n), real and contiguous; vectors: (batch, n, n), of contiguous columns, or absent if they are not
// wanted. infos: (batch), int32: zero, or not if there are no eigenvalues.
struct Eigh {
  View values;
  View vectors;
  View infos;
  View a;
  bool is_upper = false;
};
void eigh(Plan& plan, const Eigh& call, const Device& device);

}  // namespace metalops::plans

// Launch plan of kernels/linalg/eigh_merge.metal: D&C from blocks of one row on, which are merged
// level by level.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// values: (batch, padded), where those behind the matrices' rows are infinite; vectors: (batch,
// padded, padded), one after the other, absent if they are not wanted.
struct MergedEigh {
  View values;
  View vectors;
};

// Adds the steps that find the eigenvalues of tridiagonal matrices, and their vectors. diagonals:
// (batch, n); off_diagonals: likewise, of which the last is zero; both contiguous.
MergedEigh eigh_of_tridiagonal(Plan& plan, const View& diagonals, const View& off_diagonals,
                               bool with_vectors);

}  // namespace metalops::plans

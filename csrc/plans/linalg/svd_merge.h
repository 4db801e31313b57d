// Launch plan of kernels/linalg/svd_merge.metal: D&C from blocks of one row on, which are merged
// level by level.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// values: (batch, padded), where those behind the matrices' columns are zero; vectors: (2 * batch,
// padded, padded), the left ones first, one after the other, absent if they are not wanted.
struct MergedSvd {
  View values;
  View vectors;
};

// Adds the steps that find the singular values of bidiagonal matrices, and their vectors.
// bidiagonals: (2, batch, n), contiguous: the diagonals and the superdiagonals.
MergedSvd svd_of_bidiagonal(Plan& plan, const View& bidiagonals, bool with_vectors);

}  // namespace metalops::plans

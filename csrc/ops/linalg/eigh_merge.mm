// Host side of kernels/linalg/eigh_merge.metal: D&C from blocks of one row on, which are merged
// level by level.
#include <csrc/ops/linalg/eigh_merge.h>

#include <csrc/ops/linalg/common/divide_and_conquer.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace metalops {

MergedEigh eigh_of_tridiagonal(const at::Tensor& diagonals, const at::Tensor& off_diagonals,
                               bool with_vectors) {
  const auto batch = diagonals.size(0);
  const auto n = diagonals.size(1);
  const Regions regions(n);
  const auto size = regions.columns();
  const auto edges = at::zeros({batch, size}, diagonals.options());
  edges.narrow(1, 0, n).copy_(off_diagonals);
  // Blocks of one row: the rank-one tears with the magnitudes of the off-diagonals are subtracted
  // from the diagonal.
  const auto taken = at::abs(off_diagonals);
  const auto values =
      at::full({batch, size}, std::numeric_limits<float>::infinity(), diagonals.options());
  values.narrow(1, 0, n).copy_(diagonals).sub_(taken);
  values.narrow(1, 1, n - 1).sub_(taken.narrow(1, 0, n - 1));
  return {values, merge_blocks("eigh_merge", regions, values, n, edges, edges, 1, with_vectors)};
}

}  // namespace metalops

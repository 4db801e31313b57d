// Host side of kernels/linalg/svd_merge.metal: D&C from blocks of one row on, which are merged
// level by level.
#include <csrc/ops/linalg/svd_merge.h>

#include <csrc/ops/linalg/common/divide_and_conquer.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/zeros.h>

namespace metalops {

MergedSvd svd_of_bidiagonal(const at::Tensor& bidiagonals, bool with_vectors) {
  const auto batch = bidiagonals.size(1);
  const auto n = bidiagonals.size(2);
  const Regions regions(n + 1);
  const auto size = regions.columns();
  const auto padded = at::zeros({2, batch, size}, bidiagonals.options());
  padded.narrow(2, 0, n).copy_(bidiagonals);
  const auto scales = padded.abs().amax({0, 2});
  const auto values = at::zeros({batch, size}, padded.options());
  const auto vectors =
      merge_blocks("svd_merge", regions, values, n, padded, scales, 2, with_vectors);
  return {values, with_vectors ? vectors.unflatten(0, {2, batch}) : vectors};
}

}  // namespace metalops

// Host side of kernels/linalg/svd_merge.metal: D&C from blocks of one row on, which are merged
// level by level.
#include <csrc/ops/linalg/svd_merge.h>

#include <csrc/ops/linalg/common/divide_and_conquer.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <kernels/linalg/svd_merge.h>
#include <metalops/launch.h>
#include <metalops/library.h>

namespace metalops {

MergedSvd svd_of_bidiagonal(const at::Tensor& bidiagonals, bool with_vectors) {
  auto& kernels = library("svd_merge");
  const auto batch = bidiagonals.size(1);
  const auto n = bidiagonals.size(2);
  const Regions regions(n + 1);
  const auto size = regions.columns();
  const auto padded = at::zeros({2, batch, size}, bidiagonals.options());
  padded.narrow(2, 0, n).copy_(bidiagonals);
  const auto scales = padded.abs().amax({0, 2});
  const auto values = at::zeros({batch, size}, padded.options());
  const MergeWorkspace of(values);
  const auto deflations = at::empty({batch, size, 3}, of.columns.options());
  at::Tensor vectors;
  if (with_vectors) {
    vectors = first_vectors(regions, 2 * batch, padded.options());
  }
  SvdMergeParameters p{};
  p.size = static_cast<int32_t>(size);
  p.values = static_cast<int32_t>(n);
  p.matrices = static_cast<int32_t>(batch);
  p.with_vectors = with_vectors;
  regions.for_each_level([&](int64_t block, int64_t region) {
    p.block = static_cast<int32_t>(block);
    p.region = static_cast<int32_t>(region);
    launch_rows(kernels, "svd_merge_sort", size, batch, of.poles, of.z, of.tips, of.columns, values,
                of.ends, padded, p);
    launch_rows(kernels, "svd_merge_deflate", size, batch, of.poles, of.z, of.tips, of.columns,
                deflations, of.rotations, of.rotated, values, of.origins, scales, p);
    launch_rows(kernels, "svd_merge_roots", size, batch, of.roots, of.origins, values, of.poles,
                of.z, deflations, p);
    launch_rows(kernels, "svd_merge_weights", size, batch, of.weights, of.roots, of.origins,
                of.poles, of.z, deflations, p);
    const auto factors =
        with_vectors ? at::zeros({2 * batch * (size / region), region, region}, padded.options())
                     : of.weights;
    launch_rows(kernels, "svd_merge_vectors", size, batch, factors, of.ends, of.weights, of.roots,
                of.origins, of.poles, of.tips, of.columns, deflations, of.rotations, of.rotated, p);
    if (with_vectors) {
      vectors = multiply_blocks(factors, vectors);
    }
  });
  return {values, with_vectors ? vectors.unflatten(0, {2, batch}) : vectors};
}

}  // namespace metalops

// Host side of kernels/svd_merge.metal.
#include "svd_merge.h"

#include "merged_blocks.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <kernels/svd_merge.h>
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
  const auto poles = at::empty_like(values);
  const auto z = at::empty_like(values);
  const auto roots = at::empty_like(values);
  const auto weights = at::empty_like(values);
  const auto columns = at::empty({batch, size}, padded.options().dtype(at::kInt));
  const auto origins = at::empty_like(columns);
  const auto rotated = at::empty({batch, size, 2}, columns.options());
  const auto deflations = at::empty({batch, size, 3}, columns.options());
  const auto rotations = at::empty({batch, size, 2}, padded.options());
  const auto ends = at::ones({batch, size, 2}, padded.options());
  const auto tips = at::empty_like(ends);
  at::Tensor vectors;
  if (with_vectors) {
    vectors = at::eye(regions.leaf, padded.options())
                  .expand({2 * batch * regions.count, regions.leaf, regions.leaf});
  }
  SvdMergeParameters p{};
  p.size = static_cast<int32_t>(size);
  p.values = static_cast<int32_t>(n);
  p.matrices = static_cast<int32_t>(batch);
  p.with_vectors = with_vectors;
  regions.for_each_level([&](int64_t block, int64_t region) {
    p.block = static_cast<int32_t>(block);
    p.region = static_cast<int32_t>(region);
    launch_rows(kernels, "svd_merge_sort", size, batch, poles, z, tips, columns, values, ends,
                padded, p);
    launch_rows(kernels, "svd_merge_deflate", size, batch, poles, z, tips, columns, deflations,
                rotations, rotated, values, origins, scales, p);
    launch_rows(kernels, "svd_merge_roots", size, batch, roots, origins, values, poles, z,
                deflations, p);
    launch_rows(kernels, "svd_merge_weights", size, batch, weights, roots, origins, poles, z,
                deflations, p);
    const auto factors =
        with_vectors ? at::zeros({2 * batch * (size / region), region, region}, padded.options())
                     : weights;
    launch_rows(kernels, "svd_merge_vectors", size, batch, factors, ends, weights, roots, origins,
                poles, tips, columns, deflations, rotations, rotated, p);
    if (with_vectors) {
      vectors = multiply_blocks(factors, vectors);
    }
  });
  return {values, with_vectors ? vectors.unflatten(0, {2, batch}) : vectors};
}

}  // namespace metalops

// Host side of kernels/eigh_merge.metal.
#include "eigh_merge.h"

#include "merged_blocks.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <kernels/eigh_merge.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <limits>

namespace metalops {

MergedEigh eigh_of_tridiagonal(const at::Tensor& diagonals, const at::Tensor& besides,
                               bool with_vectors) {
  auto& kernels = library("eigh_merge");
  const auto batch = diagonals.size(0);
  const auto n = diagonals.size(1);
  const Regions regions(n);
  const auto size = regions.columns();
  const auto edges = at::zeros({batch, size}, diagonals.options());
  edges.narrow(1, 0, n).copy_(besides);
  // Single rows, what is between them taken out.
  const auto taken = at::abs(besides);
  const auto values =
      at::full({batch, size}, std::numeric_limits<float>::infinity(), diagonals.options());
  values.narrow(1, 0, n).copy_(diagonals).sub_(taken);
  values.narrow(1, 1, n - 1).sub_(taken.narrow(1, 0, n - 1));
  const auto poles = at::empty_like(values);
  const auto z = at::empty_like(values);
  const auto roots = at::empty_like(values);
  const auto weights = at::empty_like(values);
  const auto columns = at::empty({batch, size}, values.options().dtype(at::kInt));
  const auto origins = at::empty_like(columns);
  const auto rotated = at::empty({batch, size, 2}, columns.options());
  const auto counts = at::empty_like(rotated);
  const auto rotations = at::empty({batch, size, 2}, values.options());
  const auto ends = at::ones({batch, size, 2}, values.options());
  const auto tips = at::empty_like(ends);
  at::Tensor vectors;
  if (with_vectors) {
    vectors = at::eye(regions.leaf, values.options())
                  .expand({batch * regions.count, regions.leaf, regions.leaf});
  }
  EighMergeParameters p{static_cast<int32_t>(size), 0, 0, with_vectors};
  regions.for_each_level([&](int64_t block, int64_t region) {
    p.block = static_cast<int32_t>(block);
    p.region = static_cast<int32_t>(region);
    launch_rows(kernels, "eigh_merge_sort", size, batch, poles, z, tips, columns, values, ends,
                edges, p);
    launch_rows(kernels, "eigh_merge_deflate", size, batch, poles, z, tips, columns, counts,
                rotations, rotated, values, origins, edges, p);
    launch_rows(kernels, "eigh_merge_roots", size, batch, roots, origins, values, poles, z, counts,
                edges, p);
    launch_rows(kernels, "eigh_merge_weights", size, batch, weights, roots, origins, poles, z,
                counts, p);
    const auto factors =
        with_vectors ? at::zeros({batch * (size / region), region, region}, values.options())
                     : weights;
    launch_rows(kernels, "eigh_merge_vectors", size, batch, factors, ends, weights, roots, origins,
                poles, tips, columns, counts, rotations, rotated, p);
    if (with_vectors) {
      vectors = multiply_blocks(factors, vectors);
    }
  });
  return {values, vectors};
}

}  // namespace metalops

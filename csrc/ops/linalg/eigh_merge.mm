// Host side of kernels/linalg/eigh_merge.metal: D&C from blocks of one row on, which are merged
// level by level.
#include <csrc/ops/linalg/eigh_merge.h>

#include <csrc/ops/linalg/common/divide_and_conquer.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <kernels/linalg/eigh_merge.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <limits>

namespace metalops {

MergedEigh eigh_of_tridiagonal(const at::Tensor& diagonals, const at::Tensor& off_diagonals,
                               bool with_vectors) {
  auto& kernels = library("eigh_merge");
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
  const MergeWorkspace of(values);
  const auto deflations = at::empty({batch, size, 2}, of.columns.options());
  at::Tensor vectors;
  if (with_vectors) {
    vectors = first_vectors(regions, batch, values.options());
  }
  EighMergeParameters p{static_cast<int32_t>(size), 0, 0, with_vectors};
  regions.for_each_level([&](int64_t block, int64_t region) {
    p.block = static_cast<int32_t>(block);
    p.region = static_cast<int32_t>(region);
    launch_rows(kernels, "eigh_merge_sort", size, batch, of.poles, of.z, of.tips, of.columns,
                values, of.ends, edges, p);
    launch_rows(kernels, "eigh_merge_deflate", size, batch, of.poles, of.z, of.tips, of.columns,
                deflations, of.rotations, of.rotated, values, of.origins, edges, p);
    launch_rows(kernels, "eigh_merge_roots", size, batch, of.roots, of.origins, values, of.poles,
                of.z, deflations, edges, p);
    launch_rows(kernels, "eigh_merge_weights", size, batch, of.weights, of.roots, of.origins,
                of.poles, of.z, deflations, p);
    const auto factors =
        with_vectors ? at::zeros({batch * (size / region), region, region}, values.options())
                     : of.weights;
    launch_rows(kernels, "eigh_merge_vectors", size, batch, factors, of.ends, of.weights, of.roots,
                of.origins, of.poles, of.tips, of.columns, deflations, of.rotations, of.rotated, p);
    if (with_vectors) {
      vectors = multiply_blocks(factors, vectors);
    }
  });
  return {values, vectors};
}

}  // namespace metalops

// Host side of kernels/eigh_merge.metal.
#include "eigh_merge.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <kernels/eigh_merge.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>

namespace metalops {

at::Tensor tear_into_leaves(const at::Tensor& diagonals, const at::Tensor& besides) {
  const auto n = diagonals.size(1);
  const auto inside = besides.slice(1, kEighLeaf - 1, n - 1, kEighLeaf);
  auto edges = inside.clone(at::MemoryFormat::Contiguous);
  inside.zero_();
  const auto sizes = at::abs(edges);
  diagonals.slice(1, kEighLeaf - 1, n - 1, kEighLeaf).sub_(sizes);
  diagonals.slice(1, kEighLeaf, n, kEighLeaf).sub_(sizes);
  return edges;
}

at::Tensor merge_leaves(const at::Tensor& values, const at::Tensor& vectors,
                        const at::Tensor& edges) {
  auto& kernels = library("eigh_merge");
  const auto batch = values.size(0);
  const auto n = values.size(1);
  const auto poles = at::empty_like(values);
  const auto z = at::empty_like(values);
  const auto roots = at::empty_like(values);
  const auto weights = at::empty_like(values);
  const auto columns = at::empty({batch, n}, values.options().dtype(at::kInt));
  const auto origins = at::empty_like(columns);
  const auto rotations = at::empty({batch, n, 2}, values.options());
  const auto rotated = at::empty({batch, n, 2}, columns.options());
  auto merged = vectors;
  for (auto half = kEighLeaf; half < n; half *= 2) {
    const auto merges = c10::metal::ceil_div(n, 2 * half);
    const auto counts = at::empty({batch, merges, 2}, columns.options());
    const EighMergeParameters p{static_cast<int32_t>(n),
                                static_cast<int32_t>(vectors.size(2)),
                                static_cast<int32_t>(half),
                                static_cast<int32_t>(kEighLeaf),
                                static_cast<int32_t>(edges.size(1)),
                                static_cast<int32_t>(merges)};
    launch_rows(kernels, "eigh_merge_sort", n, batch, poles, z, columns, values, merged, edges, p);
    launch_rows(kernels, "eigh_merge_deflate", merges, batch, poles, z, columns, counts, rotations,
                rotated, values, origins, edges, p);
    launch_rows(kernels, "eigh_merge_roots", n, batch, roots, origins, values, poles, z, counts,
                edges, p);
    launch_rows(kernels, "eigh_merge_weights", n, batch, weights, roots, origins, poles, z, counts,
                p);
    const auto factors = at::zeros_like(vectors);
    launch_simdgroups(kernels, "eigh_merge_vectors", batch * n, factors, weights, roots, origins,
                      poles, columns, counts, rotations, rotated, p, batch * n);
    const auto previous = merged;
    merged = at::empty_like(vectors);
    merged.narrow(2, n, vectors.size(2) - n).zero_();
    for (int64_t begin = 0; begin < n; begin += 2 * half) {
      const auto end = std::min(begin + 2 * half, n);
      const auto to = merged.narrow(1, begin, end - begin);
      for (auto from = begin; from < end; from += half) {
        const auto rows = std::min(half, end - from);
        const auto block = previous.narrow(1, from, rows).narrow(2, from, rows);
        const auto of_block = to.narrow(2, from, rows);
        if (begin + half >= end) {
          of_block.copy_(block);
        } else {
          of_block.copy_(
              at::bmm(factors.narrow(1, begin, end - begin).narrow(2, from - begin, rows), block));
        }
      }
    }
  }
  return merged;
}

}  // namespace metalops

// Host side of kernels/svd_merge.metal.
#include "svd_merge.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <kernels/svd_merge.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>

namespace {

using at::Tensor;

// Regions of that many columns are halved into blocks of powers of two and what is left over. All
// of a matrix is this times a power of two.
constexpr int64_t kMostOfRegion = 32;

// The left and right vectors of merged blocks, (2 matrices' regions, region, region). factors: of
// the same shape, by rows of elements; vectors: of the blocks, or of a region already if it has
// more than two.
Tensor multiply_blocks(const Tensor& factors, const Tensor& vectors) {
  const auto block = vectors.size(1);
  if (vectors.size(0) == factors.size(0)) {
    return at::bmm(factors.mT(), vectors);
  }
  const auto merged = at::empty_like(factors);
  const auto halves = vectors.unflatten(0, {factors.size(0), 2});
  for (const int64_t half : {0, 1}) {
    const auto of_half = factors.narrow(1, half * block, block).mT();
    merged.narrow(2, half * block, block).copy_(at::bmm(of_half, halves.select(1, half)));
  }
  return merged;
}

}  // namespace

namespace metalops {

MergedSvd svd_of_bidiagonal(const Tensor& bidiagonals, bool with_vectors) {
  auto& kernels = library("svd_merge");
  const auto batch = bidiagonals.size(1);
  const auto n = bidiagonals.size(2);
  int64_t regions = 1;
  while (c10::metal::ceil_div(n + 1, regions) > kMostOfRegion) {
    regions *= 2;
  }
  const auto leaf = c10::metal::ceil_div(n + 1, regions);
  const auto size = leaf * regions;
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
  Tensor vectors;
  if (with_vectors) {
    vectors = at::eye(leaf, padded.options()).expand({2 * batch * regions, leaf, leaf});
  }
  SvdMergeParameters p{};
  p.size = static_cast<int32_t>(size);
  p.values = static_cast<int32_t>(n);
  p.matrices = static_cast<int32_t>(batch);
  p.with_vectors = with_vectors;
  for (int64_t block = 1; block < size;
       block = block < leaf ? std::min(2 * block, leaf) : 2 * block) {
    const auto region = block < leaf ? leaf : 2 * block;
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
  }
  return {values, with_vectors ? vectors.unflatten(0, {2, batch}) : vectors};
}

}  // namespace metalops

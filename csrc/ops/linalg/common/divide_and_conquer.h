// Shared parts of the D&C methods: how the columns of a matrix are divided into subproblems, and
// the products of their vectors.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <c10/metal/common.h>
#include <metalops/launch.h>

#include <algorithm>
#include <cstdint>

namespace metalops {

// The subproblems of the columns of a matrix and its padding: 2^k regions of `leaf` columns each,
// at most 32, which are halved into blocks of a power of two, and the rest.
struct METALOPS_HIDDEN Regions {
  explicit Regions(int64_t columns) : count(1) {
    constexpr int64_t kMostOfLeaf = 32;
    while (c10::metal::ceil_div(columns, count) > kMostOfLeaf) {
      count *= 2;
    }
    leaf = c10::metal::ceil_div(columns, count);
  }

  int64_t columns() const { return leaf * count; }

  // Calls merge(block, region) for each level of merges, from single columns on: blocks of so many
  // columns are merged in regions of so many columns.
  template <typename Merge>
  void for_each_level(Merge merge) const {
    for (int64_t block = 1; block < leaf; block = std::min(2 * block, leaf)) {
      merge(block, leaf);
    }
    for (auto block = leaf; block < columns(); block *= 2) {
      merge(block, 2 * block);
    }
  }

  int64_t leaf;
  int64_t count;
};

// The working memory of the kernels of a merge: scalars of columns (batch, columns), pairs of the
// rotations, and the first and last elements of the blocks' vectors, which begin as those of single
// columns.
struct METALOPS_HIDDEN MergeWorkspace {
  // values: (batch, columns).
  explicit MergeWorkspace(const at::Tensor& values)
      : poles(at::empty_like(values)),
        z(at::empty_like(values)),
        roots(at::empty_like(values)),
        weights(at::empty_like(values)),
        columns(at::empty(values.sizes(), values.options().dtype(at::kInt))),
        origins(at::empty_like(columns)),
        rotations(at::empty({values.size(0), values.size(1), 2}, values.options())),
        rotated(at::empty(rotations.sizes(), columns.options())),
        ends(at::ones(rotations.sizes(), values.options())),
        tips(at::empty_like(ends)) {}

  at::Tensor poles;
  at::Tensor z;
  at::Tensor roots;
  at::Tensor weights;
  at::Tensor columns;
  at::Tensor origins;
  at::Tensor rotations;
  at::Tensor rotated;
  at::Tensor ends;
  at::Tensor tips;
};

// Returns the vectors of regions of single columns, for so many matrices.
METALOPS_HIDDEN inline at::Tensor first_vectors(const Regions& regions, int64_t matrices,
                                                const at::TensorOptions& options) {
  return at::eye(regions.leaf, options)
      .expand({matrices * regions.count, regions.leaf, regions.leaf});
}

// Returns the vectors of merged blocks, (matrices * regions, region, region). factors: of the same
// shape, by rows; vectors: of the blocks, or of a region already if it has more than two blocks.
METALOPS_HIDDEN inline at::Tensor multiply_blocks(const at::Tensor& factors,
                                                  const at::Tensor& vectors) {
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

}  // namespace metalops

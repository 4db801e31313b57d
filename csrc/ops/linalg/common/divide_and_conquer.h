// Shared parts of the D&C methods: how the columns of a matrix are divided into subproblems, the
// launches of their merges, and the products of their vectors.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/metal/common.h>
#include <kernels/linalg/common/divide_and_conquer.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>

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

inline constexpr int64_t kDeflationInts = sizeof(Deflation) / sizeof(int32_t);

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
        deflations(at::empty({values.size(0), values.size(1), kDeflationInts}, columns.options())),
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
  at::Tensor deflations;
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

// Merges blocks of one column on, level by level, by the kernels of a family. values: (batch,
// columns), those of the blocks, which become those of the matrices. sort_data, deflate_data: what
// the kernels FAMILY_sort and FAMILY_deflate take besides. sides: the kinds of vectors. Returns the
// vectors, if they are wanted: (sides * batch, columns, columns), one after the other.
METALOPS_HIDDEN inline at::Tensor merge_blocks(const char* family, const Regions& regions,
                                               const at::Tensor& values, int64_t value_count,
                                               const at::Tensor& sort_data,
                                               const at::Tensor& deflate_data, int64_t sides,
                                               bool with_vectors) {
  auto& kernels = library(family);
  const KernelName prefix(family);
  const auto batch = values.size(0);
  const auto size = values.size(1);
  const MergeWorkspace of(values);
  at::Tensor vectors;
  if (with_vectors) {
    vectors = first_vectors(regions, sides * batch, values.options());
  }
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  MergeParameters p{narrow(size), narrow(value_count), 0, 0, narrow(batch), with_vectors};
  regions.for_each_level([&](int64_t block, int64_t region) {
    p.block = narrow(block);
    p.region = narrow(region);
    launch_rows(kernels, prefix + "_sort", size, batch, of.poles, of.z, of.tips, of.columns, values,
                of.ends, sort_data, p);
    launch_rows(kernels, prefix + "_deflate", size, batch, of.poles, of.z, of.tips, of.columns,
                of.deflations, of.rotations, of.rotated, values, of.origins, deflate_data, p);
    launch_rows(kernels, prefix + "_roots", size, batch, of.roots, of.origins, values, of.poles,
                of.z, of.deflations, p);
    launch_rows(kernels, prefix + "_weights", size, batch, of.weights, of.roots, of.origins,
                of.poles, of.z, of.deflations, p);
    const auto factors = with_vectors ? at::zeros({sides * batch * (size / region), region, region},
                                                  values.options())
                                      : of.weights;
    launch_rows(kernels, prefix + "_vectors", size, batch, factors, of.ends, of.weights, of.roots,
                of.origins, of.poles, of.tips, of.columns, of.deflations, of.rotations, of.rotated,
                p);
    if (with_vectors) {
      vectors = multiply_blocks(factors, vectors);
    }
  });
  return vectors;
}

}  // namespace metalops

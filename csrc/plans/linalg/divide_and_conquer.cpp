#include <csrc/plans/linalg/divide_and_conquer.h>
#include <kernels/linalg/common/divide_and_conquer.h>

namespace metalops::plans {

namespace {

// The working memory of the kernels of a merge: scalars of columns (batch, columns), pairs of the
// rotations, and the first and last elements of the blocks' vectors, which begin as those of single
// columns.
struct MergeWorkspace {
  MergeWorkspace(Plan& plan, int64_t batch, int64_t columns_of_matrix) {
    const auto allocate = [&](Type type, int64_t each) {
      return plan.allocate(type, {batch, columns_of_matrix, each});
    };
    for (auto* const scalars : {&poles, &z, &roots, &weights}) {
      *scalars = allocate(Type::kFloat, 1);
    }
    columns = allocate(Type::kInt, 1);
    origins = allocate(Type::kInt, 1);
    deflations = allocate(Type::kInt, sizeof(Deflation) / sizeof(int32_t));
    rotations = allocate(Type::kFloat, 2);
    rotated = allocate(Type::kInt, 2);
    ends = allocate(Type::kFloat, 2);
    tips = allocate(Type::kFloat, 2);
    plan.fill(ends, 1);
  }

  View poles, z, roots, weights, columns, origins, deflations, rotations, rotated, ends, tips;
};

// Returns the vectors of regions of single columns, identity matrices, for so many matrices.
View first_vectors(Plan& plan, const Regions& regions, int64_t matrices) {
  auto identities = plan.allocate(Type::kFloat, {1, regions.leaf, regions.leaf});
  plan.fill_identity(identities);
  identities.sizes[0] = matrices * regions.count;
  identities.strides[0] = 0;
  return identities;
}

// Multiplies the vectors of blocks with `factors`, (matrices * regions, region, region), by rows.
// vectors: of the blocks, or of a region already if it has more than two blocks. merged: likewise.
void multiply_blocks(Plan& plan, const View& merged, const View& factors, const View& vectors) {
  if (vectors.size(0) == factors.size(0)) {
    plan.product(merged, factors.mT(), vectors, /*alpha=*/1, /*beta=*/0);
    return;
  }
  const auto block = vectors.size(1);
  for (const int64_t half : {0, 1}) {
    auto of_half = vectors.narrow(0, half, factors.size(0));
    of_half.strides[0] *= 2;
    plan.product(merged.narrow(2, half * block, block), factors.narrow(1, half * block, block).mT(),
                 of_half, /*alpha=*/1, /*beta=*/0);
  }
}

}  // namespace

View merge_blocks(Plan& plan, const char* family, const Regions& regions, const View& values,
                  int64_t value_count, const View& sort_data, const View& deflate_data,
                  int64_t sides, bool with_vectors) {
  const Name prefix(family);
  const auto batch = values.size(0);
  const auto size = values.size(1);
  const auto rows = grid_of_elements(size, batch, 1);
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  const MergeWorkspace of(plan, batch, size);
  View vectors;
  if (with_vectors) {
    vectors = first_vectors(plan, regions, sides * batch);
  }
  MergeParameters p{narrow(size), narrow(value_count), 0, 0, narrow(batch), with_vectors};
  regions.for_each_level([&](int64_t block, int64_t region) {
    p.block = narrow(block);
    p.region = narrow(region);
    const auto matrices = sides * batch * (size / region);
    const auto merged =
        with_vectors ? plan.allocate(Type::kFloat, {matrices, region, region}) : of.weights;
    const Plan::Scope scope(plan);
    plan.launch(family, prefix + "_sort", rows, of.poles, of.z, of.tips, of.columns, values,
                of.ends, sort_data, p);
    plan.launch(family, prefix + "_deflate", rows, of.poles, of.z, of.tips, of.columns,
                of.deflations, of.rotations, of.rotated, values, of.origins, deflate_data, p);
    plan.launch(family, prefix + "_roots", rows, of.roots, of.origins, values, of.poles, of.z,
                of.deflations, p);
    plan.launch(family, prefix + "_weights", rows, of.weights, of.roots, of.origins, of.poles, of.z,
                of.deflations, p);
    auto factors = merged;
    if (with_vectors) {
      factors = plan.zeros(Type::kFloat, {matrices, region, region});
    }
    plan.launch(family, prefix + "_vectors", rows, factors, of.ends, of.weights, of.roots,
                of.origins, of.poles, of.tips, of.columns, of.deflations, of.rotations, of.rotated,
                p);
    if (with_vectors) {
      multiply_blocks(plan, merged, factors, vectors);
      vectors = merged;
    }
  });
  return vectors;
}

}  // namespace metalops::plans

#include <csrc/plans/linalg/divide_and_conquer.h>
#include <csrc/plans/linalg/eigh_merge.h>

namespace metalops::plans {

MergedEigh eigh_of_tridiagonal(Plan& plan, const View& diagonals, const View& off_diagonals,
                               bool with_vectors) {
  const auto batch = diagonals.size(0);
  const auto n = diagonals.size(1);
  const Regions regions(n);
  const auto size = regions.columns();
  const auto values = plan.allocate(Type::kFloat, {batch, size});
  const auto edges = plan.allocate(Type::kFloat, {batch, size});
  plan.launch("eigh_merge", "eigh_merge_tear", grid_of_elements(size, batch, 1), values, edges,
              diagonals, off_diagonals, static_cast<int32_t>(n), static_cast<int32_t>(size));
  return {values, merge_blocks(plan, "eigh_merge", regions, values, n, edges, edges, /*sides=*/1,
                               with_vectors)};
}

}  // namespace metalops::plans

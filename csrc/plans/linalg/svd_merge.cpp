#include <csrc/plans/linalg/divide_and_conquer.h>
#include <csrc/plans/linalg/svd_merge.h>

namespace metalops::plans {

MergedSvd svd_of_bidiagonal(Plan& plan, const View& bidiagonals, bool with_vectors) {
  const auto batch = bidiagonals.size(1);
  const auto n = bidiagonals.size(2);
  const Regions regions(n + 1);
  const auto size = regions.columns();
  const auto padded = plan.zeros(Type::kFloat, {2, batch, size});
  plan.copy(padded.narrow(2, 0, n), bidiagonals);
  const auto scales = plan.allocate(Type::kFloat, {batch});
  plan.launch("svd_merge", "svd_merge_scales", grid_of_threadgroups(batch, 32), scales, padded,
              static_cast<int32_t>(batch), static_cast<int32_t>(size));
  const auto values = plan.zeros(Type::kFloat, {batch, size});
  return {values, merge_blocks(plan, "svd_merge", regions, values, n, padded, scales, /*sides=*/2,
                               with_vectors)};
}

}  // namespace metalops::plans

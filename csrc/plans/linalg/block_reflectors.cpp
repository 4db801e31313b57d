#include <csrc/plans/linalg/block_reflectors.h>

namespace metalops::plans {

void multiply_columns(Plan& plan, const BlockReflector& block, bool is_adjoint,
                      const View& columns) {
  const Plan::Scope scope(plan);
  const auto& [v, t] = block;
  const auto products = plan.allocate(v.type, {v.size(0), columns.size(1), v.size(1)});
  const auto weights = plan.allocate(v.type, {v.size(0), columns.size(1), v.size(1)});
  plan.product(products, columns, v.mH(), /*alpha=*/1, /*beta=*/0);
  plan.product(weights, products, is_adjoint ? t.mH() : t, /*alpha=*/1, /*beta=*/0);
  plan.product(columns, weights, v, /*alpha=*/-1, /*beta=*/1);
}

void multiply_rows(Plan& plan, const BlockReflector& block, bool is_adjoint, const View& rows) {
  const Plan::Scope scope(plan);
  const auto& [v, t] = block;
  const auto products = plan.allocate(v.type, {v.size(0), v.size(1), rows.size(2)});
  const auto weights = plan.allocate(v.type, {v.size(0), v.size(1), rows.size(2)});
  plan.product(products, v, rows, /*alpha=*/1, /*beta=*/0);
  plan.product(weights, is_adjoint ? t.mH() : t, products, /*alpha=*/1, /*beta=*/0);
  plan.product(rows, v.mH(), weights, /*alpha=*/-1, /*beta=*/1);
}

}  // namespace metalops::plans

// Block reflectors of Householder reflectors, H1 H2 ... = 1 - V T V^H (compact WY), applied by
// GEMMs (xLARFB).
//
// Matrices are stored by columns: a view of (batch, columns, rows) is the transpose of the matrices
// that it stands for.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// v: (batch, reflectors, rows); t: (batch, reflectors, reflectors).
struct BlockReflector {
  View v;
  View t;
};

// Multiplies columns, (batch, columns, rows), with H or, if is_adjoint, H^H from the left.
void multiply_columns(Plan& plan, const BlockReflector& block, bool is_adjoint,
                      const View& columns);

// Multiplies rows, (batch, elements, rows), with H or, if is_adjoint, H^H from the right.
void multiply_rows(Plan& plan, const BlockReflector& block, bool is_adjoint, const View& rows);

}  // namespace metalops::plans

// Launch plans of kernels/linalg/qr.metal: QR factorisation, panel after panel as LAPACK's xGEQRF,
// and products with Q. Reflectors are in LAPACK's form. Sizes of matrices, and their number, are
// less than 2^31.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// Factors a, (batch, m, n) of any strides (xGEQRF). factors: (batch, m, n), of contiguous columns:
// R and the reflectors. taus: (batch, min(m, n)), contiguous.
struct QrFactor {
  View factors;
  View taus;
  View a;
};
void qr_factor(Plan& plan, const QrFactor& call, const Device& device);

// Forms the first columns of Q (xORGQR) from reflectors. q: (batch, m, n), of contiguous columns.
// reflectors: (batch, m, n) of any strides, with elements. taus: (batch, at most n), contiguous.
struct QrForm {
  View q;
  View reflectors;
  View taus;
};
void qr_form(Plan& plan, const QrForm& call, const Device& device);

// Writes R, (batch, rows of R, n) of any strides, from the factors of qr_factor().
void qr_upper(Plan& plan, const View& r, const View& factors);

// Multiplies c, (batch, rows, columns) of contiguous columns, with elements, with Q from the left
// or the right, or, if is_adjoint, with Q^H (xORMQR). reflectors: (batch, m, n) of contiguous
// columns. taus: (batch, at least one), contiguous.
struct QrMultiply {
  View c;
  View reflectors;
  View taus;
  bool left = true;
  bool is_adjoint = false;
};
void qr_multiply(Plan& plan, const QrMultiply& call, const Device& device);

// Computes Q and R of a, (batch, m, n) of any strides. q: (batch, m, columns of Q), of contiguous
// columns; absent if it is not wanted. r: (batch, rows of R, n), of any strides.
struct Qr {
  View q;
  View r;
  View a;
};
void qr(Plan& plan, const Qr& call, const Device& device);

}  // namespace metalops::plans

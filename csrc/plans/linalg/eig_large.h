// Launch plans of kernels/linalg/eig_large.metal: eigenvalues and eigenvectors of general matrices
// of any size, by a reduction to Hessenberg form, the Schur form of that by the multishift QR
// algorithm (xHSEQR), and back substitution (xTREVC).
//
// How many launches a sweep of the QR algorithm has is known only on the device. So there are three
// plans: the first one reduces the matrices, the second one does a sweep, and the caller reads what
// it leaves in `sweeps` and repeats it; the third one finds the results.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// Reduces a, (batch, n, n) of any strides, with elements, and sets infos, (batch), int32, to zero,
// or to kEigNotFinite. The results are the tensors of EigLargeState, in its order.
struct EigLargeReduce {
  View infos;
  View a;
  bool with_vectors = true;
};
void eig_large_reduce(Plan& plan, const EigLargeReduce& call, const Device& device);

// The matrices between the steps; see <csrc/plans/linalg/hessenberg.h>.
struct EigLargeState {
  View h;
  View scales;
  View exponents;
  View sweeps;           // (batch, the ints of SchurSweeps of <kernels/linalg/eig_large.h>)
  View transformations;  // of a window
  View shifts;
  View q;  // absent without eigenvectors
};

// Works on the windows of the last sweep, none of which there are in the first call, finds the
// eigenvalues that have converged, and begins the next sweep. It has as many windows as the largest
// `windows` of sweeps says; where `high` is negative, all eigenvalues of a matrix are known.
struct EigLargeSweep {
  EigLargeState state;
  View infos;
  int64_t windows = 0;
};
void eig_large_sweep(Plan& plan, const EigLargeSweep& call, const Device& device);

// Stores the eigenvalues and, if there is Q, the eigenvectors: see Eig of
// <csrc/plans/linalg/eig.h>.
struct EigLargeResults {
  View values;
  View vectors;
  EigLargeState state;
};
void eig_large_results(Plan& plan, const EigLargeResults& call, const Device& device);

}  // namespace metalops::plans

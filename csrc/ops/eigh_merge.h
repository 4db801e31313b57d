// Divide and conquer for eigenvectors of symmetric tridiagonal matrices.
#pragma once
#include <ATen/core/Tensor.h>

namespace metalops {

// Rows of the blocks whose eigenvectors are to be there before they are merged.
inline constexpr int64_t kEighLeaf = 32;

// Takes the elements between leaves out of the matrices, and returns them: (batch, leaves - 1).
// diagonals, besides: (batch, n).
at::Tensor tear_into_leaves(const at::Tensor& diagonals, const at::Tensor& besides);

// From the eigenvalues and vectors of the leaves, blocks on the diagonals of `vectors`, those of
// whole matrices, in no particular order. The eigenvalues stay where they are. vectors: (batch, n,
// at least n), by columns; only the diagonal blocks are read.
at::Tensor merge_leaves(const at::Tensor& values, const at::Tensor& vectors,
                        const at::Tensor& edges);

}  // namespace metalops

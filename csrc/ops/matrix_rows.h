// Batches of matrices that lie in rows, padded to whole packs of columns (kernels/row_packs.h), and
// how kernels of linear algebra get them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/empty.h>
#include <c10/metal/common.h>
#include <kernels/row_packs.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// Numbers of a tensor's dtype in a pack.
METALOPS_HIDDEN inline int64_t pack_of(const at::Tensor& tensor) {
  return int64_t{kRowPackBytes} / static_cast<int64_t>(tensor.element_size());
}

// (*, m, n) as (batch, m, n), without a copy where strides allow it.
METALOPS_HIDDEN inline at::Tensor as_batch(const at::Tensor& matrices) {
  return matrices.reshape({at::native::batchCount(matrices), matrices.size(-2), matrices.size(-1)});
}

// A tensor (*, ends) broadcast to the batch dimensions of `like`, a tensor of matrices, and these
// made one.
METALOPS_HIDDEN inline at::Tensor broadcast_batch(const at::Tensor& tensor, const at::Tensor& like,
                                                  at::IntArrayRef ends) {
  auto sizes = like.sizes().slice(0, like.dim() - 2).vec();
  sizes.insert(sizes.end(), ends.begin(), ends.end());
  auto flat = ends.vec();
  flat.insert(flat.begin(), -1);
  return tensor.expand(sizes).reshape(flat);
}

// A copy of matrices (*, m, n) in rows: (batch, m, n), with zeros behind each row where it is
// padded.
METALOPS_HIDDEN inline at::Tensor padded_rows(const at::Tensor& matrices) {
  const auto columns = matrices.size(-1);
  const auto padded = c10::metal::round_up(columns, pack_of(matrices));
  const auto whole =
      at::empty({at::native::batchCount(matrices), matrices.size(-2), padded}, matrices.options());
  if (padded != columns) {
    whole.narrow(2, columns, padded - columns).zero_();
  }
  const auto result = whole.narrow(2, 0, columns);
  result.view(matrices.sizes()).copy_(matrices);
  return result;
}

}  // namespace metalops

// Batches of matrices, stored by rows that are padded to whole vectors
// (kernels/linalg/common/row_packs.h) or, for small matrices, as they are
// (kernels/linalg/common/small_matrices.h), and launches of kernels on them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/empty.h>
#include <c10/metal/common.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/linalg/matrices.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>
#include <kernels/linalg/common/thread_columns.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <csrc/plans/linalg/launch_lengths.h>

namespace metalops {

using plans::in_launches;
using plans::steps_of_panel;

// Returns how many elements of the tensor's dtype a vector holds.
METALOPS_HIDDEN inline int64_t pack_of(const at::Tensor& tensor) {
  return int64_t{kRowPackBytes} / static_cast<int64_t>(tensor.element_size());
}

// Returns (*, m, n) as (batch, m, n), without a copy where the strides allow it.
METALOPS_HIDDEN inline at::Tensor as_batch(const at::Tensor& matrices) {
  return matrices.reshape({at::native::batchCount(matrices), matrices.size(-2), matrices.size(-1)});
}

// Returns a tensor (*, ends), broadcast to the batch dimensions of `like`, a tensor of matrices,
// with these flattened to one.
METALOPS_HIDDEN inline at::Tensor broadcast_batch(const at::Tensor& tensor, const at::Tensor& like,
                                                  at::IntArrayRef ends) {
  auto sizes = like.sizes().slice(0, like.dim() - 2).vec();
  sizes.insert(sizes.end(), ends.begin(), ends.end());
  auto flat = ends.vec();
  flat.insert(flat.begin(), -1);
  return tensor.expand(sizes).reshape(flat);
}

// Returns a copy of matrices (*, m, n) by rows: (batch, m, n), with zeros in the padding of each
// row. The leading dimension is padded so that rows do not all fall into the same sets of a cache,
// which would make transposing copies several times slower.
METALOPS_HIDDEN inline at::Tensor padded_rows(const at::Tensor& matrices) {
  constexpr int64_t kAlike = 64;  // vectors: rows so far apart share few sets
  const auto columns = matrices.size(-1);
  const auto pack = pack_of(matrices);
  const auto packs = c10::metal::ceil_div(columns, pack);
  const auto padded = (packs % kAlike == 0 ? packs + 4 : packs) * pack;
  const auto whole =
      at::empty({at::native::batchCount(matrices), matrices.size(-2), padded}, matrices.options());
  if (padded != columns) {
    whole.narrow(2, columns, padded - columns).zero_();
  }
  const auto result = whole.narrow(2, 0, columns);
  result.view(matrices.sizes()).copy_(matrices);
  return result;
}

// Calls write(result) with a tensor (*, m, n) as (batch, m, n), or with memory that is then copied
// to it where its strides do not allow that.
template <class Write>
METALOPS_HIDDEN inline void write_batch(const at::Tensor& matrices, const Write& write) {
  const auto result = as_batch(matrices);
  write(result);
  if (!result.is_alias_of(matrices)) {
    matrices.copy_(result.view(matrices.sizes()));
  }
}

// Returns true if a matrix is small enough for one thread.
METALOPS_HIDDEN inline bool fits_thread(const at::Tensor& matrices) {
  return std::max(matrices.size(-2), matrices.size(-1)) <= kMostOfOneThread;
}

// Returns the strides of matrices (batch, m, n), or of their transposes.
METALOPS_HIDDEN inline MatrixStrides strides_of(const at::Tensor& matrices, bool is_transposed) {
  const auto rows = is_transposed ? 2 : 1;
  return {matrices.stride(0), matrices.stride(rows), matrices.stride(3 - rows)};
}

// Launches a kernel for each small matrix of `a`: see plans::small_matrices(). result: of a's sizes
// and any strides; others: scalars of each matrix, contiguous.
template <class... Others>
METALOPS_HIDDEN inline void launch_small_matrices(const char* family, const at::Tensor& result,
                                                  const at::Tensor& a, SmallMatricesMode mode,
                                                  bool is_transposed, const Others&... others) {
  write_batch(result, [&](const at::Tensor& output) {
    PlanRun run;
    const auto of_matrices = [&](const at::Tensor& vectors) {
      return run.view(vectors.view({output.size(0), -1}));
    };
    const auto to = run.view(output);
    plans::small_matrices(run.plan(), plan_device(), family, to,
                          run.view(as_batch(a.resolve_neg())), mode, is_transposed,
                          of_matrices(others)...);
    run.run();
  });
}

// Launches KERNEL_thread_SIZE_TYPE, a thread for some columns of B and one small matrix A each: it
// solves A X = B, with A transposed or conjugated if so stated; if not `left`, X and B are
// transposed. a: (*, n, n), broadcast to the batch of b; result: of b's sizes and any strides. The
// buffers are result, a, b, parameters with this mode, and others, of which tensors have a part for
// each matrix.
template <class... Others>
METALOPS_HIDDEN inline void launch_small_systems(const char* family, const KernelName& kernel,
                                                 const at::Tensor& result, const at::Tensor& a,
                                                 bool is_transposed, bool is_conjugated,
                                                 const at::Tensor& b, bool left, uint32_t mode,
                                                 const Others&... others) {
  const auto n = a.size(-1);
  const auto matrices = broadcast_batch(a.resolve_neg(), b, {n, n});
  const auto given = as_batch(b.resolve_conj().resolve_neg());
  // Some threads would write before others read, and results are stored neither conjugated nor
  // negated.
  const bool is_own =
      result.is_alias_of(a) || result.is_alias_of(b) || result.is_conj() || result.is_neg();
  const auto solutions = as_batch(is_own ? at::empty(result.sizes(), result.options()) : result);
  const auto columns = b.size(left ? -1 : -2);
  SmallSystemsParameters parameters{strides_of(matrices, is_transposed),
                                    strides_of(given, !left),
                                    strides_of(solutions, !left),
                                    0,
                                    plans::to_uint32(n),
                                    plans::to_uint32(columns),
                                    mode,
                                    is_conjugated != matrices.is_conj()};
  const auto threads = c10::metal::ceil_div(columns, int64_t{kColumnsOfThread});
  const auto batch = given.size(0);
  in_launches(batch, 8 * n * n * threads, plan_device(), [&](int64_t first, int64_t count) {
    const auto own = [&](const auto& x) {
      if constexpr (std::is_same_v<std::decay_t<decltype(x)>, at::Tensor>) {
        return count == batch ? x : x.narrow(0, first, count);
      } else {
        return x;
      }
    };
    parameters.matrices = plans::to_uint32(count);
    launch_threads(library(family),
                   kernel + (n <= 4 ? "_thread_4_" : "_thread_8_") + metal_type(a.scalar_type()),
                   count * threads, own(solutions), own(matrices), own(given), parameters,
                   own(others)...);
  });
  if (!solutions.is_alias_of(result)) {
    result.copy_(solutions.view(result.sizes()));
  }
}

}  // namespace metalops

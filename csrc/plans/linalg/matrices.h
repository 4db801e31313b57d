// Launch plans on batches of matrices, (batch, rows, columns): stored by rows that are padded to
// whole vectors (kernels/linalg/common/row_packs.h) or, for small matrices, as they are
// (kernels/linalg/common/small_matrices.h).
#pragma once
#include <csrc/plans/linalg/launch_lengths.h>
#include <csrc/plans/plan.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>

#include <algorithm>
#include <cstdint>

namespace metalops::plans {

// Returns a size or an index as kernels take it: those of matrices fit.
inline uint32_t to_uint32(int64_t x) { return static_cast<uint32_t>(x); }

// Returns how many elements of the view's dtype a vector holds.
inline int64_t pack_of(const View& view) { return int64_t{kRowPackBytes} / size_of(view.type); }

// Returns a copy of matrices by rows, with zeros in the padding of each row. The leading dimension
// is padded so that rows do not all fall into the same sets of a cache, which would make
// transposing copies several times slower.
inline View padded_rows(Plan& plan, const View& matrices) {
  constexpr int64_t kAlike = 64;  // vectors: rows so far apart share few sets
  const auto columns = matrices.size(2);
  const auto pack = pack_of(matrices);
  const auto packs = ceil_div(columns, pack);
  const auto padded = (packs % kAlike == 0 ? packs + 4 : packs) * pack;
  const auto whole = plan.allocate(matrices.type, {matrices.size(0), matrices.size(1), padded});
  if (padded != columns) {
    plan.fill(whole.narrow(2, columns, padded - columns), 0);
  }
  const auto result = whole.narrow(2, 0, columns);
  plan.copy(result, matrices);
  return result;
}

// Returns true if a matrix is small enough for some lanes.
inline bool fits_lanes(const View& matrices) {
  return std::max(matrices.size(1), matrices.size(2)) <= int64_t{kMostOfLanes};
}

// Launches a kernel for each small matrix of `input`: FAMILY_thread_SIZE_TYPE, a thread for each,
// or FAMILY_rows_SIZE_TYPE, some lanes for each. The buffers are output, others, input, and
// parameters with this mode. others: scalars of each matrix, contiguous. If is_transposed, the
// kernel sees rows as columns in output and input.
template <class... Others>
inline void small_matrices(Plan& plan, const Device& device, const char* family, const View& output,
                           const View& input, SmallMatricesMode mode, bool is_transposed,
                           const Others&... others) {
  const auto given = plan.resolved(input);
  const auto rows = is_transposed ? 2 : 1;
  const auto strides_of = [&](const View& view) {
    return MatrixStrides{view.stride(0), view.stride(rows), view.stride(3 - rows)};
  };
  SmallMatricesParameters parameters{strides_of(given),
                                     strides_of(output),
                                     0,
                                     static_cast<uint32_t>(given.size(rows)),
                                     static_cast<uint32_t>(given.size(3 - rows)),
                                     mode};
  const auto size = std::max(given.size(1), given.size(2));
  const bool of_thread = size <= int64_t{kMostOfOneThread};
  // The lanes search the pivot of each row together.
  const auto work = of_thread ? 4 * size * size * size : steps_of_panel(size, size);
  in_launches(given.size(0), work, device, [&](int64_t first, int64_t count) {
    parameters.matrices = static_cast<uint32_t>(count);
    plan.launch(family,
                Name(family) +
                    (!of_thread  ? "_rows_16_"
                     : size <= 4 ? "_thread_4_"
                                 : "_thread_8_") +
                    input.type,
                of_thread ? grid_of_threads(count)
                          : grid_of_simdgroups(ceil_div(count * int64_t{kLanes}, 32)),
                output.narrow(0, first, count), others.narrow(0, first, count)...,
                given.narrow(0, first, count), parameters);
  });
}

}  // namespace metalops::plans

// Launch plans of skinny GEMM and GEMV with quantised weights (kernels/quantized/skinny_gemm.h,
// gemv.h): the parts that all formats share.
#pragma once
#include <csrc/plans/plan.h>

#include <algorithm>
#include <cstdint>

namespace metalops::plans {

// The largest number of rows of x for which weights are multiplied as they are read.
inline constexpr int64_t kMostSkinnyRows = 8;

// Returns that number for products of simdgroup matrices, which are those of tensor cores on an
// NVIDIA GPU: there, kernels of sixteen rows take less time than the tile GEMM.
inline int64_t most_rows_of_matrices(const Device& device) {
  return device.multiprocessors > 0 ? 16 : kMostSkinnyRows;
}

// The kernel that multiplies, and the rows and columns of the result that a threadgroup computes.
struct ProductTile {
  Name kernel;
  int64_t rows;
  int64_t columns;
  int64_t threads = 128;
  bool is_of_tile_gemm = false;

  int64_t groups(int64_t pairs, int64_t all_rows, int64_t all_columns) const {
    return pairs * ceil_div(all_rows, rows) * ceil_div(all_columns, columns);
  }
};

// Returns the tile of simdgroup matrices, of eight or sixteen rows. name: the kernel's before its
// format.
inline ProductTile tile_of_matrices(Name name, const char* format, int64_t rows) {
  if (rows <= kMostSkinnyRows) {
    return {name + format, 8, 32, 256};
  }
  return {name + "16_" + format, 16, 32, 256};
}

// Returns the number of splits of K (split-K): how many simdgroups of a threadgroup share a sum,
// where columns are too few to keep a GPU busy.
inline int32_t splits_of(int64_t simdgroups, int64_t inner) {
  constexpr int64_t kManySimdgroups = 2048;
  constexpr int64_t kOfOne = 1024;  // elements that a simdgroup loads at once
  int32_t splits = 1;
  while (splits < 4 && simdgroups * splits < kManySimdgroups && inner > kOfOne * splits) {
    splits *= 2;
  }
  return splits;
}

// Returns the view, or a contiguous copy of it, that begins at a multiple of `bytes`.
inline View aligned(Plan& plan, const View& view, int64_t bytes) {
  const auto result = plan.contiguous(view);
  return result.begins_at_multiple_of(bytes) ? result : plan.copied(result, result.type);
}

// Returns x as kernels load it: contiguous, four elements at a time.
inline View ready_for_vectors(Plan& plan, const View& x, const Device& device) {
  return aligned(plan, x, device.multiprocessors > 0 ? 16 : 4 * size_of(x.type));
}

// The threadgroups of a GEMV on an NVIDIA GPU: each computes `lines` output features, with a
// simdgroup for each 1024 elements of K.
struct Gemv {
  LaunchGrid grid;
  int32_t lines;
};

inline bool suits_gemv(int64_t columns, int64_t inner, const Device& device) {
  return device.multiprocessors > 0 && columns > 1 && inner <= 32 * 1024;
}

inline Gemv gemv_of(int64_t columns, int64_t inner) {
  const auto simdgroups = ceil_div(inner, 1024);
  // At most as many simdgroups as are resident on a GPU of 128 multiprocessors.
  const auto most = std::min({int64_t{16}, 128 / simdgroups, columns, columns * simdgroups / 4096});
  const auto lines = std::max<int64_t>(most / 2 * 2, 2);
  return {grid_of_threadgroups(ceil_div(columns, lines), simdgroups * 32),
          static_cast<int32_t>(lines)};
}

}  // namespace metalops::plans

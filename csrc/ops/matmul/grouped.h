// The shared host code of grouped GEMMs.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/metal/common.h>
#include <c10/util/Exception.h>
#include <kernels/matmul/grouped.h>
#include <metalops/library.h>

#include <cstdint>

// torch's own checks and results. Without this macro the header includes all operators.
#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS
#include <ATen/native/GroupedMMUtils.h>
#undef AT_PER_OPERATOR_HEADERS
#else
#include <ATen/native/GroupedMMUtils.h>
#endif

namespace metalops {

// Returns the dimension that the groups divide. Operands have two or three dimensions each.
METALOPS_HIDDEN inline Grouped grouped_dimension(const at::Tensor& self, const at::Tensor& mat2) {
  if (self.dim() == 2) {
    return mat2.dim() == 2 ? Grouped::kInner : Grouped::kRows;
  }
  return mat2.dim() == 2 ? Grouped::kColumns : Grouped::kNone;
}

// Checks the sizes of K. torch's checks do it unless both operands are matrices; its products do it
// for these.
METALOPS_HIDDEN inline void check_inner_sizes(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.size(-1) == mat2.size(-2), "mat1 and mat2 shapes cannot be multiplied (",
              self.size(-2), "x", self.size(-1), " and ", mat2.size(-2), "x", mat2.size(-1), ")");
}

// Returns the largest number of tiles that there can be, wherever the groups end. See
// groups::part_of_tile().
template <class Parameters>
METALOPS_HIDDEN inline uint64_t tiles_of_groups(const Parameters& p, int32_t rows,
                                                int32_t columns) {
  const auto most = [&](int32_t length, int32_t tile, bool is_grouped) {
    return static_cast<uint64_t>(is_grouped ? length / tile + p.groups + 1
                                            : c10::metal::ceil_div(length, tile));
  };
  const auto tiles = most(p.rows, rows, p.grouped == Grouped::kRows) *
                     most(p.columns, columns, p.grouped == Grouped::kColumns);
  const bool has_matrices = p.grouped == Grouped::kNone || p.grouped == Grouped::kInner;
  return has_matrices ? tiles * static_cast<uint64_t>(p.groups) : tiles;
}

}  // namespace metalops

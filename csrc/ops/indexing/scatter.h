// Writes and reductions of items at places in a tensor, by the kernels of
// kernels/indexing/scatter.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/indexing/scatter.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// Items and where they go. An item is one element, or a row of them.
//
// places: contiguous, offsets of the items in self, in bytes; a negative one is left out.
// items: the first element of each item in the source, in the order of `places`.
// columns and self_columns: the elements of the first item in the source, and in self.
// rows and scales: contiguous, undefined by default. rows: int64, which of `items` each item is;
// scales: float32, a factor of each item, of a floating-point dtype.
struct ScatterItems {
  at::Tensor places;
  at::Tensor items;
  at::Tensor columns;
  at::Tensor self_columns;
  at::Tensor rows = {};
  at::Tensor scales = {};
  bool items_first = false;  // adjacent items, not adjacent elements of one, are adjacent in memory
};

// How items are reduced: by kScatterSum and the like, or to the mean of a sum.
struct ScatterReduction {
  int32_t operation = kScatterSum;
  bool is_mean = false;
  bool has_self = true;  // with what self has
};

// Copies items to their places. is_ordered: of the items of one place the last one remains; by
// default any of them does.
METALOPS_HIDDEN void copy_items(const ScatterItems& to, bool is_ordered);

// Reduces the items of each place. is_ordered: in their order, so that results are the same each
// time; otherwise sums may be added in any order. Raises NotImplementedError for dtypes that
// cannot be. name: the operator's.
METALOPS_HIDDEN void reduce_items(const char* name, const ScatterItems& to,
                                  const ScatterReduction& reduction, bool is_ordered = true);

}  // namespace metalops

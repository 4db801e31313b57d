// Sorted rows along a dimension, by the kernels of kernels/reduction/sort.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/reduction/sort.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// Which elements of sorted rows are written: `count` from `first` on, or one that `choice` says.
struct SortedColumns {
  int64_t first = 0;
  int64_t count = 1;
  bool descending = false;
  int32_t choice = kSortColumns;
};

// Sorts along a dimension, stably. values and indices have the dimensions of self, with
// columns.count elements along `dim`; they may have any strides, and share memory with self.
// Raises RuntimeError for rows of 2^31 elements. name: the operator's.
METALOPS_HIDDEN void write_sorted(const char* name, const at::Tensor& self, int64_t dim,
                                  const SortedColumns& columns, const at::Tensor& values,
                                  const at::Tensor& indices);

// Writes one element of each row, as columns say. values and indices are resized to the sizes of
// self without the dimension, or with one of size 1. Raises RuntimeError for outputs of other
// dtypes, or that overlap.
METALOPS_HIDDEN void write_choice(const char* name, const at::Tensor& self, int64_t dim,
                                  bool keepdim, const SortedColumns& columns,
                                  const at::Tensor& values, const at::Tensor& indices);

// Metal's name of the unsigned integers as wide as a dtype, as which kernels read elements.
METALOPS_HIDDEN const char* key_type(at::ScalarType type);

// The bits of the infinity of a floating-point dtype.
METALOPS_HIDDEN int64_t infinity_bits(at::ScalarType type);

// Raises NotImplementedError for dtypes without an order: complex numbers and 8-bit floats.
METALOPS_HIDDEN void check_sortable(const char* name, at::ScalarType type);

}  // namespace metalops

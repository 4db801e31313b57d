// The shared host code of pooling: the host side of kernels/spatial/pooling.h.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <csrc/ops/common/int32.h>
#include <kernels/spatial/pooling.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <utility>

namespace metalops {

METALOPS_HIDDEN inline at::IntArrayRef last_sizes(const at::Tensor& tensor, int64_t count) {
  return tensor.sizes().slice(tensor.dim() - count);
}

// Returns the sizes of a pooling of the last two or three dimensions, from `source` to `result`.
METALOPS_HIDDEN inline PoolingSizes pooling_sizes(at::IntArrayRef source, at::IntArrayRef result) {
  PoolingSizes sizes{{1, 1, 1}, {1, 1, 1}};
  const auto copy = [&](at::IntArrayRef from, uint32_t* to) {
    for (const auto size : from) {
      TORCH_CHECK(size <= kInt32Max, "MPS pools dimensions of at most ", kInt32Max,
                  " elements, but got sizes ", from);
    }
    std::copy(from.begin(), from.end(), to + 3 - from.size());
  };
  copy(source, sizes.source);
  copy(result, sizes.result);
  return sizes;
}

METALOPS_HIDDEN inline PoolingSizes backward(const PoolingSizes& sizes) {
  PoolingSizes swapped = sizes;
  std::swap(swapped.source, swapped.result);
  return swapped;
}

// Returns the table that a kernel computes for all depths, heights and widths of the result, as a
// tensor of this dtype.
template <class Parameters>
METALOPS_HIDDEN inline at::Tensor pooling_table(at::native::mps::MetalShaderLibrary& library,
                                                const char* kernel, const PoolingSizes& sizes,
                                                const Parameters& parameters, at::ScalarType type,
                                                const at::Tensor& like) {
  const int64_t entries = int64_t{sizes.result[0]} + sizes.result[1] + sizes.result[2];
  const auto table = at::empty({entries}, like.options().dtype(type));
  launch_threads(library, kernel, entries, table, parameters);
  return table;
}

// Launches a thread for each element of a tensor of planes.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_planes(at::native::mps::MetalShaderLibrary& library,
                                          const KernelName& name, const at::Tensor& planes,
                                          const Arguments&... arguments) {
  if (planes.numel() != 0) {
    const uint64_t columns = planes.size(-1);
    const uint64_t rows = planes.size(-2);
    launch_grid(library, name, {columns, rows, planes.numel() / (columns * rows)}, arguments...);
  }
}

// Returns the input's sizes, with the pooled dimensions replaced.
METALOPS_HIDDEN inline c10::DimVector pooled_sizes(const at::Tensor& input,
                                                   at::IntArrayRef output_size) {
  c10::DimVector sizes(input.sizes());
  std::copy(output_size.begin(), output_size.end(), sizes.end() - output_size.size());
  return sizes;
}

// Checks that the gradient has the planes of the input. name: of the operator.
METALOPS_HIDDEN inline void check_planes(const char* name, const at::Tensor& grad_output,
                                         const at::Tensor& input, at::IntArrayRef output_size) {
  TORCH_CHECK(
      grad_output.sizes() == at::IntArrayRef(pooled_sizes(input, output_size)), name,
      ": Expected grad_output to have the batch size and the channels of an input of sizes ",
      input.sizes(), ", but it has sizes ", grad_output.sizes());
}

// Checks that a tensor has elements. name: of the operator.
METALOPS_HIDDEN inline void check_not_empty(const char* name, const char* argument,
                                            const at::Tensor& tensor) {
  for (int64_t i = 1; i < tensor.dim(); ++i) {
    TORCH_CHECK(tensor.size(i) > 0, name, "(): Expected ", argument,
                " to have non-zero size for non-batch dimensions, but ", argument, " has sizes ",
                tensor.sizes(), " with dimension ", i, " being empty");
  }
}

}  // namespace metalops

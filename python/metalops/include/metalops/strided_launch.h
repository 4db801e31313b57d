// The host side of StridedLayout (<metalops/strided.h>), for kernels that are neither unary, binary
// nor ternary, or that need an element's index in the tensor. Launch them with launch_threads().
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <c10/metal/common.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/strided.h>

#include <algorithm>
#include <array>

namespace metalops {

namespace detail {

// Collects the dimensions one by one, fastest first, and merges those that have one common stride.
template <unsigned N>
class METALOPS_HIDDEN LayoutBuilder {
 public:
  LayoutBuilder() { layout_.count = 1; }

  void add(int64_t size, const std::array<int64_t, N>& strides) {
    layout_.count *= size;
    if (size == 1) {
      return;
    }
    bool merge = layout_.dimensions > 0;
    const auto last = layout_.dimensions - 1;
    for (unsigned i = 0; merge && i < N; ++i) {
      merge = strides[i] == layout_.strides[i][last] * layout_.sizes[last];
    }
    if (merge) {
      layout_.sizes[last] *= size;
      return;
    }
    TORCH_CHECK(layout_.dimensions < c10::metal::max_ndim,
                "MPS supports tensors with dimensions <= ", c10::metal::max_ndim);
    layout_.sizes[layout_.dimensions] = size;
    for (unsigned i = 0; i < N; ++i) {
      layout_.strides[i][layout_.dimensions] = strides[i];
    }
    ++layout_.dimensions;
  }

  StridedLayout<N> finished() {
    layout_.dimensions = std::max(layout_.dimensions, 1u);
    return layout_;
  }

 private:
  StridedLayout<N> layout_{};
};

}  // namespace detail

// Returns the layout of tensors of the same sizes, in row-major order.
template <unsigned N>
METALOPS_HIDDEN inline StridedLayout<N> row_major_layout(const std::array<at::Tensor, N>& tensors) {
  detail::LayoutBuilder<N> builder;
  for (int64_t dimension = tensors[0].dim() - 1; dimension >= 0; --dimension) {
    std::array<int64_t, N> strides;
    for (unsigned i = 0; i < N; ++i) {
      strides[i] = tensors[i].stride(dimension) * static_cast<int64_t>(tensors[i].element_size());
    }
    builder.add(tensors[0].size(dimension), strides);
  }
  return builder.finished();
}

// Returns the layout of the iterator's operands in the iterator's order, which is that of memory.
template <unsigned N>
METALOPS_HIDDEN inline StridedLayout<N> layout_of(const at::TensorIteratorBase& iter) {
  TORCH_INTERNAL_ASSERT(iter.ntensors() == N);
  detail::LayoutBuilder<N> builder;
  for (int dimension = 0; dimension < iter.ndim(); ++dimension) {
    std::array<int64_t, N> strides;
    for (unsigned i = 0; i < N; ++i) {
      strides[i] = iter.strides(i)[dimension];
    }
    builder.add(iter.shape()[dimension], strides);
  }
  return builder.finished();
}

}  // namespace metalops

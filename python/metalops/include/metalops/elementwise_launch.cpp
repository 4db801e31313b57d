// Chooses the variant of an elementwise kernel (dense, rows, strided) and binds operands, scalars
// and layout to its buffers.
#include <ATen/TensorIterator.h>
#include <c10/metal/common.h>
#include <metalops/elementwise_launch.h>
#include <metalops/metal_type.h>
#include <metalops/views.h>

#include <algorithm>
#include <array>
#include <vector>

namespace metalops {

namespace {

// Returns true if the operands are matrices with contiguous rows.
bool has_contiguous_rows(const at::TensorIteratorBase& iter) {
  if (iter.ndim() != 2) {
    return false;
  }
  for (int i = 0; i < iter.ntensors(); ++i) {
    const auto bytes = static_cast<int64_t>(iter.element_size(i));
    if (iter.strides(i)[0] != bytes || iter.strides(i)[1] % bytes != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

void launch_elementwise(at::native::mps::MetalShaderLibrary& library, at::TensorIteratorBase& iter,
                        const KernelName& name, const KernelName& type, SetScalars set_scalars) {
  if (iter.numel() == 0) {
    return;
  }
  if (!iter.can_use_32bit_indexing()) {
    for (auto&& part : iter.with_32bit_indexing()) {
      launch_elementwise(library, part, name, type, set_scalars);
    }
    return;
  }
  TORCH_CHECK(iter.ndim() <= static_cast<int>(c10::metal::max_ndim),
              "MPS supports tensors with dimensions <= ", c10::metal::max_ndim);
  const bool dense = iter.is_contiguous();
  const bool rows = !dense && has_contiguous_rows(iter);
  auto& function =
      kernel(library, name + (dense ? "_dense_" : (rows ? "_rows_" : "_strided_")) + type);
  const auto operands = iter.ntensors();
  encode(function, [&] {
    for (int i = 0; i < operands; ++i) {
      function.setArg(i, operand_at_start(iter, i));
    }
    const unsigned next = set_scalars(function, static_cast<unsigned>(operands));
    if (dense) {
      function.dispatch(static_cast<uint64_t>(iter.numel()));
      return;
    }
    std::vector<int64_t> strides;
    for (int i = 0; i < operands; ++i) {
      if (rows) {
        strides.push_back(iter.strides(i)[1] / static_cast<int64_t>(iter.element_size(i)));
      } else {
        strides.insert(strides.end(), iter.strides(i).begin(), iter.strides(i).end());
      }
    }
    if (rows) {
      function.setArg(next, strides);
    } else {
      function.setArg(next, iter.shape());
      function.setArg(next + 1, strides);
      function.setArg(next + 2, static_cast<uint32_t>(iter.ndim()));
    }
    const auto inner = static_cast<uint64_t>(iter.shape()[0]);
    const auto outer = static_cast<uint64_t>(iter.numel()) / inner;
    const auto most = function.getMaxThreadsPerThreadgroup();
    const auto width = std::min(inner, most);
    const std::array<uint64_t, 2> grid{inner, outer};
    const std::array<uint64_t, 2> group{width, std::min(outer, most / width)};
    function.dispatch(grid, c10::ArrayRef<uint64_t>(group));
  });
}

void launch_backward(at::native::mps::MetalShaderLibrary& library, at::TensorIteratorBase& iter,
                     const KernelName& name, c10::ArrayRef<c10::Scalar> scalars) {
  const float alpha = scalars.size() > 1 ? scalars[0].toFloat() : 0;
  const auto wanted = static_cast<uint32_t>(scalars.back().toLong());
  launch_elementwise(library, iter, name, metal_type(iter.dtype(0)),
                     [&](at::native::mps::MetalKernelFunction& kernel, unsigned index) {
                       kernel.setArg(index, alpha);
                       kernel.setArg(index + 1, wanted);
                       return index + 2;
                     });
}

}  // namespace metalops

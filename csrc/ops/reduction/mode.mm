// Host side of kernels/reduction/mode.metal: mode, which stock MPS lacks. Rows are sorted by stock
// MPS.
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/outputs.h>
#include <kernels/reduction/mode.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <cstdint>
#include <tuple>

namespace {

using at::Tensor;

constexpr int64_t kMostInRows = metalops::kInt32Max;  // that mode_rows can count

std::tuple<Tensor, Tensor> modes(const Tensor& self, int64_t dim, bool keepdim) {
  const auto type = self.scalar_type();
  dim = at::maybe_wrap_dim(dim, self.dim());
  auto sizes = self.sizes().vec();
  if (self.numel() == 0) {
    sizes = at::native::get_zero_numel_tensor_size(self, dim, keepdim, "mode()");
  } else if (self.dim() > 0) {
    sizes[dim] = 1;
  }
  metalops::check_dtype(!at::isComplexType(type) && !at::isBarebonesUnsignedType(type), "mode",
                        type);
  auto values = at::empty(sizes, self.options());
  auto indices = at::empty(sizes, self.options().dtype(at::kLong));
  if (values.numel() != 0) {
    const auto columns = self.dim() == 0 ? 1 : self.size(dim);
    const metalops::ModeParameters parameters{self.numel() / columns, columns};
    const auto rows = self.dim() == 0 ? self : self.movedim(dim, -1).contiguous();
    const auto [sorted, order] = at::sort(rows, /*stable=*/true, -1, /*descending=*/false);
    metalops::launch_reduction(metalops::library("mode"), "mode", metalops::metal_type(type),
                               parameters.rows, columns > kMostInRows ? 1 : columns, values,
                               indices, sorted, order, parameters);
    if (!keepdim && self.dim() > 0) {
      values.squeeze_(dim);
      indices.squeeze_(dim);
    }
  }
  return {values, indices};
}

std::tuple<Tensor&, Tensor&> modes_out(const Tensor& self, int64_t dim, bool keepdim,
                                       Tensor& values, Tensor& indices) {
  metalops::check_same_device("mode", {{values, "values"}, {indices, "indices"}, {self, "self"}});
  TORCH_CHECK(self.scalar_type() == values.scalar_type(), "expected scalar type '",
              self.scalar_type(), "' but got '", values.scalar_type(), "' for values output");
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type '", at::kLong,
              "' but got '", indices.scalar_type(), "' for indices output");
  at::assert_no_internal_overlap(values);
  at::assert_no_internal_overlap(indices);
  const auto [most_frequent, places] = modes(self, dim, keepdim);
  metalops::resize_and_copy(most_frequent, values);
  metalops::resize_and_copy(places, indices);
  return {values, indices};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("mode", modes);
  m.impl("mode.values", modes_out);
}

}  // namespace

// Operators that create tensors and storages, or change only a tensor's metadata (views, resize).
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_efficientzerotensor_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <device/allocator.h>
#include <device/device.h>
#include <metalops/sym_ints.h>
#include <torch/library.h>
#include <torch_internals.h>

namespace metalops::device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::MPS);

c10::ScalarType checked_dtype(optional<at::ScalarType> dtype, IntArrayRef size) {
  const auto type = c10::dtype_or_default(dtype);
  check_dtype(type);
  check_dimensions(size.size());
  return type;
}

void check_layout(optional<at::Layout> layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided,
                              "only strided tensors are supported on MPS");
}

Tensor filled_if_deterministic(Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout,
             optional<c10::Device>, optional<bool> pin_memory,
             optional<at::MemoryFormat> memory_format) {
  check_layout(layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return filled_if_deterministic(internals::empty_generic(
      size, &allocator(), kKeys, checked_dtype(dtype, size), memory_format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout> layout, optional<c10::Device>,
                     optional<bool> pin_memory) {
  check_layout(layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  return filled_if_deterministic(internals::empty_strided_generic(size, stride, &allocator(), kKeys,
                                                                  checked_dtype(dtype, size)));
}

// Allocator of tensors that are all zero and have no memory (ZeroTensor).
struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override {
    return {nullptr, nullptr, internals::kNoDeleter, kDevice};
  }
  void copy_data(void*, const void*, size_t) const override {}
};

Tensor efficient_zero_tensor(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
                             optional<c10::Device>, optional<bool>) {
  static NoMemory no_memory;
  return internals::empty_generic(size, &no_memory,
                                  kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                  checked_dtype(dtype, size), std::nullopt);
}

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride,
                  optional<int64_t> storage_offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, storage_offset);
}

Tensor& set_empty(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(),
                       /*resizable=*/true);
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {elements}, {1});
}

Tensor& set_storage_offset(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size,
                           IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

// Zeroes contiguous memory without committing it; other tensors are filled.
Tensor& zero_(Tensor& self) {
  if (self.is_non_overlapping_and_dense()) {
    streams::before_direct_work();
    zero(self.mutable_data_ptr(), self.nbytes(), self.storage().data_ptr());
    return self;
  }
  return self.fill_(0);
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", with_sym_ints<empty>);
  m.impl("empty_strided", with_sym_ints<empty_strided>);
  m.impl("_efficientzerotensor", with_sym_ints<efficient_zero_tensor>);
  m.impl("as_strided", with_sym_ints<as_strided>);
  m.impl("view", with_sym_ints<at::native::view>);
  m.impl("_reshape_alias", with_sym_ints<at::native::_reshape_alias>);
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", with_sym_ints<at::native::resize_>);
  m.impl("set_", set_empty);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", with_sym_ints<set_storage_offset>);
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("zero_", zero_);
}

}  // namespace
}  // namespace metalops::device

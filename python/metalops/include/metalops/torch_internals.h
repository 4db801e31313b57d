// The non-public parts of torch that operators' sources and these headers use, each once and under
// a plain name: the list to go through for another version of torch. (csrc/host/torch_internals.h
// is the counterpart for the software device, metalops/_torch/internals.py for Python.)
#pragma once
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Metaprogramming.h>
#include <metalops/library.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 13 || TORCH_VERSION_MINOR > 15
#warning \
    "metalops knows the internals of torch 2.13 to 2.15; what follows may not suit this version"
#endif

// <ATen/autocast_mode.h> declares these and includes the headers of all operators, which take
// longer to read than the sources that cast.
namespace at::autocast {
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device);
TORCH_API Tensor cached_cast(c10::ScalarType type, const Tensor& tensor, c10::DeviceType device);
}  // namespace at::autocast

namespace metalops::internals {

// ---- tensors ------------------------------------------------------------------------------------

// Returns a tensor of the same dtype and device on the same storage, without a version counter and
// without autograd history. offset: in elements of the storage.
METALOPS_HIDDEN inline at::Tensor view(const at::TensorBase& tensor, c10::IntArrayRef sizes,
                                       c10::IntArrayRef strides, int64_t offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return result;
}

// Gives a dense tensor the strides of a memory format.
METALOPS_HIDDEN inline void set_memory_format(const at::Tensor& tensor, at::MemoryFormat format) {
  tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
}

// Returns true if a zero-dimensional tensor stands for a Python number, which has lower priority in
// type promotion.
METALOPS_HIDDEN inline bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}
METALOPS_HIDDEN inline void set_wrapped_number(const at::Tensor& tensor, bool is_number) {
  tensor.unsafeGetTensorImpl()->set_wrapped_number(is_number);
}

// A check of torch's generated code: raises RuntimeError that names operator and argument unless
// all tensors that it is called for are on one device.
using c10::impl::check_and_update_common_device;

// The type of argument `index` of an ATen operator (at::_ops::name) in C++: a list of tensors is
// at::TensorList or at::ITensorListRef, depending on torch's version.
template <class Op, size_t index>
using Argument = c10::guts::typelist::element_t<
    index, typename c10::guts::function_traits<typename Op::schema>::parameter_types>;

// Calls exec_ternary_kernel of torch's class; alpha needs torch 2.15.
template <class MetalLibrary>
METALOPS_HIDDEN void exec_ternary_kernel(MetalLibrary& library, at::TensorIteratorBase& iter,
                                         const std::string& name,
                                         const std::optional<c10::Scalar>& alpha,
                                         std::optional<c10::ScalarType> scalar_arg_type) {
  if constexpr (requires { library.exec_ternary_kernel(iter, name, alpha, scalar_arg_type); }) {
    library.exec_ternary_kernel(iter, name, alpha, scalar_arg_type);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(!alpha, "exec_ternary_kernel: alpha needs torch 2.15 or later");
    library.exec_ternary_kernel(iter, name);
  }
}

// ---- functionalization --------------------------------------------------------------------------

using at::functionalization::impl::commit_update;
using at::functionalization::impl::from_functional_tensor;
using at::functionalization::impl::isFunctionalTensor;
using at::functionalization::impl::replace_;
using at::functionalization::impl::sync;

// ---- the dispatcher -----------------------------------------------------------------------------

using c10::impl::ExcludeDispatchKeyGuard;

// Returns true if a Python mode for functions (torch.overrides) has to see every call.
using at::impl::torch_function_mode_enabled;

// ---- autocast -----------------------------------------------------------------------------------

using at::autocast::cached_cast;
using at::autocast::get_autocast_dtype;

}  // namespace metalops::internals

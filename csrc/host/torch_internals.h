// torch APIs that the software device uses and that are not public, each in one place under a plain
// name. Other sources of csrc/host use them through this header, so it is the list to check for
// another version of torch. (<metalops/torch_internals.h> is its counterpart for operators,
// metalops/_torch/internals.py for Python.)
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/Utils.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/mps/MPSGeneratorImpl.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <caffe2/core/common.h>
#include <torch/version.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 13 || TORCH_VERSION_MINOR > 15
#warning \
    "metalops knows the internals of torch 2.13 to 2.15; what follows may not suit this version"
#endif

namespace metalops::internals {

// ---- memory -------------------------------------------------------------------------------------

// Adds and drops a reference to an object held by a plain pointer.
template <class T>
void hold(T* object) {
  c10::raw::intrusive_ptr::incref(object);
}
template <class T>
void release(T* object) {
  c10::raw::intrusive_ptr::decref(object);
}

// Allocates the memory of CPU tensors.
using c10::alloc_cpu;
using c10::free_cpu;

inline c10::StorageImpl* impl(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl();
}

// Turns a storage into a plain pointer with its reference, which release() drops.
inline c10::StorageImpl* take(c10::Storage storage) { return storage.unsafeReleaseStorageImpl(); }

// Deleter of memory that nobody owns.
inline constexpr c10::DeleterFnPtr kNoDeleter = &c10::detail::deleteNothing;

// Replaces the memory of a storage; the former memory is freed.
inline void replace_memory(const c10::Storage& storage, c10::DataPtr memory, size_t bytes) {
  c10::StorageImpl* storage_impl = impl(storage);
  storage_impl->set_data_ptr_noswap(std::move(memory));
  storage_impl->set_nbytes(bytes);
}

// ---- tensors ------------------------------------------------------------------------------------

using at::detail::empty_cpu;
using at::detail::empty_generic;
using at::detail::empty_strided_generic;

// Returns true if a 0-d tensor stands for a Python number, which does not take part in type
// promotion.
inline bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}
inline void set_wrapped_number(const at::Tensor& tensor) {
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
}

// Sets sizes, strides and offset regardless of the storage's size. Without `offset` the old one
// stays.
inline void set_geometry(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<int64_t> offset = std::nullopt) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
}

// Returns a tensor on another storage with the geometry of `like`.
inline at::Tensor tensor_on(const c10::Storage& storage, c10::DispatchKey key,
                            const at::Tensor& like) {
  auto tensor = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage),
                                                     c10::DispatchKeySet(key), like.dtype());
  tensor->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) tensor->_set_conj(true);
  if (like.is_neg()) tensor->_set_neg(true);
  if (is_wrapped_number(like)) tensor->set_wrapped_number(true);
  return at::Tensor(std::move(tensor));
}

// ---- sparse COO tensors -------------------------------------------------------------------------

inline at::SparseTensorImpl* sparse_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// Gives `tensor` these indices and values, and all other properties of `like`. Nothing is copied.
inline void set_sparse(const at::Tensor& tensor, const at::Tensor& like, const at::Tensor& indices,
                       const at::Tensor& values) {
  const at::SparseTensorImpl* from = sparse_impl(like);
  at::SparseTensorImpl* to = sparse_impl(tensor);
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
}

// Returns a tensor like `like` with these indices and values, on the device of `key`.
inline at::Tensor sparse_on(c10::DispatchKey key, const at::Tensor& like, const at::Tensor& indices,
                            const at::Tensor& values) {
  at::Tensor tensor(
      c10::make_intrusive<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype()));
  set_sparse(tensor, like, indices, values);
  return tensor;
}

// ---- the dispatcher -----------------------------------------------------------------------------

// RAII: the dispatcher sees this thread as it does outside of any operator, the state that Python
// code expects. An operator that launches has turned autograd off for the operators it calls.
class OutsideOfOperators {
 public:
  OutsideOfOperators() : keys_(keys()) {}

 private:
  static c10::impl::LocalDispatchKeySet keys() {
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    if (!c10::InferenceMode::is_enabled()) {
      keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
      keys.included_ = keys.included_.add(c10::DispatchKey::ADInplaceOrView);
    }
    return keys;
  }

  c10::impl::ForceDispatchKeyGuard keys_;
};

// A list of values of one type that is known at run time only.
using c10::impl::GenericList;

// The text before the quoted dtype in the error of a CPU kernel that has no code for it.
inline constexpr const char* kNotImplementedFor = "not implemented for '";

// ---- state that a thread carries along, and its worker threads

inline void push_debug_info(c10::DebugInfoKind kind, std::shared_ptr<c10::DebugInfoBase> info) {
  c10::ThreadLocalDebugInfo::_push(kind, std::move(info));
}
inline std::shared_ptr<c10::DebugInfoBase> pop_debug_info(c10::DebugInfoKind kind) {
  return c10::ThreadLocalDebugInfo::_pop(kind);
}

// ---- the device ---------------------------------------------------------------------------------

using DeviceGuard = c10::impl::DeviceGuardImplInterface;

// torch creates its hooks object on the first query (torch.backends.mps.is_available(), for
// example) and keeps it. If that came before this library was loaded, the object is the interface
// itself, which is only a vtable pointer: our object is constructed in its place.
template <class Hooks>
void install_hooks() {
  static_assert(sizeof(Hooks) == sizeof(at::MPSHooksInterface),
                "the hooks must not have data members");
  const at::MPSHooksInterface& hooks = at::detail::getMPSHooks();
  if (!hooks.hasMPS()) {
    auto* place = const_cast<at::MPSHooksInterface*>(&hooks);
    place->~MPSHooksInterface();
    new (place) Hooks();
  }
}

// ---- elementwise kernels: what c10/metal/indexing.h registers
// ---------------------------------------

// The name that exec_unary_kernel_raw takes.
#if TORCH_VERSION_MINOR >= 14
using KernelName = std::string_view;
// The rest of that function's name in Objective-C, where buffers are objects.
#define METALOPS_RAW_KERNEL_IN_OBJECTIVE_C                                                \
  "ESt17basic_string_viewIcSt11char_traitsIcEEPU19objcproto9MTLBuffer11objc_objectjN3c10" \
  "10ScalarTypeES8_jSA_jSt8optionalIjE"
#else
using KernelName = const std::string&;
#define METALOPS_RAW_KERNEL_IN_OBJECTIVE_C                                                \
  "ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPU19objcproto9MTLBuffer11objc_" \
  "objectjN3c1010ScalarTypeESC_jSE_jSt8optionalIjE"
#endif

// True if torch's headers declare is_macos_13_or_newer.
#define METALOPS_HAS_MACOS_13_OR_NEWER (TORCH_VERSION_MINOR < 14)

// True if strided ternary kernels run on 3-D grids.
inline constexpr bool kTernaryKernelsHave3DGrids = TORCH_VERSION_MINOR >= 15;
// True if ternary cast kernels compute in the inputs' common dtype and convert to the output's as
// they store; else they compute in the output's dtype.
inline constexpr bool kTernaryCastsStoreAnyType = TORCH_VERSION_MINOR >= 15;

// ---- generators ---------------------------------------------------------------------------------

using at::detail::check_rng_state;
using at::mps::detail::getDefaultMPSGenerator;
using at::mps::detail::PHILOX_STATE_N;
using c10::detail::getNonDeterministicRandom;

// ---- the build ----------------------------------------------------------------------------------

// Returns the commit of torch's sources.
inline std::string torch_commit() {
  const auto& options = caffe2::GetBuildOptions();
  const auto commit = options.find("COMMIT_SHA");
  return commit == options.end() ? "unknown" : commit->second;
}

}  // namespace metalops::internals

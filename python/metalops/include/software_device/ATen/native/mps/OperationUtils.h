// Replaces torch's header of the same name on the software Metal device, where Apple's headers are
// missing: it is the plain C++ part of it. The build helper puts this directory before torch's on
// Linux only.
#pragma once
#include <ATen/Tensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/CanUse32BitIndexMath.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/core/ScalarType.h>
#include <torch/library.h>
#include <torch/version.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace at::native::mps {

std::string scalarToMetalTypeString(const c10::ScalarType& scalar_type);
inline std::string scalarToMetalTypeString(const TensorBase& t) {
  return scalarToMetalTypeString(t.scalar_type());
}
inline std::string scalarToMetalTypeString(const std::optional<Tensor>& t) {
  return t.has_value() ? scalarToMetalTypeString(t->scalar_type()) : "void";
}

// Returns a tensor's buffer, which is the memory itself on this device.
inline MTLBuffer_t getMTLBufferStorage(const TensorBase& tensor) {
  return const_cast<void*>(tensor.storage().data());
}

template <typename Offset32, typename... Tensors>
inline bool offsetsFitIn(const Tensors&... tensors) {
  return (... && at::native::canUse32BitIndexMath(tensors, std::numeric_limits<Offset32>::max()));
}

inline std::string_view mtlIdxSuffix(bool use32) { return use32 ? "_u32" : "_u64"; }

inline bool supportedFloatingType(ScalarType dtype) {
  return dtype == kFloat || dtype == kHalf || dtype == kBFloat16;
}
inline bool supportedFloatingType(const TensorBase& t) {
  return supportedFloatingType(t.scalar_type());
}
inline bool supportedFloatingOrComplexType(ScalarType dtype) {
  return dtype == kComplexFloat || dtype == kComplexHalf || supportedFloatingType(dtype);
}
inline bool supportedFloatingOrComplexType(const TensorBase& t) {
  return supportedFloatingOrComplexType(t.scalar_type());
}

// The parameters of the two member templates below as bytes, for their common body, which the
// device defines.
struct KernelParams {
  const void* data;
  size_t size;
  const std::string& type_name;
};
void exec_unary_kernel_with_params_(MTLLibrary_t library, TensorIteratorBase& iter,
                                    const std::string& name, const KernelParams& params,
                                    std::optional<uint32_t> ilp_threshold);
void exec_binary_kernel_with_params_(MTLLibrary_t library, TensorIteratorBase& iter,
                                     const std::string& name, const KernelParams& params);

template <typename T>
void MetalShaderLibrary::exec_unary_kernel_with_params(TensorIteratorBase& iter,
                                                       const std::string& name, T params,
                                                       const std::string& params_type_name
#if TORCH_VERSION_MINOR >= 14
                                                       ,
                                                       const std::optional<uint32_t> ilp_threshold
#endif
) {
#if TORCH_VERSION_MINOR < 14
  const std::optional<uint32_t> ilp_threshold;
#endif
  static_assert(std::is_trivially_copyable_v<T>);
  const std::conditional_t<std::is_same_v<T, double>, float, T> bound(params);
  exec_unary_kernel_with_params_(getLibrary(), iter, name, {&bound, sizeof bound, params_type_name},
                                 ilp_threshold);
}

template <typename T>
void MetalShaderLibrary::exec_binary_kernel_with_params(TensorIteratorBase& iter,
                                                        const std::string& name, T params,
                                                        const std::string& params_type_name) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::conditional_t<std::is_same_v<T, double>, float, T> bound(params);
  exec_binary_kernel_with_params_(getLibrary(), iter, name,
                                  {&bound, sizeof bound, params_type_name});
}

}  // namespace at::native::mps

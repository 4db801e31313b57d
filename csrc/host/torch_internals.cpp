// Members of torch's classes whose declarations differ between versions of torch; their bodies do
// not and are elsewhere.
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <metal/elementwise.h>
#include <torch_internals.h>

namespace at::native::mps {

#if TORCH_VERSION_MINOR >= 15
void MetalShaderLibrary::exec_ternary_kernel(TensorIteratorBase& iter, const std::string& name,
                                             const std::optional<c10::Scalar> alpha,
                                             const std::optional<c10::ScalarType> scalar_arg_type) {
  using namespace metalops;
  exec_ternary(*static_cast<CompiledLibrary*>(getLibrary()), iter, name, alpha, scalar_arg_type);
}
#else
void MetalShaderLibrary::exec_ternary_kernel(TensorIteratorBase& iter, const std::string& name) {
  using namespace metalops;
  exec_ternary(*static_cast<CompiledLibrary*>(getLibrary()), iter, name, std::nullopt,
               std::nullopt);
}
#endif

}  // namespace at::native::mps

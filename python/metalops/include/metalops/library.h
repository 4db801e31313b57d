// The kernels of the extension that includes this header: metalops::library("activation") is the
// Metal source file activation.metal among the sources of its MetalExtension, on macOS and on the
// software device alike.
#pragma once
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Every extension has its own registry, so two extensions with equally named kernel files do not
// conflict. Hidden visibility ensures that: with default visibility the dynamic linker may merge
// the registries of several extensions.
#define METALOPS_HIDDEN __attribute__((visibility("hidden")))

namespace metalops {

// A torch library whose elementwise calls have one more kernel variant. On a GPU, operands that are
// strided, broadcast or 16-bit are computed in tiles (<metalops/tiles.h>) if the kernel file
// registers such a kernel, as the macros of <metalops/registration.h> do. Everything else is as in
// torch.
class METALOPS_HIDDEN Library final : public at::native::mps::MetalShaderLibrary {
 public:
  explicit Library(MTLLibrary_t opened) : MetalShaderLibrary(std::string()) { library = opened; }

  void exec_unary_kernel(at::TensorIteratorBase& iter, const std::string& name,
                         const std::optional<c10::Scalar>& alpha = std::nullopt,
                         std::optional<c10::ScalarType> scalar_arg_type = std::nullopt,
                         std::optional<uint32_t> ilp_threshold = std::nullopt);
  void exec_binary_kernel(at::TensorIteratorBase& iter, const std::string& name,
                          const std::optional<c10::Scalar>& alpha = std::nullopt,
                          std::optional<c10::ScalarType> scalar_arg_type = std::nullopt,
                          std::optional<c10::ScalarType> natural_output_dtype = std::nullopt,
                          std::optional<uint32_t> ilp_threshold = std::nullopt);
  // alpha: for kernels of REGISTER_TERNARY_ALPHA_OP, which torch has from 2.15 on.
  void exec_ternary_kernel(at::TensorIteratorBase& iter, const std::string& name,
                           const std::optional<c10::Scalar>& alpha = std::nullopt,
                           std::optional<c10::ScalarType> scalar_arg_type = std::nullopt);
};

// Returns the library of the kernel file `<family>.metal`, which is opened at its first use: the
// library built ahead of time if it exists and suits this machine, else the source embedded in the
// extension. Throws c10::Error if the extension was built without such a file, or if neither way
// works.
METALOPS_HIDDEN Library& library(std::string_view family);

// The state of a kernel file as `python -m metalops info` prints it.
struct METALOPS_HIDDEN LibraryState {
  std::string family;
  std::string prebuilt;  // path of the library built ahead of time; empty if the build made none
  std::string origin;    // "prebuilt", "source", or empty if nothing has used it yet
  std::string problem;   // why the prebuilt library was not used; empty if it was
};
METALOPS_HIDDEN std::vector<LibraryState> libraries();

}  // namespace metalops

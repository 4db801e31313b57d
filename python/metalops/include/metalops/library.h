// The kernels of the extension that includes this header: metalops::library("activation") is the
// Metal source file activation.metal among the sources of its MetalExtension. The same on macOS and
// on the software device.
#pragma once
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Every extension has its own registry, so two extensions with equally named kernel files never
// meet. Hidden symbols see to that: with default visibility the dynamic linker may merge those of
// several extensions.
#define METALOPS_HIDDEN __attribute__((visibility("hidden")))

namespace metalops {

// A torch library whose elementwise calls know one more flavour: on a GPU, operands that are
// strided, broadcast or of 16 bits are computed in tiles (<metalops/tiles.h>) where the kernel
// file registers such a kernel, as the macros of <metalops/registration.h> do. Everything else is
// as torch has it.
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
  void exec_ternary_kernel(at::TensorIteratorBase& iter, const std::string& name);
};

// The library of the kernel file `<family>.metal`, opened at its first use: the file built ahead of
// time if it is there and suits this machine, else the source embedded in the extension. Throws
// c10::Error when the extension was built without such a file, or when neither way works.
METALOPS_HIDDEN Library& library(std::string_view family);

// What `python -m metalops info` tells about a kernel file.
struct METALOPS_HIDDEN LibraryState {
  std::string family;
  std::string prebuilt;  // path of the library built ahead of time; empty if the build made none
  std::string origin;    // "prebuilt", "source", or empty as long as nothing has used it
  std::string problem;   // why the prebuilt library was not taken; empty if it was
};
METALOPS_HIDDEN std::vector<LibraryState> libraries();

}  // namespace metalops

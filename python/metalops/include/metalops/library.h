// The kernels of the extension that includes this header: metalops::library("activation") is the
// Metal source file activation.metal among the sources of its MetalExtension. The same on macOS and
// on the software device.
#pragma once
#include <ATen/native/mps/MetalShaderLibrary.h>

#include <string>
#include <string_view>
#include <vector>

// Every extension has its own registry, so two extensions with equally named kernel files never
// meet. Hidden symbols see to that: with default visibility the dynamic linker may merge those of
// several extensions.
#define METALOPS_HIDDEN __attribute__((visibility("hidden")))

namespace metalops {

// The library of the kernel file `<family>.metal`, opened at its first use: the file built ahead of
// time if it is there and suits this machine, else the source embedded in the extension. Throws
// c10::Error when the extension was built without such a file, or when neither way works.
METALOPS_HIDDEN at::native::mps::MetalShaderLibrary& library(std::string_view family);

// What `python -m metalops info` tells about a kernel file.
struct METALOPS_HIDDEN LibraryState {
  std::string family;
  std::string prebuilt;  // path of the library built ahead of time; empty if the build made none
  std::string origin;    // "prebuilt", "source", or empty as long as nothing has used it
  std::string problem;   // why the prebuilt library was not taken; empty if it was
};
METALOPS_HIDDEN std::vector<LibraryState> libraries();

}  // namespace metalops

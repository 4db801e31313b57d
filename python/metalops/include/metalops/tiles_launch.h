// The host side of <metalops/tiles.h>.
#pragma once
#include <metalops/library.h>

namespace metalops {

// Launches the kernel NAME_tiles_OUT_IN, or NAME_tiles_OUT_IN_float with an alpha of that type, if
// it exists and suits the device, the operands and their layout. Returns true if it did; otherwise
// the caller falls back to torch's kernels. The iterator has one result and is indexed with 32
// bits.
METALOPS_HIDDEN bool launch_tiles(at::native::mps::MetalShaderLibrary& library,
                                  at::TensorIteratorBase& iter, const std::string& name,
                                  const std::optional<c10::Scalar>& alpha = std::nullopt,
                                  std::optional<c10::ScalarType> alpha_type = std::nullopt);

}  // namespace metalops

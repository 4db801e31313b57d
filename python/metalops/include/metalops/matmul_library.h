// Kernel files with matrix products, which use Metal 4 tensors where available and simdgroup
// matrices elsewhere, selected by the macro __HAVE_TENSOR__ as in kernels/common/matmul.h. The
// build helper makes two libraries of such a file.
#pragma once
#include <metalops/library.h>

#include <string_view>

namespace metalops {

// Returns the library of `<family>.metal` that uses tensors, or else library(family).
// METALOPS_MATMUL, "tensor" or "simdgroup", chooses at any time. Without it, tensors are used if
// the language and the system support them and a kernel of the library can be made ready. Raises
// ValueError for other values, and the underlying error if tensors are requested but unavailable.
METALOPS_HIDDEN Library& matmul_library(std::string_view family);

}  // namespace metalops

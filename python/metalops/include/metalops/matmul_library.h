// Kernel files with matrix products that are made of tensors where Metal has them (from 4.0 on) and
// of simdgroup matrices elsewhere, by the macro __HAVE_TENSOR__, as kernels/common/matmul.h has
// them. The build helper makes two libraries of such a file.
#pragma once
#include <metalops/library.h>

#include <string_view>

namespace metalops {

// The library of `<family>.metal` with products of tensors, or else library(family).
// METALOPS_MATMUL says which, "tensor" or "simdgroup", at any time; without it, tensors are taken
// where the language and the system have them and a kernel of the library can be made ready. Raises
// ValueError for other values, and what went wrong where tensors are demanded and cannot be had.
METALOPS_HIDDEN Library& matmul_library(std::string_view family);

}  // namespace metalops

// Type names in kernel names: how REGISTER_* macros and instantiations call a dtype.
#pragma once
#include <c10/core/ScalarType.h>
#include <c10/metal/common.h>
#include <c10/util/Exception.h>
#include <metalops/library.h>

namespace metalops {

// Returns Metal's name of a dtype.
METALOPS_HIDDEN inline const char* metal_type(at::ScalarType type) {
  switch (type) {
#define METALOPS_CASE(name, number, type_name) \
  case at::ScalarType::name:                   \
    return #type_name;
    C10_METAL_ALL_TYPES_FUNCTOR(METALOPS_CASE)
#undef METALOPS_CASE
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "no Metal type for '", type, "'");
  }
}

// Returns an integer type as wide as the dtype, for kernels that only move elements.
METALOPS_HIDDEN inline const char* metal_type_of_width(at::ScalarType type) {
  switch (c10::elementSize(type)) {
    case 1:
      return "uchar";
    case 2:
      return "short";
    case 4:
      return "int";
    case 8:
      return "long";
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "no Metal type as wide as '", type, "'");
  }
}

}  // namespace metalops

// dtypes as Metal kernels see them: their names in kernel names, and scalars as bytes.
#pragma once
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <string>

namespace at::native::mps {
// torch declares this function in ATen/native/mps/OperationUtils.h, which needs Apple's headers.
std::string scalarToMetalTypeString(const c10::ScalarType& scalar_type);
}  // namespace at::native::mps

namespace metalops {

// A scalar kernel argument, in the layout of the Metal type of its dtype.
struct ScalarBytes {
  alignas(16) unsigned char data[16] = {};
  size_t size = 0;
};

// Converts `value` to `type`; float64 and complex128 become their 32-bit counterparts. Raises when
// the value does not fit.
ScalarBytes scalar_bytes(const c10::Scalar& value, c10::ScalarType type);

// Converts the element of dtype `type` at `data` to the same layout.
ScalarBytes scalar_bytes(const void* data, c10::ScalarType type);

// Returns the dtype in which a 0-d tensor of `type` reaches a kernel: float64 becomes float32,
// complex128 complex64.
inline c10::ScalarType metal_scalar_type(c10::ScalarType type) {
  if (type == c10::ScalarType::Double) return c10::ScalarType::Float;
  if (type == c10::ScalarType::ComplexDouble) return c10::ScalarType::ComplexFloat;
  return type;
}

}  // namespace metalops

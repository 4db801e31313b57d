// Conversion of scalars to the bytes of Metal types.
#include <metal/scalar_types.h>

#include <c10/metal/common.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace at::native::mps {

using c10::ScalarType;

std::string scalarToMetalTypeString(const ScalarType& scalar_type) {
  switch (scalar_type) {
    case ScalarType::Float:
      return "float";
    case ScalarType::Half:
      return "half";
    case ScalarType::BFloat16:
      return "bfloat";
    case ScalarType::Long:
      return "long";
    case ScalarType::Int:
      return "int";
    case ScalarType::Short:
      return "short";
    case ScalarType::Char:
      return "char";
    case ScalarType::Byte:
      return "uchar";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::UInt64:
      return "ulong";
    case ScalarType::UInt32:
      return "uint";
    case ScalarType::UInt16:
      return "ushort";
    case ScalarType::ComplexFloat:
      return "float2";
    case ScalarType::ComplexHalf:
      return "half2";
    case ScalarType::Float8_e4m3fn:  // of kernels of torch 2.15 and later
      return "float8_e4m3fn";
    default:
      TORCH_CHECK(false, "Undefined type ", scalar_type);
  }
}

}  // namespace at::native::mps

// Kernels receive torch's dtype numbers and read them as c10::metal::ScalarType.
#define METALOPS_SAME_NUMBER(name, number, type)           \
  static_assert(static_cast<int>(c10::ScalarType::name) == \
                static_cast<int>(c10::metal::ScalarType::name));
C10_METAL_ALL_TYPES_FUNCTOR(METALOPS_SAME_NUMBER)
#undef METALOPS_SAME_NUMBER

namespace metalops {
namespace {

using c10::ScalarType;

template <typename T>
ScalarBytes bytes_of(T value) {
  ScalarBytes result;
  std::memcpy(result.data, &value, sizeof(T));
  result.size = sizeof(T);
  return result;
}

template <typename T>
T load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

}  // namespace

ScalarBytes scalar_bytes(const c10::Scalar& value, ScalarType type) {
  switch (metal_scalar_type(type)) {
    case ScalarType::Float:
      return bytes_of(value.to<float>());
    case ScalarType::Half:
      return bytes_of(value.to<c10::Half>());
    case ScalarType::BFloat16:
      return bytes_of(value.to<c10::BFloat16>());
    case ScalarType::ComplexFloat:
      return bytes_of(value.to<c10::complex<float>>());
    case ScalarType::ComplexHalf:
      return bytes_of(value.to<c10::complex<c10::Half>>());
    case ScalarType::Long:
      return bytes_of(value.to<int64_t>());
    case ScalarType::Int:
      return bytes_of(value.to<int32_t>());
    case ScalarType::Short:
      return bytes_of(value.to<int16_t>());
    case ScalarType::Char:
      return bytes_of(value.to<int8_t>());
    case ScalarType::Byte:
      return bytes_of(value.to<uint8_t>());
    case ScalarType::Bool:
      return bytes_of(value.to<bool>());
    case ScalarType::UInt64:
      return bytes_of(value.to<uint64_t>());
    case ScalarType::UInt32:
      return bytes_of(value.to<uint32_t>());
    case ScalarType::UInt16:
      return bytes_of(value.to<uint16_t>());
    default:
      TORCH_INTERNAL_ASSERT(false, "Unsupported scalar type '", type, "' on MPS backend.");
  }
}

ScalarBytes scalar_bytes(const void* data, ScalarType type) {
  if (type == ScalarType::Double) return bytes_of(static_cast<float>(load<double>(data)));
  if (type == ScalarType::ComplexDouble) {
    return bytes_of(static_cast<c10::complex<float>>(load<c10::complex<double>>(data)));
  }
  ScalarBytes result;
  result.size = c10::elementSize(type);
  TORCH_INTERNAL_ASSERT(result.size <= sizeof(result.data));
  std::memcpy(result.data, data, result.size);
  return result;
}

}  // namespace metalops

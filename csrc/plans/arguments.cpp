#include <csrc/plans/arguments.h>

namespace metalops::plans {

std::string torch_name_of(Type type) {
  // By the numbers of c10::ScalarType.
  std::istringstream names(
      "Byte Char Short Int Long Half Float Double ComplexHalf ComplexFloat ComplexDouble Bool "
      "QInt8 QUInt8 QInt32 BFloat16 QUInt4x2 QUInt2x4 Bits1x8 Bits2x4 Bits4x2 Bits8 Bits16 "
      "Float8_e5m2 Float8_e4m3fn Float8_e5m2fnuz Float8_e4m3fnuz UInt16 UInt32 UInt64 UInt1 UInt2 "
      "UInt3 UInt4 UInt5 UInt6 UInt7 Int1 Int2 Int3 Int4 Int5 Int6 Int7 Float8_e8m0fnu "
      "Float4_e2m1fn_x2");
  std::string name = "UNKNOWN_SCALAR";
  for (auto number = static_cast<int32_t>(type); number >= 0 && names >> name; --number) {
  }
  return name;
}

void check_metal_float(const char* name, Type type) {
  const bool holds = type == Type::kFloat || type == Type::kHalf || type == Type::kBfloat16;
  internal::check(ErrorKind::kNotImplementedError, holds, '"', name, "\" not implemented for '",
                  type, "'");
}

}  // namespace metalops::plans

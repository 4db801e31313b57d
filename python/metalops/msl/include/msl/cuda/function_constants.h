// Values of function constants, which are compiled in. MSL_FUNCTION_CONSTANTS specialises
// function_constant for those that have one, see metalops.cuda.constants.
#pragma once

#include <msl/metal.h>

namespace msl::msl_support {

// By its index.
template <abi::u32 I>
struct function_constant {
  static constexpr bool is_defined = false;
  template <class T>
  static constexpr T get() {
    return T();
  }
};

template <abi::u32 N>
struct constant_bytes {
  abi::u8 values[N];
};
template <class T, abi::u32 N>
MSL_INLINE constexpr T constant_of(constant_bytes<N> bytes) {
  static_assert(sizeof(T) == N, "the value of a function constant has not the size of its type");
  return __builtin_bit_cast(T, bytes);
}

// A number, of any type. bits: of half and bfloat, whose arithmetic is no constant.
template <class T, class V>
MSL_INLINE constexpr T constant_of(V value, unsigned short half_bits, unsigned short bfloat_bits) {
  if constexpr (metal::is_same_v<T, metal::half>) {
    return __builtin_bit_cast(T, half_bits);
  } else if constexpr (metal::is_same_v<T, metal::bfloat>) {
    return __builtin_bit_cast(T, bfloat_bits);
  } else {
    return T(value);
  }
}

#ifdef MSL_FUNCTION_CONSTANTS
MSL_FUNCTION_CONSTANTS
#endif

}  // namespace msl::msl_support

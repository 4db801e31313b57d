// Values of function constants, which are compiled in. MSL_FUNCTION_CONSTANTS specialises
// function_constant for those that have one, see metalops.cuda.constants.
#pragma once

#include <msl/metal.h>

namespace msl::msl_support {

// The constant with index I.
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

#ifdef MSL_FUNCTION_CONSTANTS
MSL_FUNCTION_CONSTANTS
#endif

}  // namespace msl::msl_support

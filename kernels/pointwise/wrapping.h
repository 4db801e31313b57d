// Integer arithmetic that wraps around, as torch's does. In Metal, as in C++, signed overflow is
// undefined.
#pragma once
#include <metal_stdlib>

namespace metalops {

// The unsigned type of the computation: at least as wide as int, to which smaller types would be
// promoted.
template <typename T>
using wrapping_t = ::metal::conditional_t<sizeof(T) == 8, ulong, uint>;

template <typename T>
inline T wrapping_sum(T a, T b) {
  return static_cast<T>(static_cast<wrapping_t<T>>(a) + static_cast<wrapping_t<T>>(b));
}

template <typename T>
inline T wrapping_difference(T a, T b) {
  return static_cast<T>(static_cast<wrapping_t<T>>(a) - static_cast<wrapping_t<T>>(b));
}

template <typename T>
inline T wrapping_product(T a, T b) {
  return static_cast<T>(static_cast<wrapping_t<T>>(a) * static_cast<wrapping_t<T>>(b));
}

}  // namespace metalops

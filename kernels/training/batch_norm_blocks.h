// The division of a row among the threads of a group: in blocks of 16 elements, which are whole or
// half cache lines, and which a CPU processes as vectors.
#pragma once
#include <metal_stdlib>

namespace metalops {

constant constexpr int64_t kBlock = 16;

template <typename T>
inline ::metal::float4 four(constant T* x) {
  return ::metal::float4(static_cast<float>(x[0]), static_cast<float>(x[1]),
                         static_cast<float>(x[2]), static_cast<float>(x[3]));
}

}  // namespace metalops

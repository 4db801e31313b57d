// Variables in threadgroup memory.
//
// `threadgroup T x[N];` in a kernel becomes a reference obtained here. Storage belongs to the
// group, not to the library, so that any engine can run the same code; it is zero when the group
// starts (filled with a pattern under a sanitizer). A variable is placed when the first thread of
// the group reaches its declaration.
#pragma once

#include <msl/config.h>

namespace msl::msl_impl {

// Returns variable number `index` of the kernel in its group's memory.
template <class T>
MSL_INLINE T& threadgroup_variable(abi::Group& group, abi::u32 index) {
  abi::u32& offset = group.offsets[index];
  if (__builtin_expect(offset == ~0u, 0)) {
    offset = msl_runtime->place_variable(&group, sizeof(T), alignof(T) > 16 ? alignof(T) : 16);
  }
  return *reinterpret_cast<T*>(group.static_memory + offset);
}
template <class T>
MSL_INLINE T& threadgroup_variable(abi::Group* group, abi::u32 index) {
  return threadgroup_variable<T>(*group, index);
}

}  // namespace msl::msl_impl

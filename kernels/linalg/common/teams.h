// Who works on a matrix of moderate size: a team, of a thread or of a simdgroup, whose lanes share
// its columns. Algorithms that are written for a team are told its type.
#pragma once
#include <c10/metal/utils.h>
#include <metal_stdlib>

namespace metalops {

struct Alone {
  static constexpr constant int kLanes = 1;
  static void wait() {}
  static float sum(float part) { return part; }
  static ::metal::float2 sum(::metal::float2 part) { return part; }
  static float largest(float part) { return part; }
};

struct Simdgroup {
  static constexpr constant int kLanes = c10::metal::simdgroup_size;
  static void wait() { ::metal::simdgroup_barrier(::metal::mem_flags::mem_threadgroup); }
  static float sum(float part) { return ::metal::simd_sum(part); }
  static ::metal::float2 sum(::metal::float2 part) {
    return ::metal::float2(::metal::simd_sum(part.x), ::metal::simd_sum(part.y));
  }
  static float largest(float part) { return ::metal::simd_max(part); }
};

// One that shares device memory, too.
struct SimdgroupOfDevice : Simdgroup {
  static void wait() {
    ::metal::simdgroup_barrier(::metal::mem_flags::mem_threadgroup |
                               ::metal::mem_flags::mem_device);
  }
};

}  // namespace metalops

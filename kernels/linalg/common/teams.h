// Teams: the lanes that work on one matrix of moderate size and share its columns. A team is one
// thread or one simdgroup; algorithms for a team take its type as a template argument.
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

// A simdgroup whose lanes share device memory, too.
struct SimdgroupOfDevice : Simdgroup {
  static void wait() {
    ::metal::simdgroup_barrier(::metal::mem_flags::mem_threadgroup |
                               ::metal::mem_flags::mem_device);
  }
};

}  // namespace metalops

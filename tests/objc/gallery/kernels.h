// Metal that the gallery's tests run, and how they make it.
#pragma once
#import <Metal/Metal.h>

#include "check.h"

static NSString* const kSource = @R"METAL(
#include <metal_stdlib>
using namespace metal;
constant float slope [[function_constant(3)]];
constant bool has_slope = is_function_constant_defined(slope);

kernel void scale(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                  constant float& factor [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i] * (has_slope ? slope : factor);
}

kernel void sums(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                 threadgroup float* partial [[threadgroup(0)]],
                 uint group [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                 uint n [[threads_per_threadgroup]]) {
  partial[t] = in[group * n + t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint half_n = n / 2; half_n > 0; half_n /= 2) {
    if (t < half_n) partial[t] += partial[t + half_n];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) out[group] = partial[0];
}
)METAL";

static inline id<MTLDevice> device() { return MTLCreateSystemDefaultDevice(); }

static inline id<MTLLibrary> library() {
  static id<MTLLibrary> one = nil;
  if (one == nil) {
    NSError* error = nil;
    one = [device() newLibraryWithSource:kSource options:nil error:&error];
    if (one == nil) check::fail(__LINE__, error.localizedDescription.UTF8String);
  }
  return one;
}

static inline id<MTLComputePipelineState> pipeline(NSString* name) {
  return [device() newComputePipelineStateWithFunction:[library() newFunctionWithName:name]
                                                 error:nil];
}

// A buffer of the numbers 0, 1, 2, ...
static inline id<MTLBuffer> counting(NSUInteger count) {
  id<MTLBuffer> buffer = [device() newBufferWithLength:count * sizeof(float)
                                               options:MTLResourceStorageModeShared];
  for (NSUInteger i = 0; i < count; ++i) ((float*)buffer.contents)[i] = float(i);
  return buffer;
}
static inline float* floats(id<MTLBuffer> buffer) { return (float*)buffer.contents; }

static inline void encode_scale(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> in,
                                id<MTLBuffer> out, float factor, NSUInteger count) {
  [encoder setComputePipelineState:pipeline(@"scale")];
  [encoder setBuffer:in offset:0 atIndex:0];
  [encoder setBuffer:out offset:0 atIndex:1];
  [encoder setBytes:&factor length:sizeof factor atIndex:2];
  [encoder dispatchThreads:MTLSizeMake(count, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
}

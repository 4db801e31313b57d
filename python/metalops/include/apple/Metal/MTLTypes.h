// Sizes, and the protocols that refer to one another.
#pragma once
#include <Foundation/Foundation.h>

#ifdef __OBJC__
#define MTL_EXTERN FOUNDATION_EXPORT
#define MTL_INLINE NS_INLINE

typedef struct {
  NSUInteger x, y, z;
} MTLOrigin;
typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
typedef struct {
  MTLOrigin origin;
  MTLSize size;
} MTLRegion;
MTL_INLINE MTLOrigin MTLOriginMake(NSUInteger x, NSUInteger y, NSUInteger z) {
  MTLOrigin origin = {x, y, z};
  return origin;
}
MTL_INLINE MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}
MTL_INLINE MTLRegion MTLRegionMake1D(NSUInteger x, NSUInteger width) {
  MTLRegion region = {{x, 0, 0}, {width, 1, 1}};
  return region;
}
MTL_INLINE MTLRegion MTLRegionMake2D(NSUInteger x, NSUInteger y, NSUInteger width,
                                     NSUInteger height) {
  MTLRegion region = {{x, y, 0}, {width, height, 1}};
  return region;
}
MTL_INLINE MTLRegion MTLRegionMake3D(NSUInteger x, NSUInteger y, NSUInteger z, NSUInteger width,
                                     NSUInteger height, NSUInteger depth) {
  MTLRegion region = {{x, y, z}, {width, height, depth}};
  return region;
}
typedef struct {
  NSUInteger size, align;
} MTLSizeAndAlign;
typedef uint64_t MTLGPUAddress;
typedef uint64_t MTLTimestamp;
typedef struct {
  uint32_t threadgroupsPerGrid[3];
} MTLDispatchThreadgroupsIndirectArguments;

// A texture or a sampler in a struct in memory.
typedef struct {
  uint64_t _impl;
} MTLResourceID;

@protocol MTLDevice
, MTLLibrary, MTLFunction, MTLComputePipelineState, MTLResource, MTLBuffer, MTLTexture,
    MTLSamplerState, MTLHeap, MTLCommandQueue, MTLCommandBuffer, MTLCommandEncoder,
    MTLComputeCommandEncoder, MTLBlitCommandEncoder, MTLArgumentEncoder, MTLEvent, MTLSharedEvent,
    MTLFence, MTLResidencySet, MTLCaptureScope, MTLDynamicLibrary, MTLBinaryArchive;
#endif

// Memory of which buffers and textures are parts.
#pragma once
#include <Metal/MTLTexture.h>

#ifdef __OBJC__
typedef NS_ENUM(NSInteger, MTLHeapType) {
  MTLHeapTypeAutomatic = 0,
  MTLHeapTypePlacement = 1,
  MTLHeapTypeSparse = 2,
};

@interface MTLHeapDescriptor : NSObject <NSCopying>
@property NSUInteger size;
@property MTLStorageMode storageMode;
@property MTLCPUCacheMode cpuCacheMode;
@property MTLHazardTrackingMode hazardTrackingMode;
@property MTLResourceOptions resourceOptions;
@property MTLHeapType type;
@end

@protocol MTLHeap <MTLAllocation>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) MTLStorageMode storageMode;
@property(readonly) MTLCPUCacheMode cpuCacheMode;
@property(readonly) MTLHazardTrackingMode hazardTrackingMode;
@property(readonly) MTLResourceOptions resourceOptions;
@property(readonly) NSUInteger size;
@property(readonly) NSUInteger usedSize;
@property(readonly) NSUInteger currentAllocatedSize;
@property(readonly) MTLHeapType type;
- (NSUInteger)maxAvailableSizeWithAlignment:(NSUInteger)alignment;
// nil if there is no room.
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                             options:(MTLResourceOptions)options NS_RETURNS_RETAINED;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                             options:(MTLResourceOptions)options
                              offset:(NSUInteger)offset NS_RETURNS_RETAINED;
- (id<MTLTexture>)newTextureWithDescriptor:(MTLTextureDescriptor*)descriptor NS_RETURNS_RETAINED;
- (id<MTLTexture>)newTextureWithDescriptor:(MTLTextureDescriptor*)descriptor
                                    offset:(NSUInteger)offset NS_RETURNS_RETAINED;
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state;
@end
#endif

// Copies.
#pragma once
#include <Metal/MTLCommandEncoder.h>
#include <Metal/MTLCounters.h>

#ifdef __OBJC__
typedef NS_OPTIONS(NSUInteger, MTLBlitOption) {
  MTLBlitOptionNone = 0,
  MTLBlitOptionDepthFromDepthStencil = 1,
  MTLBlitOptionStencilFromDepthStencil = 2,
  MTLBlitOptionRowLinearPVRTC = 4,
};

@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)copyFromBuffer:(id<MTLBuffer>)from
          sourceOffset:(NSUInteger)fromOffset
              toBuffer:(id<MTLBuffer>)to
     destinationOffset:(NSUInteger)toOffset
                  size:(NSUInteger)size;
- (void)copyFromBuffer:(id<MTLBuffer>)from
           sourceOffset:(NSUInteger)offset
      sourceBytesPerRow:(NSUInteger)rowBytes
    sourceBytesPerImage:(NSUInteger)imageBytes
             sourceSize:(MTLSize)size
              toTexture:(id<MTLTexture>)to
       destinationSlice:(NSUInteger)slice
       destinationLevel:(NSUInteger)level
      destinationOrigin:(MTLOrigin)origin;
- (void)copyFromBuffer:(id<MTLBuffer>)from
           sourceOffset:(NSUInteger)offset
      sourceBytesPerRow:(NSUInteger)rowBytes
    sourceBytesPerImage:(NSUInteger)imageBytes
             sourceSize:(MTLSize)size
              toTexture:(id<MTLTexture>)to
       destinationSlice:(NSUInteger)slice
       destinationLevel:(NSUInteger)level
      destinationOrigin:(MTLOrigin)origin
                options:(MTLBlitOption)options;
- (void)copyFromTexture:(id<MTLTexture>)from
                 sourceSlice:(NSUInteger)slice
                 sourceLevel:(NSUInteger)level
                sourceOrigin:(MTLOrigin)origin
                  sourceSize:(MTLSize)size
                    toBuffer:(id<MTLBuffer>)to
           destinationOffset:(NSUInteger)offset
      destinationBytesPerRow:(NSUInteger)rowBytes
    destinationBytesPerImage:(NSUInteger)imageBytes;
- (void)copyFromTexture:(id<MTLTexture>)from
                 sourceSlice:(NSUInteger)slice
                 sourceLevel:(NSUInteger)level
                sourceOrigin:(MTLOrigin)origin
                  sourceSize:(MTLSize)size
                    toBuffer:(id<MTLBuffer>)to
           destinationOffset:(NSUInteger)offset
      destinationBytesPerRow:(NSUInteger)rowBytes
    destinationBytesPerImage:(NSUInteger)imageBytes
                     options:(MTLBlitOption)options;
- (void)copyFromTexture:(id<MTLTexture>)from
            sourceSlice:(NSUInteger)fromSlice
            sourceLevel:(NSUInteger)fromLevel
           sourceOrigin:(MTLOrigin)fromOrigin
             sourceSize:(MTLSize)size
              toTexture:(id<MTLTexture>)to
       destinationSlice:(NSUInteger)toSlice
       destinationLevel:(NSUInteger)toLevel
      destinationOrigin:(MTLOrigin)toOrigin;
- (void)copyFromTexture:(id<MTLTexture>)from
            sourceSlice:(NSUInteger)fromSlice
            sourceLevel:(NSUInteger)fromLevel
              toTexture:(id<MTLTexture>)to
       destinationSlice:(NSUInteger)toSlice
       destinationLevel:(NSUInteger)toLevel
             sliceCount:(NSUInteger)slices
             levelCount:(NSUInteger)levels;
- (void)copyFromTexture:(id<MTLTexture>)from toTexture:(id<MTLTexture>)to;
- (void)generateMipmapsForTexture:(id<MTLTexture>)texture;
- (void)optimizeContentsForGPUAccess:(id<MTLTexture>)texture;
- (void)optimizeContentsForGPUAccess:(id<MTLTexture>)texture
                               slice:(NSUInteger)slice
                               level:(NSUInteger)level;
- (void)optimizeContentsForCPUAccess:(id<MTLTexture>)texture;
- (void)optimizeContentsForCPUAccess:(id<MTLTexture>)texture
                               slice:(NSUInteger)slice
                               level:(NSUInteger)level;
- (void)synchronizeTexture:(id<MTLTexture>)texture slice:(NSUInteger)slice level:(NSUInteger)level;
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value;
- (void)resolveCounters:(id<MTLCounterSampleBuffer>)samples
                inRange:(NSRange)range
      destinationBuffer:(id<MTLBuffer>)buffer
      destinationOffset:(NSUInteger)offset;
- (void)synchronizeResource:(id<MTLResource>)resource;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end
#endif

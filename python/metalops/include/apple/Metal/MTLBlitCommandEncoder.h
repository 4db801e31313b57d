// Copies.
#pragma once
#include <Metal/MTLCommandEncoder.h>

#ifdef __OBJC__
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
- (void)copyFromTexture:(id<MTLTexture>)from
                 sourceSlice:(NSUInteger)slice
                 sourceLevel:(NSUInteger)level
                sourceOrigin:(MTLOrigin)origin
                  sourceSize:(MTLSize)size
                    toBuffer:(id<MTLBuffer>)to
           destinationOffset:(NSUInteger)offset
      destinationBytesPerRow:(NSUInteger)rowBytes
    destinationBytesPerImage:(NSUInteger)imageBytes;
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value;
- (void)synchronizeResource:(id<MTLResource>)resource;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end
#endif

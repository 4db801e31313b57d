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
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value;
- (void)synchronizeResource:(id<MTLResource>)resource;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end
#endif

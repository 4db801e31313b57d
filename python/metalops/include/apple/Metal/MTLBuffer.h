// Memory of the device.
#pragma once
#include <Metal/MTLPixelFormat.h>
#include <Metal/MTLResource.h>

#ifdef __OBJC__
@class MTLTextureDescriptor;

@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
@property(readonly) uint64_t gpuAddress;
// nil for private storage, which the CPU cannot access on a Mac.
- (void*)contents;
- (void)didModifyRange:(NSRange)range;
- (id<MTLTexture>)newTextureWithDescriptor:(MTLTextureDescriptor*)descriptor
                                    offset:(NSUInteger)offset
                               bytesPerRow:(NSUInteger)rowBytes NS_RETURNS_RETAINED;
@end
#endif

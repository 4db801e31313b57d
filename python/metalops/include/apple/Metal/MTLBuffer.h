// Memory of the device.
#pragma once
#include <Metal/MTLResource.h>

#ifdef __OBJC__
@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
@property(readonly) uint64_t gpuAddress;
// nil for private storage, which the CPU cannot access on a Mac.
- (void*)contents;
- (void)didModifyRange:(NSRange)range;
@end

@protocol MTLTexture <MTLResource>
@end
#endif

// Queues of command buffers, which run in the order in which they are committed.
#pragma once
#include <Metal/MTLCommandBuffer.h>

#ifdef __OBJC__
@protocol MTLCommandQueue <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
- (id<MTLCommandBuffer>)commandBuffer;
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
@end
#endif

// Queues of command buffers, which run in the order in which they are committed.
#pragma once
#include <Metal/MTLCommandBuffer.h>

#ifdef __OBJC__
@protocol MTLCommandQueue <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
- (id<MTLCommandBuffer>)commandBuffer;
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
- (void)addResidencySet:(id<MTLResidencySet>)set;
- (void)addResidencySets:(const id<MTLResidencySet> __unsafe_unretained[])sets
                   count:(NSUInteger)count;
- (void)removeResidencySet:(id<MTLResidencySet>)set;
- (void)removeResidencySets:(const id<MTLResidencySet> __unsafe_unretained[])sets
                      count:(NSUInteger)count;
@end
#endif

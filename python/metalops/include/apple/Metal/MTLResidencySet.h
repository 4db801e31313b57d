// Sets of resources that are kept in memory. All memory of the software Metal device always is.
#pragma once
#include <Metal/MTLResource.h>

#ifdef __OBJC__
@interface MTLResidencySetDescriptor : NSObject <NSCopying>
@property(copy) NSString* label;
@property NSUInteger initialCapacity;
@end

@protocol MTLResidencySet <NSObject>
@property(readonly) id<MTLDevice> device;
@property(readonly) NSString* label;
// Counts what the last commit has put into the set.
@property(readonly) uint64_t allocatedSize;
// These count what was not committed yet, too.
@property(readonly) NSArray<id<MTLAllocation>>* allAllocations;
@property(readonly) NSUInteger allocationCount;
- (BOOL)containsAllocation:(id<MTLAllocation>)allocation;
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)addAllocations:(const id<MTLAllocation> __unsafe_unretained[])allocations
                 count:(NSUInteger)count;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocations:(const id<MTLAllocation> __unsafe_unretained[])allocations
                    count:(NSUInteger)count;
- (void)removeAllAllocations;
- (void)commit;
- (void)requestResidency;
- (void)endResidency;
@end
#endif

// Samples of counters: the times at which encoders begin and end.
#pragma once
#include <Metal/MTLResource.h>

#ifdef __OBJC__
typedef NSString* MTLCommonCounter;
typedef NSString* MTLCommonCounterSet;
MTL_EXTERN MTLCommonCounter const MTLCommonCounterTimestamp;
MTL_EXTERN MTLCommonCounterSet const MTLCommonCounterSetTimestamp;
#define MTLCounterErrorValue ((uint64_t)-1)
#define MTLCounterDontSample ((NSUInteger) - 1)

typedef struct {
  uint64_t timestamp;
} MTLCounterResultTimestamp;
typedef uint64_t MTLTimestamp;

typedef NS_ENUM(NSUInteger, MTLCounterSamplingPoint) {
  MTLCounterSamplingPointAtStageBoundary = 0,
  MTLCounterSamplingPointAtDrawBoundary = 1,
  MTLCounterSamplingPointAtDispatchBoundary = 2,
  MTLCounterSamplingPointAtTileDispatchBoundary = 3,
  MTLCounterSamplingPointAtBlitBoundary = 4,
};

@protocol MTLCounter <NSObject>
@property(readonly) NSString* name;
@end
@protocol MTLCounterSet <NSObject>
@property(readonly) NSString* name;
@property(readonly) NSArray<id<MTLCounter>>* counters;
@end

@interface MTLCounterSampleBufferDescriptor : NSObject
@property(retain) id<MTLCounterSet> counterSet;
@property(copy) NSString* label;
@property MTLStorageMode storageMode;
@property NSUInteger sampleCount;
@end

@protocol MTLCounterSampleBuffer <NSObject>
@property(readonly) id<MTLDevice> device;
@property(readonly) NSString* label;
@property(readonly) NSUInteger sampleCount;
- (NSData*)resolveCounterRange:(NSRange)range;
@end
#endif

// Order between queues, and between encoders.
#pragma once
#include <Metal/MTLTypes.h>

#ifdef __OBJC__
@protocol MTLEvent <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
@end

// Calls blocks on a queue.
@interface MTLSharedEventListener : NSObject
- (instancetype)initWithDispatchQueue:(dispatch_queue_t)queue;
@property(readonly) dispatch_queue_t dispatchQueue;
@end

typedef void (^MTLSharedEventNotificationBlock)(id<MTLSharedEvent> event, uint64_t value);

@protocol MTLSharedEvent <MTLEvent>
@property uint64_t signaledValue;
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds;
- (void)notifyListener:(MTLSharedEventListener*)listener
               atValue:(uint64_t)value
                 block:(MTLSharedEventNotificationBlock)block;
@end

@protocol MTLFence <NSObject>
@property(copy) NSString* label;
@property(readonly) id<MTLDevice> device;
@end
#endif

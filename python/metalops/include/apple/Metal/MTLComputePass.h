// Descriptors of compute and blit encoders.
#pragma once
#include <Metal/MTLCommandEncoder.h>
#include <Metal/MTLCounters.h>

#ifdef __OBJC__
@interface MTLComputePassSampleBufferAttachmentDescriptor : NSObject
@property(retain) id<MTLCounterSampleBuffer> sampleBuffer;
@property NSUInteger startOfEncoderSampleIndex;
@property NSUInteger endOfEncoderSampleIndex;
@end
@interface MTLComputePassSampleBufferAttachmentDescriptorArray : NSObject
- (MTLComputePassSampleBufferAttachmentDescriptor*)objectAtIndexedSubscript:(NSUInteger)index;
- (void)setObject:(MTLComputePassSampleBufferAttachmentDescriptor*)attachment
    atIndexedSubscript:(NSUInteger)index;
@end
@interface MTLComputePassDescriptor : NSObject
+ (MTLComputePassDescriptor*)computePassDescriptor;
@property MTLDispatchType dispatchType;
@property(readonly) MTLComputePassSampleBufferAttachmentDescriptorArray* sampleBufferAttachments;
@end

@interface MTLBlitPassSampleBufferAttachmentDescriptor : NSObject
@property(retain) id<MTLCounterSampleBuffer> sampleBuffer;
@property NSUInteger startOfEncoderSampleIndex;
@property NSUInteger endOfEncoderSampleIndex;
@end
@interface MTLBlitPassSampleBufferAttachmentDescriptorArray : NSObject
- (MTLBlitPassSampleBufferAttachmentDescriptor*)objectAtIndexedSubscript:(NSUInteger)index;
- (void)setObject:(MTLBlitPassSampleBufferAttachmentDescriptor*)attachment
    atIndexedSubscript:(NSUInteger)index;
@end
@interface MTLBlitPassDescriptor : NSObject
+ (MTLBlitPassDescriptor*)blitPassDescriptor;
@property(readonly) MTLBlitPassSampleBufferAttachmentDescriptorArray* sampleBufferAttachments;
@end
#endif

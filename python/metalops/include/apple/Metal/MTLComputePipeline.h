// Kernels that can be launched.
#pragma once
#include <Metal/MTLLibrary.h>

#ifdef __OBJC__
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) {
  MTLPipelineOptionNone = 0,
  MTLPipelineOptionArgumentInfo = 1,
  MTLPipelineOptionBindingInfo = 1,
  MTLPipelineOptionBufferTypeInfo = 2,
  MTLPipelineOptionFailOnBinaryArchiveMiss = 4,
};

typedef NS_ENUM(NSInteger, MTLBindingType) {
  MTLBindingTypeBuffer = 0,
  MTLBindingTypeThreadgroupMemory = 1,
  MTLBindingTypeTexture = 2,
  MTLBindingTypeSampler = 3,
};

// An argument of a kernel.
@protocol MTLBinding <NSObject>
@property(readonly) NSString* name;
@property(readonly) MTLBindingType type;
@property(readonly) NSUInteger index;
@property(readonly, getter=isUsed) BOOL used;
@end

@interface MTLComputePipelineReflection : NSObject
@property(readonly) NSArray<id<MTLBinding>>* bindings;
@end

@interface MTLComputePipelineDescriptor : NSObject <NSCopying>
@property(copy) NSString* label;
@property(strong) id<MTLFunction> computeFunction;
@property BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property NSUInteger maxTotalThreadsPerThreadgroup;
@property BOOL supportIndirectCommandBuffers;
- (void)reset;
@end

@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger staticThreadgroupMemoryLength;
@end
#endif

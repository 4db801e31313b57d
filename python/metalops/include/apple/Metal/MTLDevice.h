// The device, which makes everything else.
#pragma once
#include <Metal/MTLArgumentEncoder.h>
#include <Metal/MTLBlitCommandEncoder.h>
#include <Metal/MTLCaptureManager.h>
#include <Metal/MTLCommandQueue.h>
#include <Metal/MTLComputeCommandEncoder.h>
#include <Metal/MTLCounters.h>
#include <Metal/MTLHeap.h>
#include <Metal/MTLResidencySet.h>
#include <Metal/MTLSampler.h>
#include <Metal/MTLTexture.h>

#ifdef __OBJC__
typedef NS_ENUM(NSInteger, MTLGPUFamily) {
  MTLGPUFamilyApple1 = 1001,
  MTLGPUFamilyApple2,
  MTLGPUFamilyApple3,
  MTLGPUFamilyApple4,
  MTLGPUFamilyApple5,
  MTLGPUFamilyApple6,
  MTLGPUFamilyApple7,
  MTLGPUFamilyApple8,
  MTLGPUFamilyApple9,
  MTLGPUFamilyApple10,
  MTLGPUFamilyMac1 = 2001,
  MTLGPUFamilyMac2 = 2002,
  MTLGPUFamilyCommon1 = 3001,
  MTLGPUFamilyCommon2 = 3002,
  MTLGPUFamilyCommon3 = 3003,
  MTLGPUFamilyMetal3 = 5001,
  MTLGPUFamilyMetal4 = 5002,
};
typedef NS_ENUM(NSUInteger, MTLReadWriteTextureTier) {
  MTLReadWriteTextureTierNone = 0,
  MTLReadWriteTextureTier1 = 1,
  MTLReadWriteTextureTier2 = 2,
};
typedef NS_ENUM(NSUInteger, MTLArgumentBuffersTier) {
  MTLArgumentBuffersTier1 = 0,
  MTLArgumentBuffersTier2 = 1,
};
typedef NS_ENUM(NSUInteger, MTLDeviceLocation) {
  MTLDeviceLocationBuiltIn = 0,
  MTLDeviceLocationSlot = 1,
  MTLDeviceLocationExternal = 2,
  MTLDeviceLocationUnspecified = NSUIntegerMax,
};

@interface MTLArchitecture : NSObject
@property(readonly) NSString* name;
@end

typedef void (^MTLNewLibraryCompletionHandler)(id<MTLLibrary> library, NSError* error);
typedef void (^MTLNewComputePipelineStateCompletionHandler)(id<MTLComputePipelineState> state,
                                                            NSError* error);
typedef void (^MTLNewComputePipelineStateWithReflectionCompletionHandler)(
    id<MTLComputePipelineState> state, MTLComputePipelineReflection* reflection, NSError* error);
typedef MTLComputePipelineReflection* MTLAutoreleasedComputePipelineReflection;

@protocol MTLDevice <NSObject>
@property(readonly) NSString* name;
@property(readonly) uint64_t registryID;
@property(readonly) MTLArchitecture* architecture;
@property(readonly) MTLSize maxThreadsPerThreadgroup;
@property(readonly) NSUInteger maxThreadgroupMemoryLength;
@property(readonly) NSUInteger maxBufferLength;
@property(readonly) uint64_t recommendedMaxWorkingSetSize;
@property(readonly) NSUInteger currentAllocatedSize;
@property(readonly) BOOL hasUnifiedMemory;
@property(readonly, getter=isLowPower) BOOL lowPower;
@property(readonly, getter=isHeadless) BOOL headless;
@property(readonly, getter=isRemovable) BOOL removable;
@property(readonly) MTLDeviceLocation location;
@property(readonly) NSUInteger locationNumber;
@property(readonly) uint64_t maxTransferRate;
@property(readonly) MTLArgumentBuffersTier argumentBuffersSupport;
@property(readonly) MTLReadWriteTextureTier readWriteTextureSupport;
@property(readonly) BOOL supports32BitFloatFiltering;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLArgumentEncoder>)newArgumentEncoderWithArguments:
    (NSArray<MTLArgumentDescriptor*>*)arguments NS_RETURNS_RETAINED;
- (id<MTLCommandQueue>)newCommandQueue NS_RETURNS_RETAINED;
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count
    NS_RETURNS_RETAINED;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length
                             options:(MTLResourceOptions)options NS_RETURNS_RETAINED;
- (id<MTLBuffer>)newBufferWithBytes:(const void*)bytes
                             length:(NSUInteger)length
                            options:(MTLResourceOptions)options NS_RETURNS_RETAINED;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)bytes
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void* pointer, NSUInteger length))deallocator
    NS_RETURNS_RETAINED;
- (id<MTLLibrary>)newDefaultLibrary NS_RETURNS_RETAINED;
- (id<MTLLibrary>)newDefaultLibraryWithBundle:(NSBundle*)bundle
                                        error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (void)newLibraryWithSource:(NSString*)source
                     options:(MTLCompileOptions*)options
           completionHandler:(MTLNewLibraryCompletionHandler)handler;
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data
                               error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (id<MTLLibrary>)newLibraryWithFile:(NSString*)path
                               error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url
                              error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(__autoreleasing NSError**)error
    NS_RETURNS_RETAINED;
- (id<MTLComputePipelineState>)
    newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                options:(MTLPipelineOption)options
                             reflection:(MTLComputePipelineReflection* __autoreleasing*)reflection
                                  error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (void)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                          completionHandler:(MTLNewComputePipelineStateCompletionHandler)handler;
- (id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLComputePipelineReflection* __autoreleasing*)reflection
                                    error:(__autoreleasing NSError**)error NS_RETURNS_RETAINED;
- (void)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                      options:(MTLPipelineOption)options
                            completionHandler:
                                (MTLNewComputePipelineStateWithReflectionCompletionHandler)handler;
- (id<MTLTexture>)newTextureWithDescriptor:(MTLTextureDescriptor*)descriptor NS_RETURNS_RETAINED;
- (id<MTLSamplerState>)newSamplerStateWithDescriptor:(MTLSamplerDescriptor*)descriptor
    NS_RETURNS_RETAINED;
- (BOOL)supportsTextureSampleCount:(NSUInteger)count;
- (NSUInteger)minimumLinearTextureAlignmentForPixelFormat:(MTLPixelFormat)format;
- (id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor*)descriptor NS_RETURNS_RETAINED;
- (MTLSizeAndAlign)heapBufferSizeAndAlignWithLength:(NSUInteger)length
                                            options:(MTLResourceOptions)options;
- (MTLSizeAndAlign)heapTextureSizeAndAlignWithDescriptor:(MTLTextureDescriptor*)descriptor;
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor
                                               error:(__autoreleasing NSError**)error
    NS_RETURNS_RETAINED;
@property(readonly) NSArray<id<MTLCounterSet>>* counterSets;
- (BOOL)supportsCounterSampling:(MTLCounterSamplingPoint)point;
- (id<MTLCounterSampleBuffer>)newCounterSampleBufferWithDescriptor:
                                  (MTLCounterSampleBufferDescriptor*)descriptor
                                                             error:(__autoreleasing NSError**)error
    NS_RETURNS_RETAINED;
- (void)sampleTimestamps:(MTLTimestamp*)cpu gpuTimestamp:(MTLTimestamp*)gpu;
- (id<MTLEvent>)newEvent NS_RETURNS_RETAINED;
- (id<MTLSharedEvent>)newSharedEvent NS_RETURNS_RETAINED;
- (id<MTLFence>)newFence NS_RETURNS_RETAINED;
@end

MTL_EXTERN id<MTLDevice> MTLCreateSystemDefaultDevice(void) NS_RETURNS_RETAINED;
MTL_EXTERN NSArray<id<MTLDevice>>* MTLCopyAllDevices(void) NS_RETURNS_RETAINED;
#endif

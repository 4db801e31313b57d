// The names of Metal Performance Shaders that torch's headers mention. The software Metal device
// has none of these kernels: a program that uses one does not link.
#pragma once
#include <Metal/Metal.h>

#ifdef __OBJC__
typedef NS_ENUM(uint32_t, MPSDataType) {
  MPSDataTypeInvalid = 0,
  MPSDataTypeFloatBit = 0x10000000,
  MPSDataTypeSignedBit = 0x20000000,
  MPSDataTypeComplexBit = 0x01000000,
  MPSDataTypeAlternateEncodingBit = 0x80000000,
  MPSDataTypeFloat32 = MPSDataTypeFloatBit | 32,
  MPSDataTypeFloat16 = MPSDataTypeFloatBit | 16,
  MPSDataTypeBFloat16 = MPSDataTypeAlternateEncodingBit | MPSDataTypeFloat16,
  MPSDataTypeComplexFloat32 = MPSDataTypeFloatBit | MPSDataTypeComplexBit | 64,
  MPSDataTypeComplexFloat16 = MPSDataTypeFloatBit | MPSDataTypeComplexBit | 32,
  MPSDataTypeInt8 = MPSDataTypeSignedBit | 8,
  MPSDataTypeInt16 = MPSDataTypeSignedBit | 16,
  MPSDataTypeInt32 = MPSDataTypeSignedBit | 32,
  MPSDataTypeInt64 = MPSDataTypeSignedBit | 64,
  MPSDataTypeUInt8 = 8,
  MPSDataTypeUInt16 = 16,
  MPSDataTypeUInt32 = 32,
  MPSDataTypeUInt64 = 64,
  MPSDataTypeBool = MPSDataTypeAlternateEncodingBit | 8,
};
typedef NSArray<NSNumber*> MPSShape;

@class MPSNDArray, MPSNDArrayDescriptor, MPSMatrix, MPSMatrixDescriptor, MPSMatrixMultiplication;

@interface MPSKernel : NSObject
@end

// torch's stream hands one out. It stays when what was encoded is committed.
@interface MPSCommandBuffer : NSObject <MTLCommandBuffer>
@property(readonly) id<MTLCommandBuffer> commandBuffer;
@property(readonly) id<MTLCommandBuffer> rootCommandBuffer;
+ (instancetype)commandBufferFromCommandQueue:(id<MTLCommandQueue>)queue;
+ (instancetype)commandBufferWithCommandBuffer:(id<MTLCommandBuffer>)buffer;
- (void)commitAndContinue;
@end
#endif

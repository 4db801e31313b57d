// Writes the addresses of buffers, textures and samplers into a struct that a kernel reads, an
// argument buffer.
#pragma once
#include <Metal/MTLArgument.h>
#include <Metal/MTLBuffer.h>
#include <Metal/MTLSampler.h>
#include <Metal/MTLTexture.h>

#ifdef __OBJC__
// An argument of an encoder that newArgumentEncoderWithArguments: makes.
@interface MTLArgumentDescriptor : NSObject <NSCopying>
@property MTLDataType dataType;
@property NSUInteger index;
@property NSUInteger arrayLength;
@property MTLBindingAccess access;
@property MTLTextureType textureType;
@property NSUInteger constantBlockAlignment;
+ (MTLArgumentDescriptor*)argumentDescriptor;
@end

@protocol MTLArgumentEncoder <NSObject>
@property(readonly) id<MTLDevice> device;
@property(copy) NSString* label;
@property(readonly) NSUInteger encodedLength;
@property(readonly) NSUInteger alignment;
- (void)setArgumentBuffer:(id<MTLBuffer>)argumentBuffer offset:(NSUInteger)offset;
- (void)setArgumentBuffer:(id<MTLBuffer>)argumentBuffer
              startOffset:(NSUInteger)startOffset
             arrayElement:(NSUInteger)arrayElement;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBuffers:(const id<MTLBuffer>[])buffers
           offsets:(const NSUInteger[])offsets
         withRange:(NSRange)range;
- (void)setTexture:(id<MTLTexture>)texture atIndex:(NSUInteger)index;
- (void)setTextures:(const id<MTLTexture>[])textures withRange:(NSRange)range;
- (void)setSamplerState:(id<MTLSamplerState>)sampler atIndex:(NSUInteger)index;
- (void)setSamplerStates:(const id<MTLSamplerState>[])samplers withRange:(NSRange)range;
- (void*)constantDataAtIndex:(NSUInteger)index;
@end
#endif

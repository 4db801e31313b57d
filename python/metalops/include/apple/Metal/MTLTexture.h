// Textures.
#pragma once
#include <Metal/MTLBuffer.h>

#ifdef __OBJC__
typedef NS_ENUM(NSUInteger, MTLTextureType) {
  MTLTextureType1D = 0,
  MTLTextureType1DArray = 1,
  MTLTextureType2D = 2,
  MTLTextureType2DArray = 3,
  MTLTextureType2DMultisample = 4,
  MTLTextureTypeCube = 5,
  MTLTextureTypeCubeArray = 6,
  MTLTextureType3D = 7,
  MTLTextureType2DMultisampleArray = 8,
  MTLTextureTypeTextureBuffer = 9,
};
typedef NS_OPTIONS(NSUInteger, MTLTextureUsage) {
  MTLTextureUsageUnknown = 0,
  MTLTextureUsageShaderRead = 1,
  MTLTextureUsageShaderWrite = 2,
  MTLTextureUsageRenderTarget = 4,
  MTLTextureUsagePixelFormatView = 16,
  MTLTextureUsageShaderAtomic = 32,
};

@interface MTLTextureDescriptor : NSObject <NSCopying>
@property MTLTextureType textureType;
@property MTLPixelFormat pixelFormat;
@property NSUInteger width;
@property NSUInteger height;
@property NSUInteger depth;
@property NSUInteger mipmapLevelCount;
@property NSUInteger sampleCount;
@property NSUInteger arrayLength;
@property MTLTextureUsage usage;
@property MTLResourceOptions resourceOptions;
@property MTLStorageMode storageMode;
+ (MTLTextureDescriptor*)texture2DDescriptorWithPixelFormat:(MTLPixelFormat)format
                                                      width:(NSUInteger)width
                                                     height:(NSUInteger)height
                                                  mipmapped:(BOOL)mipmapped;
+ (MTLTextureDescriptor*)textureCubeDescriptorWithPixelFormat:(MTLPixelFormat)format
                                                         size:(NSUInteger)size
                                                    mipmapped:(BOOL)mipmapped;
+ (MTLTextureDescriptor*)textureBufferDescriptorWithPixelFormat:(MTLPixelFormat)format
                                                          width:(NSUInteger)width
                                                resourceOptions:(MTLResourceOptions)options
                                                          usage:(MTLTextureUsage)usage;
@end

@protocol MTLTexture <MTLResource>
@property(readonly) id<MTLTexture> parentTexture;
@property(readonly) NSUInteger parentRelativeLevel;
@property(readonly) NSUInteger parentRelativeSlice;
@property(readonly) MTLTextureType textureType;
@property(readonly) MTLPixelFormat pixelFormat;
@property(readonly) NSUInteger width;
@property(readonly) NSUInteger height;
@property(readonly) NSUInteger depth;
@property(readonly) NSUInteger mipmapLevelCount;
@property(readonly) NSUInteger sampleCount;
@property(readonly) NSUInteger arrayLength;
@property(readonly) MTLTextureUsage usage;
@property(readonly, getter=isFramebufferOnly) BOOL framebufferOnly;
@property(readonly) id<MTLBuffer> buffer;
@property(readonly) NSUInteger bufferOffset;
@property(readonly) NSUInteger bufferBytesPerRow;
@property(readonly) MTLResourceID gpuResourceID;
- (id<MTLTexture>)newTextureViewWithPixelFormat:(MTLPixelFormat)format NS_RETURNS_RETAINED;
- (id<MTLTexture>)newTextureViewWithPixelFormat:(MTLPixelFormat)format
                                    textureType:(MTLTextureType)type
                                         levels:(NSRange)levels
                                         slices:(NSRange)slices NS_RETURNS_RETAINED;
- (void)replaceRegion:(MTLRegion)region
          mipmapLevel:(NSUInteger)level
            withBytes:(const void*)bytes
          bytesPerRow:(NSUInteger)rowBytes;
- (void)replaceRegion:(MTLRegion)region
          mipmapLevel:(NSUInteger)level
                slice:(NSUInteger)slice
            withBytes:(const void*)bytes
          bytesPerRow:(NSUInteger)rowBytes
        bytesPerImage:(NSUInteger)imageBytes;
- (void)getBytes:(void*)bytes
     bytesPerRow:(NSUInteger)rowBytes
      fromRegion:(MTLRegion)region
     mipmapLevel:(NSUInteger)level;
- (void)getBytes:(void*)bytes
      bytesPerRow:(NSUInteger)rowBytes
    bytesPerImage:(NSUInteger)imageBytes
       fromRegion:(MTLRegion)region
      mipmapLevel:(NSUInteger)level
            slice:(NSUInteger)slice;
@end
#endif

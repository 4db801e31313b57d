// Textures and samplers.
#include <vector>

#include "kernels.h"

static NSString* const kTextured = @R"METAL(
#include <metal_stdlib>
using namespace metal;
kernel void twice(texture2d<float, access::read> in [[texture(0)]],
                  texture2d<float, access::write> out [[texture(1)]],
                  uint2 at [[thread_position_in_grid]]) {
  out.write(2 * in.read(at), at);
}
kernel void sampled(texture2d<float> in [[texture(0)]], sampler s [[sampler(0)]],
                    device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = in.sample(s, float2(float(i) / 2, 0.5f)).x;
}
kernel void slices(texture2d_array<uint, access::read> in [[texture(0)]],
                   device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = in.read(uint2(1, 0), i).x;
}
)METAL";

static id<MTLComputePipelineState> textured(NSString* name) {
  static id<MTLLibrary> one = [device() newLibraryWithSource:kTextured options:nil error:nil];
  return [device() newComputePipelineStateWithFunction:[one newFunctionWithName:name] error:nil];
}

static id<MTLTexture> floats_2d(NSUInteger width, NSUInteger height, MTLTextureUsage usage) {
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                         width:width
                                                        height:height
                                                     mipmapped:NO];
  descriptor.usage = usage;
  return [device() newTextureWithDescriptor:descriptor];
}

template <class F>
static void run_kernel(NSString* name, MTLSize threads, F set) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:textured(name)];
  set(encoder);
  [encoder dispatchThreads:threads threadsPerThreadgroup:threads];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
}

TEST(a_kernel_reads_and_writes) {
  id<MTLTexture> in = floats_2d(3, 2, MTLTextureUsageShaderRead);
  id<MTLTexture> out = floats_2d(3, 2, MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite);
  CHECK([in conformsToProtocol:@protocol(MTLTexture)] && in.device == device());
  EQUAL(in.allocatedSize, 24u);
  const float texels[] = {0, 1, 2, -1, 3, 4, 5, -1};
  [in replaceRegion:MTLRegionMake2D(0, 0, 3, 2) mipmapLevel:0 withBytes:texels bytesPerRow:16];
  run_kernel(@"twice", MTLSizeMake(3, 2, 1), [&](id<MTLComputeCommandEncoder> encoder) {
    const id<MTLTexture> both[] = {in, out};
    [encoder setTextures:both withRange:NSMakeRange(0, 2)];
  });
  float got[2] = {};
  [out getBytes:got bytesPerRow:4 fromRegion:MTLRegionMake2D(2, 0, 1, 2) mipmapLevel:0];
  EQUAL(got[0], 4);
  EQUAL(got[1], 10);
}

TEST(a_sampler_filters_and_repeats) {
  id<MTLTexture> in = floats_2d(2, 1, MTLTextureUsageShaderRead);
  const float texels[] = {1, 3};
  [in replaceRegion:MTLRegionMake2D(0, 0, 2, 1) mipmapLevel:0 withBytes:texels bytesPerRow:8];
  MTLSamplerDescriptor* descriptor = [[MTLSamplerDescriptor alloc] init];
  descriptor.minFilter = descriptor.magFilter = MTLSamplerMinMagFilterLinear;
  descriptor.sAddressMode = MTLSamplerAddressModeClampToZero;
  id<MTLSamplerState> clamped = [device() newSamplerStateWithDescriptor:descriptor];
  descriptor.sAddressMode = MTLSamplerAddressModeRepeat;
  id<MTLSamplerState> repeated = [device() newSamplerStateWithDescriptor:descriptor];
  const float expected[2][3] = {{0.5, 2, 1.5}, {2, 2, 2}};
  for (int i = 0; i < 2; ++i) {
    id<MTLBuffer> out = [device() newBufferWithLength:12 options:0];
    run_kernel(@"sampled", MTLSizeMake(3, 1, 1), [&](id<MTLComputeCommandEncoder> encoder) {
      [encoder setTexture:in atIndex:0];
      [encoder setSamplerState:i == 0 ? clamped : repeated atIndex:0];
      [encoder setBuffer:out offset:0 atIndex:0];
    });
    for (int j = 0; j < 3; ++j) EQUAL(floats(out)[j], expected[i][j]);
  }
  descriptor.normalizedCoordinates = NO;
  RAISES("without normalizedCoordinates clamps",
         [device() newSamplerStateWithDescriptor:descriptor]);
  descriptor.normalizedCoordinates = YES;
  descriptor.maxAnisotropy = 17;
  RAISES("maxAnisotropy must be from 1 to 16, but is 17",
         [device() newSamplerStateWithDescriptor:descriptor]);
}

TEST(copies_between_buffers_and_slices) {
  MTLTextureDescriptor* descriptor = [[MTLTextureDescriptor alloc] init];
  descriptor.textureType = MTLTextureType2DArray;
  descriptor.pixelFormat = MTLPixelFormatR32Uint;
  descriptor.width = 2;
  descriptor.arrayLength = 3;
  descriptor.storageMode = MTLStorageModePrivate;
  id<MTLTexture> texture = [device() newTextureWithDescriptor:descriptor];
  const uint32_t numbers[] = {10, 11, 20, 21, 30, 31};
  id<MTLBuffer> from = [device() newBufferWithBytes:numbers length:sizeof numbers options:0];
  id<MTLBuffer> back = [device() newBufferWithLength:8 options:0];
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> copies = [commands blitCommandEncoder];
  for (NSUInteger slice = 0; slice < 3; ++slice) {
    [copies copyFromBuffer:from
               sourceOffset:8 * slice
          sourceBytesPerRow:8
        sourceBytesPerImage:8
                 sourceSize:MTLSizeMake(2, 1, 1)
                  toTexture:texture
           destinationSlice:slice
           destinationLevel:0
          destinationOrigin:MTLOriginMake(0, 0, 0)];
  }
  [copies copyFromTexture:texture
                   sourceSlice:2
                   sourceLevel:0
                  sourceOrigin:MTLOriginMake(0, 0, 0)
                    sourceSize:MTLSizeMake(2, 1, 1)
                      toBuffer:back
             destinationOffset:0
        destinationBytesPerRow:8
      destinationBytesPerImage:8];
  [copies endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  EQUAL(((uint32_t*)back.contents)[1], 31u);
  id<MTLBuffer> out = [device() newBufferWithLength:12 options:0];
  run_kernel(@"slices", MTLSizeMake(3, 1, 1), [&](id<MTLComputeCommandEncoder> encoder) {
    [encoder setTexture:texture atIndex:0];
    [encoder setBuffer:out offset:0 atIndex:0];
  });
  EQUAL(((uint32_t*)out.contents)[1], 21u);
  uint32_t texel = 0;
  RAISES("the CPU cannot access a texture of private storage",
         [texture getBytes:&texel
               bytesPerRow:4
                fromRegion:MTLRegionMake2D(0, 0, 1, 1)
               mipmapLevel:0]);
}

TEST(the_rows_of_a_copy_are_within_the_buffer) {
  MTLTextureDescriptor* descriptor = [[MTLTextureDescriptor alloc] init];
  descriptor.textureType = MTLTextureType3D;
  descriptor.pixelFormat = MTLPixelFormatR32Float;
  descriptor.width = descriptor.height = descriptor.depth = 2;
  id<MTLTexture> texture = [device() newTextureWithDescriptor:descriptor];
  id<MTLBuffer> from = counting(8);
  id<MTLBlitCommandEncoder> copies =
      [[[device() newCommandQueue] commandBuffer] blitCommandEncoder];
  const auto copy = [&](MTLSize size, NSUInteger offset, NSUInteger rows, NSUInteger images) {
    [copies copyFromBuffer:from
               sourceOffset:offset
          sourceBytesPerRow:rows
        sourceBytesPerImage:images
                 sourceSize:size
                  toTexture:texture
           destinationSlice:0
           destinationLevel:0
          destinationOrigin:MTLOriginMake(0, 0, 0)];
  };
  copy(MTLSizeMake(2, 2, 0), 32, 8, 16);  // no texels
  copy(MTLSizeMake(2, 0, 2), 32, 8, 16);
  copy(MTLSizeMake(2, 2, 2), 0, 8, 16);
  RAISES("are beyond the 32 bytes", copy(MTLSizeMake(2, 2, 2), 4, 8, 16));
  RAISES("are beyond the 32 bytes", copy(MTLSizeMake(2, 2, 2), 0, 8, NSUIntegerMax));
  RAISES("are beyond the 32 bytes", copy(MTLSizeMake(2, 2, 2), 0, NSUIntegerMax - 3, 0));
  [copies endEncoding];
  descriptor.textureType = MTLTextureType2DArray;
  descriptor.depth = 1;
  descriptor.arrayLength = 4096;
  RAISES("at most 2048 array elements, and not 4096",
         [device() newTextureWithDescriptor:descriptor]);
}

TEST(the_memory_of_a_buffer) {
  id<MTLBuffer> memory = counting(8);
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                         width:2
                                                        height:2
                                                     mipmapped:NO];
  id<MTLTexture> texture = [memory newTextureWithDescriptor:descriptor offset:4 bytesPerRow:12];
  CHECK(texture.buffer == memory && texture.bufferBytesPerRow == 12);
  id<MTLTexture> view = [texture newTextureViewWithPixelFormat:MTLPixelFormatR32Uint];
  CHECK(view.buffer == memory && view.bufferOffset == 4 && view.bufferBytesPerRow == 12);
  float texels[4] = {};
  [texture getBytes:texels bytesPerRow:8 fromRegion:MTLRegionMake2D(0, 0, 2, 2) mipmapLevel:0];
  EQUAL(texels[1], 2);
  EQUAL(texels[2], 4);
  RAISES("are beyond the 32 bytes of the buffer", [memory newTextureWithDescriptor:descriptor
                                                                            offset:16
                                                                       bytesPerRow:12]);
  RAISES("rows of 2 texels have 8 bytes, and not 4", [memory newTextureWithDescriptor:descriptor
                                                                               offset:0
                                                                          bytesPerRow:4]);
}

TEST(descriptors_that_are_wrong) {
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatRGBA8Unorm
                                                         width:8
                                                        height:5
                                                     mipmapped:YES];
  EQUAL(descriptor.mipmapLevelCount, 4u);
  EQUAL([device() newTextureWithDescriptor:descriptor].mipmapLevelCount, 4u);
  descriptor.mipmapLevelCount = 5;
  RAISES("5 mipmap levels are more than the texture can have",
         [device() newTextureWithDescriptor:descriptor]);
  descriptor.mipmapLevelCount = 1;
  descriptor.width = 0;
  RAISES("a size of the texture is 0", [device() newTextureWithDescriptor:descriptor]);
  descriptor.width = 20000;
  RAISES("at most 16384 texels", [device() newTextureWithDescriptor:descriptor]);
  descriptor.width = 8;
  descriptor.textureType = MTLTextureType2DMultisample;
  RAISES("no textures of MTLTextureType 4", [device() newTextureWithDescriptor:descriptor]);
  descriptor.textureType = MTLTextureType2D;
  descriptor.pixelFormat = (MTLPixelFormat)204;
  RAISES("no textures of MTLPixelFormat 204", [device() newTextureWithDescriptor:descriptor]);
}

TEST(what_a_kernel_takes_is_checked) {
  id<MTLTexture> in = floats_2d(1, 1, MTLTextureUsageShaderRead);
  RAISES("was made without MTLTextureUsageShaderWrite",
         run_kernel(@"twice", MTLSizeMake(1, 1, 1), [&](id<MTLComputeCommandEncoder> encoder) {
           [encoder setTexture:in atIndex:0];
           [encoder setTexture:in atIndex:1];
         }));
  RAISES("nothing is bound to texture 1",
         run_kernel(@"twice", MTLSizeMake(1, 1, 1), [&](id<MTLComputeCommandEncoder> encoder) {
           [encoder setTexture:in atIndex:0];
         }));
  id<MTLComputeCommandEncoder> encoder =
      [[[device() newCommandQueue] commandBuffer] computeCommandEncoder];
  RAISES("an MTLTexture is expected, but this is a MetalopsBuffer",
         [encoder setTexture:(id)counting(1) atIndex:0]);
  RAISES("have the indices 0 to 127, not 128", [encoder setTexture:in atIndex:128]);
  float texel = 0;
  RAISES("is beyond the 1x1x1 texels of level 0", [in getBytes:&texel
                                                      bytesPerRow:4
                                                       fromRegion:MTLRegionMake2D(1, 0, 1, 1)
                                                      mipmapLevel:0]);
  [encoder endEncoding];
}

TEST(a_view_with_another_format) {
  id<MTLTexture> in = floats_2d(1, 1, MTLTextureUsageShaderRead);
  const float one = 1;
  [in replaceRegion:MTLRegionMake2D(0, 0, 1, 1) mipmapLevel:0 withBytes:&one bytesPerRow:4];
  id<MTLTexture> view = [in newTextureViewWithPixelFormat:MTLPixelFormatR32Uint];
  [in release];
  uint32_t bits = 0;
  [view getBytes:&bits bytesPerRow:4 fromRegion:MTLRegionMake2D(0, 0, 1, 1) mipmapLevel:0];
  EQUAL(bits, 0x3F800000u);
  RAISES("have 2 bytes", [view newTextureViewWithPixelFormat:MTLPixelFormatR16Float]);
}

static MTLTextureDescriptor* array_of_floats(NSUInteger size, NSUInteger levels,
                                             NSUInteger slices) {
  MTLTextureDescriptor* descriptor = [[[MTLTextureDescriptor alloc] init] autorelease];
  descriptor.textureType = MTLTextureType2DArray;
  descriptor.pixelFormat = MTLPixelFormatR32Float;
  descriptor.width = descriptor.height = size;
  descriptor.mipmapLevelCount = levels;
  descriptor.arrayLength = slices;
  descriptor.usage = MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite;
  return descriptor;
}

// Sets the texels of a slice of a level to `first`, `first` + 1, ...
static void set_texels(id<MTLTexture> texture, NSUInteger level, NSUInteger slice, float first) {
  const NSUInteger size = MAX(texture.width >> level, 1);
  std::vector<float> texels(size * size);
  for (float& one : texels) one = first++;
  [texture replaceRegion:MTLRegionMake2D(0, 0, size, size)
             mipmapLevel:level
                   slice:slice
               withBytes:texels.data()
             bytesPerRow:4 * size
           bytesPerImage:4 * size * size];
}

static float texel_at(id<MTLTexture> texture, NSUInteger x, NSUInteger y, NSUInteger z,
                      NSUInteger level, NSUInteger slice) {
  float texel = -1;
  [texture getBytes:&texel
        bytesPerRow:4
      bytesPerImage:4
         fromRegion:MTLRegionMake3D(x, y, z, 1, 1, 1)
        mipmapLevel:level
              slice:slice];
  return texel;
}

template <class F>
static void run_copies(F encode) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> copies = [commands blitCommandEncoder];
  encode(copies);
  [copies endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
}

TEST(copies_between_textures) {
  id<MTLTexture> from = [device() newTextureWithDescriptor:array_of_floats(4, 2, 2)];
  id<MTLTexture> to = [device() newTextureWithDescriptor:array_of_floats(4, 2, 2)];
  for (NSUInteger slice = 0; slice < 2; ++slice) {
    set_texels(from, 0, slice, 100 * slice);
    set_texels(from, 1, slice, 1000 + 100 * slice);
  }
  run_copies([&](id<MTLBlitCommandEncoder> copies) {
    [copies copyFromTexture:from
                sourceSlice:1
                sourceLevel:0
               sourceOrigin:MTLOriginMake(1, 2, 0)
                 sourceSize:MTLSizeMake(2, 1, 1)
                  toTexture:to
           destinationSlice:0
           destinationLevel:0
          destinationOrigin:MTLOriginMake(2, 3, 0)];
    [copies copyFromTexture:from
                sourceSlice:0
                sourceLevel:1
                  toTexture:to
           destinationSlice:1
           destinationLevel:1
                 sliceCount:1
                 levelCount:1];
    RAISES("beyond the 2x2x1 texels of level 1", [copies copyFromTexture:from
                                                             sourceSlice:0
                                                             sourceLevel:0
                                                            sourceOrigin:MTLOriginMake(0, 0, 0)
                                                              sourceSize:MTLSizeMake(3, 1, 1)
                                                               toTexture:to
                                                        destinationSlice:0
                                                        destinationLevel:1
                                                       destinationOrigin:MTLOriginMake(0, 0, 0)]);
    RAISES("level 0 of the source has 4x4x1 texels, and level 1 of the destination 2x2x1",
           [copies copyFromTexture:from
                       sourceSlice:0
                       sourceLevel:0
                         toTexture:to
                  destinationSlice:0
                  destinationLevel:1
                        sliceCount:1
                        levelCount:1]);
    RAISES("the source has 2 levels and 2 slices, and the destination 1 and 1",
           [copies copyFromTexture:from toTexture:floats_2d(4, 4, MTLTextureUsageShaderRead)]);
  });
  EQUAL(texel_at(to, 2, 3, 0, 0, 0), 109);
  EQUAL(texel_at(to, 3, 3, 0, 0, 0), 110);
  EQUAL(texel_at(to, 1, 3, 0, 0, 0), 0);
  EQUAL(texel_at(to, 1, 1, 0, 1, 1), 1003);
  EQUAL(texel_at(to, 1, 1, 0, 1, 0), 0);
  run_copies([&](id<MTLBlitCommandEncoder> copies) { [copies copyFromTexture:from toTexture:to]; });
  EQUAL(texel_at(to, 3, 3, 0, 0, 1), 115);
  EQUAL(texel_at(to, 0, 1, 0, 1, 1), 1102);
}

TEST(mipmaps_are_means) {
  id<MTLTexture> texture = [device() newTextureWithDescriptor:array_of_floats(5, 3, 2)];
  for (NSUInteger slice = 0; slice < 2; ++slice) set_texels(texture, 0, slice, 100 * slice);
  run_copies([&](id<MTLBlitCommandEncoder> copies) {
    [copies generateMipmapsForTexture:texture];
    RAISES("the texture has one level only",
           [copies generateMipmapsForTexture:floats_2d(4, 4, MTLTextureUsageShaderRead)]);
    MTLTextureDescriptor* numbers = array_of_floats(4, 2, 1);
    numbers.pixelFormat = MTLPixelFormatR32Uint;
    RAISES("texels of MTLPixelFormat 53 cannot be filtered",
           [copies generateMipmapsForTexture:[device() newTextureWithDescriptor:numbers]]);
  });
  EQUAL(texel_at(texture, 0, 0, 0, 1, 0), 3);    // of 0, 1, 5, 6
  EQUAL(texel_at(texture, 1, 1, 0, 1, 1), 115);  // of 112, 113, 117, 118
  EQUAL(texel_at(texture, 0, 0, 0, 2, 1), 109);
  MTLTextureDescriptor* solid = array_of_floats(2, 2, 1);
  solid.textureType = MTLTextureType3D;
  solid.depth = 2;
  texture = [device() newTextureWithDescriptor:solid];
  const float texels[] = {0, 1, 2, 3, 4, 5, 6, 7};
  [texture replaceRegion:MTLRegionMake3D(0, 0, 0, 2, 2, 2)
             mipmapLevel:0
                   slice:0
               withBytes:texels
             bytesPerRow:8
           bytesPerImage:16];
  run_copies([&](id<MTLBlitCommandEncoder> copies) { [copies generateMipmapsForTexture:texture]; });
  EQUAL(texel_at(texture, 0, 0, 0, 1, 0), 3.5);
}

TEST(views_of_levels_and_slices) {
  id<MTLTexture> whole = [device() newTextureWithDescriptor:array_of_floats(4, 3, 3)];
  set_texels(whole, 1, 2, 7);
  id<MTLTexture> view = [whole newTextureViewWithPixelFormat:MTLPixelFormatR32Float
                                                 textureType:MTLTextureType2D
                                                      levels:NSMakeRange(1, 2)
                                                      slices:NSMakeRange(2, 1)];
  CHECK(view.parentTexture == whole && view.parentRelativeLevel == 1);
  EQUAL(view.parentRelativeSlice, 2u);
  EQUAL(view.width, 2u);
  EQUAL(view.mipmapLevelCount, 2u);
  EQUAL(texel_at(view, 1, 1, 0, 0, 0), 10);
  run_kernel(@"twice", MTLSizeMake(2, 2, 1), [&](id<MTLComputeCommandEncoder> encoder) {
    [encoder setTexture:view atIndex:0];
    [encoder setTexture:view atIndex:1];
  });
  EQUAL(texel_at(whole, 1, 1, 0, 1, 2), 20);
  RAISES("3 levels and 3 slices, and not 2 levels from 2",
         [whole newTextureViewWithPixelFormat:MTLPixelFormatR32Float
                                  textureType:MTLTextureType2D
                                       levels:NSMakeRange(2, 2)
                                       slices:NSMakeRange(0, 1)]);
  RAISES("has no view of type 7", [whole newTextureViewWithPixelFormat:MTLPixelFormatR32Float
                                                           textureType:MTLTextureType3D
                                                                levels:NSMakeRange(0, 1)
                                                                slices:NSMakeRange(0, 1)]);
  RAISES("MTLTextureType 2 cannot have 4x4x1 texels and 2 array elements",
         [whole newTextureViewWithPixelFormat:MTLPixelFormatR32Float
                                  textureType:MTLTextureType2D
                                       levels:NSMakeRange(0, 1)
                                       slices:NSMakeRange(0, 2)]);
}

// Argument encoders: structs of pointers, textures and samplers that kernels read.
#include "kernels.h"

static NSString* const kArguments = @R"METAL(
#include <metal_stdlib>
using namespace metal;
namespace own {
struct More {
  packed_float3 added;
  device const float* last;
};
struct Arguments {
  device const float* in [[id(2)]];
  float factor;
  constant uint* index;
  More more;
  device float* rows[2] [[id(10)]];
  array<device float*, 2> others;
};
}  // namespace own
kernel void gather(constant own::Arguments* a [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  const float value = a[1].in[a[1].index[i]] * a[1].factor + a[1].more.added[1] + a[1].more.last[i];
  a[1].rows[0][i] = value;
  a[1].rows[1][i] = -value;
  a[1].others[1][i] = 2 * value;
}
struct Images {
  device float* out;
  array<texture2d<float>, 2> in;
  sampler s;
  texture2d<float, access::write> written;
  uint which;
};
kernel void sampled(constant Images& a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  a.out[i] = a.in[a.which].sample(a.s, float2((i + 1.0f) / 2, 0.5f)).x + is_null_texture(a.in[0]);
  a.written.write(10 * a.in[a.which].read(uint2(i, 0)), uint2(i, 0));
}
kernel void plain(constant float2& a [[buffer(0)]], device float* out [[buffer(1)]]) { *out = a.x; }
)METAL";

static id<MTLFunction> function(NSString* name) {
  id<MTLLibrary> library = [device() newLibraryWithSource:kArguments options:nil error:nil];
  return [library newFunctionWithName:name];
}

TEST(pointers_and_numbers_are_where_the_kernel_reads_them) {
  id<MTLFunction> gather = function(@"gather");
  id<MTLArgumentEncoder> encoder = [gather newArgumentEncoderWithBufferIndex:3];
  EQUAL(encoder.encodedLength, 80u);
  EQUAL(encoder.alignment, 8u);
  CHECK(encoder.device == device());
  id<MTLBuffer> arguments = [device() newBufferWithLength:2 * encoder.encodedLength options:0];
  [encoder setArgumentBuffer:arguments startOffset:0 arrayElement:1];
  id<MTLBuffer> in = counting(8), index = [device() newBufferWithLength:16 options:0];
  id<MTLBuffer> rows[] = {counting(4), counting(4)}, other = counting(8);
  for (int i = 0; i < 4; ++i) ((unsigned*)index.contents)[i] = 3 - i;
  const NSUInteger offsets[] = {0, 0};
  [encoder setBuffer:in offset:4 atIndex:2];
  *(float*)[encoder constantDataAtIndex:3] = 10;
  [encoder setBuffer:index offset:0 atIndex:4];
  ((float*)[encoder constantDataAtIndex:5])[1] = 0.5;
  [encoder setBuffer:in offset:0 atIndex:6];
  [encoder setBuffers:rows offsets:offsets withRange:NSMakeRange(10, 2)];
  [encoder setBuffer:nil offset:0 atIndex:12];
  [encoder setBuffer:other offset:16 atIndex:13];

  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> compute = [commands computeCommandEncoder];
  [compute setComputePipelineState:[device() newComputePipelineStateWithFunction:gather error:nil]];
  [compute setBuffer:arguments offset:0 atIndex:3];
  [compute useResource:in usage:MTLResourceUsageRead];
  [compute useResources:rows count:2 usage:MTLResourceUsageWrite];
  [compute dispatchThreads:MTLSizeMake(4, 1, 1) threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  [compute endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  EQUAL(floats(rows[0])[0], 40.5f);
  EQUAL(floats(rows[0])[3], 13.5f);
  EQUAL(floats(rows[1])[1], -31.5f);
  EQUAL(floats(other)[6], 45.f);
}

TEST(wrong_arguments_are_errors) {
  id<MTLArgumentEncoder> encoder = [function(@"gather") newArgumentEncoderWithBufferIndex:3];
  id<MTLBuffer> buffer = counting(32);
  RAISES("-[MTLArgumentEncoder setBuffer:offset:atIndex:]: no buffer to encode into",
         [encoder setBuffer:buffer offset:0 atIndex:2]);
  RAISES("out-of-bounds", [encoder setArgumentBuffer:buffer offset:64]);
  RAISES("the offset 4 is not a multiple of the struct's alignment, 8",
         [encoder setArgumentBuffer:buffer offset:4]);
  [encoder setArgumentBuffer:buffer offset:0];
  RAISES("the argument 3 is a number and no pointer", [encoder setBuffer:buffer
                                                                  offset:0
                                                                 atIndex:3]);
  RAISES("the argument 2 is a pointer and no number", [encoder constantDataAtIndex:2]);
  RAISES("the struct has no argument 14", [encoder setBuffer:buffer offset:0 atIndex:14]);
  RAISES("buffer 0 of 'plain' is no struct with pointers, textures or samplers",
         [function(@"plain") newArgumentEncoderWithBufferIndex:0]);
  RAISES("buffer 2 of 'gather' is no struct with pointers, textures or samplers",
         [function(@"gather") newArgumentEncoderWithBufferIndex:2]);
}

// ---- textures and samplers

static id<MTLTexture> two_texels(float first, float second, MTLTextureUsage usage) {
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                         width:2
                                                        height:1
                                                     mipmapped:NO];
  descriptor.usage = usage;
  id<MTLTexture> made = [device() newTextureWithDescriptor:descriptor];
  const float texels[] = {first, second};
  [made replaceRegion:MTLRegionMake2D(0, 0, 2, 1) mipmapLevel:0 withBytes:texels bytesPerRow:8];
  return made;
}

static id<MTLSamplerState> linear() {
  MTLSamplerDescriptor* descriptor = [MTLSamplerDescriptor new];
  descriptor.minFilter = descriptor.magFilter = MTLSamplerMinMagFilterLinear;
  descriptor.supportArgumentBuffers = YES;
  return [device() newSamplerStateWithDescriptor:descriptor];
}

// Runs `sampled` on two texels, 1 and 3. A sample lies between them, the next one at the edge.
static void check_sampled(id<MTLBuffer> arguments, id<MTLBuffer> out, id<MTLTexture> written) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> compute = [commands computeCommandEncoder];
  id<MTLFunction> kernel = function(@"sampled");
  [compute setComputePipelineState:[device() newComputePipelineStateWithFunction:kernel error:nil]];
  [compute setBuffer:arguments offset:0 atIndex:0];
  [compute dispatchThreads:MTLSizeMake(2, 1, 1) threadsPerThreadgroup:MTLSizeMake(2, 1, 1)];
  [compute endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  CHECK(commands.error == nil);
  EQUAL(floats(out)[0], 3.f);
  EQUAL(floats(out)[1], 4.f);
  float texels[2] = {};
  [written getBytes:texels bytesPerRow:8 fromRegion:MTLRegionMake2D(0, 0, 2, 1) mipmapLevel:0];
  EQUAL(texels[0], 10.f);
  EQUAL(texels[1], 30.f);
}

TEST(textures_and_samplers_are_where_the_kernel_reads_them) {
  id<MTLArgumentEncoder> encoder = [function(@"sampled") newArgumentEncoderWithBufferIndex:0];
  EQUAL(encoder.encodedLength, 48u);
  id<MTLBuffer> arguments = [device() newBufferWithLength:48 options:0], out = counting(2);
  id<MTLTexture> in = two_texels(1, 3, MTLTextureUsageShaderRead);
  id<MTLTexture> written = two_texels(0, 0, MTLTextureUsageShaderWrite);
  [encoder setArgumentBuffer:arguments offset:0];
  [encoder setBuffer:out offset:0 atIndex:0];
  const id<MTLTexture> both[] = {nil, in};
  [encoder setTextures:both withRange:NSMakeRange(1, 2)];
  [encoder setSamplerState:linear() atIndex:3];
  [encoder setTexture:written atIndex:4];
  *(unsigned*)[encoder constantDataAtIndex:5] = 1;
  check_sampled(arguments, out, written);
  RAISES("the argument 3 is a sampler and no texture", [encoder setTexture:in atIndex:3]);
  RAISES("the argument 1 is a texture and no sampler", [encoder setSamplerState:linear()
                                                                        atIndex:1]);
  RAISES("was made without MTLTextureUsageShaderWrite", [encoder setTexture:in atIndex:4]);
  MTLTextureDescriptor* cube =
      [MTLTextureDescriptor textureCubeDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                            size:2
                                                       mipmapped:NO];
  RAISES("takes a texture of kind '2d', but got one of kind 'cube'",
         [encoder setTexture:[device() newTextureWithDescriptor:cube] atIndex:1]);
  MTLTextureDescriptor* numbers =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Uint
                                                         width:2
                                                        height:1
                                                     mipmapped:NO];
  RAISES("has floating-point components",
         [encoder setTexture:[device() newTextureWithDescriptor:numbers] atIndex:1]);
}

TEST(resource_ids_are_written_without_an_encoder) {
  id<MTLTexture> in = two_texels(1, 3, MTLTextureUsageShaderRead);
  id<MTLTexture> written = two_texels(0, 0, MTLTextureUsageShaderWrite);
  id<MTLBuffer> out = counting(2);
  struct {
    uint64_t out;
    MTLResourceID in[2], sampler, written;
    unsigned which;
  } images = {
      out.gpuAddress, {{0}, in.gpuResourceID}, linear().gpuResourceID, written.gpuResourceID, 1};
  id<MTLBuffer> arguments = [device() newBufferWithBytes:&images length:sizeof images options:0];
  check_sampled(arguments, out, written);
}

static MTLArgumentDescriptor* described(MTLDataType type, NSUInteger index) {
  MTLArgumentDescriptor* made = [MTLArgumentDescriptor argumentDescriptor];
  made.dataType = type;
  made.index = index;
  return made;
}

TEST(an_encoder_of_descriptors_places_arguments_as_a_struct) {
  MTLArgumentDescriptor* in = described(MTLDataTypeTexture, 1);
  in.arrayLength = 2;
  in.textureType = MTLTextureType2D;
  MTLArgumentDescriptor* written = described(MTLDataTypeTexture, 4);
  written.access = MTLBindingAccessWriteOnly;
  NSArray* arguments = @[
    described(MTLDataTypeUInt, 5), written, described(MTLDataTypeSampler, 3), in,
    described(MTLDataTypePointer, 0)
  ];
  id<MTLArgumentEncoder> encoder = [device() newArgumentEncoderWithArguments:arguments];
  EQUAL(encoder.encodedLength, 48u);
  EQUAL(encoder.alignment, 8u);
  id<MTLBuffer> buffer = [device() newBufferWithLength:48 options:0], out = counting(2);
  id<MTLTexture> image = two_texels(1, 3, MTLTextureUsageShaderRead);
  id<MTLTexture> target = two_texels(0, 0, MTLTextureUsageShaderWrite);
  [encoder setArgumentBuffer:buffer offset:0];
  [encoder setBuffer:out offset:0 atIndex:0];
  [encoder setTexture:nil atIndex:1];
  [encoder setTexture:image atIndex:2];
  [encoder setSamplerState:linear() atIndex:3];
  [encoder setTexture:target atIndex:4];
  *(unsigned*)[encoder constantDataAtIndex:5] = 1;
  check_sampled(buffer, out, target);
  RAISES("was made without MTLTextureUsageShaderWrite", [encoder setTexture:image atIndex:4]);
  RAISES("two arguments have the index 2",
         [device() newArgumentEncoderWithArguments:@[ in, described(MTLDataTypePointer, 2) ]]);
  RAISES("is no MTLDataType of a scalar or vector",
         [device() newArgumentEncoderWithArguments:@[ described(MTLDataTypeStruct, 0) ]]);
  RAISES("no descriptors", [device() newArgumentEncoderWithArguments:@[]]);
}

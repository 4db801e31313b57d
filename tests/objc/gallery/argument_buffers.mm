// Argument encoders: structs of pointers that kernels read.
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
  RAISES("the argument 3 is no pointer", [encoder setBuffer:buffer offset:0 atIndex:3]);
  RAISES("the argument 2 is a pointer", [encoder constantDataAtIndex:2]);
  RAISES("the struct has no argument 14", [encoder setBuffer:buffer offset:0 atIndex:14]);
  RAISES("buffer 0 of 'plain' is no struct with pointers",
         [function(@"plain") newArgumentEncoderWithBufferIndex:0]);
  RAISES("buffer 2 of 'gather' is no struct with pointers",
         [function(@"gather") newArgumentEncoderWithBufferIndex:2]);
}

// Compute and blit encoders, and what a Mac ends the process for.
#include "kernels.h"

static id<MTLCommandBuffer> commands() { return [[device() newCommandQueue] commandBuffer]; }

TEST(threads_that_do_not_fill_the_last_group) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
  id<MTLBuffer> in = counting(100), out = counting(100);
  encode_scale(encoder, in, out, 3, 77);
  [encoder endEncoding];
  EQUAL(floats(out)[76], 76);
  [buffer commit];
  [buffer waitUntilCompleted];
  EQUAL(floats(out)[76], 228);
  EQUAL(floats(out)[77], 77);
}

TEST(threadgroup_memory_and_offsets) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
  id<MTLBuffer> in = counting(4 + 64), out = counting(2);
  [encoder setComputePipelineState:pipeline(@"sums")];
  id<MTLBuffer> both[] = {in, out};
  NSUInteger offsets[] = {0, 0};
  [encoder setBuffers:both offsets:offsets withRange:NSMakeRange(0, 2)];
  [encoder setBufferOffset:4 * sizeof(float) atIndex:0];
  [encoder setThreadgroupMemoryLength:32 * sizeof(float) atIndex:0];
  [encoder dispatchThreadgroups:MTLSizeMake(2, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
  [encoder endEncoding];
  [buffer commit];
  EQUAL(floats(out)[0], 32 * 4 + 31 * 32 / 2);
  EQUAL(floats(out)[1], 32 * 36 + 31 * 32 / 2);
}

// As for kernels that do not use the argument, which Metal runs unless it validates.
TEST(threadgroup_memory_without_a_length_is_what_is_left) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
  id<MTLBuffer> in = counting(1024), out = counting(1);
  [encoder setComputePipelineState:pipeline(@"sums")];
  [encoder setBuffer:in offset:0 atIndex:0];
  [encoder setBuffer:out offset:0 atIndex:1];
  [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1024, 1, 1)];
  [encoder endEncoding];
  [buffer commit];
  EQUAL(floats(out)[0], 1023 * 1024 / 2);
}

TEST(indirect_numbers_of_threadgroups) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder =
      [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  EQUAL(encoder.dispatchType, MTLDispatchTypeConcurrent);
  id<MTLBuffer> in = counting(64), out = counting(64);
  uint32_t groups[] = {0, 2, 1, 1};
  id<MTLBuffer> arguments = [device() newBufferWithBytes:groups length:sizeof groups options:0];
  float factor = 2;
  [encoder setComputePipelineState:pipeline(@"scale")];
  [encoder setBuffer:in offset:0 atIndex:0];
  [encoder setBuffer:out offset:0 atIndex:1];
  [encoder setBytes:&factor length:4 atIndex:2];
  [encoder dispatchThreadgroupsWithIndirectBuffer:arguments
                             indirectBufferOffset:4
                            threadsPerThreadgroup:MTLSizeMake(16, 1, 1)];
  RAISES("12 bytes at offset 8 are beyond the 16",
         [encoder dispatchThreadgroupsWithIndirectBuffer:arguments
                                    indirectBufferOffset:8
                                   threadsPerThreadgroup:MTLSizeMake(16, 1, 1)]);
  RAISES("a threadgroup of 2048 x 1 x 1 threads is too large",
         [encoder dispatchThreadgroupsWithIndirectBuffer:arguments
                                    indirectBufferOffset:4
                                   threadsPerThreadgroup:MTLSizeMake(2048, 1, 1)]);
  [encoder endEncoding];
  [buffer commit];
  EQUAL(floats(out)[31], 62);
  EQUAL(floats(out)[32], 32);
}

TEST(copies_and_fills) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLBlitCommandEncoder> encoder = [buffer blitCommandEncoder];
  id<MTLBuffer> from = counting(16), to = counting(16);
  [encoder copyFromBuffer:from sourceOffset:32 toBuffer:to destinationOffset:0 size:16];
  [encoder fillBuffer:to range:NSMakeRange(60, 4) value:0];
  RAISES("-[MTLBlitCommandEncoder fillBuffer:range:value:]: 8 bytes at offset 60 are beyond the 64",
         [encoder fillBuffer:to range:NSMakeRange(60, 8) value:0]);
  RAISES("beyond", [encoder copyFromBuffer:from
                              sourceOffset:56
                                  toBuffer:to
                         destinationOffset:0
                                      size:16]);
  [encoder endEncoding];
  EQUAL(floats(to)[0], 0);
  [buffer commit];
  EQUAL(floats(to)[0], 8);
  EQUAL(floats(to)[3], 11);
  EQUAL(floats(to)[4], 4);
  EQUAL(floats(to)[15], 0);
}

TEST(wrong_arguments_are_errors_at_the_call) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
  id<MTLBuffer> in = counting(8);
  char bytes[5000] = {};
  RAISES("at most 4096 bytes by value, but index 2 was given 5000", [encoder setBytes:bytes
                                                                               length:sizeof bytes
                                                                              atIndex:2]);
  RAISES("the indices 0 to 30, not 31", [encoder setBuffer:in offset:0 atIndex:31]);
  RAISES("0 bytes at offset 40 are beyond the 32", [encoder setBuffer:in offset:40 atIndex:0]);
  RAISES("an MTLBuffer is expected, but this is a NSConstantString",
         [encoder setBuffer:(id<MTLBuffer>)@"a long literal" offset:0 atIndex:0]);
  RAISES("an MTLComputePipelineState is expected, but this is nil",
         [encoder setComputePipelineState:nil]);
  RAISES("no compute pipeline state was set", [encoder dispatchThreads:MTLSizeMake(1, 1, 1)
                                                  threadsPerThreadgroup:MTLSizeMake(1, 1, 1)]);
  RAISES("at most 32768 bytes of memory, but index 0 was given 32769",
         [encoder setThreadgroupMemoryLength:32769 atIndex:0]);
  [encoder setComputePipelineState:pipeline(@"scale")];
  [encoder setBuffer:in offset:0 atIndex:0];
  RAISES("nothing is bound to buffer 1", [encoder dispatchThreads:MTLSizeMake(1, 1, 1)
                                             threadsPerThreadgroup:MTLSizeMake(1, 1, 1)]);
  encode_scale(encoder, in, in, 1, 1);
  RAISES("1024", [encoder dispatchThreads:MTLSizeMake(1, 1, 1)
                     threadsPerThreadgroup:MTLSizeMake(2048, 1, 1)]);
  [encoder endEncoding];
}

TEST(what_a_mac_ends_the_process_for) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
  RAISES("-[MTLCommandBuffer blitCommandEncoder]: a command encoder is already encoding",
         [buffer blitCommandEncoder]);
  RAISES("-[MTLCommandBuffer commit]: an encoder of the command buffer is still open",
         [buffer commit]);
  [encoder endEncoding];
  RAISES("after endEncoding", [encoder setBuffer:nil offset:0 atIndex:0]);
  RAISES("after endEncoding", [encoder endEncoding]);
  RAISES("was not committed", [buffer waitUntilCompleted]);
  [buffer commit];
  RAISES("was already committed", [buffer commit]);
  RAISES("was already committed", [buffer computeCommandEncoder]);
  RAISES("was already committed", [buffer addCompletedHandler:^(id<MTLCommandBuffer>){
                                  }]);
  id<MTLCommandBuffer> second = commands();
  @autoreleasepool {
    [second computeCommandEncoder];
  }
  RAISES("was released without endEncoding", [second commit]);
}

// The checks that a Mac loads (csrc/validation/mac.mm), compiled as there, with the software device
// in place of Metal. Its own checks come second.
#include <csrc/validation/caller.cpp>
#include <csrc/validation/checks.cpp>
#include <csrc/validation/mac.mm>
#include <csrc/validation/rules.cpp>
#include <stdexcept>

#include "kernels.h"

static std::string& warned() {
  static std::string text;
  return text;
}

extern "C" void begin_checks() {
  set_enabled(true);
  set_outlet({[](Kind, const std::string& text) { throw std::logic_error("the Mac's: " + text); },
              [](const std::string& text) { warned() += text; }});
  check_objects_of(device());
}

static id<MTLCommandQueue> queue() {
  static id<MTLCommandQueue> one = [device() newCommandQueue];
  return one;
}
static id<MTLCommandBuffer> commands() { return [queue() commandBuffer]; }

#define BREAKS(RULE, ...) RAISES("error [" RULE "] -[Metalops", __VA_ARGS__)

TEST(a_right_program_runs) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoder];
  id<MTLBuffer> in = counting(8), out = counting(8);
  encode_scale(encoder, in, out, 3, 8);
  [encoder endEncoding];
  __block int calls = 0;
  [buffer addCompletedHandler:^(id<MTLCommandBuffer>) {
    ++calls;
  }];
  [buffer commit];
  [buffer waitUntilCompleted];
  EQUAL(floats(out)[7], 21);
  EQUAL(calls, 1);
  EQUAL(warned(), "");
}

TEST(lives_of_encoders) {
  id<MTLCommandBuffer> buffer = commands();
  id<MTLComputeCommandEncoder> encoder =
      [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  RAISES("the Mac's: ", [buffer blitCommandEncoder]);
  RAISES("error [second-encoder] -[MPSCommandBuffer blitCommandEncoder]",
         [buffer blitCommandEncoder]);
  RAISES("error [encoder-not-ended]", [buffer commit]);
  RAISES("error [wait-before-commit]", [buffer waitUntilCompleted]);
  [encoder endEncoding];
  BREAKS("encoder-after-end", [encoder setBuffer:nil offset:0 atIndex:0]);
  [buffer commit];
  BREAKS("encoder-after-commit", [encoder endEncoding]);
  RAISES("error [command-buffer-after-commit]", [buffer commit]);
  RAISES("error [command-buffer-after-commit]", [buffer addScheduledHandler:^(id<MTLCommandBuffer>){
                                                }]);
}

TEST(lost_objects) {
  id<MTLCommandBuffer> buffer = [commands() retain];
  @autoreleasepool {
    [buffer computeCommandEncoder];
  }
  RAISES(
      "error [encoder-not-ended] -[MPSCommandBuffer commit]: an encoder of the command buffer was "
      "released without endEncoding",
      [buffer commit]);
  [buffer release];
  warned().clear();
  @autoreleasepool {
    id<MTLComputeCommandEncoder> encoder = [commands() computeCommandEncoder];
    encode_scale(encoder, counting(8), counting(8), 2, 8);
    [encoder endEncoding];
  }
  CHECK(check::has(warned(), "warning [not-committed]"));
}

TEST(arguments) {
  id<MTLComputeCommandEncoder> encoder = [commands() computeCommandEncoder];
  id<MTLBuffer> buffer = counting(8);
  const std::string bytes(5000, 'a');
  BREAKS("bytes-too-long", [encoder setBytes:bytes.data() length:5000 atIndex:0]);
  BREAKS("index-too-large", [encoder setBuffer:buffer offset:0 atIndex:31]);
  BREAKS("out-of-bounds", [encoder setBuffer:buffer offset:36 atIndex:0]);
  BREAKS("threadgroup-memory", [encoder setThreadgroupMemoryLength:40000 atIndex:0]);
  BREAKS("threadgroup-memory-alignment", [encoder setThreadgroupMemoryLength:20 atIndex:0]);
  [encoder setComputePipelineState:pipeline(@"sums")];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder setBuffer:buffer offset:0 atIndex:1];
  [encoder setThreadgroupMemoryLength:32 atIndex:0];
  BREAKS("threadgroup-too-large", [encoder dispatchThreads:MTLSizeMake(1, 1, 1)
                                      threadsPerThreadgroup:MTLSizeMake(2048, 1, 1)]);
  [encoder setThreadgroupMemoryLength:32768 atIndex:1];
  BREAKS("threadgroup-memory", [encoder dispatchThreads:MTLSizeMake(1, 1, 1)
                                   threadsPerThreadgroup:MTLSizeMake(1, 1, 1)]);
  [encoder endEncoding];
}

// torch's stream, with torch's own headers. It is called with the memory of a tensor, which on a
// Mac is an MTLBuffer.  torch
#include <ATen/mps/MPSDevice.h>
#include <ATen/mps/MPSStream.h>
#include <torch/mps.h>

#include <vector>

#include "kernels.h"

using namespace at::mps;

static id<MTLBuffer> x = nil, out = nil;  // of 8 floats, from 0
extern "C" void set_tensors(void* first, void* second) {
  x = __builtin_bit_cast(id<MTLBuffer>, first);
  out = __builtin_bit_cast(id<MTLBuffer>, second);
}
// For tests in Python of the memory of other tensors.
extern "C" uint64_t length_of(void* memory) { return ((__bridge id<MTLBuffer>)memory).length; }
extern "C" const char* error_of_length(void* memory) {
  static std::string text;
  text = check::raised([&] { (void)[(__bridge id<MTLBuffer>)memory length]; });
  return text.c_str();
}

TEST(a_tensors_memory_is_a_buffer) {
  EQUAL(x.length, 32u);
  CHECK(x.contents == (void*)x);
  EQUAL(floats(x)[7], 7);
  CHECK([x conformsToProtocol:@protocol(MTLBuffer)] && x.device == device());
  id<MTLBuffer> kept = [x retain];
  NSMutableDictionary* map = [NSMutableDictionary dictionaryWithObject:x forKey:@"x"];
  std::vector<id<MTLBuffer>> list{x, out};
  CHECK(map[@"x"] == kept && [@[ x ] containsObject:list[0]]);
  [kept release];
  EQUAL(((id<MTLBuffer>)map[@"x"]).length, 32u);
}

TEST(public_functions_of_torch) {
  id<MTLCommandBuffer> commands = torch::mps::get_command_buffer();
  dispatch_sync(torch::mps::get_dispatch_queue(), ^{
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
    encode_scale(encoder, x, out, 2, 8);
    [encoder endEncoding];
    torch::mps::commit();
  });
  EQUAL(floats(out)[7], 14);
}

TEST(the_streams_encoder) {
  MPSStream* stream = getCurrentMPSStream();
  dispatch_sync_with_rethrow(stream->queue(), ^{
    @autoreleasepool {
      id<MTLComputeCommandEncoder> encoder = stream->commandEncoder();
      encode_scale(encoder, x, out, 3, 8);
      CHECK(stream->commandEncoder() == encoder);
      RAISES("for the encoder of torch's stream, call MPSStream::endKernelCoalescing()",
             [stream->commandBuffer() computeCommandEncoder]);
      stream->endKernelCoalescing();
      id<MTLComputeCommandEncoder> own = [stream->commandBuffer() computeCommandEncoder];
      encode_scale(own, out, out, 2, 8);
      [own endEncoding];
    }
  });
  stream->synchronize(SyncType::COMMIT_AND_WAIT);
  EQUAL(floats(out)[7], 42);
  CHECK(stream->device() == MPSDevice::getInstance()->device());
  CHECK([stream->commandQueue() conformsToProtocol:@protocol(MTLCommandQueue)]);
}

TEST(the_command_buffer_stays_after_commit_and_continue) {
  MPSStream* stream = getCurrentMPSStream();
  MPSCommandBuffer* commands = stream->commandBuffer();
  __block int handled = 0;
  stream->addCompletedHandler(^(id<MTLCommandBuffer> done) {
    handled = int(done.status);
  });
  stream->synchronize(SyncType::COMMIT_AND_CONTINUE);
  CHECK(stream->commandBuffer() == commands);
  stream->addCompletedHandler(^(id<MTLCommandBuffer>) {
    handled += 10;
  });
  stream->synchronize(SyncType::COMMIT_AND_WAIT);
  EQUAL(handled, 14);
}

TEST(copies_of_the_stream) {
  MPSStream* stream = getCurrentMPSStream();
  id<MTLBuffer> own = counting(4);
  stream->copy(x, own, 8, 16, 0, 0);
  stream->copy_and_sync(own, out, 16, 0, 0, false, 0);
  EQUAL(floats(out)[0], 4);
  EQUAL(floats(out)[1], 5);
  EQUAL(floats(out)[2], 2);
  RAISES("16 bytes at offset 24 are beyond the 32", stream->copy(x, own, 16, 24, 0, 0));
  CHECK(stream->getErrorBuffer().length > 0);
}

TEST(torch_commits_its_own_command_buffer) {
  MPSStream* stream = getCurrentMPSStream();
  [stream->commandBuffer() commit];
  RAISES("call torch::mps::commit() or MPSStream::synchronize()",
         [stream->commandBuffer() computeCommandEncoder]);
  stream->synchronize(SyncType::COMMIT_AND_WAIT);
  id<MTLComputeCommandEncoder> encoder = [stream->commandBuffer() computeCommandEncoder];
  CHECK(encoder != nil);
  [encoder endEncoding];
  stream->synchronize(SyncType::NONE);
}

// Launches of one kernel as extensions for a Mac write them (see objective_c.py). The pointers are
// those of tensors' storages, which are buffers.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <ATen/mps/MPSStream.h>
#include <torch/mps.h>

namespace {

id<MTLLibrary> library = nil;
id<MTLComputePipelineState> scale = nil;

void encode(id<MTLComputeCommandEncoder> encoder, id<MTLComputePipelineState> state, void* in,
            void* out, float factor, unsigned count) {
  [encoder setComputePipelineState:state];
  [encoder setBuffer:(__bridge id<MTLBuffer>)in offset:0 atIndex:0];
  [encoder setBuffer:(__bridge id<MTLBuffer>)out offset:0 atIndex:1];
  [encoder setBytes:&factor length:sizeof factor atIndex:2];
  [encoder dispatchThreads:MTLSizeMake(count, 1, 1) threadsPerThreadgroup:MTLSizeMake(count, 1, 1)];
}

}  // namespace

extern "C" {

void prepare(const char* source) {
  library =
      [MTLCreateSystemDefaultDevice() newLibraryWithSource:[NSString stringWithUTF8String:source]
                                                   options:nil
                                                     error:nil];
  scale = [library.device newComputePipelineStateWithFunction:[library newFunctionWithName:@"scale"]
                                                        error:nil];
}

// What a call from Python costs without a launch.
void nothing(void*, void*, float, unsigned) {}

// The encoder of torch's stream, and a pipeline that was made before.
void by_stream(void* in, void* out, float factor, unsigned count) {
  at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    @autoreleasepool {
      encode(stream->commandEncoder(), scale, in, out, factor, count);
    }
  });
}

// An encoder, a function and a pipeline for each call, as in the templates of kernel-builder.
void by_template(void* in, void* out, float factor, unsigned count) {
  @autoreleasepool {
    id<MTLFunction> function = [library newFunctionWithName:@"scale"];
    id<MTLComputePipelineState> state = [library.device newComputePipelineStateWithFunction:function
                                                                                      error:nil];
    id<MTLCommandBuffer> commands = torch::mps::get_command_buffer();
    dispatch_sync(torch::mps::get_dispatch_queue(), ^{
      id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
      encode(encoder, state, in, out, factor, count);
      [encoder endEncoding];
      torch::mps::commit();
    });
    [state release];
    [function release];
  }
}

}  // extern "C"

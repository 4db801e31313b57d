// Launches a kernel from its source, as an extension does: for tests of the sanitizers.  torch
#include <ATen/mps/MPSStream.h>
#include <torch/mps.h>

#include "kernels.h"

static std::string failure;

// Encodes a launch of a source's only kernel with memory of tensors.
static void encode(id<MTLCommandBuffer> commands, const char* source, void** tensors,
                   unsigned long count, MTLSize threads, MTLSize group, unsigned long shared) {
  NSError* error = nil;
  id<MTLLibrary> library = [device() newLibraryWithSource:@(source) options:nil error:&error];
  if (library == nil) throw std::runtime_error(error.localizedDescription.UTF8String);
  id<MTLFunction> function = [library newFunctionWithName:library.functionNames[0]];
  id<MTLComputePipelineState> state = [device() newComputePipelineStateWithFunction:function
                                                                              error:&error];
  if (state == nil) throw std::runtime_error(error.localizedDescription.UTF8String);
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  try {
    [encoder setComputePipelineState:state];
    for (unsigned long i = 0; i < count; ++i) {
      [encoder setBuffer:(__bridge id<MTLBuffer>)tensors[i] offset:0 atIndex:i];
    }
    if (shared != 0) [encoder setThreadgroupMemoryLength:shared atIndex:0];
    [encoder dispatchThreads:threads threadsPerThreadgroup:group];
  } catch (...) {
    [encoder endEncoding];
    throw;
  }
  [encoder endEncoding];
}

// Returns what was raised. on_own_queue: instead of torch's stream.
extern "C" const char* launch(const char* source, void** tensors, unsigned long count,
                              const unsigned long* sizes, unsigned long shared, int on_own_queue) {
  const MTLSize threads = MTLSizeMake(sizes[0], sizes[1], sizes[2]);
  const MTLSize group = MTLSizeMake(sizes[3], sizes[4], sizes[5]);
  failure = check::raised([=] {
    @autoreleasepool {
      if (on_own_queue) {
        id<MTLCommandQueue> queue = [[device() newCommandQueue] autorelease];
        id<MTLCommandBuffer> commands = [queue commandBuffer];
        encode(commands, source, tensors, count, threads, group, shared);
        [commands commit];
        [commands waitUntilCompleted];
        return;
      }
      dispatch_sync(torch::mps::get_dispatch_queue(), ^{
        encode(torch::mps::get_command_buffer(), source, tensors, count, threads, group, shared);
        torch::mps::commit();
      });
    }
  });
  return failure.c_str();
}

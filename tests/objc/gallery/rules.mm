// The rules of csrc/validation: for each a program that breaks it, and the corrected one, which is
// silent. tests/objc/test_rules.py expects the line that is marked.  -gline-tables-only torch
#include <ATen/mps/MPSStream.h>
#include <c10/util/Exception.h>
#include <torch/mps.h>

#include "kernels.h"

using namespace at::mps;

// ---- what the cases are made of -----------------------------------------------------------------

static id<MTLBuffer> x = nil, out = nil;  // memory of tensors of 64 floats
static id<MTLComputeCommandEncoder> left_open = nil;
extern "C" void set_tensors(void* first, void* second) {
  x = __builtin_bit_cast(id<MTLBuffer>, first);
  out = __builtin_bit_cast(id<MTLBuffer>, second);
}

// Collects what is warned of while a case runs.
struct Warnings : c10::WarningHandler {
  std::string text;
  void process(const c10::Warning& warning) override { text += "it warned: " + warning.msg(); }
};
static const char* run_case(void (*body)()) {
  static std::string text;
  Warnings warnings;
  auto* before = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::set_warning_handler(&warnings);
  @autoreleasepool {
    const char* failure = check::run(body);
    text = failure != nullptr ? failure : "";
  }
  c10::WarningUtils::set_warning_handler(before);
  text = warnings.text + text;
  return text.c_str();
}

// NAME: the rule's, then two underscores and a variant if it has several.
#define WRONG(NAME)                                                            \
  static void NAME##_is_broken();                                              \
  extern "C" const char* wrong_##NAME() { return run_case(NAME##_is_broken); } \
  static void NAME##_is_broken()
#define RIGHT(NAME)                                                          \
  static void NAME##_is_kept();                                              \
  extern "C" const char* right_##NAME() { return run_case(NAME##_is_kept); } \
  static void NAME##_is_kept()

static id<MTLCommandQueue> queue() {
  static id<MTLCommandQueue> one = [device() newCommandQueue];
  return one;
}

static dispatch_block_t nothing() {
  static dispatch_block_t one = [^{
  } copy];
  return one;
}

static void on_stream(dispatch_block_t block) {
  dispatch_sync(torch::mps::get_dispatch_queue(), block);
}

// An encoder of its own command buffer that is thrown away.
struct Scratch {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLBuffer> buffer = counting(64);

  Scratch() {
    [encoder setComputePipelineState:pipeline(@"scale")];
    float factor = 1;
    [encoder setBytes:&factor length:sizeof factor atIndex:2];
  }
  ~Scratch() { [encoder endEncoding]; }
};

static id<MTLCommandBuffer> encoded(id<MTLBuffer> from, id<MTLBuffer> to) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  encode_scale(encoder, from, to, 2, 64);
  [encoder endEncoding];
  return commands;
}

// Waits for all work of the queue, and leaves torch's stream as it was. Returns what was raised.
extern "C" const char* end_case() {
  static std::string raised;
  raised = check::raised([] {
    id<MTLCommandBuffer> last = [queue() commandBuffer];
    [last commit];
    [last waitUntilCompleted];
  });
  try {
    on_stream(^{
      [left_open endEncoding];
    });
  } catch (const std::exception&) {  // torch has gone on without it
  }
  [left_open release];
  left_open = nil;
  return raised.c_str();
}

// ---- encoders -----------------------------------------------------------------------------------

// torch has just run a kernel, whose encoder stays open.
WRONG(second_encoder) {
  on_stream(^{
    id<MTLCommandBuffer> commands = getCurrentMPSStream()->commandBuffer();
    [commands computeCommandEncoder];  // wrong
  });
}
RIGHT(second_encoder) {
  on_stream(^{
    MPSStream* stream = getCurrentMPSStream();
    stream->endKernelCoalescing();
    id<MTLComputeCommandEncoder> encoder = [stream->commandBuffer() computeCommandEncoder];
    [encoder endEncoding];
  });
}

WRONG(second_encoder__own) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  try {
    [commands blitCommandEncoder];  // wrong
  } catch (...) {
    [encoder endEncoding];
    throw;
  }
}
RIGHT(second_encoder__own) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  [[commands computeCommandEncoder] endEncoding];
  [[commands blitCommandEncoder] endEncoding];
}

WRONG(encoder_after_end) {
  id<MTLComputeCommandEncoder> encoder = [[queue() commandBuffer] computeCommandEncoder];
  [encoder endEncoding];
  [encoder setComputePipelineState:pipeline(@"scale")];  // wrong
}
RIGHT(encoder_after_end) {
  id<MTLComputeCommandEncoder> encoder = [[queue() commandBuffer] computeCommandEncoder];
  [encoder setComputePipelineState:pipeline(@"scale")];
  [encoder endEncoding];
}

WRONG(encoder_after_commit) {
  on_stream(^{
    id<MTLComputeCommandEncoder> encoder = getCurrentMPSStream()->commandEncoder();
    torch::mps::commit();
    [encoder setBuffer:x offset:0 atIndex:0];  // wrong
  });
}
RIGHT(encoder_after_commit) {
  on_stream(^{
    id<MTLComputeCommandEncoder> encoder = getCurrentMPSStream()->commandEncoder();
    [encoder setBuffer:x offset:0 atIndex:0];
    torch::mps::commit();
    [getCurrentMPSStream()->commandEncoder() setBuffer:x offset:0 atIndex:0];
  });
}

WRONG(encoder_not_ended) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  encode_scale(encoder, counting(64), counting(64), 2, 64);
  try {
    [commands commit];  // wrong
  } catch (...) {
    [encoder endEncoding];
    [commands commit];
    throw;
  }
}
RIGHT(encoder_not_ended) {
  id<MTLCommandBuffer> commands = encoded(counting(64), counting(64));
  [commands commit];
  [commands waitUntilCompleted];
}

WRONG(encoder_not_ended__released) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  @autoreleasepool {
    [commands computeCommandEncoder];
  }
  [commands commit];  // wrong
}
RIGHT(encoder_not_ended__released) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  @autoreleasepool {
    [[commands computeCommandEncoder] endEncoding];
  }
  [commands commit];
  [commands waitUntilCompleted];
}

// torch goes on afterwards.
WRONG(encoder_not_ended__on_torchs_buffer) {
  on_stream(^{
    id<MTLCommandBuffer> commands = torch::mps::get_command_buffer();
    left_open = [[commands computeCommandEncoder] retain];  // wrong
  });
}
RIGHT(encoder_not_ended__on_torchs_buffer) {
  on_stream(^{
    id<MTLCommandBuffer> commands = torch::mps::get_command_buffer();
    [[commands computeCommandEncoder] endEncoding];
  });
}
WRONG(encoder_off_queue) {
  getCurrentMPSStream()->commandEncoder();  // wrong
}
RIGHT(encoder_off_queue) {
  on_stream(^{
    getCurrentMPSStream()->commandEncoder();
  });
}

WRONG(command_buffer_off_queue) {
  torch::mps::get_command_buffer();  // wrong
}
RIGHT(command_buffer_off_queue) {
  on_stream(^{
    torch::mps::get_command_buffer();
  });
}

// ---- command buffers ----------------------------------------------------------------------------

WRONG(command_buffer_after_commit) {
  id<MTLCommandBuffer> commands = encoded(counting(64), counting(64));
  [commands commit];
  [commands commit];  // wrong
}
RIGHT(command_buffer_after_commit) {
  id<MTLCommandBuffer> commands = encoded(counting(64), counting(64));
  [commands addCompletedHandler:^(id<MTLCommandBuffer>){
  }];
  [commands commit];
  [commands waitUntilCompleted];
}

WRONG(not_committed) {
  @autoreleasepool {
    id<MTLCommandBuffer> commands = [queue() commandBuffer];  // wrong
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
    encode_scale(encoder, counting(64), counting(64), 2, 64);
    [encoder endEncoding];
  }
}
RIGHT(not_committed) {
  @autoreleasepool {
    [encoded(counting(64), counting(64)) commit];
    [queue() commandBuffer];
  }
}

WRONG(wait_before_commit) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  [commands waitUntilCompleted];  // wrong
}
RIGHT(wait_before_commit) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  [commands commit];
  [commands waitUntilCompleted];
}

WRONG(dispatch_sync_on_own_queue) {
  dispatch_queue_t serial = dispatch_queue_create("serial", nullptr);
  dispatch_block_t work = nothing();
  dispatch_sync(serial, ^{
    dispatch_sync(serial, work);  // wrong
  });
}
RIGHT(dispatch_sync_on_own_queue) {
  dispatch_queue_t serial = dispatch_queue_create("serial", nullptr);
  dispatch_block_t work = nothing();
  dispatch_sync(serial, ^{
    dispatch_async(serial, work);
  });
  dispatch_sync(serial, work);
  dispatch_release(serial);
}

// ---- arguments ----------------------------------------------------------------------------------

WRONG(bytes_too_long) {
  Scratch scratch;
  const std::string bytes(5000, 'a');
  [scratch.encoder setBytes:bytes.data() length:bytes.size() atIndex:2];  // wrong
}
RIGHT(bytes_too_long) {
  Scratch scratch;
  const std::string bytes(4096, 'a');
  [scratch.encoder setBytes:bytes.data() length:bytes.size() atIndex:2];
}

WRONG(index_too_large) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:31];  // wrong
}
RIGHT(index_too_large) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:30];
}

WRONG(out_of_bounds) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:260 atIndex:0];  // wrong
}
RIGHT(out_of_bounds) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:252 atIndex:0];
}

WRONG(unaligned_offset) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:1];
  [scratch.encoder setBuffer:scratch.buffer offset:2 atIndex:0];
  [scratch.encoder dispatchThreads:MTLSizeMake(1, 1, 1)  // wrong
             threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
}
RIGHT(unaligned_offset) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:1];
  [scratch.encoder setBuffer:scratch.buffer offset:4 atIndex:0];
  [scratch.encoder dispatchThreads:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
  [scratch.encoder endEncoding];
  [scratch.commands commit];
  scratch.encoder = nil;
}

WRONG(unaligned_copy) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:counting(4) range:NSMakeRange(0, 3) value:0];  // wrong
  [encoder endEncoding];
  [commands commit];
}
RIGHT(unaligned_copy) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:counting(4) range:NSMakeRange(4, 8) value:0];
  [encoder endEncoding];
  [commands commit];
}

WRONG(unbound_buffer) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:0];
  [scratch.encoder dispatchThreads:MTLSizeMake(1, 1, 1)  // wrong
             threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
}
RIGHT(unbound_buffer) {
  id<MTLCommandBuffer> commands = encoded(counting(64), counting(64));
  [commands commit];
}

// Encodes `scale` without its factor, which it reads unless a function constant gives the slope.
struct WithoutFactor {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLBuffer> buffer = counting(64);

  explicit WithoutFactor(MTLFunctionConstantValues* values) {
    id<MTLFunction> function = [library() newFunctionWithName:@"scale"
                                               constantValues:values
                                                        error:nil];
    [encoder setComputePipelineState:[device() newComputePipelineStateWithFunction:function
                                                                             error:nil]];
    [encoder setBuffer:buffer offset:0 atIndex:0];
    [encoder setBuffer:buffer offset:0 atIndex:1];
  }
  ~WithoutFactor() { [encoder endEncoding]; }
};
WRONG(unbound_buffer__of_another_specialisation) {
  WithoutFactor without([MTLFunctionConstantValues new]);
  [without.encoder dispatchThreads:MTLSizeMake(64, 1, 1)  // wrong
             threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
}
RIGHT(unbound_buffer__of_another_specialisation) {
  MTLFunctionConstantValues* values = [MTLFunctionConstantValues new];
  float slope = 2;
  [values setConstantValue:&slope type:MTLDataTypeFloat atIndex:3];
  id<MTLCommandBuffer> commands = nil;
  id<MTLBuffer> buffer = nil;
  {
    WithoutFactor without(values);
    [without.encoder dispatchThreads:MTLSizeMake(64, 1, 1)
               threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
    commands = without.commands;
    buffer = without.buffer;
  }
  [commands commit];
  [commands waitUntilCompleted];
  EQUAL(floats(buffer)[63], 126);
}

WRONG(threadgroup_too_large) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:0];
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:1];
  [scratch.encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1)  // wrong
                  threadsPerThreadgroup:MTLSizeMake(64, 32, 1)];
}
RIGHT(threadgroup_too_large) {
  Scratch scratch;
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:0];
  [scratch.encoder setBuffer:scratch.buffer offset:0 atIndex:1];
  const NSUInteger most = pipeline(@"scale").maxTotalThreadsPerThreadgroup;
  [scratch.encoder dispatchThreadgroups:MTLSizeMake(0, 1, 1)
                  threadsPerThreadgroup:MTLSizeMake(most, 1, 1)];
  [scratch.encoder endEncoding];
  [scratch.commands commit];
  scratch.encoder = nil;
}

WRONG(threadgroup_memory) {
  Scratch scratch;
  [scratch.encoder setThreadgroupMemoryLength:40000 atIndex:0];  // wrong
}
RIGHT(threadgroup_memory) {
  Scratch scratch;
  [scratch.encoder setThreadgroupMemoryLength:32768 atIndex:0];
}

WRONG(threadgroup_memory_alignment) {
  Scratch scratch;
  [scratch.encoder setThreadgroupMemoryLength:100 atIndex:0];  // wrong
}
RIGHT(threadgroup_memory_alignment) {
  Scratch scratch;
  [scratch.encoder setThreadgroupMemoryLength:112 atIndex:0];
}

// ---- memory and queues --------------------------------------------------------------------------

// The tensor `out` is freed afterwards.
WRONG(freed_in_flight) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:pipeline(@"scale")];
  [encoder setBuffer:counting(64) offset:0 atIndex:0];
  [encoder setBuffer:out offset:0 atIndex:1];
  [encoder setBuffer:counting(1) offset:0 atIndex:2];
  [encoder dispatchThreads:MTLSizeMake(64, 1, 1)  // wrong
      threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  [encoder endEncoding];
  [commands commit];
}
RIGHT(freed_in_flight) {
  id<MTLCommandBuffer> commands = encoded(counting(64), out);
  [commands commit];
  [commands waitUntilCompleted];
}

WRONG(freed_in_flight__not_retained) {
  id<MTLBuffer> buffer = counting(64);
  id<MTLCommandBuffer> commands = [queue() commandBufferWithUnretainedReferences];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:buffer range:NSMakeRange(0, 64) value:0];  // wrong
  [encoder endEncoding];
  [commands commit];
  [buffer release];
  [commands waitUntilCompleted];
}
RIGHT(freed_in_flight__not_retained) {
  id<MTLBuffer> buffer = counting(64);
  id<MTLCommandBuffer> commands = [queue() commandBufferWithUnretainedReferences];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:buffer range:NSMakeRange(0, 64) value:0];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  [buffer release];
}

WRONG(contents_in_flight) {
  id<MTLBuffer> from = counting(64), to = counting(64);
  id<MTLCommandBuffer> commands = encoded(from, to);
  [commands commit];
  float* read = (float*)to.contents;  // wrong
  EQUAL(read[63], 63);                // the old value
  [commands waitUntilCompleted];
}
RIGHT(contents_in_flight) {
  id<MTLBuffer> from = counting(64), to = counting(64);
  id<MTLCommandBuffer> commands = encoded(from, to);
  [commands commit];
  EQUAL(((float*)from.contents)[63], 63);
  [commands waitUntilCompleted];
  EQUAL(((float*)to.contents)[63], 126);
}

// torch reads `out` afterwards.
WRONG(unsynchronised_queue) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:out range:NSMakeRange(0, 256) value:0];  // wrong
  [encoder endEncoding];
  [commands commit];
}
RIGHT(unsynchronised_queue) {
  id<MTLCommandBuffer> commands = encoded(x, out);
  [commands commit];
  [commands waitUntilCompleted];
}

// torch reads the memory of a texture afterwards.
static id<MTLTexture> texture_of_out() {
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                         width:8
                                                        height:8
                                                     mipmapped:NO];
  return [out newTextureWithDescriptor:descriptor offset:0 bytesPerRow:32];
}
WRONG(unsynchronised_queue__texture) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder copyFromBuffer:counting(64)  // wrong
             sourceOffset:0
        sourceBytesPerRow:32
      sourceBytesPerImage:256
               sourceSize:MTLSizeMake(8, 8, 1)
                toTexture:texture_of_out()
         destinationSlice:0
         destinationLevel:0
        destinationOrigin:MTLOriginMake(0, 0, 0)];
  [encoder endEncoding];
  [commands commit];
}
RIGHT(unsynchronised_queue__texture) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder copyFromBuffer:counting(64)
             sourceOffset:0
        sourceBytesPerRow:32
      sourceBytesPerImage:256
               sourceSize:MTLSizeMake(8, 8, 1)
                toTexture:texture_of_out()
         destinationSlice:0
         destinationLevel:0
        destinationOrigin:MTLOriginMake(0, 0, 0)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
}

// One queue reads a texture that a kernel of another one writes.
static void clear_texture(id<MTLCommandBuffer> commands, id<MTLTexture> texture) {
  static id<MTLLibrary> library = [device()
      newLibraryWithSource:@"#include <metal_stdlib>\nusing namespace metal;\n"
                            "kernel void clear(texture2d<float, access::write> t [[texture(0)]], "
                            "uint2 i [[thread_position_in_grid]]) { t.write(float4(0), i); }"
                   options:nil
                     error:nil];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:
               [device() newComputePipelineStateWithFunction:[library newFunctionWithName:@"clear"]
                                                       error:nil]];
  [encoder setTexture:texture atIndex:0];
  [encoder dispatchThreads:MTLSizeMake(8, 8, 1) threadsPerThreadgroup:MTLSizeMake(8, 8, 1)];
  [encoder endEncoding];
  [commands commit];
}
static id<MTLTexture> written_texture() {
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                         width:8
                                                        height:8
                                                     mipmapped:NO];
  descriptor.usage = MTLTextureUsageShaderWrite;
  return [device() newTextureWithDescriptor:descriptor];
}
WRONG(unsynchronised_queue__texture_of_a_kernel) {
  id<MTLTexture> texture = written_texture(), copy = written_texture();
  clear_texture([queue() commandBuffer], texture);
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder copyFromTexture:texture toTexture:copy];  // wrong
  [encoder endEncoding];
  [commands commit];
}
RIGHT(unsynchronised_queue__texture_of_a_kernel) {
  id<MTLTexture> texture = written_texture(), copy = written_texture();
  id<MTLCommandBuffer> first = [queue() commandBuffer];
  clear_texture(first, texture);
  [first waitUntilCompleted];
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder copyFromTexture:texture toTexture:copy];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
}

// torch has just written `x`.
WRONG(unsynchronised_queue__after_torch) {
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder copyFromBuffer:x  // wrong
             sourceOffset:0
                 toBuffer:counting(64)
        destinationOffset:0
                     size:256];
  [encoder endEncoding];
  [commands commit];
}
RIGHT(unsynchronised_queue__after_torch) {
  on_stream(^{
    getCurrentMPSStream()->synchronize(SyncType::COMMIT_AND_WAIT);
  });
  id<MTLCommandBuffer> commands = encoded(x, counting(64));
  [commands commit];
  [commands waitUntilCompleted];
}

// torch's stream waits for an event instead of the host.
RIGHT(unsynchronised_queue__event) {
  id<MTLSharedEvent> event = [device() newSharedEvent];
  id<MTLCommandBuffer> commands = encoded(counting(64), out);
  [commands encodeSignalEvent:event value:1];
  [commands commit];
  on_stream(^{
    [torch::mps::get_command_buffer() encodeWaitForEvent:event value:1];
  });
}
WRONG(unsynchronised_queue__event) {
  id<MTLSharedEvent> event = [device() newSharedEvent];
  id<MTLCommandBuffer> commands = [queue() commandBuffer];
  [commands encodeSignalEvent:event value:1];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  [encoder fillBuffer:out range:NSMakeRange(0, 256) value:0];  // wrong
  [encoder endEncoding];
  [commands commit];
  on_stream(^{
    [torch::mps::get_command_buffer() encodeWaitForEvent:event value:1];
  });
}

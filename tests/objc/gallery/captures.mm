// Captures and counters.
#include "kernels.h"

static NSString* path = nil;
extern "C" void set_path(const char* text) { path = [@(text) retain]; }

static void run_scale(float factor) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  encode_scale(encoder, counting(4), counting(4), factor, 4);
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
}

static MTLCaptureDescriptor* document(id object) {
  MTLCaptureDescriptor* descriptor = [[[MTLCaptureDescriptor alloc] init] autorelease];
  descriptor.captureObject = object;
  descriptor.destination = MTLCaptureDestinationGPUTraceDocument;
  descriptor.outputURL = [NSURL fileURLWithPath:path];
  return descriptor;
}

TEST(a_capture_of_the_device) {
  MTLCaptureManager* manager = [MTLCaptureManager sharedCaptureManager];
  CHECK([manager supportsDestination:MTLCaptureDestinationGPUTraceDocument]);
  CHECK(![manager supportsDestination:MTLCaptureDestinationDeveloperTools]);
  NSError* error = nil;
  MTLCaptureDescriptor* descriptor = document(device());
  CHECK([manager startCaptureWithDescriptor:descriptor error:&error] && manager.isCapturing);
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error]);
  EQUAL(error.code, MTLCaptureErrorAlreadyCapturing);
  run_scale(2);
  [manager stopCapture];
  CHECK(!manager.isCapturing);
  run_scale(3);
}

TEST(a_capture_of_a_scope) {
  MTLCaptureManager* manager = [MTLCaptureManager sharedCaptureManager];
  id<MTLCaptureScope> scope = [manager newCaptureScopeWithDevice:device()];
  NSError* error = nil;
  CHECK([manager startCaptureWithDescriptor:document(scope) error:&error]);
  run_scale(2);
  [scope beginScope];
  run_scale(3);
  run_scale(4);
  [scope endScope];
  run_scale(5);
  [manager stopCapture];
}

TEST(captures_that_cannot_be) {
  MTLCaptureManager* manager = [MTLCaptureManager sharedCaptureManager];
  NSError* error = nil;
  MTLCaptureDescriptor* descriptor = document(device());
  descriptor.outputURL = [NSURL fileURLWithPath:@"/no/such/folder/x.trace"];
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error] && !manager.isCapturing);
  CHECK(check::has(error.localizedDescription.UTF8String, "/no/such/folder"));
  descriptor.outputURL = nil;
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error]);
  EQUAL(error.code, MTLCaptureErrorInvalidDescriptor);
  descriptor.destination = MTLCaptureDestinationDeveloperTools;
  CHECK(![manager startCaptureWithDescriptor:descriptor error:&error]);
  EQUAL(error.code, MTLCaptureErrorNotSupported);
}

static id<MTLCounterSampleBuffer> samples(NSUInteger count) {
  MTLCounterSampleBufferDescriptor* descriptor =
      [[[MTLCounterSampleBufferDescriptor alloc] init] autorelease];
  descriptor.counterSet = device().counterSets[0];
  descriptor.sampleCount = count;
  return [device() newCounterSampleBufferWithDescriptor:descriptor error:nil];
}

TEST(the_device_has_one_counter) {
  id<MTLCounterSet> set = device().counterSets[0];
  CHECK([set.name isEqualToString:MTLCommonCounterSetTimestamp]);
  CHECK([set.counters[0].name isEqualToString:MTLCommonCounterTimestamp]);
  CHECK([device() supportsCounterSampling:MTLCounterSamplingPointAtStageBoundary]);
  CHECK(![device() supportsCounterSampling:MTLCounterSamplingPointAtDispatchBoundary]);
  RAISES("from 1 to 4096 samples, not 0", samples(0));
}

TEST(times_of_encoders_are_sampled) {
  id<MTLCounterSampleBuffer> times = samples(4);
  EQUAL(times.sampleCount, 4u);
  MTLTimestamp before = 0, after = 0, gpu = 0;
  [device() sampleTimestamps:&before gpuTimestamp:&gpu];
  MTLComputePassDescriptor* pass = [MTLComputePassDescriptor computePassDescriptor];
  pass.dispatchType = MTLDispatchTypeConcurrent;
  pass.sampleBufferAttachments[0].sampleBuffer = times;
  pass.sampleBufferAttachments[0].startOfEncoderSampleIndex = 0;
  pass.sampleBufferAttachments[0].endOfEncoderSampleIndex = 1;
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoderWithDescriptor:pass];
  EQUAL(encoder.dispatchType, MTLDispatchTypeConcurrent);
  encode_scale(encoder, counting(4), counting(4), 2, 4);
  [encoder endEncoding];
  MTLBlitPassDescriptor* blit = [MTLBlitPassDescriptor blitPassDescriptor];
  blit.sampleBufferAttachments[0].sampleBuffer = times;
  blit.sampleBufferAttachments[0].startOfEncoderSampleIndex = MTLCounterDontSample;
  blit.sampleBufferAttachments[0].endOfEncoderSampleIndex = 2;
  id<MTLBlitCommandEncoder> copies = [commands blitCommandEncoderWithDescriptor:blit];
  id<MTLBuffer> resolved = counting(16);
  [copies resolveCounters:times
                  inRange:NSMakeRange(0, 2)
        destinationBuffer:resolved
        destinationOffset:8];
  RAISES("the 2 samples from 3 are beyond the 4", [copies resolveCounters:times
                                                                  inRange:NSMakeRange(3, 2)
                                                        destinationBuffer:resolved
                                                        destinationOffset:0]);
  [copies endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  [device() sampleTimestamps:&after gpuTimestamp:&gpu];
  const auto* found =
      (const MTLCounterResultTimestamp*)[times resolveCounterRange:NSMakeRange(0, 4)].bytes;
  CHECK(before <= found[0].timestamp && found[0].timestamp < found[1].timestamp);
  CHECK(found[1].timestamp <= found[2].timestamp && found[2].timestamp <= after);
  EQUAL(found[3].timestamp, MTLCounterErrorValue);
  EQUAL(((uint64_t*)resolved.contents)[2], found[1].timestamp);
  pass.sampleBufferAttachments[0].endOfEncoderSampleIndex = 4;
  RAISES("the 1 samples from 4 are beyond the 4",
         [[[device() newCommandQueue] commandBuffer] computeCommandEncoderWithDescriptor:pass]);
}

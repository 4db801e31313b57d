// Own command queues: status, handlers, errors, order and events.
#include <atomic>

#include "kernels.h"

static void add_scale(id<MTLCommandBuffer> commands, id<MTLBuffer> in, id<MTLBuffer> out,
                      float factor) {
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  encode_scale(encoder, in, out, factor, in.length / 4);
  [encoder endEncoding];
}

TEST(nothing_runs_before_the_commit) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  id<MTLBuffer> in = counting(8), out = counting(8);
  add_scale(commands, in, out, 10);
  EQUAL(commands.status, MTLCommandBufferStatusNotEnqueued);
  EQUAL(floats(out)[7], 7);
  [commands commit];
  [commands waitUntilCompleted];
  EQUAL(commands.status, MTLCommandBufferStatusCompleted);
  EQUAL(floats(out)[7], 70);
  CHECK(commands.error == nil && commands.GPUEndTime >= commands.GPUStartTime);
  CHECK(commands.commandQueue == queue);
}

TEST(handlers_are_called_on_another_thread_before_the_wait_ends) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  static std::atomic<int> called;
  called = 0;
  pthread_t self = pthread_self();
  [commands addScheduledHandler:^(id<MTLCommandBuffer>) {
    called += 1;
  }];
  [commands addCompletedHandler:^(id<MTLCommandBuffer> done) {
    if (done.status == MTLCommandBufferStatusCompleted) called += 10;
    if (!pthread_equal(pthread_self(), self)) called += 100;
  }];
  NSLock* lock = [NSLock new];
  [lock lock];
  [commands addCompletedHandler:^(id<MTLCommandBuffer>) {
    [lock lock];
    called += 1000;
    [lock unlock];
  }];
  [commands commit];
  [lock unlock];
  [commands waitUntilCompleted];
  EQUAL(called.load(), 1111);
}

TEST(what_a_command_raises_is_the_buffers_error) {
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLBuffer> numbers = counting(8);
  const uint32_t groups[] = {0xFFFFFFFF, 1, 1};
  encode_scale(encoder, numbers, numbers, 1, 8);
  [encoder dispatchThreadgroupsWithIndirectBuffer:[device() newBufferWithBytes:groups
                                                                        length:sizeof groups
                                                                       options:0]
                             indirectBufferOffset:0
                            threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
  [encoder endEncoding];
  const std::string raised = check::raised([&] { [commands commit]; });
  CHECK(check::has(raised, "threads along one axis exceeds 32 bits"));
  EQUAL(commands.status, MTLCommandBufferStatusError);
  CHECK(commands.error != nil &&
        check::has(raised, commands.error.localizedDescription.UTF8String));
  CHECK([commands.error.domain isEqualToString:MTLCommandBufferErrorDomain]);
}

TEST(enqueue_reserves_the_order) {
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  id<MTLBuffer> a = counting(4), b = counting(4), c = counting(4);
  id<MTLCommandBuffer> first = [queue commandBuffer], second = [queue commandBuffer];
  [first enqueue];
  [second enqueue];
  add_scale(first, a, b, 2);
  add_scale(second, b, c, 3);
  [second commit];
  EQUAL(second.status, MTLCommandBufferStatusCommitted);
  EQUAL(floats(c)[3], 3);
  [first commit];
  [second waitUntilCompleted];
  EQUAL(floats(c)[3], 18);
}

TEST(queues_wait_for_events_of_others) {
  id<MTLCommandQueue> one = [device() newCommandQueue], two = [device() newCommandQueue];
  id<MTLSharedEvent> event = [device() newSharedEvent];
  id<MTLBuffer> a = counting(4), b = counting(4), c = counting(4);
  id<MTLCommandBuffer> waits = [two commandBuffer], after = [two commandBuffer],
                       signals = [one commandBuffer];
  [waits encodeWaitForEvent:event value:5];
  add_scale(waits, b, c, 3);
  [waits commit];
  [after commit];
  EQUAL(waits.status, MTLCommandBufferStatusScheduled);
  EQUAL(after.status, MTLCommandBufferStatusCommitted);
  add_scale(signals, a, b, 2);
  [signals encodeSignalEvent:event value:5];
  [signals commit];
  [after waitUntilCompleted];
  EQUAL(floats(c)[3], 18);
  EQUAL(event.signaledValue, 5u);
  CHECK([event waitUntilSignaledValue:5 timeoutMS:0] && ![event waitUntilSignaledValue:6
                                                                             timeoutMS:1]);
}

TEST(listeners_are_told_of_events) {
  id<MTLSharedEvent> event = [device() newSharedEvent];
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  MTLSharedEventListener* listener =
      [[MTLSharedEventListener alloc] initWithDispatchQueue:dispatch_get_global_queue(0, 0)];
  __block uint64_t seen = 0;
  [event notifyListener:listener
                atValue:2
                  block:^(id<MTLSharedEvent>, uint64_t value) {
                    seen = value;
                    dispatch_semaphore_signal(told);
                  }];
  event.signaledValue = 1;
  event.signaledValue = 3;
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  EQUAL(seen, 3u);
}

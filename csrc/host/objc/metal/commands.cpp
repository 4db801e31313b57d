// Command buffers, queues and events. The work of a queue runs on the thread that commits it, in
// the order in which buffers are committed or enqueued. A buffer that waits for an event lets the
// thread go on; whoever signals the event runs the rest.
//
// If all rules of csrc/validation are on, the work runs on a thread of the queue's, as soon as some
// thread waits, but a while after the commit otherwise: a program that does not wait reads old
// values.
#include <c10/util/Exception.h>
#include <exec/sanitize/findings.h>
#include <locks.h>
#include <metal/streams.h>

#include <chrono>
#include <condition_variable>
#include <utility>

#include <csrc/host/objc/dispatch.h>
#include <csrc/host/objc/metal.h>
#include <csrc/validation/caller.h>

METALOPS_OBJC_CLASS(MPSCommandBuffer)
METALOPS_OBJC_CLASS(MetalopsCommandQueue)
METALOPS_OBJC_CLASS(MetalopsEvent)
METALOPS_OBJC_CLASS(MTLSharedEventListener)

namespace metalops::objc {
namespace {

// Guards queues and events, and announces their changes.
struct Guard {
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0;  // threads
  // How many works in flight use memory, and how many write it.
  struct Uses {
    int all = 0, writes = 0;
  };
  std::map<const void*, Uses> in_flight;
};
Guard& guard() {
  static Guard& one = *new Guard;
  return one;
}
using Lock = std::unique_lock<std::mutex>;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Handlers are called on a thread of their own, as on a Mac: the thread that commits may hold locks
// that they take.
dispatch_queue_t handler_queue() {
  static dispatch_queue_t queue = dispatch_queue_create("Metal completion handlers", nullptr);
  return queue;
}

void set_done(CommandBuffer* buffer) {
  {
    Lock lock(guard().mutex);
    buffer->is_done = true;
  }
  guard().changed.notify_all();
}

// Counts the uses of memory by a buffer that is committed, or takes them back.
void count_uses(const CommandBuffer* buffer, int change) {
  Lock lock(guard().mutex);
  for (const UsedMemory& one : buffer->used) {
    auto& uses = guard().in_flight[one.memory];
    uses.all += change;
    if (one.is_written) uses.writes += change;
    if (uses.all == 0) guard().in_flight.erase(one.memory);
  }
  guard().changed.notify_all();
}

// Calls the handlers of a buffer whose status is final.
void finish(CommandBuffer* buffer) {
  count_uses(buffer, -1);
  auto handlers = std::exchange(buffer->scheduled, {});
  for (auto& handler : std::exchange(buffer->completed, {})) handlers.push_back(handler);
  if (handlers.empty()) return set_done(buffer);
  submit(handler_queue(), [buffer = Strong(buffer), handlers] {
    void* pool = objc_autoreleasePoolPush();
    exec::host_waits(static_cast<CommandBuffer*>(buffer.get())->clock);
    for (const auto& handler : handlers) call_block<void, id>(handler.get(), buffer.get());
    objc_autoreleasePoolPop(pool);
    set_done(static_cast<CommandBuffer*>(buffer.get()));
  });
}

// RAII: work of other queues has nothing to do with torch's current stream.
class OnDefaultStream {
 public:
  OnDefaultStream() : before_(streams::in_use() ? streams::current() : streams::kDefault) {
    if (before_ != streams::kDefault) streams::set_current(streams::kDefault);
  }
  ~OnDefaultStream() {
    if (before_ != streams::kDefault) streams::set_current(before_);
  }
  OnDefaultStream(const OnDefaultStream&) = delete;

 private:
  const streams::Id before_;
};

// Runs the commands of a buffer that are left; returns false if one has to wait. What a kernel
// raises is the buffer's error.
bool run(CommandBuffer* buffer) {
  const OnDefaultStream on_default;
  if (buffer->status == CommandBuffer::kCommitted) {
    buffer->status = CommandBuffer::kScheduled;
    buffer->start = now();
  }
  try {
    while (!buffer->commands.empty()) {
      if (!buffer->commands.front()()) return false;
      buffer->commands.pop_front();
    }
    if (buffer->waits_for_events) {
      buffer->clock = exec::clock_of(static_cast<CommandQueue*>(buffer->queue.get())->number);
    }
    buffer->status = CommandBuffer::kCompleted;
  } catch (const std::exception& e) {
    constexpr long kInternal = 1;  // MTLCommandBufferErrorInternal
    const auto* ours = dynamic_cast<const c10::Error*>(&e);
    buffer->failure = std::current_exception();
    buffer->error = Strong(error("MTLCommandBufferErrorDomain", kInternal,
                                 ours != nullptr ? ours->what_without_backtrace() : e.what()));
    buffer->commands.clear();
    buffer->status = CommandBuffer::kFailed;
  }
  buffer->end = now();
  return true;
}

// Runs the buffers of a queue that may run now, unless another thread does.
void run(CommandQueue* queue) {
  const Strong kept(queue);
  Lock lock(guard().mutex);
  queue->runs_again = true;
  if (queue->is_running) return;
  queue->is_running = true;
  while (std::exchange(queue->runs_again, false)) {
    while (!queue->buffers.empty()) {
      const Strong first = queue->buffers.front();
      auto* buffer = static_cast<CommandBuffer*>(first.get());
      if (buffer->status < CommandBuffer::kCommitted) break;
      lock.unlock();
      const bool has_run = run(buffer);
      if (has_run) finish(buffer);
      lock.lock();
      if (!has_run) break;
      queue->buffers.pop_front();
    }
  }
  queue->is_running = false;
}

thread_local bool is_worker = false;

// Runs them on the queue's own thread.
void run_later(CommandQueue* queue) {
  submit(queue->worker, [kept = Strong(queue)] {
    constexpr std::chrono::milliseconds kDelay{200};
    is_worker = true;
    {
      Lock lock(guard().mutex);
      guard().changed.wait_for(lock, kDelay, [] { return guard().waiting != 0; });
    }
    run(static_cast<CommandQueue*>(kept.get()));
  });
}

void continue_queue(CommandQueue* queue) {
  if (queue->worker != nullptr) {
    run_later(queue);
  } else {
    run(queue);
  }
}

void enqueue(CommandBuffer* buffer) {
  if (buffer->status != CommandBuffer::kNotEnqueued) return;
  buffer->status = CommandBuffer::kEnqueued;
  Lock lock(guard().mutex);
  static_cast<CommandQueue*>(buffer->queue.get())->buffers.emplace_back(buffer);
}

// ---- events

struct Event : objc_object {
  struct Notification {
    uint64_t value;
    std::function<void()> call;
  };
  Strong label;
  // Guarded by the mutex.
  uint64_t value = 0;
  exec::StreamClock clock{};   // of what it comes after
  std::vector<Strong> queues;  // that wait
  std::vector<Notification> notifications;
};

Event* event_of(id object, id self, SEL method) {
  return static_cast<Event*>(checked(object, &class_MetalopsEvent, "MTLEvent", self, method));
}

struct Listener : objc_object {
  dispatch_queue_t queue = nullptr;
  ~Listener() {
    if (queue != nullptr) dispatch_release(queue);
  }
};

void define_events() {
  define<Listener>(METALOPS_OBJC_SYMBOLS(MTLSharedEventListener), &class_NSObject,
                   {
                       {"initWithDispatchQueue:",
                        [](Listener* self, SEL, dispatch_queue_t queue) -> id {
                          dispatch_retain(queue);
                          self->queue = queue;
                          return self;
                        }},
                       {"dispatchQueue", Accessors<&Listener::queue>::get},
                   });

  define<Event>(
      METALOPS_OBJC_SYMBOLS(MetalopsEvent), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&Event::label>::get},
          {"setLabel:", Accessors<&Event::label>::set_copy},
          {"signaledValue",
           [](Event* self, SEL) {
             Lock lock(guard().mutex);
             return self->value;
           }},
          {"setSignaledValue:", [](Event* self, SEL, uint64_t value) { signal(self, value); }},
          {"waitUntilSignaledValue:timeoutMS:",
           [](Event* self, SEL, uint64_t value, uint64_t milliseconds) {
             constexpr uint64_t kLong = uint64_t{1} << 40;
             const WithoutGil no_gil;
             const Waiting waiting;
             Lock lock(guard().mutex);
             const bool is_reached = guard().changed.wait_for(
                 lock, std::chrono::milliseconds(std::min(milliseconds, kLong)),
                 [=] { return self->value >= value; });
             if (is_reached) exec::host_waits(self->clock);
             return is_reached;
           }},
          {"notifyListener:atValue:block:",
           [](Event* self, SEL, Listener* listener, uint64_t value, id block) {
             notify(self, value,
                    [self = Strong(self), listener = Strong(listener), block = keep_block(block)] {
                      submit(static_cast<Listener*>(listener.get())->queue, [self, block] {
                        auto* event = static_cast<Event*>(self.get());
                        exec::host_waits(event->clock);
                        call_block<void, id, uint64_t>(block.get(), event, event->value);
                      });
                    });
           }},
      },
      {}, {"MTLSharedEvent", "MTLEvent", "MTLFence"});
}

// ---- command buffers

id autoreleased_encoder(CommandBuffer* self, SEL method, UInteger type) {
  self->check_encoding(self, method);
  return autoreleased(new_compute_encoder(self, type));
}

void check_not_committed(CommandBuffer* self, SEL method) {
  validation::check_not_committed(self->life, call_of(self, method));
}

UInteger status_of(CommandBuffer* self, SEL) {
  const UInteger status = self->status;
  if (status >= CommandBuffer::kCompleted) exec::host_waits(self->clock);
  return status;
}

void signal_event(CommandBuffer* self, SEL method, id object, uint64_t value) {
  self->check_encoding(self, method);
  const Strong event = event_of(object, self, method);
  const auto clock = std::make_shared<exec::StreamClock>();
  const int64_t stream = self->life.is_of_stream
                             ? streams::current()
                             : static_cast<CommandQueue*>(self->queue.get())->number;
  const auto note = [clock, stream] { *clock = exec::clock_of(stream); };
  if (self->life.is_of_stream) {
    note();
  } else if (self->waits_for_events) {
    self->add([note] {
      note();
      return true;
    });
  } else {
    self->checks.push_back(note);
  }
  self->add([event, value, clock] {
    {
      Lock lock(guard().mutex);
      static_cast<Event*>(event.get())->clock = *clock;
    }
    signal(event.get(), value);
    return true;
  });
}

void wait_for_event(CommandBuffer* self, SEL method, id object, uint64_t value) {
  self->check_encoding(self, method);
  Event* event = event_of(object, self, method);
  if (self->life.is_of_stream) {
    // The stream's work runs at once, so that the host has to wait.
    const WithoutGil no_gil;
    const Waiting waiting;
    Lock lock(guard().mutex);
    guard().changed.wait(lock, [=] { return event->value >= value; });
    exec::stream_waits(streams::current(), event->clock);
    return;
  }
  self->waits_for_events = true;
  self->add([event = Strong(event), queue = self->queue, value] {
    auto* one = static_cast<Event*>(event.get());
    Lock lock(guard().mutex);
    if (one->value >= value) {
      exec::stream_waits(static_cast<CommandQueue*>(queue.get())->number, one->clock);
      return true;
    }
    one->queues.push_back(queue);
    return false;
  });
}

void define_command_buffer() {
  define<CommandBuffer>(
      METALOPS_OBJC_SYMBOLS(MPSCommandBuffer), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&CommandBuffer::label>::get},
          {"setLabel:", Accessors<&CommandBuffer::label>::set_copy},
          {"commandQueue", Accessors<&CommandBuffer::queue>::get},
          {"retainedReferences", [](CommandBuffer* self, SEL) { return self->retains_references; }},
          {"rootCommandBuffer", [](CommandBuffer* self, SEL) { return self; }},
          {"commandBuffer", [](CommandBuffer* self, SEL) { return self; }},
          {"status", status_of},
          {"error", Accessors<&CommandBuffer::error>::get},
          {"GPUStartTime", Accessors<&CommandBuffer::start>::get},
          {"GPUEndTime", Accessors<&CommandBuffer::end>::get},
          {"kernelStartTime", Accessors<&CommandBuffer::start>::get},
          {"kernelEndTime", Accessors<&CommandBuffer::end>::get},
          {"computeCommandEncoder",
           [](CommandBuffer* self, SEL method) { return autoreleased_encoder(self, method, 0); }},
          {"computeCommandEncoderWithDispatchType:", autoreleased_encoder},
          {"blitCommandEncoder",
           [](CommandBuffer* self, SEL method) {
             self->check_encoding(self, method);
             return autoreleased(new_blit_encoder(self));
           }},
          {"computeCommandEncoderWithDescriptor:",
           [](CommandBuffer* self, SEL method, id descriptor) {
             Sampling sampling = sampling_of(descriptor, true, self, method);
             id made = autoreleased_encoder(self, method, dispatch_type_of(descriptor));
             sample_bounds(made, std::move(sampling));
             return made;
           }},
          {"blitCommandEncoderWithDescriptor:",
           [](CommandBuffer* self, SEL method, id descriptor) {
             Sampling sampling = sampling_of(descriptor, false, self, method);
             self->check_encoding(self, method);
             id made = autoreleased(new_blit_encoder(self));
             sample_bounds(made, std::move(sampling));
             return made;
           }},
          {"enqueue",
           [](CommandBuffer* self, SEL method) {
             check_not_committed(self, method);
             if (!self->life.is_of_stream) enqueue(self);
           }},
          {"commit", [](CommandBuffer* self, SEL method) { commit(self, self, method); }},
          {"commitAndContinue",
           [](CommandBuffer* self, SEL method) {
             if (self->life.is_of_stream) return commit_and_continue(self);
             TORCH_CHECK_NOT_IMPLEMENTED(false, written(self, method),
                                         ": the software Metal device has this for the command "
                                         "buffer of torch's stream only");
           }},
          {"waitUntilScheduled",
           [](CommandBuffer* self, SEL method) {
             validation::check_wait(self->life, call_of(self, method));
           }},
          {"waitUntilCompleted",
           [](CommandBuffer* self, SEL method) { wait_until_completed(self, self, method); }},
          {"addScheduledHandler:",
           [](CommandBuffer* self, SEL method, id block) {
             check_not_committed(self, method);
             self->scheduled.push_back(keep_block(block));
           }},
          {"addCompletedHandler:",
           [](CommandBuffer* self, SEL method, id block) {
             check_not_committed(self, method);
             self->completed.push_back(keep_block(block));
           }},
          {"encodeSignalEvent:value:", signal_event},
          {"encodeWaitForEvent:value:", wait_for_event},
          {"useResidencySet:", nothing_with_object},
          {"useResidencySets:count:", nothing_with_objects},
          {"pushDebugGroup:", nothing_with_object},
          {"popDebugGroup", nothing},
      },
      {
          {"commandBufferFromCommandQueue:",
           [](id, SEL, id queue) { return autoreleased(new_command_buffer(queue)); }},
          {"commandBufferWithCommandBuffer:", [](id, SEL, id buffer) { return buffer; }},
      },
      {"MTLCommandBuffer"});
}

id make_command_buffer(id self, SEL) { return autoreleased(new_command_buffer(self)); }
id make_buffer_that_retains_nothing(id self, SEL) {
  auto* made = static_cast<CommandBuffer*>(new_command_buffer(self));
  made->retains_references = false;
  return autoreleased(made);
}

}  // namespace

std::atomic<const char*> torchs_encoder{nullptr};

CommandQueue::~CommandQueue() {
  if (worker != nullptr) dispatch_release(worker);
}

Waiting::Waiting() {
  Lock lock(guard().mutex);
  ++guard().waiting;
  guard().changed.notify_all();
}
Waiting::~Waiting() {
  Lock lock(guard().mutex);
  --guard().waiting;
}

bool is_in_flight(const void* memory) {
  Lock lock(guard().mutex);
  return guard().in_flight.count(memory) != 0;
}

void check_contents(const void* memory, id self, SEL method) {
  if (!validation::is_enabled()) return;
  {
    Lock lock(guard().mutex);
    const auto found = guard().in_flight.find(memory);
    if (found == guard().in_flight.end() || found->second.writes == 0) return;
  }
  validation::report(validation::Rule::kContentsInFlight,
                     written(self, method) +
                         ": a command buffer that writes the buffer has not "
                         "completed");
}

void wait_until_unused(const void* memory) {
  if (is_worker || !is_in_flight(memory)) return;
  // So long does no work take; a thread that holds what it needs would wait for ever.
  constexpr std::chrono::seconds kLongest{30};
  const WithoutGil no_gil;
  const Waiting waiting;
  Lock lock(guard().mutex);
  guard().changed.wait_for(lock, kLongest, [=] { return guard().in_flight.count(memory) == 0; });
}

void CommandBuffer::check_encoding(id self, SEL method) {
  if (life.is_of_stream) life.torchs_encoder = torchs_encoder;
  validation::check_encoding(life, call_of(self, method));
}

void CommandBuffer::add(Command command) {
  if (life.is_of_stream) {
    command();
  } else {
    life.has_work = true;
    commands.push_back(std::move(command));
  }
}

void CommandBuffer::check_order(exec::StreamWork work) {
  if (!validation::is_enabled()) return;
  using validation::Rule;
  work.advice = {validation::text_of(Rule::kUnsynchronisedQueue),
                 validation::text_of(Rule::kFreedInFlight), validation::caller(),
                 validation::place_of};
  if (life.is_of_stream) {
    work.stream = streams::current();
    return exec::check_order(std::move(work));
  }
  work.stream = static_cast<CommandQueue*>(queue.get())->number;
  for (const auto& access : work.accesses) used.push_back({access.allocation, access.writes});
  if (waits_for_events) {
    add([work] {
      exec::check_order(work);
      return true;
    });
  } else {
    checks.emplace_back([work] { exec::check_order(work); });
  }
}

void commit(id object, id self, SEL method) {
  auto* buffer = static_cast<CommandBuffer*>(object);
  validation::check_commit(buffer->life, call_of(self, method));
  const Strong kept(buffer);
  buffer->life.is_committed = true;
  if (buffer->life.is_of_stream) {
    buffer->status = CommandBuffer::kCompleted;
    finish(buffer);
    return;
  }
  auto* queue = static_cast<CommandQueue*>(buffer->queue.get());
  std::exception_ptr unordered;
  for (const auto& check : std::exchange(buffer->checks, {})) {
    try {
      check();
    } catch (...) {
      if (!unordered) unordered = std::current_exception();
    }
  }
  buffer->clock = exec::clock_of(queue->number);
  count_uses(buffer, 1);
  enqueue(buffer);
  buffer->status = CommandBuffer::kCommitted;
  continue_queue(queue);
  if (unordered) std::rethrow_exception(unordered);
  if (queue->worker != nullptr) return;
  if (buffer->failure) std::rethrow_exception(std::exchange(buffer->failure, nullptr));
}

void wait_until_completed(id object, id self, SEL method) {
  auto* buffer = static_cast<CommandBuffer*>(object);
  // All that was encoded on the stream has run, whether torch has committed it or not.
  if (buffer->life.is_of_stream) exec::host_waits(exec::clock_of(streams::current()));
  if (buffer->life.is_of_stream && !buffer->life.is_committed) return;
  validation::check_wait(buffer->life, call_of(self, method));
  if (!buffer->is_done) {
    const WithoutGil no_gil;
    const Waiting waiting;
    Lock lock(guard().mutex);
    guard().changed.wait(lock, [=] { return buffer->is_done.load(); });
  }
  if (!validation::is_enabled()) return;
  exec::host_waits(buffer->clock);
  exec::raise_kept_findings();
  if (buffer->failure) std::rethrow_exception(std::exchange(buffer->failure, nullptr));
}

void commit_and_continue(CommandBuffer* buffer) {
  if (buffer->scheduled.empty() && buffer->completed.empty()) return;
  // Its handlers see a buffer that is completed, while the stream goes on with this one.
  const Strong done = Strong::taken(new_command_buffer(buffer->queue));
  auto* committed = static_cast<CommandBuffer*>(done.get());
  committed->life.is_of_stream = committed->life.is_committed = true;
  committed->label = buffer->label;
  committed->start = committed->end = now();
  std::swap(committed->scheduled, buffer->scheduled);
  std::swap(committed->completed, buffer->completed);
  committed->status = CommandBuffer::kCompleted;
  finish(committed);
}

void signal(id object, uint64_t value) {
  auto* event = static_cast<Event*>(object);
  std::vector<Strong> queues;
  std::vector<std::function<void()>> calls;
  {
    Lock lock(guard().mutex);
    event->value = value;
    std::swap(queues, event->queues);
    std::erase_if(event->notifications, [&](const Event::Notification& one) {
      if (one.value > value) return false;
      calls.push_back(one.call);
      return true;
    });
  }
  guard().changed.notify_all();
  for (const auto& call : calls) call();
  for (id queue : queues) continue_queue(static_cast<CommandQueue*>(queue));
}

void notify(id object, uint64_t value, std::function<void()> call) {
  auto* event = static_cast<Event*>(object);
  {
    Lock lock(guard().mutex);
    if (event->value < value) {
      event->notifications.push_back({value, std::move(call)});
      return;
    }
  }
  call();
}

id new_event() { return allocate(&class_MetalopsEvent); }
id new_command_queue(bool is_torchs) {
  auto* made = make<CommandQueue>(&class_MetalopsCommandQueue);
  if (!validation::is_enabled() || is_torchs) return made;
  static std::atomic<int64_t> count{0};
  made->number = exec::kStreams + count++ % exec::kQueues;
  made->worker = dispatch_queue_create("Metal command queue", nullptr);
  return made;
}

id new_command_buffer(id queue) {
  auto* made = make<CommandBuffer>(&class_MPSCommandBuffer);
  made->queue = Strong(queue);
  made->life.made_at = validation::noted_caller();
  return made;
}

void define_commands() {
  define_events();
  define_command_buffer();
  define<CommandQueue>(
      METALOPS_OBJC_SYMBOLS(MetalopsCommandQueue), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&CommandQueue::label>::get},
          {"setLabel:", Accessors<&CommandQueue::label>::set_copy},
          {"commandBuffer", make_command_buffer},
          {"commandBufferWithUnretainedReferences", make_buffer_that_retains_nothing},
          // All memory is resident.
          {"addResidencySet:", nothing_with_object},
          {"addResidencySets:count:", nothing_with_objects},
          {"removeResidencySet:", nothing_with_object},
          {"removeResidencySets:count:", nothing_with_objects},
      },
      {}, {"MTLCommandQueue"});
}

}  // namespace metalops::objc

// Grand Central Dispatch.
#include <c10/util/Exception.h>
#include <dispatch/dispatch.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <csrc/host/objc/blocks.h>
#include <csrc/host/objc/dispatch.h>
#include <csrc/validation/rules.h>

using metalops::objc::call_block;
using metalops::objc::keep_block;
using metalops::objc::KeptBlock;

namespace metalops::objc::dispatch {

// A counted object, which dispatch_release takes.
struct Object {
  virtual ~Object() = default;
  std::atomic<int> references{1};
  void retain() { references.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

// A reference that is counted.
template <class T>
class Reference {
 public:
  explicit Reference(T* object) : object_(object) { object_->retain(); }
  Reference(const Reference& other) : Reference(other.object_) {}
  Reference& operator=(const Reference&) = delete;
  ~Reference() { object_->release(); }
  T* operator->() const { return object_; }

 private:
  T* const object_;
};

}  // namespace metalops::objc::dispatch

using metalops::objc::dispatch::Object;
using metalops::objc::dispatch::Reference;

namespace {

const void* address_of(dispatch_block_t block) { return reinterpret_cast<const void*>(block); }

std::chrono::steady_clock::time_point point_of(dispatch_time_t when) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(when));
}
uint64_t now() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Waits until a condition holds; returns false if it does not at `timeout`.
template <class Condition>
bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
          dispatch_time_t timeout, Condition holds) {
  if (timeout == DISPATCH_TIME_NOW || holds()) return holds();
  const metalops::objc::Waiting waiting;
  if (timeout != DISPATCH_TIME_FOREVER) return changed.wait_until(lock, point_of(timeout), holds);
  changed.wait(lock, holds);
  return true;
}

}  // namespace

// Work takes a number when it is submitted, and begins in the order of the numbers. Barriers run
// alone; on a serial queue all work is a barrier. A thread whose turn it is takes no lock: each
// launch of a program is a dispatch_sync.
struct dispatch_queue_s final : Object {
  dispatch_queue_s(const char* label, bool is_concurrent)
      : label(label != nullptr ? label : ""), is_concurrent(is_concurrent) {}

  const std::string label;
  const bool is_concurrent;

  void run(bool is_barrier, const std::function<void()>& work) {
    // A concurrent queue is only blocked by barriers, and by this thread only through them.
    if (is_barrier && runs_here()) {
      using metalops::validation::Rule;
      metalops::validation::report(
          Rule::kDispatchSyncOnOwnQueue,
          "dispatch_sync: the queue '" + label +
              "' already runs the block that calls it; on a Mac this blocks forever");
    }
    run(take_number(), is_barrier, work);
  }

  bool runs_here() const {
    return runner.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  void submit(bool is_barrier, std::function<void()> work) {
    Reference<dispatch_queue_s> self(this);
    if (is_concurrent) {
      std::thread([self, number = take_number(), is_barrier, work = std::move(work)] {
        self->run(number, is_barrier, work);
      }).detach();
      return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    waiting.emplace_back(next_number++, std::move(work));
    if (std::exchange(has_worker, true)) return;
    std::thread([self] { self->drain(); }).detach();
  }

 private:
  // Marks work as running, until it ends or throws. Nothing else begins while a barrier runs, as it
  // keeps its number.
  class Running {
   public:
    Running(dispatch_queue_s& queue, uint64_t number, bool is_barrier)
        : queue_(queue), is_barrier_(is_barrier) {
      queue.wait_for_turn(number, is_barrier);
      if (is_barrier) {
        queue.runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
      } else {
        ++queue.running;
        ++queue.next_to_begin;
        queue.wake();
      }
    }
    ~Running() {
      if (is_barrier_) {
        queue_.runner.store(std::thread::id(), std::memory_order_relaxed);
        ++queue_.next_to_begin;
      } else {
        --queue_.running;
      }
      queue_.wake();
    }
    Running(const Running&) = delete;

   private:
    dispatch_queue_s& queue_;
    const bool is_barrier_;
  };

  uint64_t take_number() { return next_number++; }

  void wait_for_turn(uint64_t number, bool is_barrier) {
    const auto may_begin = [&] { return next_to_begin == number && (!is_barrier || running == 0); };
    if (may_begin()) return;
    std::unique_lock<std::mutex> lock(mutex);
    ++waiting_threads;
    changed.wait(lock, may_begin);
    --waiting_threads;
  }

  // Wakes threads after a change. One that begins to wait meanwhile either is seen here, or sees
  // the change: both sides write before they read, in one order for all threads.
  void wake() {
    if (waiting_threads == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    changed.notify_all();
  }

  void run(uint64_t number, bool is_barrier, const std::function<void()>& work) {
    const Running running(*this, number, is_barrier);
    work();
  }

  // The work of a serial queue runs on one thread, which ends when there is no more.
  void drain() {
    for (;;) {
      std::pair<uint64_t, std::function<void()>> work;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (waiting.empty()) {
          has_worker = false;
          return;
        }
        work = std::move(waiting.front());
        waiting.pop_front();
      }
      run(work.first, /*is_barrier=*/true, work.second);
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<uint64_t> next_number{0};
  std::atomic<uint64_t> next_to_begin{0};
  std::atomic<int> running{0};  // work that is no barrier
  std::atomic<int> waiting_threads{0};
  std::atomic<std::thread::id> runner{};  // of the barrier that runs
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting;
  bool has_worker = false;
};

struct dispatch_data_s final : Object {
  std::vector<char> bytes;
};

struct dispatch_semaphore_s final : Object {
  std::mutex mutex;
  std::condition_variable changed;
  intptr_t value = 0;
};

struct dispatch_group_s final : Object {
  struct Notification {
    Reference<dispatch_queue_s> queue;
    KeptBlock block;
  };
  std::mutex mutex;
  std::condition_variable changed;
  intptr_t inside = 0;
  std::vector<Notification> notifications;
};

namespace metalops::objc {

void submit(dispatch_queue_t queue, std::function<void()> work) {
  queue->submit(/*is_barrier=*/!queue->is_concurrent, std::move(work));
}

bool runs_on(dispatch_queue_t queue) { return queue->runs_here(); }

}  // namespace metalops::objc

extern "C" {

// Attributes are objects on a Mac, too, but are not counted.
static bool is_attribute(const void* object) { return reinterpret_cast<uintptr_t>(object) <= 1; }

void dispatch_retain(dispatch_object_t object) {
  if (!is_attribute(object)) static_cast<Object*>(object)->retain();
}
void dispatch_release(dispatch_object_t object) {
  if (!is_attribute(object)) static_cast<Object*>(object)->release();
}

// ---- queues -------------------------------------------------------------------------------------

dispatch_queue_t dispatch_queue_create(const char* label, dispatch_queue_attr_t attribute) {
  return new dispatch_queue_s(label, attribute == DISPATCH_QUEUE_CONCURRENT);
}
dispatch_queue_attr_t dispatch_queue_attr_make_with_qos_class(dispatch_queue_attr_t attribute,
                                                              dispatch_qos_class_t, int) {
  return attribute;
}
dispatch_queue_t dispatch_get_main_queue(void) {
  static auto* queue = new dispatch_queue_s("com.apple.main-thread", false);
  return queue;
}
dispatch_queue_t dispatch_get_global_queue(intptr_t, uintptr_t) {
  static auto* queue = new dispatch_queue_s("com.apple.root.default-qos", true);
  return queue;
}
const char* dispatch_queue_get_label(dispatch_queue_t queue) {
  return queue != nullptr ? queue->label.c_str() : "";
}

void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block) {
  queue->run(!queue->is_concurrent, [block] { call_block(address_of(block)); });
}
void dispatch_sync_f(dispatch_queue_t queue, void* context, dispatch_function_t work) {
  queue->run(!queue->is_concurrent, [=] { work(context); });
}
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block) {
  metalops::objc::submit(queue, [kept = keep_block(address_of(block))] { call_block(kept.get()); });
}
void dispatch_async_f(dispatch_queue_t queue, void* context, dispatch_function_t work) {
  metalops::objc::submit(queue, [=] { work(context); });
}
void dispatch_barrier_sync(dispatch_queue_t queue, dispatch_block_t block) {
  queue->run(/*is_barrier=*/true, [block] { call_block(address_of(block)); });
}
void dispatch_barrier_async(dispatch_queue_t queue, dispatch_block_t block) {
  queue->submit(/*is_barrier=*/true,
                [kept = keep_block(address_of(block))] { call_block(kept.get()); });
}
void dispatch_after(dispatch_time_t when, dispatch_queue_t queue, dispatch_block_t block) {
  if (when == DISPATCH_TIME_FOREVER) return;
  Reference<dispatch_queue_s> target(queue);
  std::thread([when, target, kept = keep_block(address_of(block))] {
    std::this_thread::sleep_until(point_of(when));
    metalops::objc::submit(target.operator->(), [kept] { call_block(kept.get()); });
  }).detach();
}
// The order of the iterations is not defined; one after the other is one of them.
void dispatch_apply(size_t count, dispatch_queue_t queue, metalops_dispatch_apply_block_t block) {
  const auto work = [&] {
    for (size_t i = 0; i < count; ++i) call_block(reinterpret_cast<const void*>(block), i);
  };
  if (queue == DISPATCH_APPLY_AUTO) {
    work();
  } else {
    queue->run(!queue->is_concurrent, work);
  }
}

// ---- once ---------------------------------------------------------------------------------------

constexpr dispatch_once_t kDone = -1;

static void once(dispatch_once_t* predicate, const std::function<void()>& work) {
  static auto& mutex = *new std::mutex;
  static auto& changed = *new std::condition_variable;
  constexpr dispatch_once_t kRunning = 1;
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return *predicate != kRunning; });
    if (*predicate == kDone) return;
    *predicate = kRunning;
  }
  const auto end = [&](dispatch_once_t state) {
    std::lock_guard<std::mutex> lock(mutex);
    __atomic_store_n(predicate, state, __ATOMIC_RELEASE);
    changed.notify_all();
  };
  try {
    work();
  } catch (...) {
    end(0);
    throw;
  }
  end(kDone);
}
void dispatch_once(dispatch_once_t* predicate, dispatch_block_t block) {
  if (__atomic_load_n(predicate, __ATOMIC_ACQUIRE) == kDone) return;
  once(predicate, [block] { call_block(address_of(block)); });
}
void dispatch_once_f(dispatch_once_t* predicate, void* context, dispatch_function_t work) {
  if (__atomic_load_n(predicate, __ATOMIC_ACQUIRE) == kDone) return;
  once(predicate, [=] { work(context); });
}

// ---- time ---------------------------------------------------------------------------------------

dispatch_time_t dispatch_time(dispatch_time_t when, int64_t nanoseconds) {
  if (when == DISPATCH_TIME_FOREVER) return when;
  return (when == DISPATCH_TIME_NOW ? now() : when) + static_cast<uint64_t>(nanoseconds);
}
dispatch_time_t dispatch_walltime(const struct timespec* when, int64_t nanoseconds) {
  if (when == nullptr) return dispatch_time(DISPATCH_TIME_NOW, nanoseconds);
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t ahead = (when->tv_sec - wall.tv_sec) * 1000000000 + when->tv_nsec - wall.tv_nsec;
  return dispatch_time(DISPATCH_TIME_NOW, ahead + nanoseconds);
}

// ---- data ---------------------------------------------------------------------------------------

dispatch_data_t dispatch_data_create(const void* buffer, size_t size, dispatch_queue_t,
                                     dispatch_block_t destructor) {
  auto* data = new dispatch_data_s;
  const auto* begin = static_cast<const char*>(buffer);
  data->bytes.assign(begin, begin + size);
  const void* block = address_of(destructor);
  if (destructor == DISPATCH_DATA_DESTRUCTOR_FREE) {
    std::free(const_cast<void*>(buffer));
  } else if (block != nullptr) {
    call_block(block);  // the bytes were copied
  }
  return data;
}
size_t dispatch_data_get_size(dispatch_data_t data) {
  return data != nullptr ? data->bytes.size() : 0;
}
dispatch_data_t dispatch_data_create_map(dispatch_data_t data, const void** buffer, size_t* size) {
  if (buffer != nullptr) *buffer = data != nullptr ? data->bytes.data() : nullptr;
  if (size != nullptr) *size = dispatch_data_get_size(data);
  dispatch_retain(data);
  return data;
}

// ---- semaphores and groups ----------------------------------------------------------------------

dispatch_semaphore_t dispatch_semaphore_create(intptr_t value) {
  if (value < 0) return nullptr;
  auto* semaphore = new dispatch_semaphore_s;
  semaphore->value = value;
  return semaphore;
}
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout) {
  std::unique_lock<std::mutex> lock(semaphore->mutex);
  if (!wait(semaphore->changed, lock, timeout, [=] { return semaphore->value > 0; })) return 1;
  --semaphore->value;
  return 0;
}
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore) {
  std::lock_guard<std::mutex> lock(semaphore->mutex);
  ++semaphore->value;
  semaphore->changed.notify_one();
  return 0;
}

dispatch_group_t dispatch_group_create(void) { return new dispatch_group_s; }
void dispatch_group_enter(dispatch_group_t group) {
  group->retain();
  std::lock_guard<std::mutex> lock(group->mutex);
  ++group->inside;
}
void dispatch_group_leave(dispatch_group_t group) {
  std::vector<dispatch_group_s::Notification> notifications;
  {
    std::lock_guard<std::mutex> lock(group->mutex);
    TORCH_CHECK(group->inside > 0, "dispatch_group_leave: nothing is in the group");
    if (--group->inside == 0) std::swap(notifications, group->notifications);
    group->changed.notify_all();
  }
  for (const auto& one : notifications) {
    metalops::objc::submit(one.queue.operator->(),
                           [block = one.block] { call_block(block.get()); });
  }
  group->release();
}
intptr_t dispatch_group_wait(dispatch_group_t group, dispatch_time_t timeout) {
  std::unique_lock<std::mutex> lock(group->mutex);
  return wait(group->changed, lock, timeout, [=] { return group->inside == 0; }) ? 0 : 1;
}
void dispatch_group_async(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block) {
  dispatch_group_enter(group);
  metalops::objc::submit(queue, [group, kept = keep_block(address_of(block))] {
    call_block(kept.get());
    dispatch_group_leave(group);
  });
}
void dispatch_group_notify(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block) {
  dispatch_group_enter(group);
  {
    std::lock_guard<std::mutex> lock(group->mutex);
    group->notifications.push_back(
        {Reference<dispatch_queue_s>(queue), keep_block(address_of(block))});
  }
  dispatch_group_leave(group);
}

}  // extern "C"

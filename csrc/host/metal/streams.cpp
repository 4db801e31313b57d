// Queues of streams, and whoever waits for them.
#include <metal/streams.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace metalops {

GilSafeMutex& Turn::mutex = *new GilSafeMutex;

namespace streams {

Followers followers;

namespace detail {
std::atomic<bool> in_use{false};
std::atomic<int64_t> queued{0};
}  // namespace detail

namespace {

// A queue that grows longer than this runs the older half of its work: memory of tensors that are
// gone stays allocated as long as work is queued.
constexpr size_t kMostQueued = 4096;
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

struct Work {
  std::string name;
  std::function<void()> run;
  uint64_t number;           // in the order of submission to all streams
  std::thread::id runner{};  // the thread that runs it
};

struct Queue {
  std::deque<std::shared_ptr<Work>> works;
  uint64_t submitted = 0;
  uint64_t done = 0;
};

struct Kept {
  uint64_t number;  // of the newest work that may use the object
  void* object;
  void (*release)(void*);
};

struct State {
  ForkSafeMutex mutex;
  std::array<Queue, kCount> queues;
  uint64_t submitted = 0;
  std::deque<Kept> kept;
  std::exception_ptr error;
};
State& state = *new State;

thread_local Id current_stream = kDefault;
std::atomic<bool> has_pool{false};
std::atomic<uint32_t> next_of_pool{0};

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// RAII: selects a stream.
class Selected {
 public:
  explicit Selected(Id stream) : before_(std::exchange(current_stream, stream)) {}
  ~Selected() { current_stream = before_; }
  Selected(const Selected&) = delete;

 private:
  const Id before_;
};

Queue& queue_of(Id stream) { return state.queues[static_cast<size_t>(stream)]; }

uint64_t submitted(Id stream) {
  std::lock_guard<ForkSafeMutex> lock(state.mutex);
  return queue_of(stream).submitted;
}

bool is_done(Id stream, uint64_t count) {
  std::lock_guard<ForkSafeMutex> lock(state.mutex);
  return queue_of(stream).done >= count;
}

// Removes the work that has run from its queue, and releases what no queued work may use any more.
void finish(Id stream) {
  std::shared_ptr<Work> work;
  std::vector<Kept> unused;
  {
    std::lock_guard<ForkSafeMutex> lock(state.mutex);
    Queue& queue = queue_of(stream);
    work = std::move(queue.works.front());
    queue.works.pop_front();
    ++queue.done;
    detail::queued.fetch_sub(1, std::memory_order_release);
    uint64_t oldest = kAll;
    for (const Queue& other : state.queues) {
      if (!other.works.empty()) oldest = std::min(oldest, other.works.front()->number);
    }
    while (!state.kept.empty() && state.kept.front().number < oldest) {
      unused.push_back(state.kept.front());
      state.kept.pop_front();
    }
  }
  // Both may free tensors, which takes the lock.
  work.reset();
  for (const Kept& kept : unused) kept.release(kept.object);
}

void keep_error(const Work& work, Id stream, c10::Error& error) {
  error.add_context(c10::str("in '", work.name, "', queued on mps stream ", stream));
  std::lock_guard<ForkSafeMutex> lock(state.mutex);
  if (!state.error) state.error = std::current_exception();
}

// Runs the oldest work of a stream, unless its first `count` works are done. Returns false if there
// was none to run. A handler of signals that runs within a work does not begin another one of the
// same stream. A forked child runs anew what another thread of its parent had begun.
bool run_oldest(Id stream, uint64_t count) {
  std::shared_ptr<Work> work;
  {
    std::lock_guard<ForkSafeMutex> lock(state.mutex);
    Queue& queue = queue_of(stream);
    if (queue.done >= count || queue.works.empty()) return false;
    work = queue.works.front();
    if (work->runner == std::this_thread::get_id()) return false;
    work->runner = std::this_thread::get_id();
  }
  const Selected selected(kDefault);
  try {
    work->run();
  } catch (c10::Error& error) {
    keep_error(*work, stream, error);
  } catch (...) {
    finish(stream);
    throw;  // what a handler of signals raises belongs to the thread that waits
  }
  work.reset();
  finish(stream);
  return true;
}

void run_until(Id stream, uint64_t count) {
  if (is_done(stream, count)) return;
  const WithoutGil no_gil;
  Turn turn;
  while (run_oldest(stream, count)) {
  }
}

void raise_error() {
  std::exception_ptr error;
  {
    std::lock_guard<ForkSafeMutex> lock(state.mutex);
    error = std::exchange(state.error, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

void step(Id stream) {
  const WithoutGil no_gil;
  Turn turn;
  run_oldest(stream, kAll);
}

}  // namespace

void set_in_use() { detail::in_use = true; }

Id current() { return current_stream; }

void set_current(Id stream) {
  if (stream != kDefault) set_in_use();
  current_stream = stream;
}

Id from_pool() {
  if (!has_pool) return kDefault;
  return 1 + next_of_pool.fetch_add(1, std::memory_order_relaxed) % (kCount - 1);
}

void make_pool() { has_pool = true; }

void check(Id stream) {
  TORCH_CHECK(0 <= stream && stream < kCount, "Invalid MPS stream ID: ", stream,
              "; there are the default stream, 0, and ", kCount - 1, " streams in the pool");
}

void submit(std::string name, std::function<void()> work) {
  const Id stream = current_stream;
  TORCH_INTERNAL_ASSERT(stream != kDefault);
  auto queued = std::make_shared<Work>(Work{std::move(name), std::move(work), 0});
  uint64_t overdue = 0;
  {
    std::lock_guard<ForkSafeMutex> lock(state.mutex);
    Queue& queue = queue_of(stream);
    queued->number = ++state.submitted;
    queue.works.push_back(std::move(queued));
    ++queue.submitted;
    detail::queued.fetch_add(1, std::memory_order_release);
    if (queue.works.size() > kMostQueued) overdue = queue.submitted - kMostQueued / 2;
  }
  if (overdue != 0) run_until(stream, overdue);
}

void before_direct_work() {
  if (!is_current_default()) run_until(current_stream, submitted(current_stream));
}

void run_all() {
  for (Id stream = kDefault; stream < kCount; ++stream) run_until(stream, submitted(stream));
}

bool keep(void* object, void (*release)(void*)) {
  std::lock_guard<ForkSafeMutex> lock(state.mutex);
  if (!has_queued()) return false;
  state.kept.push_back({state.submitted, object, release});
  return true;
}

std::shared_ptr<Recording> record(Id stream) {
  auto recording = std::make_shared<Recording>();
  recording->stream_ = stream;
  recording->clock_ = exec::clock_of(stream);
  if (is_done(stream, submitted(stream))) {
    recording->reached_ = now();
    return recording;
  }
  const Selected selected(stream);
  submit("event", [recording] { recording->reached_ = now(); });
  recording->count_ = submitted(stream);
  return recording;
}

void wait(Id stream, const std::shared_ptr<Recording>& recording) {
  exec::stream_waits(stream, recording->clock_);
  if (recording->stream_ == stream || is_done(recording->stream_, recording->count_)) return;
  if (stream == kDefault) {
    run_until(recording->stream_, recording->count_);
    return;
  }
  const Selected selected(stream);
  submit("wait for an event", [recording] { run_until(recording->stream_, recording->count_); });
}

void synchronize(const Recording& recording) {
  run_until(recording.stream_, recording.count_);
  exec::host_waits(recording.clock_);
  raise_error();
}

void synchronize(Id stream) {
  if (!in_use()) return;
  const exec::StreamClock clock = exec::clock_of(stream);
  run_until(stream, submitted(stream));
  exec::host_waits(clock);
  raise_error();
}

void synchronize_all() {
  if (!in_use()) return;
  for (Id stream = kDefault; stream < kCount; ++stream) {
    run_until(stream, submitted(stream));
    exec::host_waits(exec::clock_of(stream));
  }
  raise_error();
}

bool query(const Recording& recording) {
  if (is_done(recording.stream_, recording.count_)) return true;
  step(recording.stream_);
  return false;
}

bool query(Id stream) {
  if (is_done(stream, submitted(stream))) return true;
  step(stream);
  return false;
}

}  // namespace streams
}  // namespace metalops

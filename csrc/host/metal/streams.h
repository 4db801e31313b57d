// Streams of the software device: queues of work, and the order between them.
//
// Work on the default stream runs at the call that submits it. Work on another stream is queued and
// runs when something waits for it: the host, another stream through an event, or work that cannot
// be queued. So a program without the synchronisation that a Mac needs reads old values, each time
// that it runs. No thread belongs to a stream: whoever waits runs the queue, under Turn.
//
// Everything here costs default streams one load as long as no thread has selected another stream.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <exec/sanitize/stream_order.h>
#include <locks.h>

namespace metalops {

// Held while kernels run: launches from several CPU threads take turns.
class Turn {
 private:
  static GilSafeMutex& mutex;
  std::lock_guard<GilSafeMutex> lock_{mutex};
};

namespace streams {

// As on a Mac: 0 is the default stream, the others come from a pool, in turn.
using Id = int64_t;
inline constexpr Id kDefault = 0;
inline constexpr Id kCount = exec::kStreams;

namespace detail {
extern std::atomic<bool> in_use;
extern std::atomic<int64_t> queued;
}  // namespace detail

// Returns true once a thread has selected a stream besides the default one, or while the order of
// streams is checked.
inline bool in_use() { return detail::in_use.load(std::memory_order_relaxed); }
void set_in_use();

// Returns true if any stream has work that is not done.
inline bool has_queued() { return detail::queued.load(std::memory_order_acquire) != 0; }

// The current stream of this thread.
Id current();
void set_current(Id stream);
inline bool is_current_default() { return !in_use() || current() == kDefault; }

// Returns the next stream of the pool. Without a pool, which versions of torch before torch.mps's
// streams do not have, it is the default stream.
Id from_pool();
void make_pool();
// Raises RuntimeError for a number that no stream has.
void check(Id stream);

// Queues work of the current stream, which must not be the default one. `name`: of the kernel or
// operator, for errors. The work runs on any thread and must own what it uses, except for device
// memory and kernel libraries (see keep).
void submit(std::string name, std::function<void()> work);

// Runs what the current stream has queued, before work that runs at the call.
void before_direct_work();

// Functions of the Metal API in Objective-C, which follows what torch would have encoded on a Mac.
// Null until it is loaded.
struct Followers {
  enum class Work {
    kLaunch,    // of a kernel by torch's Metal classes, whose encoder stays open
    kOperator,  // of torch's own, by such a kernel or by a graph
    kWait,      // of the host for the stream: a copy to the host or from it
  };
  void (*before_work)(Work work) = nullptr;
  // Before memory of the device may be given to others. May wait.
  void (*before_free)(const void* memory) = nullptr;
};
extern Followers followers;
inline void follow(Followers::Work work) {
  if (followers.before_work != nullptr) followers.before_work(work);
}

// Runs what all streams have queued. Errors are kept for whoever waits.
void run_all();

// Hands over an object that queued work may use: `release(object)` is called when all work queued
// so far is done. Returns false if nothing is queued; then the caller keeps the object.
bool keep(void* object, void (*release)(void*));

// A recording of an event: a point in a stream, after the work that was submitted before it.
class Recording {
 public:
  // Steady clock, in nanoseconds; 0 before the stream has reached the point.
  int64_t reached() const { return reached_.load(std::memory_order_acquire); }

 private:
  friend std::shared_ptr<Recording> record(Id stream);
  friend void wait(Id stream, const std::shared_ptr<Recording>& recording);
  friend void synchronize(const Recording& recording);
  friend bool query(const Recording& recording);

  Id stream_ = kDefault;
  uint64_t count_ = 0;  // of works of the stream
  std::atomic<int64_t> reached_{0};
  exec::StreamClock clock_{};
};
std::shared_ptr<Recording> record(Id stream);
// Lets later work of a stream begin when the point is reached.
void wait(Id stream, const std::shared_ptr<Recording>& recording);

// Let the host wait: for a point, a stream, all streams. Raise the first error of work that has
// run since errors were raised last.
void synchronize(const Recording& recording);
void synchronize(Id stream);
void synchronize_all();

// Return true if a point or a stream is done. Otherwise its stream runs one work, so that a program
// that asks again and again comes to an end.
bool query(const Recording& recording);
bool query(Id stream);

}  // namespace streams
}  // namespace metalops

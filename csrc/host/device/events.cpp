// Waiting for events, and the pool behind torch.mps.Event.
#include <c10/util/Exception.h>
#include <device/device.h>
#include <device/events.h>
#include <locks.h>
#include <metal/error_buffer.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace metalops::device {

bool is_reached(const Event& event) {
  return event.recording != nullptr && streams::query(*event.recording);
}

void synchronize(const Event& event) {
  if (event.recording != nullptr) streams::synchronize(*event.recording);
  metalops::raise_reported_errors();
}

double elapsed_milliseconds(const Event& start, const Event& end) {
  TORCH_CHECK(start.timed && end.timed,
              "Events were not created with argument 'enable_timing=True'");
  TORCH_CHECK(start.recording != nullptr && end.recording != nullptr,
              "Both events must be recorded before calculating elapsed time.");
  streams::synchronize(*start.recording);
  streams::synchronize(*end.recording);
  return static_cast<double>(end.recording->reached() - start.recording->reached()) * 1e-6;
}

namespace event_pool {
namespace {

struct Pool {
  ForkSafeMutex mutex;
  std::unordered_map<uint32_t, Event> events;
  uint32_t last = 0;

  Event& find(uint32_t id) {
    auto it = events.find(id);
    TORCH_CHECK(it != events.end(), "Invalid Event ID: ", id);
    return it->second;
  }
  // Returns a copy: the lock is not held while work runs.
  Event get(uint32_t id) {
    std::lock_guard<ForkSafeMutex> lock(mutex);
    return find(id);
  }
};

Pool& pool = *new Pool;

}  // namespace

uint32_t acquire(bool timed) {
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  const uint32_t id = ++pool.last;
  pool.events[id].timed = timed;
  return id;
}

void release(uint32_t id) {
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  TORCH_CHECK(pool.events.erase(id) == 1, "Invalid Event ID: ", id);
}

void record(uint32_t id) {
  pool.get(id);  // raises before anything is recorded
  auto recording = streams::record(streams::current());
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  pool.find(id).recording = std::move(recording);
}

void wait(uint32_t id) { pool.get(id).wait(streams::current()); }

void synchronize(uint32_t id) { device::synchronize(pool.get(id)); }

bool query(uint32_t id) { return is_reached(pool.get(id)); }

double elapsed(uint32_t start, uint32_t end) {
  return elapsed_milliseconds(pool.get(start), pool.get(end));
}

}  // namespace event_pool
}  // namespace metalops::device

// Recording of events, and the pool behind torch.mps.Event.
#include <c10/util/Exception.h>
#include <device/device.h>
#include <device/events.h>
#include <locks.h>

#include <chrono>
#include <unordered_map>

namespace metalops::device {

void Event::record() {
  nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                    std::chrono::steady_clock::now().time_since_epoch())
                    .count();
  recorded = true;
}

double elapsed_milliseconds(const Event& start, const Event& end) {
  TORCH_CHECK(start.timed && end.timed,
              "Events were not created with argument 'enable_timing=True'");
  TORCH_CHECK(start.recorded && end.recorded,
              "Both events must be recorded before calculating elapsed time.");
  return static_cast<double>(static_cast<int64_t>(end.nanoseconds - start.nanoseconds)) * 1e-6;
}

namespace event_pool {
namespace {

struct Pool {
  ForkSafeMutex mutex;
  std::unordered_map<uint32_t, Event> events;
  uint32_t last = 0;

  Event& get(uint32_t id) {
    auto it = events.find(id);
    TORCH_CHECK(it != events.end(), "Invalid Event ID: ", id);
    return it->second;
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
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  pool.get(id).record();
}

void wait(uint32_t id) {
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  pool.get(id);
}

bool query(uint32_t id) {
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  return pool.get(id).recorded;
}

double elapsed(uint32_t start, uint32_t end) {
  std::lock_guard<ForkSafeMutex> lock(pool.mutex);
  return elapsed_milliseconds(pool.get(start), pool.get(end));
}

}  // namespace event_pool
}  // namespace metalops::device

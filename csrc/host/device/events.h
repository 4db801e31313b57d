// Events of the device's only stream. Work is done when the call that submits it returns, so
// recording an event completes it.
#pragma once
#include <cstdint>

namespace metalops::device {

struct Event {
  bool timed = true;
  bool recorded = false;
  uint64_t nanoseconds = 0;  // steady clock

  void record();
};

// Returns the milliseconds between two recorded events.
double elapsed_milliseconds(const Event& start, const Event& end);

// Events that torch.mps.Event refers to by number.
namespace event_pool {
uint32_t acquire(bool timed);
void release(uint32_t id);
void record(uint32_t id);
void wait(uint32_t id);
bool query(uint32_t id);
double elapsed(uint32_t start, uint32_t end);
}  // namespace event_pool

}  // namespace metalops::device

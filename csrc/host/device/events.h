// Events: points in streams that other streams and the host can wait for.
#pragma once
#include <metal/streams.h>

#include <cstdint>
#include <memory>

namespace metalops::device {

struct Event {
  bool timed = true;
  std::shared_ptr<streams::Recording> recording;  // the newest; null before the first

  void record(streams::Id stream) { recording = streams::record(stream); }
  void wait(streams::Id stream) const {
    if (recording != nullptr) streams::wait(stream, recording);
  }
};

// Returns true if the work before the newest recording is done; false if there is none.
bool is_reached(const Event& event);

// Lets the host wait for the work before the newest recording.
void synchronize(const Event& event);

// Returns the milliseconds between two recorded events, which the host waits for.
double elapsed_milliseconds(const Event& start, const Event& end);

// Events that torch.mps.Event refers to by number. They are recorded and waited for on the current
// stream.
namespace event_pool {
uint32_t acquire(bool timed);
void release(uint32_t id);
void record(uint32_t id);
void wait(uint32_t id);
void synchronize(uint32_t id);
bool query(uint32_t id);
double elapsed(uint32_t start, uint32_t end);
}  // namespace event_pool

}  // namespace metalops::device

// Work on queues, for the library's own code.
#pragma once
#include <dispatch/dispatch.h>

#include <functional>

namespace metalops::objc {

// Like dispatch_async, for a function of C++.
void submit(dispatch_queue_t queue, std::function<void()> work);

// Returns true if this thread runs work of a serial queue.
bool runs_on(dispatch_queue_t queue);

// RAII: this thread waits, maybe for work of a command queue, which then runs at once.
class Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(const Waiting&) = delete;
};

}  // namespace metalops::objc

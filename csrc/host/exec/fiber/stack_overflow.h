// Turns the memory fault of a fiber that overflows its stack into an error of the launch.
#pragma once

#include <cstddef>
#include <memory>

namespace metalops::exec {

// Who runs fibers on this CPU thread.
class OverflowHandler {
 public:
  // Whether a memory fault at this address is an overflow of a fiber's stack; if so, it has
  // redirected the machine state of the signal handler (its third argument) out of the fiber.
  virtual bool handle_overflow(const void* address, void* signal_context) = 0;

 protected:
  ~OverflowHandler() = default;
};

// Null where no fiber runs.
extern thread_local OverflowHandler* overflow_handler;

// Installs the signal handler, and for this CPU thread a stack for it to run on: it cannot run on
// the one that overflowed.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;  // null when the thread had such a stack already
};

}  // namespace metalops::exec

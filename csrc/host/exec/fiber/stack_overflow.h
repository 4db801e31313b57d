// Turns the memory fault of a fiber that overflows its stack into an error of the launch.
#pragma once

#include <cstddef>
#include <memory>

namespace metalops::exec {

// Interface of the worker that runs fibers on this CPU thread.
class OverflowHandler {
 public:
  // Handles a memory fault at this address if it is an overflow of a fiber's stack: redirects the
  // machine state of the signal handler (its third argument) out of the fiber and returns true.
  virtual bool handle_overflow(const void* address, void* signal_context) = 0;

 protected:
  ~OverflowHandler() = default;
};

// Null while no fiber runs on this thread.
extern thread_local OverflowHandler* overflow_handler;

// Installs the signal handler, and an alternate signal stack for this CPU thread: the handler
// cannot run on the stack that overflowed.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;  // null when the thread had an alternate stack already
};

}  // namespace metalops::exec

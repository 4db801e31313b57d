// See stack_overflow.h.
#include "stack_overflow.h"

#include <signal.h>

#include <mutex>

namespace metalops::exec {

thread_local OverflowHandler* overflow_handler = nullptr;

namespace {

struct sigaction action_before;

void on_fault(int signal, siginfo_t* info, void* signal_context) {
  if (overflow_handler != nullptr &&
      overflow_handler->handle_overflow(info->si_addr, signal_context)) {
    return;
  }
  // Not ours: as if this handler had never been installed.
  if (action_before.sa_flags & SA_SIGINFO) {
    action_before.sa_sigaction(signal, info, signal_context);
  } else if (action_before.sa_handler == SIG_DFL || action_before.sa_handler == SIG_IGN) {
    sigaction(signal, &action_before, nullptr);  // the instruction faults again
  } else {
    action_before.sa_handler(signal);
  }
}

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &action_before);
  });
}

}  // namespace

SignalStack::SignalStack() {
  install_fault_handler();
  stack_t present = {};
  sigaltstack(nullptr, &present);
  if (present.ss_flags & SS_DISABLE) {
    constexpr size_t bytes = 64 * 1024;
    memory_ = std::make_unique<char[]>(bytes);
    stack_t mine = {};
    mine.ss_sp = memory_.get();
    mine.ss_size = bytes;
    sigaltstack(&mine, nullptr);
  }
}

SignalStack::~SignalStack() {
  if (memory_ == nullptr) return;
  stack_t present = {};
  sigaltstack(nullptr, &present);
  if (present.ss_sp == memory_.get()) {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
}

}  // namespace metalops::exec

// The chain of fault handlers.
#include <exec/fiber/fault_handler.h>

#include <mutex>

namespace metalops::exec {
namespace {

ForkSafeMutex mutex;
FaultHandler* handlers = nullptr;
thread_local bool is_passed_on = false;

FaultHandler* ours(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) == 0) return nullptr;
  FaultHandler* handler = handlers;
  while (handler != nullptr && handler->action != action.sa_sigaction) handler = handler->next;
  return handler;
}

bool is_asked(const FaultHandler& handler, int signal) {
  struct sigaction current;
  sigaction(signal, nullptr, &current);
  FaultHandler* asked = ours(current);
  while (asked != nullptr && asked != &handler) asked = ours(asked->before[signal]);
  return asked != nullptr;
}

}  // namespace

void install_fault_handler(FaultHandler& handler, int flags, std::initializer_list<int> signals) {
  std::lock_guard<ForkSafeMutex> lock(mutex);
  if (!handler.is_listed) {
    handler.next = handlers;
    handler.is_listed = true;
    handlers = &handler;
  }
  struct sigaction action = {};
  action.sa_sigaction = handler.action;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | flags;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) {
    if (is_asked(handler, signal)) continue;
    // Written before the handler can be called.
    sigaction(signal, nullptr, &handler.before[signal]);
    sigaction(signal, &action, nullptr);
  }
}

bool is_fault_passed_on() { return is_passed_on; }

void pass_fault_on(const FaultHandler& handler, int signal, siginfo_t* info, void* signal_context) {
  const struct sigaction& before = handler.before[signal];
  const bool is_ours = ours(before) != nullptr;
  const bool has_none = (before.sa_flags & SA_SIGINFO) == 0 &&
                        (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
  if (is_passed_on) {
    ::signal(signal, SIG_DFL);
    raise(signal);
  } else if (has_none) {
    sigaction(signal, &before, nullptr);  // the instruction faults again
  } else {
    is_passed_on = !is_ours;
    if (before.sa_flags & SA_SIGINFO) {
      before.sa_sigaction(signal, info, signal_context);
    } else {
      before.sa_handler(signal);
    }
    is_passed_on = false;
  }
}

}  // namespace metalops::exec

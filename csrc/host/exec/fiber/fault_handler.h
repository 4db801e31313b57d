// Fault signals: a handler is asked first; faults that are not its own go to the previous handler.
#pragma once

#include <signal.h>

#include <initializer_list>

#include <locks.h>

namespace metalops::exec {

template <bool (*handle)(const siginfo_t*, void*)>
struct FaultHandler {
  static inline ForkSafeMutex mutex;
  static inline bool is_installed = false;
  static inline struct sigaction before[NSIG];
};

// Installs `handle`, once. It returns true if the fault was its own and it has redirected the
// machine state (the second argument). `flags`: of sigaction, added to those that every handler
// has.
template <bool (*handle)(const siginfo_t*, void*)>
void install_fault_handler(int flags = 0, std::initializer_list<int> signals = {SIGSEGV}) {
  using Handler = FaultHandler<handle>;
  std::lock_guard<ForkSafeMutex> lock(Handler::mutex);
  if (Handler::is_installed) return;
  struct sigaction action = {};
  action.sa_sigaction = [](int signal, siginfo_t* info, void* signal_context) {
    if (handle(info, signal_context)) return;
    // Not ours: behave as if this handler had never been installed.
    const struct sigaction& before = Handler::before[signal];
    if (before.sa_flags & SA_SIGINFO) {
      before.sa_sigaction(signal, info, signal_context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
      sigaction(signal, &before, nullptr);  // the instruction faults again
    } else {
      before.sa_handler(signal);
    }
  };
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | flags;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) sigaction(signal, &action, &Handler::before[signal]);
  Handler::is_installed = true;
}

}  // namespace metalops::exec

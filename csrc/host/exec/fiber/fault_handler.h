// Fault signals: a handler is asked first; faults that are not its own go to the previous handler.
#pragma once

#include <signal.h>

#include <initializer_list>

#include <locks.h>

namespace metalops::exec {

// A handler of this process, and those that it has replaced, by signal.
struct FaultHandler {
  void (*action)(int, siginfo_t*, void*);
  struct sigaction before[NSIG];
  FaultHandler* next = nullptr;  // the next of our handlers, in no order
  bool is_listed = false;
};

// Makes `handler` the first to be asked, unless it is asked already: first or by others of ours. A
// program may have replaced it since it was installed, as faulthandler.disable() does.
void install_fault_handler(FaultHandler& handler, int flags, std::initializer_list<int> signals);

// Returns true while a handler that is not ours is asked in this thread. One that sends the signal
// again, as faulthandler's does, may come back to ours: then nobody handles it.
bool is_fault_passed_on();
// Asks the handler before, or lets the fault end the process.
void pass_fault_on(const FaultHandler& handler, int signal, siginfo_t* info, void* signal_context);

// Installs `handle`, or puts it back. It returns true if the fault was its own and it has
// redirected the machine state (the second argument). `flags`: of sigaction, added to those that
// every handler has.
template <bool (*handle)(const siginfo_t*, void*)>
void install_fault_handler(int flags = 0, std::initializer_list<int> signals = {SIGSEGV}) {
  static FaultHandler handler = {[](int signal, siginfo_t* info, void* signal_context) {
    if (is_fault_passed_on() || !handle(info, signal_context)) {
      pass_fault_on(handler, signal, info, signal_context);
    }
  }};
  install_fault_handler(handler, flags, signals);
}

}  // namespace metalops::exec

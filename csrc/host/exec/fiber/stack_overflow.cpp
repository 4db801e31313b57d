// The signal handler for stack overflows, and its alternate signal stack.
#include <exec/fiber/stack_overflow.h>

#include <signal.h>

#include <exec/fiber/fault_handler.h>

namespace metalops::exec {

thread_local OverflowHandler* overflow_handler = nullptr;

namespace {

bool is_overflow(const siginfo_t* info, void* signal_context) {
  return overflow_handler != nullptr &&
         overflow_handler->handle_overflow(info->si_addr, signal_context);
}

}  // namespace

SignalStack::SignalStack() {
  install_fault_handler<&is_overflow>();
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

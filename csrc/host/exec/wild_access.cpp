// See wild_access.h.
#include "wild_access.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <mutex>

#include "address_reports.h"
#include "findings.h"
#include "runtime.h"

namespace metalops::exec {
namespace {

struct Fault {
  const void* instruction;
  const void* frame;
  const void* address;
};
thread_local Fault fault;

// Continues where the faulting instruction stood, as if that had called it.
[[noreturn]] void throw_fault() {
  add_fault(fault.instruction, fault.frame, fault.address);
  throw WildAccess();
}

// Faults this close to the stack pointer are overflows of the stack, which the engines report.
constexpr uintptr_t kStackReach = 1 << 20;

// Redirects the machine state of a signal handler to throw_fault; false when the fault is not a
// kernel's.
bool redirect(const siginfo_t* info, void* signal_context) {
  if (SanitizedLaunch::current() == nullptr) return false;
  auto& machine = static_cast<ucontext_t*>(signal_context)->uc_mcontext;
#if defined(__x86_64__)
  auto& instruction = machine.gregs[REG_RIP];
  auto& stack = machine.gregs[REG_RSP];
  const auto frame = machine.gregs[REG_RBP];
#elif defined(__aarch64__)
  auto& instruction = machine.pc;
  auto& stack = machine.sp;
  const auto frame = machine.regs[29];
#else
  return false;
#endif
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address + kStackReach > uintptr_t(stack) && address < uintptr_t(stack) + kStackReach) {
    return false;
  }
  const auto* at = reinterpret_cast<const char*>(instruction);
  if (module_of(at).positions == nullptr) return false;
  fault = {at, reinterpret_cast<const void*>(frame), info->si_addr};
#if defined(__x86_64__)
  // Below what a leaf function may keep under the stack pointer. Unwinding looks up the byte before
  // a return address.
  stack = greg_t(((uintptr_t(stack) - 128) & ~uintptr_t{15}) - 8);
  *reinterpret_cast<const void**>(stack) = at + 1;
#else
  machine.regs[30] = uintptr_t(at) + 4;
#endif
  instruction = reinterpret_cast<uintptr_t>(&throw_fault);
  return true;
}

struct sigaction action_before;

void on_fault(int signal, siginfo_t* info, void* signal_context) {
  if (redirect(info, signal_context)) return;
  if (action_before.sa_flags & SA_SIGINFO) {
    action_before.sa_sigaction(signal, info, signal_context);
  } else if (action_before.sa_handler == SIG_DFL || action_before.sa_handler == SIG_IGN) {
    sigaction(signal, &action_before, nullptr);  // the instruction faults again
  } else {
    action_before.sa_handler(signal);
  }
}

}  // namespace

void catch_wild_accesses() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &action_before);
  });
}

}  // namespace metalops::exec

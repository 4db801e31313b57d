// The fault handler that throws WildAccess in kernels.
#include <exec/sanitize/wild_access.h>

#include <signal.h>
#include <ucontext.h>

#include <cstdint>

#include <exec/fiber/fault_handler.h>
#include <exec/runtime.h>
#include <exec/sanitize/address_reports.h>
#include <exec/sanitize/findings.h>

namespace metalops::exec {
namespace {

struct Fault {
  const void* instruction;
  const void* frame;
  const void* address;
};
thread_local Fault fault;

// Continues at the faulting instruction, as if it had called this function.
[[noreturn]] void throw_fault() {
  add_fault(fault.instruction, fault.frame, fault.address);
  throw WildAccess();
}

// Faults this close to the stack pointer are stack overflows, which the engines report.
constexpr uintptr_t kStackReach = 1 << 20;

// Redirects the machine state of a signal handler to throw_fault; returns false when the fault is
// not a kernel's.
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
  // Skips the red zone that a leaf function may use below the stack pointer. Unwinding looks up the
  // byte before a return address.
  stack = greg_t(((uintptr_t(stack) - 128) & ~uintptr_t{15}) - 8);
  *reinterpret_cast<const void**>(stack) = at + 1;
#else
  machine.regs[30] = uintptr_t(at) + 4;
#endif
  instruction = reinterpret_cast<uintptr_t>(&throw_fault);
  return true;
}

}  // namespace

void catch_wild_accesses() { install_fault_handler<&redirect>(SA_NODEFER); }

}  // namespace metalops::exec

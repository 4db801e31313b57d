// Context switches in assembly for x86-64 and AArch64, and with ucontext elsewhere.
#include <exec/fiber/switch.h>

#include <cstdint>
#include <cstring>

#if METALOPS_SWITCH_IS_TOLD
#include <unordered_map>
#endif

namespace metalops::exec {
namespace {

// Names the stack of a context for ThreadSanitizer. A restarted stack keeps its name: making one
// takes longer than everything else.
void name_stack([[maybe_unused]] Context& context, [[maybe_unused]] void* bottom) {
#if METALOPS_SWITCH_IS_TOLD
  static thread_local std::unordered_map<void*, void*> names;
  void*& name = names[bottom];
  if (name == nullptr) name = __tsan_create_fiber(0);
  context.fiber = name;
#endif
}

}  // namespace
}  // namespace metalops::exec

#if METALOPS_SWITCH_UCONTEXT

namespace metalops::exec {

void make_context(Context& context, void* bottom, void* top, void (*entry)()) {
  name_stack(context, bottom);
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = bottom;
  context.saved.uc_stack.ss_size = static_cast<char*>(top) - static_cast<char*>(bottom);
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}

bool redirect_to_context(void*, Context&) { return false; }

}  // namespace metalops::exec

#else

#include <ucontext.h>

// metalops_resume_stack is the second half of metalops_switch_stack, for a thread whose state need
// not be saved.
extern "C" void metalops_resume_stack();

#if defined(__x86_64__)
// System V ABI: rbx, rbp and r12 to r15 are callee-saved. The switch ends in an indirect jump,
// which the CPU predicts from its recent targets; a return would be predicted to go back to the
// caller, which it never does.
asm(R"(
.text
.p2align 4
.globl metalops_switch_stack
.hidden metalops_switch_stack
.type metalops_switch_stack, @function
metalops_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
.globl metalops_resume_stack
.hidden metalops_resume_stack
.type metalops_resume_stack, @function
metalops_resume_stack:
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size metalops_resume_stack, .-metalops_resume_stack
.size metalops_switch_stack, .-metalops_switch_stack
.section .note.GNU-stack, "", @progbits
.text
)");

namespace {
constexpr int kSavedWords = 6;
}

namespace metalops::exec {

void make_context(Context& context, void* bottom, void* top, void (*entry)()) {
  name_stack(context, bottom);
  // As if `entry` had been called: its return address is 0, which ends backtraces, and lies 8 below
  // a multiple of 16.
  void** stack = static_cast<void**>(top);
  *--stack = nullptr;
  *--stack = reinterpret_cast<void*>(entry);
  stack -= kSavedWords;
  std::memset(stack, 0, kSavedWords * sizeof(void*));
  context.stack_pointer = stack;
}

bool redirect_to_context(void* signal_context, Context& target) {
  auto& registers = static_cast<ucontext_t*>(signal_context)->uc_mcontext.gregs;
  registers[REG_RSI] = reinterpret_cast<greg_t>(target.stack_pointer);
  registers[REG_RSP] = reinterpret_cast<greg_t>(target.stack_pointer);
  registers[REG_RIP] = reinterpret_cast<greg_t>(&metalops_resume_stack);
  return true;
}

}  // namespace metalops::exec

#elif defined(__aarch64__)
// AAPCS64: x19 to x30 and the low halves of v8 to v15 are callee-saved.
asm(R"(
.text
.p2align 4
.globl metalops_switch_stack
.hidden metalops_switch_stack
.type metalops_switch_stack, %function
metalops_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
.globl metalops_resume_stack
.hidden metalops_resume_stack
.type metalops_resume_stack, %function
metalops_resume_stack:
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size metalops_resume_stack, .-metalops_resume_stack
.size metalops_switch_stack, .-metalops_switch_stack

// The first function on a stack is entered from here, with a zero return address and frame pointer to end backtraces.
.p2align 4
.globl metalops_start_stack
.hidden metalops_start_stack
.type metalops_start_stack, %function
metalops_start_stack:
  mov x29, xzr
  mov x30, xzr
  br x19
.size metalops_start_stack, .-metalops_start_stack
.section .note.GNU-stack, "", %progbits
.text
)");

extern "C" void metalops_start_stack();

namespace {
constexpr int kSavedWords = 20;
constexpr int kX19 = 0;
constexpr int kX30 = 11;
}  // namespace

namespace metalops::exec {

void make_context(Context& context, void* bottom, void* top, void (*entry)()) {
  name_stack(context, bottom);
  void** stack = static_cast<void**>(top) - kSavedWords;
  std::memset(stack, 0, kSavedWords * sizeof(void*));
  stack[kX19] = reinterpret_cast<void*>(entry);
  stack[kX30] = reinterpret_cast<void*>(&metalops_start_stack);
  context.stack_pointer = stack;
}

bool redirect_to_context(void* signal_context, Context& target) {
  auto& machine = static_cast<ucontext_t*>(signal_context)->uc_mcontext;
  machine.regs[1] = reinterpret_cast<uint64_t>(target.stack_pointer);
  machine.sp = reinterpret_cast<uint64_t>(target.stack_pointer);
  machine.pc = reinterpret_cast<uint64_t>(&metalops_resume_stack);
  return true;
}

}  // namespace metalops::exec
#endif

#endif

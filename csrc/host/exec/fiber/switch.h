// Switches between call stacks of one OS thread. Depends only on the C++ language, so that its test
// also runs under an emulator of another CPU (tests/exec/fiber_switch_test.cpp).
#pragma once

#include <cstddef>

#if !defined(METALOPS_SWITCH_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define METALOPS_SWITCH_UCONTEXT 1
#endif

#if METALOPS_SWITCH_UCONTEXT
#include <ucontext.h>
#endif

// Set if the device is compiled with ThreadSanitizer, which is told of every switch.
#if defined(__SANITIZE_THREAD__)
#define METALOPS_SWITCH_IS_TOLD 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define METALOPS_SWITCH_IS_TOLD 1
#endif
#endif
#if METALOPS_SWITCH_IS_TOLD
#include <sanitizer/tsan_interface.h>
#endif

namespace metalops::exec {

// A suspended call stack, as switch_context saved it.
struct Context {
#if METALOPS_SWITCH_UCONTEXT
  ucontext_t saved;
#else
  void* stack_pointer = nullptr;
#endif
#if METALOPS_SWITCH_IS_TOLD
  void* fiber = nullptr;  // ThreadSanitizer's handle of the stack
#endif
};

// Saves the running stack in `from` and continues `to` where it was saved, or at the beginning of
// its entry function. Takes 2 to 3 ns in assembly, 200 ns with ucontext (a system call for the
// signal mask).
//
// Callee-saved registers are saved; the floating-point control words (rounding mode, exception
// masks) are not: they belong to the OS thread, and kernels do not change them.
#if !METALOPS_SWITCH_UCONTEXT
extern "C" void metalops_switch_stack(void** save_stack_pointer, void* stack_pointer);
#endif
inline void switch_context(Context& from, Context& to) {
#if METALOPS_SWITCH_IS_TOLD
  from.fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.fiber, 0);
#endif
#if METALOPS_SWITCH_UCONTEXT
  swapcontext(&from.saved, &to.saved);
#else
  metalops_switch_stack(&from.stack_pointer, to.stack_pointer);
#endif
}

// Prepares the stack [bottom, top) to start in `entry`, which must not return. `top` is a multiple
// of 16.
void make_context(Context& context, void* bottom, void* top, void (*entry)());

// Rewrites the machine state of a signal handler (its third argument) so that, when the handler
// returns, the thread continues in `target`; the stack it was on is abandoned. Returns false where
// this is not supported.
bool redirect_to_context(void* signal_context, Context& target);

}  // namespace metalops::exec

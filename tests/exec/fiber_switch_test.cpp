// A program that exercises csrc/host/exec/fiber/switch.cpp alone, so that it also runs under an
// emulator of another CPU. Exits with 0 when everything holds and prints what does not. Built and
// run by test_fiber_switch.py.
#include <exec/fiber/switch.h>
#include <signal.h>
#include <sys/mman.h>
#include <unwind.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

using namespace metalops::exec;

// Fills every register that a function preserves for its caller, switches, and stores what is in
// them afterwards.
extern "C" void test_switch_with_registers(void** save, void* to, const uint64_t* before,
                                           uint64_t* after);

#if METALOPS_SWITCH_UCONTEXT
// swapcontext is libc's business.
#elif defined(__x86_64__)
#define METALOPS_TEST_AARCH64 0
asm(R"(
.text
.globl test_switch_with_registers
test_switch_with_registers:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  pushq %rcx
  movq 0(%rdx), %rbx
  movq 8(%rdx), %rbp
  movq 16(%rdx), %r12
  movq 24(%rdx), %r13
  movq 32(%rdx), %r14
  movq 40(%rdx), %r15
  call metalops_switch_stack
  popq %rcx
  movq %rbx, 0(%rcx)
  movq %rbp, 8(%rcx)
  movq %r12, 16(%rcx)
  movq %r13, 24(%rcx)
  movq %r14, 32(%rcx)
  movq %r15, 40(%rcx)
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
)");
#elif defined(__aarch64__)
#define METALOPS_TEST_AARCH64 1
asm(R"(
.text
.globl test_switch_with_registers
test_switch_with_registers:
  sub sp, sp, #176
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
  str x3, [sp, #160]
  ldp x19, x20, [x2, #0]
  ldp x21, x22, [x2, #16]
  ldp x23, x24, [x2, #32]
  ldp x25, x26, [x2, #48]
  ldp x27, x28, [x2, #64]
  ldr x29, [x2, #80]
  ldp d8, d9, [x2, #88]
  ldp d10, d11, [x2, #104]
  ldp d12, d13, [x2, #120]
  ldp d14, d15, [x2, #136]
  bl metalops_switch_stack
  ldr x3, [sp, #160]
  stp x19, x20, [x3, #0]
  stp x21, x22, [x3, #16]
  stp x23, x24, [x3, #32]
  stp x25, x26, [x3, #48]
  stp x27, x28, [x3, #64]
  str x29, [x3, #80]
  stp d8, d9, [x3, #88]
  stp d10, d11, [x3, #104]
  stp d12, d13, [x3, #120]
  stp d14, d15, [x3, #136]
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
  add sp, sp, #176
  ret
)");
#endif

namespace {

constexpr size_t kStack = 256 * 1024;
constexpr size_t kGuard = 64 * 1024;
int failures = 0;

#define EXPECT(condition)                                                       \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (0)

struct Stack {
  char* memory;
  Stack() {
    memory = static_cast<char*>(
        mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory, kGuard, PROT_NONE);
  }
  ~Stack() { munmap(memory, kGuard + kStack); }
  void* bottom() const { return memory + kGuard; }
  void* top() const { return memory + kGuard + kStack; }
};

Context main_context;
Context fibers[2];
int turns = 0;

// ---- registers
// ----------------------------------------------------------------------------------------------

#if METALOPS_SWITCH_UCONTEXT
constexpr int kRegisters = 0;
void switch_with_registers(Context& from, Context& to, const uint64_t*, uint64_t*) {
  switch_context(from, to);
}
#else
constexpr int kRegisters = METALOPS_TEST_AARCH64 ? 19 : 6;
void switch_with_registers(Context& from, Context& to, const uint64_t* before, uint64_t* after) {
  test_switch_with_registers(&from.stack_pointer, to.stack_pointer, before, after);
}
#endif

void expect_registers_kept(int self, Context& from, Context& to) {
  uint64_t before[kRegisters + 1];
  uint64_t after[kRegisters + 1];
  for (int i = 0; i < kRegisters; ++i)
    before[i] = 0x1111111111111111u * (self + 1) + uint64_t(turns) * 256 + i;
  std::memset(after, 0, sizeof(after));
  switch_with_registers(from, to, before, after);
  for (int i = 0; i < kRegisters; ++i) EXPECT(before[i] == after[i]);
}

template <int kSelf>
void register_fiber() {
  for (;;) {
    ++turns;
    expect_registers_kept(kSelf, fibers[kSelf], kSelf == 0 ? fibers[1] : main_context);
  }
}

void test_registers() {
  Stack stacks[2];
  make_context(fibers[0], stacks[0].bottom(), stacks[0].top(), &register_fiber<0>);
  make_context(fibers[1], stacks[1].bottom(), stacks[1].top(), &register_fiber<1>);
  turns = 0;
  for (int i = 0; i < 1000; ++i) expect_registers_kept(2, main_context, fibers[0]);
  EXPECT(turns == 2000);
}

// ---- alignment, exceptions, backtraces
// ----------------------------------------------------------------------

__attribute__((noinline)) void throw_from_below(int depth) {
  volatile char frame[100];
  frame[0] = char(depth);
  if (depth == 0) throw std::runtime_error("from a fiber");
  throw_from_below(depth - 1);
  frame[1] = frame[0];
}

_Unwind_Reason_Code count_frame(_Unwind_Context*, void* count) {
  return ++*static_cast<int*>(count) < 1000 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

bool caught = false;
bool aligned = false;
int frames = 0;

void throwing_fiber() {
  alignas(16) char local[16];
  // Keeps the compiler from assuming the answer.
  uintptr_t address = reinterpret_cast<uintptr_t>(local);
  asm volatile("" : "+r"(address));
  aligned = address % 16 == 0 && reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) % 16 == 0;
  _Unwind_Backtrace(count_frame, &frames);
  for (;;) {
    caught = false;
    try {
      // While another stack has thrown and caught in between.
      switch_context(fibers[0], main_context);
      throw_from_below(20);
    } catch (const std::runtime_error& error) {
      caught = std::strcmp(error.what(), "from a fiber") == 0;
    }
    switch_context(fibers[0], main_context);
  }
}

void test_exceptions() {
  Stack stack;
  make_context(fibers[0], stack.bottom(), stack.top(), &throwing_fiber);
  switch_context(main_context, fibers[0]);
  EXPECT(aligned);
  EXPECT(frames > 0 && frames < 20);
  for (int i = 0; i < 100; ++i) {
    try {
      throw 1;
    } catch (int value) {
      EXPECT(value == 1);
    }
    switch_context(main_context, fibers[0]);
    EXPECT(caught);
    switch_context(main_context, fibers[0]);
  }
}

// ---- leaving a stack that overflowed
// ------------------------------------------------------------------------

#if !METALOPS_SWITCH_UCONTEXT
char* guard = nullptr;
int faults = 0;

void on_fault(int, siginfo_t* info, void* signal_context) {
  const char* address = static_cast<char*>(info->si_addr);
  if (address < guard || address >= guard + kGuard ||
      !redirect_to_context(signal_context, main_context)) {
    std::_Exit(3);
  }
  ++faults;
}

// The result of each level is needed after the next, so that this is no loop.
__attribute__((noinline)) int recurse(volatile int* depth) {
  volatile char frame[512];
  frame[*depth % 512] = 1;
  *depth = *depth + 1;
  return *depth == 1 << 20 ? 0 : recurse(depth) + frame[0];
}

void overflowing_fiber() {
  volatile int depth = 0;
  recurse(&depth);
}

void test_overflow() {
  static char signal_stack[64 * 1024];
  stack_t alternative = {};
  alternative.ss_sp = signal_stack;
  alternative.ss_size = sizeof(signal_stack);
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  for (int i = 1; i <= 3; ++i) {
    Stack stack;
    guard = stack.memory;
    make_context(fibers[0], stack.bottom(), stack.top(), &overflowing_fiber);
    expect_registers_kept(2, main_context, fibers[0]);
    EXPECT(faults == i);
  }
}
#else
void test_overflow() {}
#endif

}  // namespace

int main() {
  test_registers();
  test_exceptions();
  test_overflow();
  if (failures == 0) std::printf("%d registers, %d switches: all right\n", kRegisters, turns);
  return failures == 0 ? 0 : 1;
}

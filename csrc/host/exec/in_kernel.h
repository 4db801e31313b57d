// Records which kernel each CPU thread runs, for ending it from outside (Ctrl-C or the time limit
// while no piece of work comes to its end) and for reports of faults.
#pragma once

#include <c10/macros/Macros.h>
#include <pthread.h>
#include <setjmp.h>

#include <atomic>
#include <cstdint>
#include <string>

#include <exec/exec.h>

namespace metalops::exec {

// Why a kernel was ended from outside. kSwitchedOff: it wrote to an argument that a function
// constant switches off; kUnbound: it accessed a buffer to which nothing is bound.
enum class EndReason { kInterrupt, kTimeLimit, kSwitchedOff, kUnbound };

// Thrown out of a kernel that is ended from outside.
struct EndedFromOutside {
  EndReason reason = EndReason::kInterrupt;
  const void* at = nullptr;  // the instruction that it had come to
  std::string waiting;       // what other threads of the threadgroup wait for; may be empty
};

// Interface of the worker that runs fibers on this CPU thread.
class FibersToLeave {
 public:
  // Redirects the machine state of a signal handler out of the running fiber, and makes the group
  // throw EndedFromOutside. Returns false if no fiber runs.
  virtual bool leave_from_outside(void* signal_context) = 0;

 protected:
  ~FibersToLeave() = default;
};

// A CPU thread that has run a kernel. Its signal handlers and the watching thread read it.
struct CpuThread {
  CpuThread();
  ~CpuThread();
  CpuThread(const CpuThread&) = delete;

  const pthread_t id = pthread_self();
  std::atomic<uint64_t> piece{0};  // odd while in a kernel; a different number each time
  std::atomic<const Kernel*> kernel{nullptr};
  const char* engine = nullptr;
  sigjmp_buf* way_out = nullptr;    // of a kernel on this thread's own stack
  FibersToLeave* fibers = nullptr;  // of a kernel on fibers
  std::atomic<uint64_t> to_end{0};  // the piece that has to end
  std::atomic<EndReason> end_reason{EndReason::kInterrupt};
  std::atomic<uintptr_t> code[2]{};   // address range of its kernel library, where it may be left
  std::atomic<uintptr_t> left_at{0};  // the instruction after which it was left

  EndedFromOutside ended() const {
    return {end_reason.load(std::memory_order_relaxed),
            reinterpret_cast<const void*>(left_at.load(std::memory_order_relaxed)),
            {}};
  }
};

extern constinit thread_local CpuThread* this_cpu_thread;
CpuThread& make_this_cpu_thread();

// RAII: marks that this CPU thread runs a piece of a launch.
class InKernel {
 public:
  InKernel(const Kernel& kernel, const char* engine, FibersToLeave* fibers = nullptr)
      : thread_(this_cpu_thread != nullptr ? *this_cpu_thread : make_this_cpu_thread()),
        piece_(thread_.piece.load(std::memory_order_relaxed)),
        kernel_(thread_.kernel.load(std::memory_order_relaxed)),
        engine_(thread_.engine),
        way_out_(thread_.way_out),
        fibers_(thread_.fibers) {
    enter(kernel, engine, nullptr, fibers, (piece_ | 1) + 2);
  }
  ~InKernel() {
    const uint64_t piece = thread_.piece.load(std::memory_order_relaxed);
    if (C10_LIKELY((piece_ & 1) == 0)) {
      thread_.piece.store(piece + 1, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      thread_.way_out = nullptr;
      thread_.fibers = nullptr;
    } else {
      enter(*kernel_, engine_, way_out_, fibers_, piece + 2);
    }
  }
  InKernel(const InKernel&) = delete;

  // Calls function(), which runs the kernel on this thread's own stack and whose frames hold only
  // plain data. Throws EndedFromOutside.
  template <class F>
  void run(const F& function) {
    sigjmp_buf way_out;
    if (sigsetjmp(way_out, /*savemask=*/0) != 0) throw thread_.ended();
    thread_.way_out = &way_out;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    function();
  }

 private:
  void enter(const Kernel& kernel, const char* engine, sigjmp_buf* way_out, FibersToLeave* fibers,
             uint64_t piece) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    thread_.kernel.store(&kernel, std::memory_order_relaxed);
    thread_.engine = engine;
    thread_.way_out = way_out;
    thread_.fibers = fibers;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    thread_.piece.store(piece, std::memory_order_relaxed);
  }

  CpuThread& thread_;
  // The state to restore.
  const uint64_t piece_;
  const Kernel* const kernel_;
  const char* const engine_;
  sigjmp_buf* const way_out_;
  FibersToLeave* const fibers_;
};

// Record and forget the code of a kernel library when it is loaded and unloaded.
void note_code(const msl::abi::Library& library);
void forget_code(const msl::abi::Library& library);

// Handles faults in kernels, also after a program has replaced the handlers of the process.
void catch_faults();
// Starts handling Ctrl-C, the time limit and faults in kernels. Cheap when called again.
void watch_kernels();
// Returns the time limit (METALOPS_TIME_LIMIT) in seconds: a launch ends when a CPU thread has
// computed for so long and no CPU thread has finished a piece of the launch. 0: there is none.
double time_limit();

// Queries about Ctrl-C to the host's language; set by the Python bindings.
struct InterruptQuestions {
  // Makes the main thread call `call` when it is next able to handle a signal.
  void (*when_handled)(void (*call)());
  // Returns true if a handler of the signal will end what the main thread does.
  bool (*is_fatal)();
};
extern std::atomic<const InterruptQuestions*> interrupt_questions;

}  // namespace metalops::exec

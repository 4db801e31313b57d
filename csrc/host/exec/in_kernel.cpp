// Ends kernels that do not end after Ctrl-C or within the time limit, or that write to what is
// switched off, and reports faults in kernels. A watching thread and signal handlers.
#include <exec/in_kernel.h>

#include <link.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <exec/fiber/fault_handler.h>
#include <exec/sanitize/findings.h>
#include <exec/unbound.h>
#include <locks.h>

namespace metalops::exec {

constinit thread_local CpuThread* this_cpu_thread = nullptr;
std::atomic<const InterruptQuestions*> interrupt_questions{nullptr};

namespace {

// The signal with which the watching thread makes a CPU thread leave its kernel. Ignored by
// default, so that a late one does nothing.
constexpr int kLeave = SIGURG;

struct Code {
  const msl::abi::Library* library;
  uintptr_t begin;
  uintptr_t end;
};

// Leaked: threads may end after the process has begun to.
ForkSafeMutex& mutex = *new ForkSafeMutex;
auto& cpu_threads = *new std::vector<CpuThread*>;
auto& codes = *new std::vector<Code>;

sem_t interrupted;
std::atomic<bool> is_watched{false};
std::atomic<bool> was_handled{false};
struct sigaction handler_before;

uintptr_t program_counter(const ucontext_t* state) {
#if defined(__x86_64__)
  return uintptr_t(state->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return uintptr_t(state->uc_mcontext.pc);
#else
  return 0;
#endif
}

// Leaves the kernel that a signal handler interrupted. Returns false if there is no way out.
bool leave(CpuThread& thread, void* signal_context) {
  if (thread.fibers != nullptr) return thread.fibers->leave_from_outside(signal_context);
  if (thread.way_out != nullptr) siglongjmp(*thread.way_out, 1);
  return false;
}

// Signal handler that leaves the kernel, between two instructions of its library: no lock is held
// there, and the kernel's frames hold nothing that has to be destroyed.
void leave_kernel(int, siginfo_t*, void* signal_context) {
  CpuThread* const thread = this_cpu_thread;
  if (thread == nullptr) return;
  const uint64_t piece = thread->piece.load(std::memory_order_relaxed);
  if ((piece & 1) == 0 || thread->to_end.load(std::memory_order_relaxed) != piece) return;
  const uintptr_t at = program_counter(static_cast<const ucontext_t*>(signal_context));
  if (at < thread->code[0].load(std::memory_order_relaxed) ||
      at >= thread->code[1].load(std::memory_order_relaxed)) {
    return;
  }
  thread->to_end.store(0, std::memory_order_relaxed);
  thread->left_at.store(at, std::memory_order_relaxed);
  leave(*thread, signal_context);
}

void note_interrupt(int signal, siginfo_t* info, void* signal_context) {
  sem_post(&interrupted);
  if (handler_before.sa_flags & SA_SIGINFO) {
    handler_before.sa_sigaction(signal, info, signal_context);
  } else {
    handler_before.sa_handler(signal);
  }
}

// Installs our handler of Ctrl-C before that of the host's language; repeated, because a program
// may set another handler. If there is no handler, Ctrl-C ends the process or is ignored.
void note_interrupts() {
  struct sigaction present;
  if (sigaction(SIGINT, nullptr, &present) != 0) return;
  if (present.sa_flags & SA_SIGINFO) {
    if (present.sa_sigaction == &note_interrupt) return;
  } else if (present.sa_handler == SIG_DFL || present.sa_handler == SIG_IGN) {
    return;
  }
  handler_before = present;
  present.sa_flags |= SA_SIGINFO;
  present.sa_sigaction = &note_interrupt;
  sigaction(SIGINT, &present, nullptr);
}

struct Piece {
  CpuThread* thread;
  uint64_t number;
  const Kernel* kernel;
  int64_t cpu_time;  // of the thread, in nanoseconds

  bool is_same(const Piece& other) const {
    return thread == other.thread && number == other.number;
  }
};

int64_t cpu_time_of(const CpuThread& thread) {
  clockid_t clock;
  timespec time;
  if (pthread_getcpuclockid(thread.id, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

std::vector<Piece> running_pieces() {
  std::lock_guard<ForkSafeMutex> lock(mutex);
  std::vector<Piece> result;
  for (CpuThread* thread : cpu_threads) {
    const uint64_t number = thread->piece.load(std::memory_order_relaxed);
    if ((number & 1) == 0) continue;
    const Kernel* const kernel = thread->kernel.load(std::memory_order_relaxed);
    result.push_back({thread, number, kernel, cpu_time_of(*thread)});
  }
  return result;
}

// Tries to end these pieces of work; returns true if any is still running. An endless kernel is in
// its own code most of the time; if not, the caller tries again.
bool leave_pieces(const std::vector<Piece>& pieces, EndReason reason) {
  std::lock_guard<ForkSafeMutex> lock(mutex);
  bool are_running = false;
  for (const Piece& piece : pieces) {
    const auto found = std::find(cpu_threads.begin(), cpu_threads.end(), piece.thread);
    if (found == cpu_threads.end()) continue;
    CpuThread& thread = **found;
    if (thread.piece.load(std::memory_order_relaxed) != piece.number) continue;
    const Kernel* const kernel = thread.kernel.load(std::memory_order_relaxed);
    for (const Code& code : codes) {
      const Kernel* const first = code.library->kernels;
      if (kernel < first || kernel >= first + code.library->kernel_count) continue;
      thread.code[0].store(code.begin, std::memory_order_relaxed);
      thread.code[1].store(code.end, std::memory_order_relaxed);
      thread.end_reason.store(reason, std::memory_order_relaxed);
      thread.to_end.store(piece.number, std::memory_order_relaxed);
      pthread_kill(thread.id, kLeave);
    }
    are_running = true;
  }
  return are_running;
}

void sleep_for(long milliseconds) {
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, nullptr);
}

constexpr long kBetweenLooks = 200;      // milliseconds
constexpr long kForTheMainThread = 300;  // to come to a pause and handle the signal
constexpr long kForLeaving = 20000;

void end_what_does_not_end() {
  const std::vector<Piece> pieces = running_pieces();
  const InterruptQuestions* const ask = interrupt_questions.load();
  if (pieces.empty() || ask == nullptr) return;
  was_handled = false;
  ask->when_handled([] { was_handled = true; });
  sleep_for(kForTheMainThread);
  if (was_handled || !ask->is_fatal()) return;
  for (long tried = 0; tried < kForLeaving && !was_handled; tried += 2) {
    if (!leave_pieces(pieces, EndReason::kInterrupt)) return;
    sleep_for(2);
  }
}

// ---- the time limit -----------------------------------------------------------------------------

double limit_of_environment() {
  const char* const text = std::getenv("METALOPS_TIME_LIMIT");
  return text != nullptr && *text != 0 ? std::strtod(text, nullptr) : 60;
}

// Returns true if a debugger is attached: the program is looked at, and takes its time.
bool is_debugged() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, 10, "TracerPid:") == 0) return std::strtol(&line[10], nullptr, 10) != 0;
  }
  return false;
}

// Ends launches that make no progress: whose pieces of work stay the same while a CPU thread
// computes for as long as the limit. Time of the CPU is counted, so that a process that is stopped
// or that gets little of the machine is given the time it needs.
class TimeLimit {
 public:
  void look() {
    if (limit_ <= 0) return;
    std::map<const Kernel*, std::vector<Piece>> now;
    for (const Piece& piece : running_pieces()) now[piece.kernel].push_back(piece);
    for (auto& [kernel, pieces] : now) {
      const auto before = seen_.find(kernel);
      if (before == seen_.end() ||
          !std::equal(pieces.begin(), pieces.end(), before->second.begin(), before->second.end(),
                      [](const Piece& a, const Piece& b) { return a.is_same(b); })) {
        continue;
      }
      bool is_over = false;
      for (size_t i = 0; i < pieces.size(); ++i) {
        is_over |= pieces[i].cpu_time - before->second[i].cpu_time > limit_;
      }
      if (is_over && !is_debugged()) {
        for (long tried = 0; tried < kForLeaving && leave_pieces(pieces, EndReason::kTimeLimit);
             tried += 2) {
          sleep_for(2);
        }
      }
      pieces = before->second;
    }
    seen_ = std::move(now);
  }

 private:
  // Sanitizers make kernels slow.
  const int64_t limit_ =
      int64_t(time_limit() * 1e9) * (sanitize_mode() == SanitizeMode::kOff ? 1 : 10);
  std::map<const Kernel*, std::vector<Piece>> seen_;
};

void watch() {
  TimeLimit time_limit;
  for (;;) {
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += kBetweenLooks * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (sem_timedwait(&interrupted, &until) == 0) {
      while (sem_trywait(&interrupted) == 0) {
      }
      end_what_does_not_end();
    }
    time_limit.look();
    note_interrupts();
  }
}

// ---- faults -------------------------------------------------------------------------------------

// Builds a message in a fixed buffer: signal handlers must not allocate.
class Sentence {
 public:
  Sentence& operator<<(const char* text) {
    for (; *text != 0 && length_ < sizeof(text_); ++text) text_[length_++] = *text;
    return *this;
  }
  void write() const {
    size_t done = 0;
    while (done < length_) {
      const ssize_t now = ::write(STDERR_FILENO, text_ + done, length_ - done);
      if (now <= 0) return;
      done += size_t(now);
    }
  }

 private:
  char text_[1024];
  size_t length_ = 0;
};

const char* name_of_signal(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV (a memory access outside of its buffers)";
    case SIGBUS:
      return "SIGBUS (a memory access outside of its buffers)";
    case SIGFPE:
      return "SIGFPE (a division of integers by zero)";
    default:
      return "SIGILL (what has no meaning in Metal)";
  }
}

bool report_fault(const siginfo_t* info, void*) {
  static std::atomic_flag is_reported = ATOMIC_FLAG_INIT;
  CpuThread* const thread = this_cpu_thread;
  if (thread == nullptr || (thread->piece.load(std::memory_order_relaxed) & 1) == 0) return false;
  if (sanitize_mode() != SanitizeMode::kOff)
    return false;  // sanitizers report the fault themselves
  if (is_reported.test_and_set()) return false;
  Sentence sentence;
  sentence << "metalops: kernel '" << thread->kernel.load(std::memory_order_relaxed)->name
           << "' on the engine '" << thread->engine << "' ended the process by "
           << name_of_signal(info->si_signo)
           << "; `python -m metalops sanitize PROGRAM` finds the place.\n";
  sentence.write();
  return false;  // the previous handler goes on: faulthandler, or the end of the process
}

// Ends a kernel that writes to an argument that is switched off, or accesses one to which nothing
// is bound.
bool leave_at_unbound(const siginfo_t* info, void* signal_context) {
  CpuThread* const thread = this_cpu_thread;
  if (thread == nullptr || (thread->piece.load(std::memory_order_relaxed) & 1) == 0) return false;
  // Another handler, such as faulthandler's, was asked first and has sent the signal once more
  // without the address. The instruction faults again, with it.
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) return true;
  const bool is_unbound = is_memory_of_nothing(info->si_addr);
  if (!is_unbound && !is_memory_of_zeros(info->si_addr)) return false;
  thread->end_reason.store(is_unbound ? EndReason::kUnbound : EndReason::kSwitchedOff,
                           std::memory_order_relaxed);
  const auto* state = static_cast<const ucontext_t*>(signal_context);
  thread->left_at.store(program_counter(state), std::memory_order_relaxed);
  // Left by a jump: a handler that was asked before this one may have blocked the signal.
  sigset_t fault;
  sigemptyset(&fault);
  sigaddset(&fault, SIGSEGV);
  pthread_sigmask(SIG_UNBLOCK, &fault, nullptr);
  return leave(*thread, signal_context);
}

// A forked child has none of the other threads. Its next library starts another watching thread.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  is_watched = false;
  std::erase_if(cpu_threads, [](const CpuThread* thread) { return thread != this_cpu_thread; });
});

}  // namespace

double time_limit() {
  static const double limit = limit_of_environment();
  return limit;
}

CpuThread::CpuThread() {
  std::lock_guard<ForkSafeMutex> lock(mutex);
  cpu_threads.push_back(this);
}

CpuThread::~CpuThread() {
  this_cpu_thread = nullptr;
  std::lock_guard<ForkSafeMutex> lock(mutex);
  std::erase(cpu_threads, this);
}

CpuThread& make_this_cpu_thread() {
  static thread_local CpuThread thread;
  this_cpu_thread = &thread;
  return thread;
}

void note_code(const msl::abi::Library& library) {
  struct Search {
    const msl::abi::Library& library;
    std::vector<Code> found;
  } search{library, {}};
  // Visits all segments of the object that contains the table.
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* argument) {
        Search& search = *static_cast<Search*>(argument);
        const auto table = reinterpret_cast<uintptr_t>(&search.library);
        bool is_it = false;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD && table >= begin && table < begin + segment.p_memsz) {
            is_it = true;
          }
        }
        for (int i = 0; is_it && i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          search.found.push_back({&search.library, begin, begin + segment.p_memsz});
        }
        return int(is_it);
      },
      &search);
  std::lock_guard<ForkSafeMutex> lock(mutex);
  codes.insert(codes.end(), search.found.begin(), search.found.end());
}

void forget_code(const msl::abi::Library& library) {
  std::lock_guard<ForkSafeMutex> lock(mutex);
  // One entry per segment: a file that is opened twice is loaded once.
  std::vector<uintptr_t> forgotten;
  std::erase_if(codes, [&](const Code& code) {
    if (code.library != &library ||
        std::find(forgotten.begin(), forgotten.end(), code.begin) != forgotten.end()) {
      return false;
    }
    forgotten.push_back(code.begin);
    return true;
  });
}

void catch_faults() {
  install_fault_handler<&report_fault>(0, {SIGSEGV, SIGBUS, SIGFPE, SIGILL});
  install_fault_handler<&leave_at_unbound>(SA_NODEFER);
}

void watch_kernels() {
  catch_faults();
  if (is_watched.exchange(true)) return;
  struct sigaction action = {};
  action.sa_sigaction = &leave_kernel;
  // Left by a jump, so it must not block the signal; interrupted system calls go on.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(kLeave, &action, nullptr);
  sem_init(&interrupted, 0, 0);
  note_interrupts();
  // Blocks all signals in the watching thread: they are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(watch).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace metalops::exec

// The engine for kernels whose threads synchronise. A CPU thread runs one threadgroup at a time;
// each GPU thread of the group is a fiber, a call stack of its own, that runs until it has to wait.
//
// Scheduling is by lane masks, 32 threads of a simdgroup in a word. A thread that waits hands over
// to the next runnable lane of its own simdgroup, so that the lanes of a simdgroup stay together as
// on a GPU.
//
//  - A simdgroup operation completes when no lane of the simdgroup can run any more. If all of them
//  wait at the same
//    call, they take part together. If control flow diverged, the lanes at the call that comes
//    first in the source do, and go on; the others keep waiting for them. That is how a GPU
//    reconverges.
//  - A threadgroup barrier completes when every thread of the group waits at one or has returned.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "fiber_stacks.h"
#include "fiber_switch.h"
#include "runtime.h"

namespace metalops::exec {
namespace {

using msl::abi::ArgumentKind;
using msl::abi::Group;
using msl::abi::kMaxBuffers;
using msl::abi::kMaxThreadgroupBytes;
using msl::abi::kSimdWidth;
using msl::abi::SimdFunction;
using msl::abi::Site;
using msl::abi::Thread;

constexpr uint32_t kMaxThreads = FiberStacks::kMaxStacks;
constexpr uint32_t kMaxSimdgroups = kMaxThreads / kSimdWidth;
constexpr uint32_t kNone = ~0u;

// Where a lane waits in a simdgroup operation, and with what.
struct Simdgroup {
  uint32_t alive;  // lanes that exist and have not returned
  uint32_t
      runnable;  // lanes that run or may run; the lanes of alive are here or in one of the next two
  uint32_t at_simd;     // lanes that wait in a simdgroup operation
  uint32_t at_barrier;  // lanes that wait at a threadgroup barrier
  uint32_t started;     // lanes that have a stack
  uint32_t barrier_site;
  uint32_t other_barrier_site;  // differs from barrier_site when lanes wait at different barriers
  Context context[kSimdWidth];
  uint32_t stack[kSimdWidth];
  uint32_t site[kSimdWidth];
  SimdFunction function[kSimdWidth];
  const void* in[kSimdWidth];
  void* out[kSimdWidth];
};

// One CPU thread's threadgroup. Created when the CPU thread first runs fibers, and kept.
class Worker {
 public:
  Worker();
  ~Worker();

  // Makes room for the kernel's threadgroup memory.
  void begin(const Kernel& kernel, const Launch& launch);
  void run_group(uint64_t index);

  // Called by the running fiber.
  void threadgroup_barrier(Site site);
  void simd(Site site, const void* in, void* out, SimdFunction function);
  uint32_t lane() const { return lane_; }
  uint32_t active_mask() const { return simdgroup_->alive; }

  bool running() const { return running_; }
  const Kernel& kernel() const { return *kernel_; }
  // Whether a memory fault at this address is an overflow of a fiber's stack; if so, ends the group
  // with an error.
  bool handle_overflow(const void* address, void* signal_context);

 private:
  // A thread of the group: its place in its simdgroup.
  struct Place {
    Simdgroup* simdgroup;
    uint32_t lane;
  };
  static void fiber_main();
  void run_fibers_on_this_stack();
  void set_size(const uint32_t size[3]);
  void start(Place place);
  void finish_current();
  Place next();
  void wait();
  void leave_to(Place place);
  void wait_for_others();
  void complete_simd(Simdgroup& simdgroup);
  bool release_barrier();
  [[noreturn]] void report_different_barriers(uint32_t simdgroup);
  uint32_t index_of(const Simdgroup* simdgroup) const { return uint32_t(simdgroup - simdgroups_); }

  // The running fiber.
  Simdgroup* simdgroup_ = nullptr;
  uint32_t lane_ = 0;
  bool running_ = false;

  const Kernel* kernel_ = nullptr;
  const Launch* launch_ = nullptr;
  uint32_t size_[3] = {0, 0, 0};
  uint32_t threads_ = 0;
  uint32_t simdgroup_count_ = 0;
  uint32_t done_ = 0;
  uint32_t ready_ = 0;  // bit s: simdgroup s has runnable lanes
  Simdgroup simdgroups_[kMaxSimdgroups];
  Thread gpu_threads_[kMaxThreads];
  Context main_;
  FiberStacks stacks_;
  std::exception_ptr error_;
  bool overflowed_ = false;

  Group group_;
  uint32_t memory_bytes_ = 0;  // of threadgroup memory in use by this kernel
  std::unique_ptr<char[]> signal_stack_;
  // Room for the alignment of each block beside Metal's limit.
  static constexpr uint32_t kAlignmentSlack = 256;
  alignas(256) uint8_t memory_[kMaxThreadgroupBytes + kAlignmentSlack + 128 * kMaxBuffers];
};

thread_local Worker* running_worker = nullptr;

// ---- stack overflow
// -----------------------------------------------------------------------------------------

struct sigaction action_before;

void on_fault(int signal, siginfo_t* info, void* signal_context) {
  if (running_worker != nullptr && running_worker->handle_overflow(info->si_addr, signal_context)) {
    return;
  }
  // Not ours: as if this handler had never been installed.
  if (action_before.sa_flags & SA_SIGINFO) {
    action_before.sa_sigaction(signal, info, signal_context);
  } else if (action_before.sa_handler == SIG_DFL || action_before.sa_handler == SIG_IGN) {
    sigaction(signal, &action_before, nullptr);  // the instruction faults again
  } else {
    action_before.sa_handler(signal);
  }
}

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &action_before);
  });
}

// ---- one group
// ----------------------------------------------------------------------------------------------

Worker::Worker() {
  install_fault_handler();
  // The handler cannot run on the stack that overflowed.
  stack_t present = {};
  sigaltstack(nullptr, &present);
  if (present.ss_flags & SS_DISABLE) {
    constexpr size_t bytes = 64 * 1024;
    signal_stack_ = std::make_unique<char[]>(bytes);
    stack_t mine = {};
    mine.ss_sp = signal_stack_.get();
    mine.ss_size = bytes;
    sigaltstack(&mine, nullptr);
  }
}

Worker::~Worker() {
  if (signal_stack_ == nullptr) return;
  stack_t present = {};
  sigaltstack(nullptr, &present);
  if (present.ss_sp == signal_stack_.get()) {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
}

void Worker::begin(const Kernel& kernel, const Launch& launch) {
  kernel_ = &kernel;
  launch_ = &launch;
  group_ = {};
  group_.launch = &launch;
  group_.static_memory = memory_;
  group_.static_bytes = kernel.static_threadgroup_bytes + kAlignmentSlack;
  uint32_t used = (group_.static_bytes + 127) / 128 * 128;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind != ArgumentKind::kThreadgroup) continue;
    group_.dynamic_memory[argument.index] = memory_ + used;
    used += (launch.threadgroup_bytes[argument.index] + 127) / 128 * 128;
  }
  const bool any =
      used > (kAlignmentSlack + 127) / 128 * 128 || kernel.static_threadgroup_bytes != 0;
  memory_bytes_ = any ? used : 0;
}

// Fills in what depends on the size of the group only: most groups of a launch have the same.
void Worker::set_size(const uint32_t size[3]) {
  if (std::equal(size, size + 3, size_)) return;
  std::copy(size, size + 3, size_);
  threads_ = size[0] * size[1] * size[2];
  simdgroup_count_ = (threads_ + kSimdWidth - 1) / kSimdWidth;
  uint32_t index = 0;
  for (uint32_t z = 0; z < size[2]; ++z) {
    for (uint32_t y = 0; y < size[1]; ++y) {
      for (uint32_t x = 0; x < size[0]; ++x, ++index) {
        gpu_threads_[index] = {&group_, {x, y, z}, index};
      }
    }
  }
}

void Worker::run_group(uint64_t index) {
  uint64_t rest = index;
  for (int axis = 0; axis < 3; ++axis) {
    group_.position[axis] = uint32_t(rest % launch_->groups[axis]);
    rest /= launch_->groups[axis];
    const uint32_t begin = group_.position[axis] * launch_->group[axis];
    group_.size[axis] = std::min(launch_->group[axis], launch_->grid[axis] - begin);
  }
  set_size(group_.size);
  group_.static_used = 0;
  std::fill(std::begin(group_.offsets), std::end(group_.offsets), kNone);
  std::memset(memory_, 0, memory_bytes_);

  for (uint32_t s = 0; s < simdgroup_count_; ++s) {
    const uint32_t lanes = std::min(threads_ - s * kSimdWidth, kSimdWidth);
    Simdgroup& simdgroup = simdgroups_[s];
    simdgroup.alive = simdgroup.runnable = lanes == kSimdWidth ? ~0u : (1u << lanes) - 1;
    simdgroup.at_simd = simdgroup.at_barrier = simdgroup.started = 0;
  }
  ready_ = simdgroup_count_ == 32 ? ~0u : (1u << simdgroup_count_) - 1;
  done_ = 0;
  stacks_.reset();
  overflowed_ = false;

  Worker* const before = running_worker;
  running_worker = this;
  running_ = true;
  simdgroup_ = simdgroups_;
  lane_ = 0;
  start({simdgroup_, lane_});
  switch_context(main_, simdgroup_->context[lane_]);
  running_ = false;
  running_worker = before;

  if (overflowed_) {
    TORCH_CHECK(false, "kernel '", kernel_->name, "': a thread used more than ",
                FiberStacks::kStackBytes / 1024,
                " KiB of stack (endless recursion, or large local arrays)");
  }
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Worker::start(Place place) {
  Simdgroup& simdgroup = *place.simdgroup;
  const uint32_t stack = stacks_.acquire();
  simdgroup.stack[place.lane] = stack;
  simdgroup.started |= 1u << place.lane;
  make_context(simdgroup.context[place.lane], stacks_.bottom(stack), stacks_.top(stack),
               &fiber_main);
}

void Worker::fiber_main() {
  Worker* const worker = running_worker;
  try {
    worker->run_fibers_on_this_stack();
  } catch (...) {
    // The other threads of the group are abandoned where they stand; their frames hold nothing but
    // plain data.
    worker->error_ = std::current_exception();
  }
  Context abandoned;
  switch_context(abandoned, worker->main_);
}

// Runs the current thread, and after it threads that have not started yet, as long as no other one
// has to go on.
void Worker::run_fibers_on_this_stack() {
  for (;;) {
    kernel_->thread(launch_, &gpu_threads_[index_of(simdgroup_) * kSimdWidth + lane_]);
    const uint32_t stack = simdgroup_->stack[lane_];
    Context& finished = simdgroup_->context[lane_];
    finish_current();
    if (done_ == threads_) return;
    const Place place = next();
    simdgroup_ = place.simdgroup;
    lane_ = place.lane;
    if ((simdgroup_->started >> lane_ & 1u) == 0) {
      simdgroup_->started |= 1u << lane_;
      simdgroup_->stack[lane_] = stack;
      continue;
    }
    stacks_.release(stack);  // nobody takes the stack before it is left
    switch_context(finished, simdgroup_->context[lane_]);
  }
}

void Worker::finish_current() {
  simdgroup_->alive &= ~(1u << lane_);
  simdgroup_->runnable &= ~(1u << lane_);
  ++done_;
}

// The thread to run when the current one cannot; there is one, because some thread of the group has
// not returned.
Worker::Place Worker::next() {
  Simdgroup& own = *simdgroup_;
  if (own.runnable == 0 && own.at_simd != 0) complete_simd(own);
  if (own.runnable != 0) {
    if (own.runnable >> lane_ & 1u) return {&own, lane_};  // no switch at all
    const uint32_t later = own.runnable & ~((2u << lane_) - 1u);
    return {&own, uint32_t(__builtin_ctz(later != 0 ? later : own.runnable))};
  }
  const uint32_t index = index_of(&own);
  ready_ &= ~(1u << index);
  if (ready_ == 0) {
    const bool released = release_barrier();
    TORCH_INTERNAL_ASSERT(released, "no thread of the group can run");
    if (ready_ >> index & 1u) return next();
  }
  const uint32_t later = ready_ & ~((2u << index) - 1u);
  Simdgroup& other = simdgroups_[__builtin_ctz(later != 0 ? later : ready_)];
  return {&other, uint32_t(__builtin_ctz(other.runnable))};
}

// Runs another thread; returns when the current one, which waits for something, may go on.
inline void Worker::wait() {
  const uint32_t later = simdgroup_->runnable & ~((2u << lane_) - 1u);
  if (C10_LIKELY(later != 0)) {
    leave_to({simdgroup_, uint32_t(__builtin_ctz(later))});
  } else {
    wait_for_others();
  }
}
void Worker::wait_for_others() {
  const Place place = next();
  if (place.simdgroup != simdgroup_ || place.lane != lane_) leave_to(place);
}

inline void Worker::leave_to(Place place) {
  if (C10_UNLIKELY((place.simdgroup->started >> place.lane & 1u) == 0)) start(place);
  Context& from = simdgroup_->context[lane_];
  simdgroup_ = place.simdgroup;
  lane_ = place.lane;
  switch_context(from, place.simdgroup->context[place.lane]);
}

inline void Worker::threadgroup_barrier(Site site) {
  Simdgroup& simdgroup = *simdgroup_;
  if (simdgroup.at_barrier == 0) simdgroup.barrier_site = simdgroup.other_barrier_site = site.id;
  if (C10_UNLIKELY(simdgroup.barrier_site != site.id)) simdgroup.other_barrier_site = site.id;
  simdgroup.runnable &= ~(1u << lane_);
  simdgroup.at_barrier |= 1u << lane_;
  wait();
}

bool Worker::release_barrier() {
  for (uint32_t s = 0; s < simdgroup_count_; ++s) {
    Simdgroup& simdgroup = simdgroups_[s];
    if (simdgroup.at_barrier == 0) continue;
    if (simdgroup.barrier_site != simdgroup.other_barrier_site) report_different_barriers(s);
    simdgroup.runnable = simdgroup.at_barrier;
    simdgroup.at_barrier = 0;
    ready_ |= 1u << s;
  }
  return ready_ != 0;
}

// A GPU would count such a simdgroup twice and hang.
void Worker::report_different_barriers(uint32_t s) {
  const Simdgroup& simdgroup = simdgroups_[s];
  TORCH_CHECK(false, "deadlock in kernel '", kernel_->name, "', threadgroup (", group_.position[0],
              ", ", group_.position[1], ", ", group_.position[2], "): threads of simdgroup ", s,
              " wait at different barriers, ", describe(*kernel_, {simdgroup.barrier_site}),
              " and ", describe(*kernel_, {simdgroup.other_barrier_site}),
              ". All threads of a threadgroup must reach the same threadgroup_barrier.");
}

inline void Worker::simd(Site site, const void* in, void* out, SimdFunction function) {
  Simdgroup& simdgroup = *simdgroup_;
  simdgroup.site[lane_] = site.id;
  simdgroup.function[lane_] = function;
  simdgroup.in[lane_] = in;
  simdgroup.out[lane_] = out;
  simdgroup.runnable &= ~(1u << lane_);
  simdgroup.at_simd |= 1u << lane_;
  wait();
}

// Lets the lanes go on that wait at the first call in the source, after combining their operands.
void Worker::complete_simd(Simdgroup& simdgroup) {
  uint32_t first = kNone;
  SimdFunction function = nullptr;
  uint32_t lanes = 0;
  for (uint32_t rest = simdgroup.at_simd; rest != 0; rest &= rest - 1) {
    const uint32_t lane = uint32_t(__builtin_ctz(rest));
    // One call in the source is several functions when lanes run different instantiations of a
    // template.
    const bool same = simdgroup.site[lane] == first && simdgroup.function[lane] == function;
    if (!same && (lanes == 0 || simdgroup.site[lane] < first)) {
      first = simdgroup.site[lane];
      function = simdgroup.function[lane];
      lanes = 0;
    }
    if (same || lanes == 0) lanes |= 1u << lane;
  }
  if (function != nullptr) function(simdgroup.in, simdgroup.out, lanes);
  simdgroup.at_simd &= ~lanes;
  simdgroup.runnable |= lanes;
}

bool Worker::handle_overflow(const void* address, void* signal_context) {
  if (!running_ || !stacks_.is_guard(address)) return false;
  overflowed_ = true;
  return redirect_to_context(signal_context, main_);
}

Worker& worker_of_this_thread() {
  static thread_local std::unique_ptr<Worker> worker;
  if (worker == nullptr) worker = std::make_unique<Worker>();
  return *worker;
}

// ---- what kernels call
// --------------------------------------------------------------------------------------

[[noreturn]] C10_NOINLINE void report_no_fiber(const char* what, Site site) {
  const Kernel* const kernel = kernel_in_loop;
  TORCH_CHECK(kernel != nullptr, what, " was called outside of a kernel");
  TORCH_CHECK(false, "kernel '", kernel->name, "' reached ", what, " at ", describe(*kernel, site),
              " while running as a plain loop, where its threads cannot wait for each other");
}

inline Worker& current_worker(const char* what, Site site) {
  Worker* const worker = running_worker;
  if (C10_UNLIKELY(worker == nullptr)) report_no_fiber(what, site);
  return *worker;
}

void on_threadgroup_barrier(Site site) {
  current_worker("threadgroup_barrier", site).threadgroup_barrier(site);
}
void on_simdgroup_barrier(Site site) {
  current_worker("simdgroup_barrier", site).simd(site, nullptr, nullptr, nullptr);
}
void on_simd(Site site, const void* in, void* out, SimdFunction function) {
  current_worker("a simdgroup operation", site).simd(site, in, out, function);
}
uint32_t on_lane() { return current_worker("a simdgroup operation", {kNone}).lane(); }
uint32_t on_active_mask() { return current_worker("a simdgroup operation", {kNone}).active_mask(); }
void on_log(const char* text, uint32_t length) {
  // One call, so that lines of different CPU threads do not mix.
  std::string line(text, length);
  if (line.empty() || line.back() != '\n') line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}
void on_fail(const char* message) {
  const Kernel* kernel = running_worker != nullptr ? &running_worker->kernel() : kernel_in_loop;
  TORCH_CHECK(false, "kernel '", kernel != nullptr ? kernel->name : "?", "': ", message);
}

}  // namespace

const msl::abi::Runtime& runtime() {
  static const msl::abi::Runtime table = {msl::abi::kAbiVersion,
                                          on_threadgroup_barrier,
                                          on_simdgroup_barrier,
                                          on_simd,
                                          on_lane,
                                          on_active_mask,
                                          on_log,
                                          on_fail};
  return table;
}

void run_fibers(const Kernel& kernel, const Launch& launch, int threads) {
  const uint64_t groups = uint64_t(launch.groups[0]) * launch.groups[1] * launch.groups[2];
  const uint64_t tasks = std::min<uint64_t>(threads, groups);
  if (tasks <= 1 || threads_in_grid(launch) < 256) {
    Worker& worker = worker_of_this_thread();
    worker.begin(kernel, launch);
    InterruptPoll poll;
    for (uint64_t group = 0; group < groups; ++group) {
      worker.run_group(group);
      poll();
    }
    return;
  }
  // Groups start in the order of their positions: kernels that wait for a group before them make
  // progress.
  std::atomic<uint64_t> next{0};
  at::parallel_for(0, int64_t(tasks), 1, [&](int64_t first, int64_t) {
    const bool launching = first == 0;
    Worker& worker = worker_of_this_thread();
    worker.begin(kernel, launch);
    InterruptPoll poll;
    for (;;) {
      const uint64_t group = next.fetch_add(1, std::memory_order_relaxed);
      if (group >= groups) break;
      try {
        worker.run_group(group);
        if (launching) poll();
      } catch (...) {
        next.store(groups, std::memory_order_relaxed);  // no further groups start
        throw;
      }
    }
  });
}

}  // namespace metalops::exec

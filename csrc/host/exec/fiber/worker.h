// Scheduler of one threadgroup whose GPU threads are fibers: each has a call stack of its own and
// runs until it has to wait. Base class of the fiber engine and the sanitizing engine.
//
// Scheduling uses lane masks, one 32-bit word per simdgroup.
//
//  - A simdgroup operation completes when no lane of the simdgroup can run any more. If all of them
//    wait at the same point, they take part together. If control flow diverged, the lanes at the
//    first point in program order take part (see msl::abi::Path) and go on; the others keep waiting
//    for them. That is how lanes reconverge on a GPU.
//  - A threadgroup barrier completes when every thread of the group waits at one or has returned.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include <exec/fiber/last_values.h>
#include <exec/fiber/stack_overflow.h>
#include <exec/fiber/stacks.h>
#include <exec/fiber/switch.h>
#include <exec/in_kernel.h>
#include <exec/runtime.h>

namespace metalops::exec {

// `Engine` is the derived class (CRTP). It may hide the functions below "what an engine may
// refine".
template <class Engine>
class FiberWorker : public OverflowHandler, public FibersToLeave {
 public:
  FiberWorker(const FiberWorker&) = delete;

  // Starts a launch: allocates the kernel's threadgroup memory.
  void begin(const Kernel& kernel, const Launch& launch) {
    kernel_ = &kernel;
    launch_ = &launch;
    group_ = {};
    group_.launch = &launch;
    self().lay_out_memory();
  }
  void run_group(uint64_t index);
  // Ends a launch, after the last threadgroup. Throws when the stack of a thread has overflowed.
  void finish() {
    if (stacks_.has_overflowed()) report_overflow();
  }

  // Waits at a barrier; called by the running fiber.
  void threadgroup_barrier(msl::abi::Site site) {
    check_stack();
    Simdgroup& simdgroup = *simdgroup_;
    if (simdgroup.at_barrier == 0) simdgroup.barrier_site = simdgroup.other_barrier_site = site.id;
    if (C10_UNLIKELY(simdgroup.barrier_site != site.id)) simdgroup.other_barrier_site = site.id;
    simdgroup.runnable &= ~(1u << lane_);
    simdgroup.at_barrier |= 1u << lane_;
    self().wait();
    last_values_.has_waited(thread_index());
  }
  void simdgroup_barrier(msl::abi::Site site) { simd(site, nullptr, nullptr, nullptr); }
  void simd(msl::abi::Site site, const void* in, void* out, msl::abi::SimdFunction function) {
    check_stack();
    Simdgroup& simdgroup = *simdgroup_;
    simdgroup.site[lane_] = site.id;
    simdgroup.variable[lane_] = site.variable;
    simdgroup.function[lane_] = function;
    simdgroup.in[lane_] = in;
    simdgroup.out[lane_] = out;
    simdgroup.runnable &= ~(1u << lane_);
    simdgroup.at_simd |= 1u << lane_;
    self().wait();
    last_values_.has_waited(thread_index());
  }
  // The running fiber enters and leaves the scope of a variable that is shuffled.
  void declare(uint32_t number, uint32_t kind, const void* address, uint32_t bytes) {
    last_values_.declare(thread_index(), {number, kind, bytes}, address, path());
  }
  void leave_scope(uint32_t number) { last_values_.leave_scope(thread_index(), number); }
  uint32_t lane() const { return lane_; }
  uint32_t thread_index() const { return index_of(simdgroup_) * kSimdWidth + lane_; }
  const msl::abi::Thread& thread() const { return gpu_threads_[thread_index()]; }
  uint32_t active_mask() const { return simdgroup_->alive; }
  msl::abi::Path& path() { return paths_[thread_index()]; }

  const Kernel& kernel() const { return *kernel_; }
  bool handle_overflow(const void* address, void* signal_context) override;
  bool leave_from_outside(void* signal_context) override;

 protected:
  static constexpr uint32_t kMaxThreads = FiberStacks::kMaxStacks;
  static constexpr uint32_t kSimdWidth = msl::abi::kSimdWidth;
  static constexpr uint32_t kMaxSimdgroups = kMaxThreads / kSimdWidth;
  static constexpr uint32_t kNone = ~0u;

  // The lanes of a simdgroup: their states, stacks, and the operands of those that wait in a
  // simdgroup operation.
  struct Simdgroup {
    uint32_t alive;       // lanes that exist and have not returned
    uint32_t runnable;    // lanes that run or may run; alive = runnable | at_simd | at_barrier
    uint32_t at_simd;     // lanes that wait in a simdgroup operation
    uint32_t at_barrier;  // lanes that wait at a threadgroup barrier
    uint32_t started;     // lanes that have a stack
    uint32_t barrier_site;
    uint32_t other_barrier_site;  // differs from barrier_site when lanes wait at different barriers
    Context context[kSimdWidth];
    uint32_t stack[kSimdWidth];
    const void* stack_end[kSimdWidth];  // lowest usable address of the stack
    uint32_t site[kSimdWidth];
    uint32_t variable[kSimdWidth];
    msl::abi::SimdFunction function[kSimdWidth];
    const void* in[kSimdWidth];
    void* out[kSimdWidth];
  };
  // A thread of the group: its simdgroup and lane.
  struct Place {
    Simdgroup* simdgroup;
    uint32_t lane;
  };

  FiberWorker() = default;
  ~FiberWorker() = default;

  // ---- what an engine may refine ----------------------------------------------------------------

  // lay_out_memory: begin() needs room for the threadgroup memory of launch_ (fills in group_).
  // group_begins, group_ends: called around each threadgroup.
  void lay_out_memory() = delete;
  void group_begins() = delete;
  void group_ends() {}
  // Suspends the current thread; returns when it may go on.
  void wait() { wait_for_others(); }
  // Choose the thread to run first, next in the current simdgroup if it has runnable lanes, and
  // next in another simdgroup.
  Place choose_first() { return {simdgroups_, 0}; }
  Place choose_own();
  Place choose_other();
  // leaves: called before a switch to the stack of another thread (null: to that of run_group);
  // `done` if the stack is left for good. arrives: called after the switch, on the new stack.
  void leaves(const Place*, bool /*done*/) {}
  void arrives() {}
  // Called when another thread becomes the current one.
  void runs() {}
  // Called when every thread of the group waits at a barrier or has returned.
  void barrier_completes() {}
  // Called when lanes of one simdgroup wait at different barriers.
  void finds_different_barriers(uint32_t simdgroup);
  // Called before and after `lanes`, the first in program order, take part in a simdgroup
  // operation.
  void simd_completes(Simdgroup&, uint32_t /*lanes*/) {}
  void simd_completed() {}

  // ---- for engines ------------------------------------------------------------------------------

  Engine& self() { return static_cast<Engine&>(*this); }
  C10_NOINLINE void wait_for_others() {
    const Place place = next();
    if (place.simdgroup != simdgroup_ || place.lane != lane_) leave_to(place);
  }
  void leave_to(Place place) {
    if (C10_UNLIKELY((place.simdgroup->started >> place.lane & 1u) == 0)) start(place);
    Context& from = simdgroup_->context[lane_];
    self().leaves(&place, false);
    simdgroup_ = place.simdgroup;
    lane_ = place.lane;
    switch_context(from, place.simdgroup->context[place.lane]);
    self().arrives();
    self().runs();
  }
  uint32_t index_of(const Simdgroup* simdgroup) const { return uint32_t(simdgroup - simdgroups_); }
  [[noreturn]] void report_overflow() const;
  EndedFromOutside ended_from_outside() const;
  // Throws if the current thread has overflowed its stack: it must not let others run while its
  // frames lie on their stacks.
  void check_stack() const {
    const void* const end = simdgroup_->stack_end[lane_];
    if (C10_UNLIKELY(__builtin_frame_address(0) < end)) report_overflow();
  }

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
  // Keeps as much as possible of the data that a switch touches in one cache line.
  alignas(64) Simdgroup simdgroups_[kMaxSimdgroups];
  msl::abi::Thread gpu_threads_[kMaxThreads];
  msl::abi::Path paths_[kMaxThreads];
  LastValues last_values_;
  Context main_;
  FiberStacks stacks_;
  std::exception_ptr error_;
  bool overflowed_ = false;
  bool interrupted_ = false;
  msl::abi::Group group_;

 private:
  static void fiber_main();
  void run_fibers_on_this_stack();
  void set_size(const uint32_t size[3]);
  void put_on_stack(Place place, uint32_t stack);
  C10_NOINLINE void start(Place place);
  void finish_current();
  C10_NOINLINE Place next();
  C10_NOINLINE void complete_simd(Simdgroup& simdgroup);
  void combine_some(Simdgroup& simdgroup, uint32_t first, uint32_t lanes);
  int compare_points(const Simdgroup& simdgroup, uint32_t a, uint32_t b) const;
  bool are_at_one_point(const Simdgroup& simdgroup) const;
  C10_NOINLINE bool release_barrier();

  SignalStack signal_stack_;
};

// Fills in everything that depends only on the size of the threadgroup: most groups of a launch
// have the same size.
template <class Engine>
void FiberWorker<Engine>::set_size(const uint32_t size[3]) {
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

template <class Engine>
void FiberWorker<Engine>::run_group(uint64_t index) {
  place_group(*launch_, index, group_);
  set_size(group_.size);

  for (uint32_t s = 0; s < simdgroup_count_; ++s) {
    const uint32_t lanes = std::min(threads_ - s * kSimdWidth, kSimdWidth);
    Simdgroup& simdgroup = simdgroups_[s];
    simdgroup.alive = simdgroup.runnable = lanes == kSimdWidth ? ~0u : (1u << lanes) - 1;
    simdgroup.at_simd = simdgroup.at_barrier = simdgroup.started = 0;
  }
  ready_ = simdgroup_count_ == 32 ? ~0u : (1u << simdgroup_count_) - 1;
  done_ = 0;
  stacks_.reset();
  last_values_.clear();
  overflowed_ = interrupted_ = false;
  self().group_begins();

  Engine* const before = Engine::running;
  OverflowHandler* const handler_before = overflow_handler;
  Engine::running = &self();
  overflow_handler = this;
  running_ = true;
  std::optional<InKernel> in_kernel(std::in_place, *kernel_, Engine::kName, this);
  const Place first = self().choose_first();
  start(first);
  self().leaves(&first, false);
  simdgroup_ = first.simdgroup;
  lane_ = first.lane;
  switch_context(main_, first.simdgroup->context[first.lane]);
  self().arrives();
  in_kernel.reset();
  running_ = false;
  Engine::running = before;
  overflow_handler = handler_before;
  self().group_ends();

  if (overflowed_) {
    error_ = nullptr;
    stacks_.mark_again();
    report_overflow();
  }
  if (interrupted_) {
    error_ = nullptr;
    throw ended_from_outside();
  }
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

template <class Engine>
inline void FiberWorker<Engine>::put_on_stack(Place place, uint32_t stack) {
  Simdgroup& simdgroup = *place.simdgroup;
  simdgroup.started |= 1u << place.lane;
  simdgroup.stack[place.lane] = stack;
  simdgroup.stack_end[place.lane] = stacks_.bottom(stack);
}

template <class Engine>
void FiberWorker<Engine>::start(Place place) {
  Simdgroup& simdgroup = *place.simdgroup;
  const uint32_t stack = stacks_.acquire();
  put_on_stack(place, stack);
  make_context(simdgroup.context[place.lane], stacks_.bottom(stack), stacks_.top(stack),
               &fiber_main);
}

template <class Engine>
void FiberWorker<Engine>::fiber_main() {
  Engine* const worker = Engine::running;
  worker->arrives();
  worker->runs();
  try {
    worker->run_fibers_on_this_stack();
  } catch (...) {
    // The other threads of the group are abandoned where they stand; their frames hold only plain
    // data.
    worker->error_ = std::current_exception();
  }
  Context abandoned;
  worker->leaves(nullptr, true);
  switch_context(abandoned, worker->main_);
}

// Runs the current thread, and then threads that have not started yet, as long as no suspended one
// is next.
template <class Engine>
void FiberWorker<Engine>::run_fibers_on_this_stack() {
  for (;;) {
    path().depth = 0;
    kernel_->thread(launch_, &thread());
    const uint32_t stack = simdgroup_->stack[lane_];
    Context& finished = simdgroup_->context[lane_];
    finish_current();
    if (done_ == threads_) return;
    const Place place = next();
    if ((place.simdgroup->started >> place.lane & 1u) == 0) {
      simdgroup_ = place.simdgroup;
      lane_ = place.lane;
      put_on_stack(place, stack);
      self().runs();
      continue;
    }
    stacks_.release(stack);  // nobody takes the stack before it is left
    self().leaves(&place, true);
    simdgroup_ = place.simdgroup;
    lane_ = place.lane;
    switch_context(finished, simdgroup_->context[lane_]);
  }
}

template <class Engine>
void FiberWorker<Engine>::finish_current() {
  simdgroup_->alive &= ~(1u << lane_);
  simdgroup_->runnable &= ~(1u << lane_);
  ++done_;
}

// Returns the thread to run when the current one cannot; there is one, because some thread of the
// group has not returned.
template <class Engine>
typename FiberWorker<Engine>::Place FiberWorker<Engine>::next() {
  Simdgroup& own = *simdgroup_;
  if (own.runnable == 0 && own.at_simd != 0) complete_simd(own);
  if (own.runnable != 0) return self().choose_own();
  const uint32_t index = index_of(&own);
  ready_ &= ~(1u << index);
  if (ready_ == 0) {
    const bool released = release_barrier();
    TORCH_INTERNAL_ASSERT(released, "no thread of the group can run");
    if (ready_ >> index & 1u) return next();
  }
  return self().choose_other();
}

// Returns the next runnable lane in round-robin order. The lanes of a simdgroup stay together, as
// on a GPU.
template <class Engine>
inline typename FiberWorker<Engine>::Place FiberWorker<Engine>::choose_own() {
  Simdgroup& own = *simdgroup_;
  if (own.runnable >> lane_ & 1u) return {&own, lane_};  // no switch at all
  const uint32_t later = own.runnable & ~((2u << lane_) - 1u);
  return {&own, uint32_t(__builtin_ctz(later != 0 ? later : own.runnable))};
}

template <class Engine>
inline typename FiberWorker<Engine>::Place FiberWorker<Engine>::choose_other() {
  const uint32_t later = ready_ & ~((2u << index_of(simdgroup_)) - 1u);
  Simdgroup& other = simdgroups_[__builtin_ctz(later != 0 ? later : ready_)];
  return {&other, uint32_t(__builtin_ctz(other.runnable))};
}

template <class Engine>
bool FiberWorker<Engine>::release_barrier() {
  self().barrier_completes();
  for (uint32_t s = 0; s < simdgroup_count_; ++s) {
    Simdgroup& simdgroup = simdgroups_[s];
    if (simdgroup.at_barrier == 0) continue;
    if (simdgroup.barrier_site != simdgroup.other_barrier_site) self().finds_different_barriers(s);
    simdgroup.runnable = simdgroup.at_barrier;
    simdgroup.at_barrier = 0;
    ready_ |= 1u << s;
  }
  return ready_ != 0;
}

template <class Engine>
void FiberWorker<Engine>::report_overflow() const {
  TORCH_CHECK(false, "kernel '", kernel_->name, "': a thread used more than ",
              FiberStacks::kStackBytes / 1024,
              " KiB of stack (endless recursion, or large local arrays)");
}

template <class Engine>
EndedFromOutside FiberWorker<Engine>::ended_from_outside() const {
  EndedFromOutside ended = this_cpu_thread->ended();
  for (uint32_t s = 0; s < simdgroup_count_ && ended.waiting.empty(); ++s) {
    if (simdgroups_[s].at_barrier == 0) continue;
    ended.waiting = "threads of simdgroup " + std::to_string(s) + " wait at the barrier at " +
                    describe(*kernel_, {simdgroups_[s].barrier_site, 0});
  }
  return ended;
}

// Reports a deadlock: a GPU would count such a simdgroup twice and hang.
template <class Engine>
void FiberWorker<Engine>::finds_different_barriers(uint32_t s) {
  const Simdgroup& simdgroup = simdgroups_[s];
  report_different_barriers(*kernel_, group_, s, {simdgroup.barrier_site, 0}, s,
                            {simdgroup.other_barrier_site, 0});
}

// Compares the points of two waiting lanes in program order: negative if `a` is behind `b`, 0 if
// equal.
template <class Engine>
int FiberWorker<Engine>::compare_points(const Simdgroup& simdgroup, uint32_t a, uint32_t b) const {
  const msl::abi::Path* const paths = paths_ + index_of(&simdgroup) * kSimdWidth;
  const msl::abi::Path& x = paths[a];
  const msl::abi::Path& y = paths[b];
  const uint32_t common = std::min(x.depth, y.depth);
  uint32_t i = 0;
  while (i < common && x.steps[i] == y.steps[i]) ++i;
  const uint32_t in_x = i < x.depth ? x.steps[i] : simdgroup.site[a];
  const uint32_t in_y = i < y.depth ? y.steps[i] : simdgroup.site[b];
  return in_x < in_y ? -1 : in_x > in_y;
}

// Returns true if all waiting lanes are at the same point, in the same function: the common case.
template <class Engine>
bool FiberWorker<Engine>::are_at_one_point(const Simdgroup& simdgroup) const {
  const msl::abi::Path* const paths = paths_ + index_of(&simdgroup) * kSimdWidth;
  const uint32_t first = uint32_t(__builtin_ctz(simdgroup.at_simd));
  const msl::abi::Path& path = paths[first];
  for (uint32_t rest = simdgroup.at_simd & (simdgroup.at_simd - 1); rest != 0; rest &= rest - 1) {
    const uint32_t lane = uint32_t(__builtin_ctz(rest));
    const msl::abi::Path& other = paths[lane];
    if (simdgroup.site[lane] != simdgroup.site[first] || other.depth != path.depth ||
        simdgroup.function[lane] != simdgroup.function[first]) {
      return false;
    }
    // Steps come in pairs: a site and how often it was entered.
    uint64_t differing = 0;
    for (uint32_t i = 0; i < path.depth; i += 2) {
      uint64_t a, b;
      std::memcpy(&a, path.steps + i, sizeof(a));
      std::memcpy(&b, other.steps + i, sizeof(b));
      differing |= a ^ b;
    }
    if (differing != 0) return false;
  }
  return true;
}

// Completes a simdgroup operation for the lanes at the first point in program order: combines their
// operands and makes them runnable.
template <class Engine>
void FiberWorker<Engine>::complete_simd(Simdgroup& simdgroup) {
  uint32_t first = uint32_t(__builtin_ctz(simdgroup.at_simd));
  uint32_t lanes = are_at_one_point(simdgroup) ? simdgroup.at_simd : 0;
  for (uint32_t rest = lanes == 0 ? simdgroup.at_simd : 0; rest != 0; rest &= rest - 1) {
    const uint32_t lane = uint32_t(__builtin_ctz(rest));
    const int order = compare_points(simdgroup, lane, first);
    if (order < 0) {
      first = lane;
      lanes = 0;
    }
    // One call in the source is several functions when lanes run different instantiations of a
    // template.
    if (order <= 0 && simdgroup.function[lane] == simdgroup.function[first]) lanes |= 1u << lane;
  }
  self().simd_completes(simdgroup, lanes);
  if (lanes != ~0u) {
    combine_some(simdgroup, first, lanes);
  } else if (const auto function = simdgroup.function[first]) {
    function(simdgroup.in, simdgroup.out, lanes);
  }
  self().simd_completed();
  simdgroup.at_simd &= ~lanes;
  simdgroup.runnable |= lanes;
}

// Combines the operands of `lanes`, of which `first` is one. A shuffle takes the last value of its
// variable from lanes that take no part and have it.
template <class Engine>
void FiberWorker<Engine>::combine_some(Simdgroup& simdgroup, uint32_t first, uint32_t lanes) {
  const auto function = simdgroup.function[first];
  if (function == nullptr) return;
  const void* in[kSimdWidth] = {};
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const uint32_t lane = uint32_t(__builtin_ctz(rest));
    in[lane] = simdgroup.in[lane];
  }
  if (const uint32_t variable = simdgroup.variable[first]; variable != 0) {
    const uint32_t start = index_of(&simdgroup) * kSimdWidth;
    const uint32_t count = std::min(threads_ - start, kSimdWidth);
    for (uint32_t lane = 0; lane < count; ++lane) {
      if (in[lane] == nullptr) in[lane] = last_values_.find(start + lane, start + first, variable);
    }
  }
  function(in, simdgroup.out, lanes);
}

template <class Engine>
bool FiberWorker<Engine>::handle_overflow(const void* address, void* signal_context) {
  if (!running_ || !stacks_.is_guard(address)) return false;
  overflowed_ = true;
  self().leaves(nullptr, true);
  return redirect_to_context(signal_context, main_);
}

template <class Engine>
bool FiberWorker<Engine>::leave_from_outside(void* signal_context) {
  if (!running_) return false;
  interrupted_ = true;
  self().leaves(nullptr, true);
  return redirect_to_context(signal_context, main_);
}

}  // namespace metalops::exec

// The sanitizing engine: scheduling, and its checks of barriers, simdgroup operations and accesses.
#include <exec/sanitize/engine.h>

#include <c10/util/Exception.h>

#include <cstring>
#include <sstream>

#include <exec/sanitize/c_library.h>
#include <exec/sanitize/findings.h>
#include <exec/sanitize/red_zones.h>
#include <exec/sanitize/sanitizer_runtime.h>
#include <exec/share_out.h>

namespace metalops::exec {

using msl::abi::Access;
using msl::abi::Site;
using msl::abi::Undefined;

constinit thread_local SanitizingWorker* SanitizingWorker::running = nullptr;

namespace {

// Consecutive reads of one address by a thread after which others get their turn: the thread may be
// waiting for what they write.
constexpr uint64_t kSpins = 10'000;
// Number of such turns without any other event after which the launch is deadlocked.
constexpr uint64_t kHopeless = 1'000;

// AddressSanitizer keeps the bounds of the current stack, and is told of switches.
using StartSwitch = void (*)(void** save, const void* bottom, size_t bytes);
using FinishSwitch = void (*)(void* save, const void** old_bottom, size_t* old_bytes);
StartSwitch start_switch() {
  static const auto found =
      has_red_zones() ? sanitizer_symbol<StartSwitch>("__sanitizer_start_switch_fiber") : nullptr;
  return found;
}
FinishSwitch finish_switch() {
  static const auto found =
      has_red_zones() ? sanitizer_symbol<FinishSwitch>("__sanitizer_finish_switch_fiber") : nullptr;
  return found;
}

}  // namespace

SanitizingWorker::SanitizingWorker() : races_(RaceDetector::create()) {}

void run_sanitizing(const Kernel& kernel, const Launch& launch) {
  SanitizingWorker::launch(kernel, launch);
}

void SanitizingWorker::launch(const Kernel& kernel, const Launch& launch) {
  static constinit thread_local std::unique_ptr<SanitizingWorker> kept;
  // Lends this CPU thread's worker to a launch. A nested launch, from a signal handler, has its
  // own.
  struct Lent {
    std::unique_ptr<SanitizingWorker> worker = std::move(kept);
    ~Lent() { kept = std::move(worker); }
  } lent;
  if (lent.worker == nullptr) lent.worker.reset(new SanitizingWorker);
  lent.worker->run(kernel, launch);
}

void SanitizingWorker::run(const Kernel& kernel, const Launch& launch) {
  const uint64_t groups = uint64_t(launch.groups[0]) * launch.groups[1] * launch.groups[2];
  shuffle_.emplace();
  const Permutation permutation(groups, *shuffle_);
  begin(kernel, launch);
  outputs_.begin(kernel, launch);
  known_.clear();
  if (races_ != nullptr) races_->launch_begins(kernel, launch, *shuffle_);
  struct End {
    SanitizingWorker& worker;
    ~End() {
      if (worker.races_ != nullptr) worker.races_->launch_ends();
    }
  } end{*this};
  share_out(0, groups, 1, /*threads=*/1, [&] {
    return [&](uint64_t order, uint64_t) {
      order_ = order;
      group_index_ = shuffle_seed() == 0 ? order : permutation[order];
      run_group(group_index_);
    };
  });
  outputs_.end();
  finish();
}

// ---- threadgroup memory -------------------------------------------------------------------------

void SanitizingWorker::lay_out_memory() { memory_.begin(*kernel_, *launch_, group_); }

void SanitizingWorker::group_begins() {
  uint8_t* memory = own_memory_;
  if (races_ != nullptr) {
    memory = races_->group_begins(order_, group_index_, memory_.is_used());
  }
  memory_.group_begins(memory, group_);
  cooperative_.clear();
  scope_operations_.clear();
  in_operation_ = false;
  acting_lane_ = shuffle_->below(kSimdWidth);
  barrier_site_.fill(kNone);
  fake_stacks_.fill(nullptr);
  spins_ = yields_ = 0;
}

void SanitizingWorker::group_ends() {
  running_thread = {};
  if (error_ == nullptr && !overflowed_) check_scope_operations();
  memory_.group_ends();
  if (races_ != nullptr) races_->group_ends();
  if (error_ == nullptr && !overflowed_) return;
  // Abandoned frames have left their red zones behind.
  for (uint32_t stack = 0; stack < stacks_.used(); ++stack) {
    unpoison(stacks_.bottom(stack), FiberStacks::kStackBytes);
  }
}

uint32_t SanitizingWorker::place_variable(uint32_t bytes, uint32_t alignment) {
  const uint32_t offset = memory_.place(group_, bytes, alignment);
  TORCH_CHECK(offset != kNone, "kernel '", kernel_->name,
              "': the threadgroup variables need more memory than the kernel declares");
  return offset;
}

// ---- order --------------------------------------------------------------------------------------

SanitizingWorker::Place SanitizingWorker::choose_other() {
  if (shuffle_seed() == 0) return FiberWorker::choose_other();
  Simdgroup& simdgroup = simdgroups_[shuffle_->bit_of(ready_)];
  return {&simdgroup, shuffle_->bit_of(simdgroup.runnable)};
}

void SanitizingWorker::leaves(const Place* to, bool done) {
  const bool from_host = std::exchange(on_host_stack_, to == nullptr);
  const StartSwitch start = start_switch();
  if (start == nullptr) return;
  void** save = from_host ? &fake_stack_ : &fake_stacks_[thread_index()];
  const void* bottom = own_bottom_;
  size_t bytes = own_bytes_;
  if (to != nullptr) {
    const uint32_t stack = to->simdgroup->stack[to->lane];
    bottom = stacks_.bottom(stack);
    bytes = size_t(static_cast<const char*>(stacks_.top(stack)) - static_cast<const char*>(bottom));
  }
  start(done ? nullptr : save, bottom, bytes);
}

void SanitizingWorker::arrives() {
  const FinishSwitch finish = finish_switch();
  if (finish == nullptr) return;
  const void* bottom = nullptr;
  size_t bytes = 0;
  finish(on_host_stack_ ? fake_stack_ : fake_stacks_[thread_index()], &bottom, &bytes);
  if (!std::exchange(knows_own_stack_, true)) {
    own_bottom_ = bottom;  // the first switch of all left the CPU thread's own stack
    own_bytes_ = bytes;
  }
}

void SanitizingWorker::runs() { running_thread = {kernel_, &thread(), nullptr}; }

// ---- barriers -----------------------------------------------------------------------------------

void SanitizingWorker::threadgroup_barrier(Site site) {
  const uint32_t thread = thread_index();
  barrier_site_[thread] = site.id;
  if (races_ != nullptr) races_->arrives(thread, RaceDetector::kGroup, site.mem_flags);
  FiberWorker::threadgroup_barrier(site);
  if (races_ != nullptr) races_->leaves(thread, RaceDetector::kGroup, site.mem_flags);
}

void SanitizingWorker::simdgroup_barrier(Site site) {
  const uint32_t thread = thread_index();
  if (races_ != nullptr) races_->arrives(thread, RaceDetector::kSimdgroup, site.mem_flags);
  FiberWorker::simdgroup_barrier(site);
  if (races_ != nullptr) races_->leaves(thread, RaceDetector::kSimdgroup, site.mem_flags);
}

void SanitizingWorker::simd(Site site, const void* in, void* out, msl::abi::SimdFunction function,
                            const void* place) {
  simd_place_[thread_index()] = place;
  FiberWorker::simd(site, in, out, function);
}

std::string SanitizingWorker::describe_thread(uint32_t index) const {
  return describe(gpu_threads_[index]);
}

bool SanitizingWorker::is_new(uint32_t site, uint32_t other) {
  const std::pair<uint32_t, uint32_t> pair{site, other};
  if (std::find(known_.begin(), known_.end(), pair) != known_.end()) return false;
  known_.push_back(pair);
  return true;
}

// Describes where a thread is that has not reached the barrier; `where` receives its site.
std::string SanitizingWorker::describe_absence(uint32_t index, uint32_t* where) const {
  const Simdgroup& simdgroup = simdgroups_[index / kSimdWidth];
  const uint32_t lane = index % kSimdWidth;
  *where = kNone;
  if (index >= threads_) return "does not exist in this threadgroup";
  if ((simdgroup.alive >> lane & 1u) == 0) {
    const uint32_t last = barrier_site_[index];
    return "has returned" +
           (last == kNone ? "" : ", after the barrier at " + describe(*kernel_, Site{last, 0}));
  }
  *where = simdgroup.at_barrier >> lane & 1u ? barrier_site_[index] : simdgroup.site[lane];
  return "is at " + describe(*kernel_, Site{*where, 0});
}

void SanitizingWorker::barrier_completes() {
  check_scope_operations();
  if (races_ != nullptr) races_->completes(RaceDetector::kGroup, 0);
  uint32_t first = 0;  // a thread that waits
  const auto waits = [&](uint32_t thread) {
    return simdgroups_[thread / kSimdWidth].at_barrier >> thread % kSimdWidth & 1u;
  };
  while (first < threads_ && !waits(first)) ++first;
  if (first == threads_) return;
  const uint32_t site = barrier_site_[first];
  for (uint32_t thread = 0; thread < threads_; ++thread) {
    if (waits(thread) && barrier_site_[thread] == site) continue;
    uint32_t other;
    const std::string absence = describe_absence(thread, &other);
    if (!is_new(site, other)) return;
    add_finding({"barrier-divergence",
                 describe(*kernel_, Site{site, 0}) + ": barrier-divergence in kernel '" +
                     kernel_->name +
                     "': not all threads of the threadgroup reach this barrier\n  here waits " +
                     describe_thread(first) + "\n  " + describe_thread(thread) + " " + absence,
                 false,
                 {}});
    return;
  }
}

// ---- simdgroup operations -----------------------------------------------------------------------

void SanitizingWorker::simd_completes(Simdgroup& simdgroup, uint32_t lanes) {
  const auto lane = uint32_t(__builtin_ctz(lanes));
  operation_ = &simdgroup;
  operation_lanes_ = lanes;
  operation_site_ = simdgroup.site[lane];
  const uint32_t first = index_of(&simdgroup) * kSimdWidth;
  if (simdgroup.function[lane] != nullptr) {
    in_operation_ = true;
    operation_thread_ = first + (lanes >> acting_lane_ & 1u ? acting_lane_ : lane);
    operation_place_ = simd_place_[operation_thread_];
    running_thread = {kernel_, &gpu_threads_[operation_thread_], operation_place_};
    return;
  }
  if (races_ != nullptr) races_->completes(RaceDetector::kSimdgroup, first / kSimdWidth);
  const uint32_t count = std::min(threads_ - first, kSimdWidth);
  const uint32_t absent = ~lanes & (count == kSimdWidth ? ~0u : (1u << count) - 1u);
  if (absent == 0) return;
  uint32_t other;
  const uint32_t thread = first + uint32_t(__builtin_ctz(absent));
  const std::string absence = describe_absence(thread, &other);
  if (!is_new(operation_site_, other)) return;
  add_finding({"barrier-divergence",
               describe(*kernel_, Site{operation_site_, 0}) + ": barrier-divergence in kernel '" +
                   kernel_->name +
                   "': not all threads of the simdgroup reach this barrier\n  here waits " +
                   describe_thread(first + lane) + "\n  " + describe_thread(thread) + " " + absence,
               false,
               {}});
}

void SanitizingWorker::simd_completed() {
  if (!std::exchange(in_operation_, false)) return;
  runs();
}

void SanitizingWorker::undefined(Undefined what, uint32_t lane, uint32_t value) {
  const uint32_t first = index_of(operation_) * kSimdWidth;
  uint32_t other = kNone - 1 - uint32_t(what);
  std::ostringstream text;
  switch (what) {
    case Undefined::kAbsentLane:
      text << "takes the value of lane " << value << ", which takes no part: it ";
      text << describe_absence(first + value, &other);
      break;
    case Undefined::kNoSuchLane:
      text << "takes the value of lane " << value << ", which does not exist";
      break;
    case Undefined::kNotUniform:
      text << "gives another lane or distance than lane " << __builtin_ctz(operation_lanes_)
           << " does (" << value << "); it must be the same for all";
      break;
    case Undefined::kNotAll:
      text << "takes part, but only " << value
           << " threads of the simdgroup do; all 32 must, or the result is undefined";
      break;
  }
  if (!is_new(operation_site_, other)) return;
  add_finding({"undefined-simd-result",
               describe(*kernel_, Site{operation_site_, 0}) +
                   ": undefined-simd-result in kernel '" + kernel_->name + "': lane " +
                   std::to_string(lane) + " " + std::move(text).str() + "\n  " +
                   describe_thread(first + lane),
               false,
               {}});
}

// ---- accesses -----------------------------------------------------------------------------------

void SanitizingWorker::add(const char* kind, const std::string& what, uint32_t thread,
                           const void* place, bool warning) {
  add_finding({kind,
               std::string("{0}: ") + kind + " in kernel '" + kernel_->name + "': " + what +
                   "\n  " + describe_thread(thread),
               warning,
               {{place}}});
}

// Returns true for memory that belongs to one thread, or to the device's own records.
bool SanitizingWorker::is_private(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  const auto within = [&](const void* begin, size_t bytes) {
    return size_t(byte - static_cast<const char*>(begin)) < bytes;
  };
  return stacks_.contains(address) || within(this, sizeof *this) ||
         within(launch_, sizeof *launch_);
}

void SanitizingWorker::check_threadgroup_access(const void* address, uint64_t bytes, bool write,
                                                const void* place) {
  using Problem = ThreadgroupMemory::Problem;
  const Problem problem = write ? memory_.write(address, bytes) : memory_.read(address, bytes);
  if (C10_LIKELY(problem == Problem::kNone)) return;
  // AddressSanitizer reports accesses outside of variables.
  if (problem == Problem::kOutside && has_red_zones()) return;
  const char* const kind = problem == Problem::kOutside ? "threadgroup-buffer-overflow"
                                                        : "uninitialized-threadgroup-read";
  std::ostringstream text;
  text << (write ? "writes " : "reads ") << bytes << " bytes"
       << (problem == Problem::kOutside ? " outside of the kernel's threadgroup variables"
                                        : " of threadgroup memory that no thread has written");
  add(kind, std::move(text).str(), accessing_thread(), place);
}

void SanitizingWorker::check_cooperative_access(const void* address, uint64_t bytes, bool write,
                                                const void* place) {
  using Problem = CooperativeElements::Problem;
  if (write) return cooperative_.write(address, bytes);
  const CooperativeElements::Read read = cooperative_.read(address, bytes);
  if (C10_LIKELY(read.problem == Problem::kNone)) return;
  const std::string slot = "reads slot " + std::to_string(read.slot) + " of a cooperative tensor, ";
  if (read.problem == Problem::kUnwritten) {
    add("uninitialized-cooperative-read", slot + "whose element nothing has written", read.thread,
        place);
  } else {
    add("invalid-cooperative-read", slot + "which has no element (is_valid_element tells)",
        read.thread, place);
  }
}

void SanitizingWorker::let_others_run(const void* address) {
  const bool same = std::exchange(last_read_, address) == address;
  if (!same || ++spins_ < kSpins) {
    if (!same) spins_ = yields_ = 0;
    return;
  }
  spins_ = 0;
  if (++yields_ > kHopeless * threads_) {
    error_ = std::make_exception_ptr(c10::Error(
        {__func__, __FILE__, uint32_t(__LINE__)},
        c10::str("kernel '", kernel_->name, "': ", describe_thread(thread_index()),
                 " waits for what another threadgroup writes. Metal does not promise that "
                 "threadgroups run at the same time or in order; this sanitizer runs them one "
                 "after the other in a shuffled order (in that of their positions under "
                 "METALOPS_SANITIZE_SEED=0).")));
    Context abandoned;
    leaves(nullptr, true);
    switch_context(abandoned, main_);
  }
  const Place place = choose_other();
  if (place.simdgroup != simdgroup_ || place.lane != lane_) leave_to(place);
}

void SanitizingWorker::access(const void* address, uint64_t bytes, bool write,
                              const void* instruction) {
  const bool threadgroup = memory_.contains(address);
  const void* const place = accessing_place(instruction);
  if (!threadgroup && is_private(address)) {
    if (!cooperative_.empty()) check_cooperative_access(address, bytes, write, place);
    return;
  }
  if (write) {
    last_read_ = nullptr;
    if (!threadgroup) outputs_.write(address, bytes);
  } else if (!in_operation_) {
    let_others_run(address);
  }
  if (threadgroup) check_threadgroup_access(address, bytes, write, place);
  if (races_ != nullptr) {
    races_->access(accessing_thread(),
                   threadgroup ? RaceDetector::kThreadgroup : RaceDetector::kDevice, address, bytes,
                   write, place);
  }
}

void SanitizingWorker::atomic(const void* address, uint64_t bytes, Access kind, int order,
                              const void* place) {
  const bool write = kind != Access::kRead;
  const bool threadgroup = memory_.contains(address);
  if (!threadgroup && is_private(address)) return;
  if (!threadgroup && write) outputs_.write(address, bytes);
  if (kind != Access::kWrite) let_others_run(address);
  if (threadgroup) {
    if (kind != Access::kWrite) check_threadgroup_access(address, bytes, false, place);
    if (kind != Access::kRead) check_threadgroup_access(address, bytes, true, place);
  }
  if (races_ != nullptr) {
    races_->atomic(thread_index(), threadgroup ? RaceDetector::kThreadgroup : RaceDetector::kDevice,
                   address, bytes, write, order, place);
  }
}

void SanitizingWorker::fence(uint32_t mem_flags, int order) {
  if (races_ != nullptr) races_->fence(thread_index(), mem_flags, order);
}

// ---- tensors ------------------------------------------------------------------------------------

void SanitizingWorker::misuse(msl::abi::Misuse what, const char* operand, const int64_t* numbers,
                              const void* place) {
  using msl::abi::Misuse;
  const int64_t a = numbers[0], b = numbers[1], c = numbers[2], d = numbers[3];
  const char* kind = "";
  std::ostringstream text;
  switch (what) {
    case Misuse::kInnermostStride:
      kind = "innermost-stride";
      text << "the " << operand << " has an innermost stride of " << a
           << "; operations on tensors take it for 1";
      break;
    case Misuse::kSmallOperand:
    case Misuse::kShortOperand:
      kind = "operand-too-small";
      text << "the " << operand << " has extent " << b << " in dimension " << a << ", and " << c
           << " elements are read or written there: "
           << (what == Misuse::kSmallOperand
                   ? "a static extent is not looked at"
                   : "where the inner dimension is static, not all devices look at extents");
      break;
    case Misuse::kSliceOutside:
      kind = "slice-out-of-bounds";
      text << "a slice ";
      if (c >= 0) text << "of " << c << " elements ";
      text << "begins at " << b << " in dimension " << a << ", of extent " << d;
      break;
    case Misuse::kSliceInBlock:
      kind = "slice-within-scale-block";
      text << "a slice begins at " << b << " in dimension " << a << ", within a block of " << c
           << " elements that have one scale";
      break;
    case Misuse::kTexelOutside: {
      kind = "texture-out-of-bounds";
      text << "a texel outside of a texture is read or written: (" << a;
      if (b >= 0) text << ", " << b;
      if (c >= 0) text << ", " << c;
      text << ")";
      if (d >= 0) text << " in slice " << d;
      break;
    }
    case Misuse::kLevelOutside:
      kind = "texture-out-of-bounds";
      text << "level " << a << " of a texture of " << b << (b == 1 ? " level" : " levels");
      break;
    case Misuse::kLinearInteger:
      kind = "linear-integer-texture";
      text << "a texture of integers is sampled with a linear filter, which Metal leaves undefined";
      break;
  }
  add(kind, std::move(text).str(), thread_index(), place, what == Misuse::kShortOperand);
}

void SanitizingWorker::scope_operation(const ScopeOperations::Operation& operation) {
  const uint32_t thread = thread_index();
  const uint32_t first = thread / kSimdWidth * kSimdWidth;
  const uint32_t needed = operation.simdgroups * kSimdWidth;
  const uint32_t threads =
      operation.simdgroups == 1 ? std::min(threads_ - first, kSimdWidth) : threads_;
  if (threads != needed) {
    add("wrong-number-of-threads",
        std::string(operation.name) + " is an operation of " + std::to_string(needed) +
            " threads, and the " + (operation.simdgroups == 1 ? "simdgroup" : "threadgroup") +
            " has " + std::to_string(threads),
        thread, operation.place);
  }
  scope_operations_.add(thread, operation);
}

void SanitizingWorker::check_scope_operations() {
  if (scope_operations_.is_empty()) return;
  const ScopeOperations::Difference found = scope_operations_.find(threads_);
  if (found.operation != nullptr) {
    const bool is_one = found.operation->simdgroups == 1;
    Finding finding{"scope-divergence",
                    std::string("{0}: scope-divergence in kernel '") + kernel_->name +
                        "': not all threads of the " + (is_one ? "simdgroup" : "threadgroup") +
                        " come to this " + found.operation->name + "\n  here is " +
                        describe_thread(found.thread) + "\n  " +
                        describe_thread(found.other_thread) +
                        (found.other == nullptr ? " does not come here" : " is at {1}"),
                    false,
                    {{found.operation->place}}};
    if (found.other != nullptr) finding.stacks.push_back({found.other->place});
    add_finding(std::move(finding));
  }
  scope_operations_.clear();
}

// ---- functions that kernels call ----------------------------------------------------------------

void on_undefined(Undefined what, uint32_t lane, uint32_t value) {
  if (SanitizingWorker* worker = SanitizingWorker::running) worker->undefined(what, lane, value);
}

void on_access(const void* address, uint64_t bytes, Access kind, const void* place) {
  if (SanitizingWorker* worker = SanitizingWorker::running) {
    worker->access(address, bytes, kind == Access::kWrite, place);
  }
}

void on_atomic(const void* address, uint64_t bytes, Access kind, int order, const void* place) {
  if (SanitizingWorker* worker = SanitizingWorker::running) {
    worker->atomic(address, bytes, kind, order, place);
  }
}

void on_fence(uint32_t mem_flags, int order) {
  if (SanitizingWorker* worker = SanitizingWorker::running) worker->fence(mem_flags, order);
}

void on_copy(void* to, const void* from, uint64_t bytes, const void* place) {
  if (bytes != 0) {
    on_access(from, bytes, Access::kRead, place);
    on_access(to, bytes, Access::kWrite, place);
  }
  c_library::move(to, from, bytes);
}

void on_fill(void* to, int byte, uint64_t bytes, const void* place) {
  if (bytes != 0) on_access(to, bytes, Access::kWrite, place);
  c_library::fill(to, byte, bytes);
}

void on_misuse(msl::abi::Misuse what, const char* operand, const int64_t* numbers,
               const void* place) {
  if (SanitizingWorker* worker = SanitizingWorker::running) {
    worker->misuse(what, operand, numbers, place);
  }
}

void on_scope_operation(uint32_t simdgroups, const char* name, uint64_t kind, const void* place) {
  if (SanitizingWorker* worker = SanitizingWorker::running) {
    worker->scope_operation({simdgroups, name, kind, place});
  }
}

void on_elements_begin(void* elements, uint32_t element_bytes, const uint8_t* exists,
                       uint32_t count) {
  if (SanitizingWorker* worker = SanitizingWorker::running) {
    worker->cooperative_elements().begin(worker->thread_index(), elements, element_bytes, exists,
                                         count);
  }
}

void on_elements_copied(void* to, const void* from) {
  if (SanitizingWorker* worker = SanitizingWorker::running) {
    worker->cooperative_elements().copy(worker->thread_index(), to, from);
  }
}

}  // namespace metalops::exec

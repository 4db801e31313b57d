// Drives ThreadSanitizer's runtime: fibers as views of GPU threads, barriers, and reports.
#include <exec/sanitize/race_detector.h>

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <utility>

#include <exec/runtime.h>
#include <exec/sanitize/findings.h>

namespace metalops::exec {

using msl::abi::kSimdWidth;

namespace {

// Bits of mem_flags (msl/atomic.h).
constexpr uint32_t kMemDevice = 1;
constexpr uint32_t kMemThreadgroup = 2;
constexpr uint32_t kMemTexture = 4;

bool names(uint32_t mem_flags, RaceDetector::View view) {
  return mem_flags & (view == RaceDetector::kDevice ? kMemDevice | kMemTexture : kMemThreadgroup);
}

constexpr unsigned kWithoutOrdering = 1;  // flag of __tsan_switch_to_fiber

// Maximum number of views for kernels that do not synchronise; their threads take turns with them.
constexpr uint32_t kUnsynchronisedFibers = 256;
constexpr uint32_t kSynchronisedFibers = 1024;
constexpr uint64_t kMaxSets = 16;

// Number of fibers that the runtime distinguishes at a time; more of them take each other's slots.
constexpr uint32_t kSlots = 255 - 32;  // the other slots are for threads of the process
std::atomic<uint32_t> fibers_made{0};  // fibers are never destroyed

constexpr uint32_t kVariableBytes = 64 * 1024;

// The name of a thread: an address outside of all code, at the bottom of its call stack.
constexpr uint64_t kNameMark = uint64_t{1} << 57;
uint64_t name_of(uint64_t group, uint32_t thread) { return kNameMark | group << 10 | thread; }
bool is_name(const void* pc) { return reinterpret_cast<uint64_t>(pc) >> 56 == kNameMark >> 56; }

// ---- reports of the runtime ---------------------------------------------------------------------

constexpr int kMaxFrames = 16;
struct ReportedAccess {
  void* address;
  int bytes;
  int write;
  int atomic;
  void* frames[kMaxFrames];
};
struct Report {
  int accesses = 0;
  ReportedAccess access[2];
};
Report report;
bool reported = false;

// Called by the runtime under its own locks: only records the report.
void on_race(void* data) {
  using GetData =
      int (*)(void*, const char**, int*, int*, int*, int*, int*, int*, int*, void**, unsigned long);
  using GetAccess =
      int (*)(void*, unsigned long, int*, void**, int*, int*, int*, void**, unsigned long);
  static const auto get_data = sanitizer_symbol<GetData>("__tsan_get_report_data");
  static const auto get_access = sanitizer_symbol<GetAccess>("__tsan_get_report_mop");
  const char* description = nullptr;
  int count, stacks, accesses = 0, locations, mutexes, threads, unique_threads;
  void* sleep[1];
  get_data(data, &description, &count, &stacks, &accesses, &locations, &mutexes, &threads,
           &unique_threads, sleep, 1);
  report.accesses = std::min(accesses, 2);
  for (int i = 0; i < report.accesses; ++i) {
    ReportedAccess& access = report.access[i];
    std::fill(std::begin(access.frames), std::end(access.frames), nullptr);
    int thread = 0;
    get_access(data, i, &thread, &access.address, &access.bytes, &access.write, &access.atomic,
               access.frames, kMaxFrames);
  }
  reported = true;
}

// The GPU thread of an access, and the instructions in the kernel's library; empty for accesses of
// the host.
struct Accessor {
  bool is_thread = false;
  uint64_t group = 0;
  uint32_t thread = 0;
  Stack stack;
};
Accessor accessor_of(const ReportedAccess& access) {
  Accessor found;
  for (const void* frame : access.frames) {
    if (frame == nullptr) break;
    if (is_name(frame)) {
      const uint64_t name = reinterpret_cast<uint64_t>(frame) & (kNameMark - 1);
      found.is_thread = true;
      found.group = name >> 10;
      found.thread = uint32_t(name & 1023);
    } else if (library_base(frame) != 0) {
      found.stack.push_back(frame);
    }
  }
  return found;
}

std::string describe_position(const Launch& launch, const Accessor& accessor) {
  msl::abi::Group group = {};
  group.launch = &launch;
  uint64_t rest = accessor.group;
  for (int axis = 0; axis < 3; ++axis) {
    group.position[axis] = uint32_t(rest % launch.groups[axis]);
    rest /= launch.groups[axis];
    group.size[axis] =
        std::min(launch.group[axis], launch.grid[axis] - group.position[axis] * launch.group[axis]);
  }
  const uint32_t row = accessor.thread / group.size[0];
  return describe({&group,
                   {accessor.thread % group.size[0], row % group.size[1], row / group.size[1]},
                   accessor.thread});
}

std::string describe_location(const SanitizedLaunch& sanitized, const void* address,
                              bool threadgroup) {
  if (threadgroup) return "threadgroup memory";
  const Launch& launch = sanitized.launch();
  for (uint32_t i = 0; i < msl::abi::kMaxBuffers; ++i) {
    const uint64_t offset =
        uint64_t(static_cast<const char*>(address) - static_cast<const char*>(launch.buffers[i]));
    if (launch.buffers[i] == nullptr || offset >= launch.buffer_bytes[i]) continue;
    return sanitized.describe_buffer(i) + ", at byte " + std::to_string(offset);
  }
  const std::string texture = sanitized.describe_texture_at(address);
  return texture.empty() ? "device memory that is bound to no buffer" : texture;
}

}  // namespace

// ---- the runtime --------------------------------------------------------------------------------

struct RaceDetector::Runtime {
  template <class T>
  static T get(const char* name) {
    const T found = sanitizer_symbol<T>(name);
    TORCH_CHECK(found != nullptr, "the runtime of ThreadSanitizer has no ", name);
    return found;
  }
  using Access = void (*)(const void* address, const void* pc);
  using Range = void (*)(const void* address, unsigned long bytes, const void* pc);

  void* (*create_fiber)(unsigned) = get<void* (*)(unsigned)>("__tsan_create_fiber");
  void* (*current_fiber)() = get<void* (*)()>("__tsan_get_current_fiber");
  void (*switch_to_fiber)(void*,
                          unsigned) = get<void (*)(void*, unsigned)>("__tsan_switch_to_fiber");
  void (*acquire)(void*) = get<void (*)(void*)>("__tsan_acquire");
  void (*release)(void*) = get<void (*)(void*)>("__tsan_release");
  void (*enter)(const void*) = get<void (*)(const void*)>("__tsan_func_entry");
  void (*leave)() = get<void (*)()>("__tsan_func_exit");
  void (*ignore_writes)(const char*,
                        int) = get<void (*)(const char*, int)>("AnnotateIgnoreWritesBegin");
  void (*heed_writes)(const char*,
                      int) = get<void (*)(const char*, int)>("AnnotateIgnoreWritesEnd");
  Access read[5] = {get<Access>("__tsan_read1_pc"), get<Access>("__tsan_read2_pc"),
                    get<Access>("__tsan_read4_pc"), get<Access>("__tsan_read8_pc"),
                    get<Access>("__tsan_read16_pc")};
  Access write[5] = {get<Access>("__tsan_write1_pc"), get<Access>("__tsan_write2_pc"),
                     get<Access>("__tsan_write4_pc"), get<Access>("__tsan_write8_pc"),
                     get<Access>("__tsan_write16_pc")};
  Range read_range = get<Range>("__tsan_read_range_pc");
  Range write_range = get<Range>("__tsan_write_range_pc");
  uint8_t (*load8)(const void*, int) = get<uint8_t (*)(const void*, int)>("__tsan_atomic8_load");
  uint32_t (*load32)(const void*,
                     int) = get<uint32_t (*)(const void*, int)>("__tsan_atomic32_load");
  uint64_t (*load64)(const void*,
                     int) = get<uint64_t (*)(const void*, int)>("__tsan_atomic64_load");
  uint8_t (*add8)(const void*, uint8_t,
                  int) = get<uint8_t (*)(const void*, uint8_t, int)>("__tsan_atomic8_fetch_add");
  uint32_t (*add32)(const void*, uint32_t, int) =
      get<uint32_t (*)(const void*, uint32_t, int)>("__tsan_atomic32_fetch_add");
  uint64_t (*add64)(const void*, uint64_t, int) =
      get<uint64_t (*)(const void*, uint64_t, int)>("__tsan_atomic64_fetch_add");
};

std::unique_ptr<RaceDetector> RaceDetector::create() {
  if (find_sanitizer_symbol("__tsan_create_fiber") == nullptr) return nullptr;
  auto* const hook = sanitizer_symbol<void (**)(void*)>("metalops_on_race");
  if (hook == nullptr) return nullptr;
  *hook = &on_race;
  return std::unique_ptr<RaceDetector>(new RaceDetector(std::make_unique<Runtime>()));
}

RaceDetector::RaceDetector(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

RaceDetector::~RaceDetector() = default;

// ---- launches and groups ------------------------------------------------------------------------

void RaceDetector::launch_begins(const Kernel& kernel, const Launch& launch, Shuffle& shuffle) {
  quiet_.emplace();
  host_ = runtime_->current_fiber();
  ++launch_;
  shuffle_ = &shuffle;
  synchronises_ = kernel.loop == nullptr;
  group_threads_ = launch.group[0] * launch.group[1] * launch.group[2];
  const uint64_t groups = uint64_t(launch.groups[0]) * launch.groups[1] * launch.groups[2];
  const uint64_t room = std::max<uint64_t>(2, kSynchronisedFibers / group_threads_);
  sets_ = std::min({groups, room, kMaxSets});
  const uint64_t fibers = synchronises_ ? sets_ * group_threads_ : kUnsynchronisedFibers;
  if (device_fibers_.size() < fibers) device_fibers_.resize(fibers);
  if (threadgroup_fibers_.size() < group_threads_) threadgroup_fibers_.resize(group_threads_);
  took_part_.clear();
  silenced_.clear();
  threads_begun_ = 0;
  reported = false;
  writes_.reset();
  // Ordered after all earlier launches, whichever CPU thread made them.
  runtime_->acquire(launches_);
  runtime_->release(launches_);
}

void RaceDetector::launch_ends() {
  if (writes_.has_value()) settle();
  for (Fiber* fiber : took_part_) {
    runtime_->switch_to_fiber(fiber->handle, kWithoutOrdering);
    runtime_->leave();
    fiber->name = 0;
    runtime_->release(launches_);
  }
  become_host();
  runtime_->acquire(launches_);
  runtime_->release(launches_);
  quiet_.reset();
}

uint8_t* RaceDetector::group_begins(uint64_t order, uint64_t index, bool needs_memory) {
  group_ = index;
  set_ = order < sets_ ? order : shuffle_->below(uint32_t(sets_));
  threads_begun_ += synchronises_ ? 0 : group_threads_;
  variables_ = 0;
  std::fill(&states_[0][0], &states_[0][0] + group_threads_ * kViews, State{});
  for (auto& scope : phases_) {
    for (Phases& phases : scope) phases = {};
  }
  for (uint32_t thread = 0; thread < group_threads_; ++thread) atomics_read_[thread].clear();
  if (!synchronises_ && !needs_memory) return nullptr;
  // Mapping memory makes the runtime forget its history; while writes are ignored it does not
  // record the mapping itself as one.
  runtime_->ignore_writes("", 0);
  void* memory = mmap(nullptr, ThreadgroupMemory::kBytes + kVariableBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  runtime_->heed_writes("", 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory for a threadgroup");
  memory_ = static_cast<uint8_t*>(memory);
  return memory_;
}

void RaceDetector::group_ends() {
  if (writes_.has_value()) settle();
  if (memory_ == nullptr) return;
  munmap(memory_, ThreadgroupMemory::kBytes + kVariableBytes);
  memory_ = nullptr;
}

// ---- views --------------------------------------------------------------------------------------

RaceDetector::Fiber& RaceDetector::fiber(uint32_t thread, View view) {
  if (view == kThreadgroup) return threadgroup_fibers_[thread];
  if (synchronises_) return device_fibers_[set_ * group_threads_ + thread];
  return device_fibers_[(threads_begun_ + thread) % kUnsynchronisedFibers];
}

void RaceDetector::become_host() { runtime_->switch_to_fiber(host_, kWithoutOrdering); }

void RaceDetector::become(uint32_t thread, View view) {
  Fiber& fiber = this->fiber(thread, view);
  const bool is_first = fiber.launch != launch_;
  if (is_first) {
    // The device's own memory is accessed as the host's thread.
    become_host();
    took_part_.push_back(&fiber);
    fiber.launch = launch_;
    if (fiber.handle == nullptr) {
      fiber.handle = runtime_->create_fiber(0);
      ++fibers_made;
    }
  }
  runtime_->switch_to_fiber(fiber.handle, kWithoutOrdering);
  if (is_first) {
    runtime_->acquire(launches_);
    begin_epoch();
  }
  const uint64_t name = name_of(group_, thread);
  if (fiber.name != name) {
    if (fiber.name != 0) runtime_->leave();
    runtime_->enter(reinterpret_cast<const void*>(name));
    fiber.name = name;
  }
  const State& state = states_[thread][view];
  acquire(thread, view, kGroup, state.passed[kGroup]);
  acquire(thread, view, kSimdgroup, state.passed[kSimdgroup]);
}

void RaceDetector::acquire(uint32_t thread, View view, Scope scope, uint32_t phases) {
  uint32_t& acquired = states_[thread][view].acquired[scope];
  if (acquired == phases) return;
  const auto& variables = phases_[index_of(scope, thread)][view].variables;
  for (; acquired < phases; ++acquired) runtime_->acquire(variables[acquired]);
  if (fibers_made > kSlots) begin_epoch();
}

// Records a fiber's new slot. After an acquire a fiber that has lost its slot may have another one,
// without an event in its history; the runtime drops races with accesses that it does not find
// there. A release records the event.
void RaceDetector::begin_epoch() { runtime_->release(epochs_); }

void* RaceDetector::variable() {
  const uint32_t offset = variables_++ * 8;
  TORCH_CHECK(offset < kVariableBytes, "a threadgroup passes too many barriers for this sanitizer");
  return memory_ + ThreadgroupMemory::kBytes + offset;
}

// ---- accesses -----------------------------------------------------------------------------------

void RaceDetector::access(uint32_t thread, View view, const void* address, uint64_t bytes,
                          bool write, const void* place) {
  if (C10_UNLIKELY(writes_.has_value())) settle();
  if (C10_UNLIKELY(!silenced_.empty()) &&
      std::find(silenced_.begin(), silenced_.end(), place) != silenced_.end()) {
    return;
  }
  become(thread, view);
  State& state = states_[thread][view];
  state.dirty[kGroup] = state.dirty[kSimdgroup] = true;
  const bool whole = bytes <= 16 && (bytes & (bytes - 1)) == 0 &&
                     reinterpret_cast<uint64_t>(address) % std::min<uint64_t>(bytes, 8) == 0;
  if (whole) {
    (write ? runtime_->write : runtime_->read)[__builtin_ctz(uint32_t(bytes))](address, place);
  } else {
    (write ? runtime_->write_range : runtime_->read_range)(address, bytes, place);
  }
  become_host();
  if (C10_UNLIKELY(reported)) take_report();
}

void RaceDetector::atomic(uint32_t thread, View view, const void* address, uint64_t bytes,
                          bool write, int order, const void* place) {
  if (C10_UNLIKELY(writes_.has_value())) settle();
  auto& read = atomics_read_[thread];
  if (std::find(read.begin(), read.end(), address) == read.end()) read.push_back(address);
  become(thread, view);
  State& state = states_[thread][view];
  state.dirty[kGroup] = state.dirty[kSimdgroup] = true;
  runtime_->enter(place);
  if (write) {  // adds no value: the kernel itself writes it
    if (bytes == 1) runtime_->add8(address, 0, __ATOMIC_RELAXED);
    if (bytes == 4) runtime_->add32(address, 0, __ATOMIC_RELAXED);
    if (bytes == 8) runtime_->add64(address, 0, __ATOMIC_RELAXED);
  } else {
    if (bytes == 1) runtime_->load8(address, __ATOMIC_RELAXED);
    if (bytes == 4) runtime_->load32(address, __ATOMIC_RELAXED);
    if (bytes == 8) runtime_->load64(address, __ATOMIC_RELAXED);
  }
  runtime_->leave();
  // The addresses of an atomic's bytes serve as the variables that its views release to.
  for (const View each : {kDevice, kThreadgroup}) {
    void* variable = static_cast<char*>(const_cast<void*>(address)) + (each == kDevice ? 0 : 1);
    const bool releases =
        write && (order != __ATOMIC_RELAXED || states_[thread][each].releases_atomics);
    if (!releases && order == __ATOMIC_RELAXED) continue;
    become(thread, each);
    if (order != __ATOMIC_RELAXED) runtime_->acquire(variable);
    if (releases) runtime_->release(variable);
  }
  become_host();
  if (C10_UNLIKELY(reported)) take_report();
}

void RaceDetector::fence(uint32_t thread, uint32_t mem_flags, int order) {
  if (order == __ATOMIC_RELAXED) return;
  for (const View view : {kDevice, kThreadgroup}) {
    if (!names(mem_flags, view)) continue;
    states_[thread][view].releases_atomics = true;
    become(thread, view);
    for (const void* address : atomics_read_[thread]) {
      runtime_->acquire(static_cast<char*>(const_cast<void*>(address)) + (view == kDevice ? 0 : 1));
    }
  }
  become_host();
}

// ---- barriers -----------------------------------------------------------------------------------

void RaceDetector::arrives(uint32_t thread, Scope scope, uint32_t mem_flags) {
  for (const View view : {kDevice, kThreadgroup}) {
    State& state = states_[thread][view];
    if (!names(mem_flags, view) || !state.dirty[scope]) continue;
    state.dirty[scope] = false;
    Phases& phases = phases_[index_of(scope, thread)][view];
    become_host();
    if (!phases.released) phases.variables.push_back(variable());
    phases.released = true;
    become(thread, view);
    runtime_->release(phases.variables.back());
  }
  become_host();
}

void RaceDetector::completes(Scope scope, uint32_t simdgroup) {
  for (Phases& phases : phases_[index_of(scope, simdgroup * kSimdWidth)]) phases.released = false;
}

void RaceDetector::leaves(uint32_t thread, Scope scope, uint32_t mem_flags) {
  for (const View view : {kDevice, kThreadgroup}) {
    State& state = states_[thread][view];
    const auto& phases = phases_[index_of(scope, thread)][view];
    // A thread that runs on may already have released to the next phase.
    const auto complete = uint32_t(phases.variables.size()) - (phases.released ? 1 : 0);
    if (names(mem_flags, view)) {
      state.passed[scope] = complete;
    } else if (state.acquired[scope] != complete) {
      if (state.passed[scope] != state.acquired[scope]) {
        become(thread, view);
        become_host();
      }
      state.acquired[scope] = state.passed[scope] = complete;
    }
  }
}

// ---- converting reports to findings -------------------------------------------------------------

void RaceDetector::take_report() {
  reported = false;
  const SanitizedLaunch* const sanitized = SanitizedLaunch::current();
  if (sanitized == nullptr) return;
  Accessor accessors[2];
  for (int i = 0; i < 2; ++i) {
    if (i < report.accesses) accessors[i] = accessor_of(report.access[i]);
    // Drops accesses of the host, for example earlier ones to the same memory: launches are ordered
    // after them.
    if (!accessors[i].is_thread || accessors[i].stack.empty()) return;
  }
  // Puts a write first: it is the access that comes too early or too late.
  if (report.access[1].write && !report.access[0].write) {
    std::swap(report.access[0], report.access[1]);
    std::swap(accessors[0], accessors[1]);
  }
  const ReportedAccess& access = report.access[0];
  const bool in_threadgroup = memory_ != nullptr && uint64_t(static_cast<uint8_t*>(access.address) -
                                                             memory_) < ThreadgroupMemory::kBytes;
  const std::string where = std::string("in kernel '") + sanitized->kernel().name + "' on " +
                            describe_location(*sanitized, access.address, in_threadgroup);
  std::ostringstream threads;
  Finding finding{"data-race", "", false, {}};
  for (int i = 0; i < 2; ++i) {
    const ReportedAccess& one = report.access[i];
    threads << (i == 0 ? "\n  here a " : "\n  and at {1} a ") << (one.atomic ? "atomic " : "")
            << (one.write ? "write" : "read") << " of " << one.bytes << " bytes by "
            << describe_position(sanitized->launch(), accessors[i]);
    finding.stacks.push_back(accessors[i].stack);
  }
  const char* const why = accessors[0].group != accessors[1].group
                              ? "threads of different threadgroups meet in atomic operations only."
                          : in_threadgroup
                              ? "there is no barrier with mem_flags::mem_threadgroup between them."
                              : "there is no barrier with mem_flags::mem_device between them.";
  const auto* const address = static_cast<const uint8_t*>(access.address);
  writes_ = Writes{address, {}, std::move(finding), where, threads.str(), why};
  const ReportedAccess& other = report.access[1];
  if (other.write && !access.atomic && !other.atomic && access.address == other.address &&
      access.bytes == other.bytes) {
    // The second one is being made.
    writes_->before.assign(address, address + access.bytes);
  } else {
    settle();
  }
}

void RaceDetector::settle() {
  Writes writes = *std::exchange(writes_, std::nullopt);
  Finding& finding = writes.finding;
  const std::vector<uint8_t>& before = writes.before;
  if (!before.empty() && std::equal(before.begin(), before.end(), writes.address)) {
    finding.kind = "equal-writes";
    finding.warning = true;
    finding.message = "{0}: note: equal-writes " + writes.kernel_and_place + writes.threads +
                      "\n  Nothing orders the two, but both write the same value.";
  } else {
    for (const Stack& stack : finding.stacks) silenced_.push_back(stack.front());
    finding.message = "{0}: data-race " + writes.kernel_and_place + writes.threads +
                      "\n  Nothing orders the two: " + writes.why;
  }
  add_finding(std::move(finding));
}

}  // namespace metalops::exec

// The fiber engine, for kernels whose threads synchronise. A CPU thread runs one threadgroup at a
// time. A thread that waits switches to the next runnable lane of its own simdgroup, so that the
// lanes of a simdgroup stay together as on a GPU.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include <exec/cpu_features.h>
#include <exec/fiber/worker.h>
#include <exec/group_memory.h>
#include <exec/runtime.h>
#include <exec/sanitize/engine.h>
#include <exec/share_out.h>

namespace metalops::exec {
namespace {

using msl::abi::SimdFunction;
using msl::abi::Site;

// The threadgroup of one CPU thread. Created when the CPU thread first runs fibers, and kept.
class Worker final : public FiberWorker<Worker> {
 public:
  static constinit thread_local Worker* running;
  static constexpr const char* kName = "fiber";

 private:
  friend class FiberWorker<Worker>;

  void lay_out_memory() { memory_.lay_out(*kernel_, *launch_, group_); }
  void group_begins() { memory_.clear(); }
  void wait() {
    const uint32_t later = simdgroup_->runnable & ~((2u << lane_) - 1u);
    if (C10_LIKELY(later != 0)) {
      leave_to({simdgroup_, uint32_t(__builtin_ctz(later))});
    } else {
      wait_for_others();
    }
  }

  GroupMemory memory_;
};

constinit thread_local Worker* Worker::running = nullptr;

Worker& worker_of_this_thread() {
  static thread_local std::unique_ptr<Worker> worker;
  if (worker == nullptr) worker = std::make_unique<Worker>();
  return *worker;
}

// ---- functions that kernels call ----------------------------------------------------------------

[[noreturn]] C10_NOINLINE void report_no_fiber(const char* what, Site site) {
  const Kernel* const kernel = kernel_in_loop;
  TORCH_CHECK(kernel != nullptr, what, " was called outside of a kernel");
  TORCH_CHECK(false, "kernel '", kernel->name, "' reached ", what, " at ", describe(*kernel, site),
              " while running as a plain loop, where its threads cannot wait for each other");
}

// Calls function(worker) for the worker whose fiber is running, of either fiber engine.
template <class F>
inline auto with_worker(const char* what, Site site, F function) {
  Worker* const worker = Worker::running;
  if (C10_LIKELY(worker != nullptr)) return function(*worker);
  SanitizingWorker* const sanitizing = SanitizingWorker::running;
  if (sanitizing == nullptr) report_no_fiber(what, site);
  return function(*sanitizing);
}
constexpr const char* kSimd = "a simdgroup operation";
constexpr Site kNoSite = {~0u, 0};

void on_threadgroup_barrier(Site site) {
  with_worker("threadgroup_barrier", site, [=](auto& worker) { worker.threadgroup_barrier(site); });
}
void on_simdgroup_barrier(Site site) {
  with_worker("simdgroup_barrier", site, [=](auto& worker) { worker.simdgroup_barrier(site); });
}
void on_simd(Site site, const void* in, void* out, SimdFunction function) {
  const void* const place = __builtin_return_address(0);
  with_worker(kSimd, site, [=](auto& worker) {
    if constexpr (std::is_same_v<decltype(worker), SanitizingWorker&>) {
      worker.simd(site, in, out, function, place);
    } else {
      worker.simd(site, in, out, function);
    }
  });
}
uint32_t on_lane() {
  if (runs_group()) return lane_of_group();
  return with_worker(kSimd, kNoSite, [](auto& worker) { return worker.lane(); });
}
const msl::abi::Thread* on_thread() {
  return with_worker(kSimd, kNoSite, [](auto& worker) { return &worker.thread(); });
}
uint32_t on_active_mask() {
  return with_worker(kSimd, kNoSite, [](auto& worker) { return worker.active_mask(); });
}
msl::abi::Path* on_path() {
  if (C10_LIKELY(Worker::running != nullptr)) return &Worker::running->path();
  if (SanitizingWorker::running != nullptr) return &SanitizingWorker::running->path();
  static thread_local msl::abi::Path of_no_fiber;  // for kernels in a loop, where nothing waits
  return &of_no_fiber;
}
void on_declare(uint32_t number, uint32_t kind, const void* address, uint32_t bytes) {
  with_worker(kSimd, kNoSite, [=](auto& worker) { worker.declare(number, kind, address, bytes); });
}
void on_leave_scope(uint32_t number) {
  with_worker(kSimd, kNoSite, [=](auto& worker) { worker.leave_scope(number); });
}
uint32_t on_place_variable(msl::abi::Group* group, uint32_t bytes, uint32_t alignment) {
  if (SanitizingWorker::running == nullptr) return place_variable(*group, bytes, alignment);
  return SanitizingWorker::running->place_variable(bytes, alignment);
}
void on_log(const char* text, uint32_t length) {
  // Written with one call, so that lines of different CPU threads do not mix.
  std::string line(text, length);
  if (line.empty() || line.back() != '\n') line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}
void on_fail(const char* message) {
  const Kernel* kernel = kernel_in_loop;
  if (Worker::running != nullptr) kernel = &Worker::running->kernel();
  if (SanitizingWorker::running != nullptr) kernel = &SanitizingWorker::running->kernel();
  TORCH_CHECK(false, "kernel '", kernel != nullptr ? kernel->name : "?", "': ", message);
}

}  // namespace

const msl::abi::Runtime& runtime() {
  static constexpr msl::abi::Runtime table = {msl::abi::kAbiVersion,
                                              on_threadgroup_barrier,
                                              on_simdgroup_barrier,
                                              on_simd,
                                              on_lane,
                                              on_thread,
                                              on_active_mask,
                                              on_path,
                                              on_place_variable,
                                              on_undefined,
                                              on_log,
                                              on_fail,
                                              on_different_barriers,
                                              on_declare,
                                              on_leave_scope,
                                              product_instructions,
                                              on_access,
                                              on_atomic,
                                              on_fence,
                                              on_copy,
                                              on_fill,
                                              on_misuse,
                                              on_scope_operation,
                                              on_elements_begin,
                                              on_elements_copied};
  return table;
}

void run_fibers(const Kernel& kernel, const Launch& launch, int threads) {
  const uint64_t groups = uint64_t(launch.groups[0]) * launch.groups[1] * launch.groups[2];
  if (threads_in_grid(launch) < 256) threads = 1;
  // Threadgroups start in grid order: kernels that wait for an earlier threadgroup make progress.
  share_out(0, groups, 1, int(std::min<uint64_t>(threads, groups)), [&] {
    Worker& worker = worker_of_this_thread();
    worker.begin(kernel, launch);
    struct Groups {
      Worker& worker;
      void operator()(uint64_t group, uint64_t) { worker.run_group(group); }
      void finish() { worker.finish(); }
    };
    return Groups{worker};
  });
}

}  // namespace metalops::exec

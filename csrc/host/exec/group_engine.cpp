// The group engine, for kernels that the front end has split into regions between synchronisation
// points (work-item loops, msl/host/group.h): a CPU thread runs a threadgroup with one call.
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include <exec/fiber/stacks.h>
#include <exec/group_memory.h>
#include <exec/in_kernel.h>
#include <exec/runtime.h>
#include <exec/share_out.h>

namespace metalops::exec {
namespace {

using msl::abi::Scratch;

// Address space for the context arrays of a group (privatised variables of its threads), as much
// per thread as a fiber's stack. Only pages that are touched become memory.
class ScratchMemory {
 public:
  ScratchMemory()
      : start_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    TORCH_CHECK(start_ != MAP_FAILED, "no address space for the variables of a threadgroup");
  }
  ~ScratchMemory() { ::munmap(start_, kBytes); }
  ScratchMemory(const ScratchMemory&) = delete;
  uint8_t* begin() const { return static_cast<uint8_t*>(start_); }
  uint8_t* end() const { return begin() + kBytes; }

 private:
  static constexpr size_t kBytes = size_t(FiberStacks::kMaxStacks) * FiberStacks::kStackBytes;
  void* start_;
};

// The threadgroup of one CPU thread. Created when the CPU thread first runs one, and kept.
class GroupWorker {
 public:
  void begin(const Kernel& kernel, const Launch& launch) {
    kernel_ = &kernel;
    launch_ = &launch;
    group_ = {};
    group_.launch = &launch;
    memory_.lay_out(kernel, launch, group_);
  }
  // Runs the threadgroups [from, to), by their index in the grid.
  void run_groups(uint64_t from, uint64_t to) {
    InLoop scope(*kernel_);
    Running now(this);
    InKernel(*kernel_, "group").run([&] {
      for (uint64_t index = from; index < to; ++index) {
        place_group(*launch_, index, group_);
        memory_.clear();
        scratch_.next = scratch_memory_.begin();
        scratch_.end = scratch_memory_.end();
        kernel_->group(launch_, &group_, &scratch_);
      }
    });
  }
  uint32_t lane() const { return scratch_.lane; }
  const Kernel& kernel() const { return *kernel_; }
  const msl::abi::Group& group() const { return group_; }

  static constinit thread_local const GroupWorker* running;

 private:
  // RAII: sets the running worker, and restores it even when its kernel throws.
  class Running {
   public:
    explicit Running(const GroupWorker* worker) : before_(running) { running = worker; }
    ~Running() { running = before_; }

   private:
    const GroupWorker* const before_;
  };

  const Kernel* kernel_ = nullptr;
  const Launch* launch_ = nullptr;
  msl::abi::Group group_;
  Scratch scratch_{};
  ScratchMemory scratch_memory_;
  GroupMemory memory_;
};

constinit thread_local const GroupWorker* GroupWorker::running = nullptr;

GroupWorker& worker_of_this_thread() {
  static thread_local std::unique_ptr<GroupWorker> worker;
  if (worker == nullptr) worker = std::make_unique<GroupWorker>();
  return *worker;
}

// Target duration of a piece of work; between pieces the launching CPU thread checks for Ctrl-C.
constexpr double kPiece = 1e6;  // nanoseconds

}  // namespace

bool runs_group() { return GroupWorker::running != nullptr; }

uint32_t lane_of_group() { return GroupWorker::running->lane(); }

void on_different_barriers(uint32_t simdgroup, msl::abi::Site site, uint32_t before_simdgroup,
                           msl::abi::Site before) {
  const GroupWorker& worker = *GroupWorker::running;
  report_different_barriers(worker.kernel(), worker.group(), before_simdgroup, before, simdgroup,
                            site);
}

void run_groups(const Kernel& kernel, const Launch& launch, int threads) {
  const uint64_t groups = uint64_t(launch.groups[0]) * launch.groups[1] * launch.groups[2];
  if (threads_in_grid(launch) < 256) threads = 1;
  threads = int(std::min<uint64_t>(threads, groups));
  // Threadgroups start in grid order: kernels that wait for an earlier threadgroup make progress.
  const auto make_worker = [&] {
    GroupWorker& worker = worker_of_this_thread();
    worker.begin(kernel, launch);
    return [&worker](uint64_t from, uint64_t to) { worker.run_groups(from, to); };
  };
  // Threadgroups take from less than a microsecond to seconds: time the first one.
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  make_worker()(0, 1);
  const std::chrono::duration<double, std::nano> first = Clock::now() - start;
  const double several = kPiece / std::max(first.count(), 1.0);
  const uint64_t most = std::max<uint64_t>(groups / (uint64_t(threads) * 8), 1);
  const uint64_t piece = std::clamp<uint64_t>(uint64_t(std::min(several, 1e6)), 1, most);
  share_out(1, groups, piece, threads, make_worker);
}

}  // namespace metalops::exec

// Race detector for GPU threads: reports the memory accesses of each thread of a launch, and the
// synchronisation that orders them, to ThreadSanitizer's runtime.
//
// The runtime checks threads whose accesses are ordered (happens-before) by releases and acquires
// of variables; it calls them fibers when a program switches between them itself. Every GPU thread
// is two fibers, its views: one accesses device memory, the other threadgroup memory. So a barrier
// can order one and not the other, according to its mem_flags:
//
//  - threadgroup_barrier and simdgroup_barrier order, within their group, the memory that the flags
//    name (mem_none: none).
//  - Atomic operations do not race with each other. Relaxed ones order nothing; others order both
//    views, and so do relaxed ones after and before an atomic_thread_fence, for the memory it
//    names.
//  - Writes of a value that the memory has already are a note, not a race: they leave one value
//    there, in whatever order.
//  - Simdgroup operations order nothing. Threadgroups are ordered only by atomic operations.
//    Launches are ordered one after the other.
//
// A view costs about a megabyte and a millisecond (with g++ 12), so views are kept, and
// threadgroups share a few sets of them. Two threadgroups that get the same set, which is chosen at
// random, appear to be ordered; there are at least two sets, and as many as threadgroups if these
// are few and small. The runtime itself distinguishes about 250 fibers at a time: beyond that, two
// threads of which one takes the other's slot appear to be ordered. Both depend on the seed, so a
// race that is missed with one seed is found with another.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <exec/exec.h>
#include <exec/sanitize/findings.h>
#include <exec/sanitize/sanitizer_runtime.h>
#include <exec/sanitize/shuffled_order.h>
#include <exec/sanitize/source_positions.h>
#include <exec/sanitize/threadgroup_memory.h>

namespace metalops::exec {

class RaceDetector {
 public:
  // Returns null if the runtime of ThreadSanitizer is not part of the process.
  static std::unique_ptr<RaceDetector> create();
  ~RaceDetector();

  void launch_begins(const Kernel& kernel, const Launch& launch, Shuffle& shuffle);
  void launch_ends();
  // Starts the group that runs as number `order`. Returns fresh memory for it,
  // ThreadgroupMemory::kBytes.
  uint8_t* group_begins(uint64_t order, uint64_t index, bool needs_memory);
  void group_ends();

  enum View : uint32_t { kDevice, kThreadgroup, kViews };

  // `thread` is thread_index_in_threadgroup. `place`: the address after the instruction.
  void access(uint32_t thread, View view, const void* address, uint64_t bytes, bool write,
              const void* place);
  void atomic(uint32_t thread, View view, const void* address, uint64_t bytes, bool write,
              int order, const void* place);
  void fence(uint32_t thread, uint32_t mem_flags, int order);

  // arrives: a thread reaches a barrier. completes: every thread that takes part has. leaves: a
  // thread goes on.
  enum Scope : uint32_t { kGroup, kSimdgroup };
  void arrives(uint32_t thread, Scope scope, uint32_t mem_flags);
  void completes(Scope scope, uint32_t simdgroup);
  void leaves(uint32_t thread, Scope scope, uint32_t mem_flags);

 private:
  struct Runtime;
  // A fiber of the runtime.
  struct Fiber {
    void* handle = nullptr;
    uint64_t launch = 0;  // the last one that it took part in
    uint64_t name = 0;    // of the thread whose view it is, in the runtime's call stack
  };
  // The order established by barriers of one kind: one variable per phase that threads released to.
  struct Phases {
    std::vector<void*> variables;
    bool released = false;  // to the variable after the existing ones
  };
  static constexpr uint32_t kMaxThreads = 1024;
  static constexpr uint32_t kScopes = 1 + kMaxThreads / msl::abi::kSimdWidth;
  // The state of one view of a thread in its group.
  struct State {
    bool dirty[2];          // has accessed memory since its last release to the scope
    uint32_t acquired[2];   // number of phases acquired
    uint32_t passed[2];     // number of phases to acquire before its next access
    bool releases_atomics;  // since a fence
  };

  explicit RaceDetector(std::unique_ptr<Runtime> runtime);
  static uint32_t index_of(Scope scope, uint32_t thread) {
    return scope == kGroup ? 0 : 1 + thread / msl::abi::kSimdWidth;
  }
  Fiber& fiber(uint32_t thread, View view);
  // Makes the runtime take this CPU thread for the view, ordered after everything that precedes it.
  void become(uint32_t thread, View view);
  void acquire(uint32_t thread, View view, Scope scope, uint32_t phases);
  void begin_epoch();
  void become_host();
  void* variable();  // returns a new one, to which nothing has been released
  void take_report();
  // Adds the finding about two writes, once the second one has been made: a note if it has changed
  // nothing.
  void settle();

  std::unique_ptr<Runtime> runtime_;
  std::optional<QuietSanitizers> quiet_;
  void* host_ = nullptr;
  uint64_t launch_ = 0;
  bool synchronises_ = false;
  uint32_t group_threads_ = 0;
  uint64_t sets_ = 1;
  Shuffle* shuffle_ = nullptr;
  uint64_t threads_begun_ = 0;  // for kernels that do not synchronise

  uint64_t group_ = 0;
  uint64_t set_ = 0;
  uint8_t* memory_ = nullptr;
  uint32_t variables_ = 0;
  std::vector<Fiber> device_fibers_;
  std::vector<Fiber> threadgroup_fibers_;
  std::vector<Fiber*> took_part_;
  State states_[kMaxThreads][kViews];
  Phases phases_[kScopes][kViews];
  std::vector<const void*> atomics_read_[kMaxThreads];
  // A race of two writes, and the memory before the second one.
  struct Writes {
    const uint8_t* address;
    std::vector<uint8_t> before;
    Finding finding;
    std::string kernel_and_place;
    std::string threads;
    std::string why;
  };
  std::optional<Writes> writes_;
  std::vector<const void*> silenced_;  // places whose races are already reported in this launch
  // Variables of the runtime, by their addresses. launches_ orders launches, across detectors;
  // epochs_ is never acquired.
  static inline char launches_[8];
  char epochs_[8];
};

}  // namespace metalops::exec

// The sanitizing engine, for sanitized launches: runs every kernel on fibers, one threadgroup after
// the other on one CPU thread, threadgroups and threads in a shuffled order. It sees every memory
// access of kernels that were compiled with a sanitizer (msl/instrument.h).
//
// Its own checks, with either sanitizer:
//  - reads of threadgroup memory that no thread has written;
//  - barriers that not all threads of a threadgroup reach;
//  - simdgroup operations whose result Metal leaves undefined;
//  - operations on tensors that not all threads of their scope reach, whose operands do not fit, or
//    that read elements of cooperative tensors that nothing has written;
//  - elements of fresh outputs that no thread has written (a warning).
// In addition it reports races with ThreadSanitizer (race_detector.h), and AddressSanitizer's
// reports of the same accesses (address_reports.h).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <exec/fiber/worker.h>
#include <exec/sanitize/cooperative_elements.h>
#include <exec/sanitize/fresh_outputs.h>
#include <exec/sanitize/race_detector.h>
#include <exec/sanitize/scope_operations.h>
#include <exec/sanitize/shuffled_order.h>
#include <exec/sanitize/threadgroup_memory.h>

namespace metalops::exec {

// The threadgroup of one CPU thread in a sanitized launch.
class SanitizingWorker final : public FiberWorker<SanitizingWorker> {
 public:
  // Null where this CPU thread runs no sanitized fiber.
  static constinit thread_local SanitizingWorker* running;
  static constexpr const char* kName = "sanitizers";

  // Runs the whole launch.
  static void launch(const Kernel& kernel, const Launch& launch);

  // Waits at a barrier; called by the running fiber.
  void threadgroup_barrier(msl::abi::Site site);
  void simdgroup_barrier(msl::abi::Site site);
  // `place`: return address of the call in the kernel.
  void simd(msl::abi::Site site, const void* in, void* out, msl::abi::SimdFunction function,
            const void* place);
  uint32_t place_variable(uint32_t bytes, uint32_t alignment);
  void undefined(msl::abi::Undefined what, uint32_t lane, uint32_t value);
  void access(const void* address, uint64_t bytes, bool write, const void* place);
  void atomic(const void* address, uint64_t bytes, msl::abi::Access kind, int order,
              const void* place);
  void fence(uint32_t mem_flags, int order);
  void misuse(msl::abi::Misuse what, const char* operand, const int64_t* numbers,
              const void* place);
  void scope_operation(const ScopeOperations::Operation& operation);
  CooperativeElements& cooperative_elements() { return cooperative_; }

 private:
  friend class FiberWorker<SanitizingWorker>;
  SanitizingWorker();
  void run(const Kernel& kernel, const Launch& launch);

  // ---- overrides of FiberWorker -----------------------------------------------------------------
  void lay_out_memory();
  void group_begins();
  void group_ends();
  Place choose_first() { return choose_other(); }
  Place choose_own() { return choose_other(); }
  Place choose_other();
  void leaves(const Place* to, bool done);
  void arrives();
  void runs();
  void barrier_completes();
  void finds_different_barriers(uint32_t) {}  // reported by barrier_completes
  void simd_completes(Simdgroup& simdgroup, uint32_t lanes);
  void simd_completed();

  // The thread that accesses memory, and the address after the accessing instruction. For an
  // operation of a whole simdgroup: one of its threads, and the place of the call.
  uint32_t accessing_thread() const { return in_operation_ ? operation_thread_ : thread_index(); }
  const void* accessing_place(const void* place) const {
    return in_operation_ ? operation_place_ : place;
  }
  bool is_private(const void* address) const;
  void check_cooperative_access(const void* address, uint64_t bytes, bool write, const void* place);
  void check_scope_operations();
  void add(const char* kind, const std::string& what, uint32_t thread, const void* place,
           bool warning = false);
  void check_threadgroup_access(const void* address, uint64_t bytes, bool write, const void* place);
  void let_others_run(const void* address_read);
  std::string describe_thread(uint32_t index) const;
  std::string describe_absence(uint32_t index, uint32_t* where) const;
  bool is_new(uint32_t site, uint32_t other);

  std::optional<Shuffle> shuffle_;
  std::unique_ptr<RaceDetector> races_;  // with ThreadSanitizer
  ThreadgroupMemory memory_;
  FreshOutputs outputs_;
  uint64_t order_ = 0;  // number of groups started
  uint64_t group_index_ = 0;
  std::array<uint32_t, kMaxThreads> barrier_site_;  // where each thread waits, or last waited
  // The simdgroup operation in progress.
  Simdgroup* operation_ = nullptr;
  uint32_t operation_lanes_ = 0;
  uint32_t operation_site_ = 0;
  bool in_operation_ = false;
  uint32_t operation_thread_ = 0;
  const void* operation_place_ = nullptr;
  std::array<const void*, kMaxThreads> simd_place_;  // of each thread's last simdgroup operation
  uint32_t acting_lane_ = 0;  // random lane that stands for its simdgroup, if it takes part
  CooperativeElements cooperative_;
  ScopeOperations scope_operations_;
  // Pairs of barrier sites that were reported in this launch.
  std::vector<std::pair<uint32_t, uint32_t>> known_;
  // State of a thread that only reads one address (busy waiting).
  const void* last_read_ = nullptr;
  uint64_t spins_ = 0;
  uint64_t yields_ = 0;
  // AddressSanitizer's view of the stacks.
  bool on_host_stack_ = true;
  bool knows_own_stack_ = false;
  void* fake_stack_ = nullptr;
  std::array<void*, kMaxThreads> fake_stacks_;
  const void* own_bottom_ = nullptr;
  size_t own_bytes_ = 0;
  alignas(256) uint8_t own_memory_[ThreadgroupMemory::kBytes];  // without ThreadSanitizer
};

// ---- functions that kernels call, besides those that serve both fiber engines -------------------

void on_undefined(msl::abi::Undefined what, uint32_t lane, uint32_t value);
void on_access(const void* address, uint64_t bytes, msl::abi::Access kind, const void* place);
void on_atomic(const void* address, uint64_t bytes, msl::abi::Access kind, int order,
               const void* place);
void on_fence(uint32_t mem_flags, int order);
void on_copy(void* to, const void* from, uint64_t bytes, const void* place);
void on_fill(void* to, int byte, uint64_t bytes, const void* place);
void on_misuse(msl::abi::Misuse what, const char* operand, const int64_t* numbers,
               const void* place);
void on_scope_operation(uint32_t simdgroups, const char* name, uint64_t kind, const void* place);
void on_elements_begin(void* elements, uint32_t element_bytes, const uint8_t* exists,
                       uint32_t count);
void on_elements_copied(void* to, const void* from);

}  // namespace metalops::exec

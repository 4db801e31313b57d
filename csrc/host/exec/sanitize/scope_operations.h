// Records the operations on tensors that the threads of a group reach, in order. All threads of a
// scope, a simdgroup or the whole group, must reach the same ones.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <exec/exec.h>

namespace metalops::exec {

class ScopeOperations {
 public:
  struct Operation {
    uint32_t simdgroups;  // of its scope
    const char* name;
    uint64_t kind;  // equal for calls that form one operation
    const void* place;
  };

  void clear();
  void add(uint32_t thread, const Operation& operation) {
    is_empty_ = false;
    operations_[thread].push_back(operation);
  }
  bool is_empty() const { return is_empty_; }

  // An operation that a thread reaches and another thread of its scope does not: that one reaches
  // `other` instead, or none (null).
  struct Difference {
    uint32_t thread;
    uint32_t other_thread;
    const Operation* operation;  // null when there is no difference
    const Operation* other;
  };
  Difference find(uint32_t threads) const;

 private:
  static constexpr uint32_t kMaxThreads = 1024;
  using Operations = std::vector<Operation>;
  static Difference compare(uint32_t a, const Operations& of_a, uint32_t b, const Operations& of_b);

  std::array<Operations, kMaxThreads> operations_;
  bool is_empty_ = true;
};

}  // namespace metalops::exec

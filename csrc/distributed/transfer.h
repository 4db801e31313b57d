// One c10d operation on mps tensors: the CPU tensors that Gloo works on, and the way back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <csrc/distributed/agreement.h>

#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace metalops::distributed {

// Access of an operation to a tensor.
enum class Role { kReads, kWrites, kUpdates };

class Transfer {
 public:
  // `operation`: its name in error messages. `rank`, `size`: of the group. `reduction`: only for
  // operations that have one. `in_equal_parts`: all_to_all_single without split sizes.
  Transfer(std::string operation, std::string group, int rank, int size,
           std::optional<c10d::ReduceOp> reduction, std::optional<int64_t> root,
           bool in_equal_parts);

  // Returns the CPU tensor that Gloo gets for an argument. It shares the argument's memory if the
  // tensor is contiguous, the host can reach its memory, and Gloo knows its dtype or the dtype can
  // be viewed as one that Gloo knows. Otherwise it is a copy.
  at::Tensor to_host(const at::Tensor& tensor, Role role);
  // Replaces CPU tensors in a result (Tensor, Tensor[] or Tensor[][]) by their mps tensors.
  c10::IValue to_device(const c10::IValue& value) const;

  // Returns true if results have to be copied to their tensors once Gloo has them. finish() copies
  // them, once.
  bool needs_finish() const { return needs_finish_; }
  void finish();

  // Prepares the detection of short messages, after to_host() and before Gloo writes: places a
  // canary at the end of each part that other ranks write. `parts`: proportions along the first
  // dimension. Gloo ends a process that receives more bytes than it expects, and does not report
  // fewer.
  void expect_all_bytes(at::IntArrayRef parts = {1});
  // Raises RuntimeError if bytes are missing. `came`: Gloo reports that the operation completed.
  void check_all_bytes(bool came);

  // Describes what all ranks of the same call have in common: operation, reduction, and dtypes and
  // shapes of tensors.
  Agreement::Description description() const;
  // Returns the description as a key: quick to make, not meant to be read.
  std::string key() const;

  // Returns the tensors that receive results.
  std::vector<at::Tensor> results() const;

  // Rethrows the current exception with rank, operation and tensors; called where it is handled.
  [[noreturn]] void rethrow_with_context();

 private:
  struct Part {
    at::Tensor device;
    at::Tensor host;    // the tensor that Gloo works on
    at::Tensor target;  // receives the result from `host`; undefined if it is there already
    Role role;
  };
  at::Tensor wire_format(const at::Tensor& host) const;
  bool is_message() const { return operation_ == "send" || operation_ == "recv"; }
  bool takes_parts() const { return operation_ == "all_to_all_single"; }
  bool is_compared(const Part& part) const;
  at::IntArrayRef compared_sizes(const Part& part) const;
  std::string describe() const;

  const std::string operation_;
  const std::string group_;
  const int rank_;
  const int size_;
  const std::optional<c10d::ReduceOp> reduction_;
  const std::optional<int64_t> root_;
  const bool in_equal_parts_;
  // Bytes at the end of an incoming part: overwritten by a canary until data arrives.
  static constexpr int64_t kTail = 8;
  struct Tail {
    char* address;
    char before[kTail];
  };
  c10::SmallVector<Part, 2> parts_;
  std::vector<Tail> tails_;
  bool misses_bytes_ = false;
  bool needs_finish_ = false;
  std::once_flag checked_;
  std::once_flag finished_;
  std::once_flag described_;
};

}  // namespace metalops::distributed

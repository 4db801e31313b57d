// One operation of c10d on mps tensors: the CPU tensors that Gloo works on, and the way back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <csrc/distributed/agreement.h>

#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace metalops::distributed {

// What an operation does with a tensor.
enum class Role { kReads, kWrites, kUpdates };

class Transfer {
 public:
  // operation: as the errors call it. rank, size: in the group. reduction: of operations that have
  // one. in_equal_parts: of all_to_all_single, when nobody says how much goes to whom.
  Transfer(std::string operation, std::string group, int rank, int size,
           std::optional<c10d::ReduceOp> reduction, std::optional<int64_t> root,
           bool in_equal_parts);

  // The CPU tensor that Gloo gets for an argument: over the same memory wherever Gloo can work
  // there, which takes a contiguous tensor of a dtype that it knows or that can be seen as one,
  // and memory that the host can reach. Else a copy.
  at::Tensor to_host(const at::Tensor& tensor, Role role);
  // The mps tensors in place of these in a result (Tensor, Tensor[] or Tensor[][]).
  c10::IValue to_device(const c10::IValue& value) const;

  // Whether results have to be brought to their tensors once Gloo has them; finish() does it, once.
  bool needs_finish() const { return needs_finish_; }
  void finish();

  // Of what other ranks write into the tensors, once to_host has been called: all of it has to
  // come, in parts of these proportions along the first dimension. Gloo ends a process to which
  // more bytes come than it expects, and says nothing of fewer.
  void expect_all_bytes(at::IntArrayRef parts = {1});
  // RuntimeError if they have not come; came: whether Gloo says so.
  void check_all_bytes(bool came);

  // What all ranks have in common that do the same: operation, reduction and what tensors are like.
  Agreement::Description description() const;
  // The same, quick to make and not to be read.
  std::string key() const;

  // The tensors that get results.
  std::vector<at::Tensor> results() const;

  // To be called where an exception is handled: throws it again, with rank, operation and tensors.
  [[noreturn]] void rethrow_with_context();

 private:
  struct Part {
    at::Tensor device;
    at::Tensor host;    // what Gloo works on
    at::Tensor target;  // what gets the result from there; undefined if it is there already
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
  // The last bytes of something that is to come, for which others stand until it is there.
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

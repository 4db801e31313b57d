// What waits for an operation on mps tensors: Gloo's Work, and then what is left to do.
#pragma once
#include <csrc/distributed/transfer.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace metalops::distributed {

class HostWork final : public c10d::Work {
 public:
  HostWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<Transfer> transfer);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  // Of the mps tensors; of operations whose Work of Gloo has one.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_of_results();
  bool has_future() const;

  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<Transfer> transfer_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace metalops::distributed

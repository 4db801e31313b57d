// c10d::Work of an operation on mps tensors: waits for Gloo's Work, then finishes the transfer.
#pragma once
#include <csrc/distributed/agreement.h>
#include <csrc/distributed/transfer.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace metalops::distributed {

class HostWork final : public c10d::Work {
 public:
  // A call on whose arguments ranks have to agree.
  struct Compared {
    std::shared_ptr<Agreement> agreement;
    Agreement::Call call;
  };
  HostWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<Transfer> transfer,
           std::optional<Compared> compared);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  // Returns a future of the mps tensors, for operations whose Work in Gloo has a future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_of_results();
  bool has_future() const;
  bool wait_for_inner(std::chrono::milliseconds timeout);
  bool wait_in_slices(std::chrono::milliseconds timeout);
  bool wait_watched(std::chrono::milliseconds timeout);
  void look(bool tells);

  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<Transfer> transfer_;
  std::optional<Compared> compared_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace metalops::distributed

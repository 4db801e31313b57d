#include <csrc/distributed/work.h>

namespace metalops::distributed {

using c10::ivalue::Future;

HostWork::HostWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<Transfer> transfer,
                   std::optional<Compared> compared)
    : Work(-1, inner->retrieveOpType()),
      inner_(std::move(inner)),
      transfer_(std::move(transfer)),
      compared_(std::move(compared)) {
  // Results have to be there when Gloo's thread is done, whoever looks.
  if (transfer_->needs_finish() && has_future()) future_of_results();
}

// Works of send and receive have none.
bool HostWork::has_future() const {
  switch (opType_) {
    case c10d::OpType::SEND:
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE:
    case c10d::OpType::UNKNOWN:
      return false;
    default:
      return true;
  }
}

c10::intrusive_ptr<Future> HostWork::future_of_results() {
  const std::lock_guard lock(future_mutex_);
  if (!future_) {
    auto inner = inner_->getFuture();
    future_ = inner->then(
        [transfer = transfer_](Future& done) {
          try {
            if (done.hasError()) std::rethrow_exception(done.exception_ptr());
            transfer->finish();
            return transfer->to_device(done.constValue());
          } catch (...) {
            transfer->rethrow_with_context();
          }
        },
        inner->elementType());
  }
  return future_;
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  bool done = false;
  try {
    done = compared_ ? wait_and_look(timeout) : inner_->wait(timeout);
    if (transfer_->needs_finish() && !has_future()) transfer_->finish();
  } catch (...) {
    transfer_->rethrow_with_context();
  }
  if (transfer_->needs_finish() && has_future()) future_->waitAndThrow();
  return done;
}

bool HostWork::wait_and_look(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    auto slice = std::chrono::milliseconds(1000);
    if (timeout != kNoTimeout) {
      const auto spent =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      if (timeout - spent <= slice) {
        return inner_->wait(std::max(timeout - spent, std::chrono::milliseconds(1)));
      }
    }
    try {
      return inner_->wait(slice);
    } catch (...) {
      if (inner_->isCompleted()) throw;  // not because the slice is over
    }
    compared_->agreement->look(compared_->call, [this] { return transfer_->signature(); });
  }
}

bool HostWork::isCompleted() {
  if (transfer_->needs_finish() && has_future()) return future_->completed();
  return inner_->isCompleted();
}

std::vector<at::Tensor> HostWork::result() {
  const auto of_inner = inner_->result();  // raises what is wrong
  return of_inner.empty() ? of_inner : transfer_->results();
}

c10::intrusive_ptr<Future> HostWork::getFuture() {
  return has_future() ? future_of_results() : inner_->getFuture();
}

bool HostWork::isSuccess() const { return inner_->isSuccess(); }
std::exception_ptr HostWork::exception() const { return inner_->exception(); }
int HostWork::sourceRank() const { return inner_->sourceRank(); }
void HostWork::synchronize() { inner_->synchronize(); }
void HostWork::abort() { inner_->abort(); }
c10::intrusive_ptr<Future> HostWork::getFutureResult() { return inner_->getFutureResult(); }
float HostWork::getDuration() const { return inner_->getDuration(); }
uint64_t HostWork::getSequencenumber() const { return inner_->getSequencenumber(); }

}  // namespace metalops::distributed

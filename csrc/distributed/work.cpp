// HostWork: waits for Gloo in slices, looking for disagreements of ranks in between.
#include <csrc/distributed/work.h>

#include <condition_variable>
#include <thread>

namespace metalops::distributed {

using c10::ivalue::Future;

namespace {

// Interval at which a waiting rank looks into the store, and the time after which it announces its
// call even though the call was known.
constexpr std::chrono::milliseconds kSlice{1'000}, kUntilTold{10'000};

}  // namespace

HostWork::HostWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<Transfer> transfer,
                   std::optional<Compared> compared)
    : Work(-1, inner->retrieveOpType()),
      inner_(std::move(inner)),
      transfer_(std::move(transfer)),
      compared_(std::move(compared)) {
  // Results have to be in their tensors when Gloo's thread is done, even if nobody waits for them.
  if (transfer_->needs_finish() && has_future()) future_of_results();
}

// Returns true if Gloo's Work has a future; that of send and receive has none.
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
            transfer->check_all_bytes(true);
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
    done = wait_for_inner(timeout);
    transfer_->check_all_bytes(done);
    if (transfer_->needs_finish() && !has_future()) transfer_->finish();
  } catch (...) {
    transfer_->rethrow_with_context();
  }
  if (transfer_->needs_finish() && has_future()) future_->waitAndThrow();
  return done;
}

bool HostWork::wait_for_inner(std::chrono::milliseconds timeout) {
  try {
    if (!compared_) return inner_->wait(timeout);
    return has_future() ? wait_in_slices(timeout) : wait_watched(timeout);
  } catch (...) {
    transfer_->check_all_bytes(false);
    throw;
  }
}

void HostWork::look(bool tells) {
  compared_->agreement->look(compared_->call, [this] { return transfer_->description(); }, tells);
}

bool HostWork::wait_in_slices(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    auto slice = kSlice;
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
      if (inner_->isCompleted()) throw;  // an error of the operation, not the end of the slice
    }
    look(Clock::now() - start > kUntilTold);
  }
}

// Waits for a message in one call: after a timeout Gloo closes all connections. A second thread
// looks for disagreements meanwhile.
bool HostWork::wait_watched(std::chrono::milliseconds timeout) {
  if (!compared_->call.told) return inner_->wait(timeout);
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::exception_ptr disagreement;
  std::thread watch([&] {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kSlice, [&] { return over; })) {
      try {
        look(false);
      } catch (...) {
        disagreement = std::current_exception();
        inner_->abort();
        return;
      }
    }
  });
  const auto end = [&] {
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_one();
    watch.join();
    if (disagreement) std::rethrow_exception(disagreement);
  };
  bool done = false;
  try {
    done = inner_->wait(timeout);
  } catch (...) {
    end();
    throw;
  }
  end();
  return done;
}

bool HostWork::isCompleted() {
  if (transfer_->needs_finish() && has_future()) return future_->completed();
  return inner_->isCompleted();
}

std::vector<at::Tensor> HostWork::result() {
  const auto of_inner = inner_->result();  // raises the operation's error
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

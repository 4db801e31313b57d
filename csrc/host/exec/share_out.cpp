// See share_out.h.
#include "share_out.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <map>

#include "locks.h"

namespace metalops::exec {

void (*check_interrupt)() = nullptr;

namespace {

thread_local int threads_of_last = 0;
thread_local bool has_shared = false;

int64_t now() {
  using std::chrono::duration_cast;
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return duration_cast<std::chrono::nanoseconds>(time).count();
}

// Python's signal handlers run in the main thread only.
bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

constexpr int64_t kBetweenPauses = 50'000'000;  // nanoseconds
constexpr int64_t kLongestBetween = 500'000'000;

// OpenMP's threads do not exist in a forked child, but it would wait for those that the forking
// thread had; so would MKL, in torch's own kernels. With one thread they do not.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  if (has_shared) at::set_num_threads(1);
});

// A tensor of one byte a share, for torch to loop over.
class SharesAsTensor {
 public:
  explicit SharesAsTensor(int64_t shares)
      : bytes_(at::detail::empty_cpu({shares}, at::kByte)),
        iterator_(at::TensorIterator::borrowing_nullary_op(bytes_)) {}

  void for_each(c10::function_ref<void(int64_t, int64_t)> do_shares) {
    const char* const begin = static_cast<const char*>(bytes_.const_data_ptr());
    iterator_.for_each(
        [=](char** data, const int64_t*, int64_t size0, int64_t size1) {
          const int64_t first = data[0] - begin;
          do_shares(first, first + size0 * size1);
        },
        /*grain_size=*/1);
  }

 private:
  const at::TensorBase bytes_;
  at::TensorIterator iterator_;
};

}  // namespace

Pauses::Pauses() : may_be_due_(check_interrupt != nullptr && !at::in_parallel_region()) {
  if (may_be_due_) begin_ = last_ = now();
}

bool Pauses::is_due() {
  if (!may_be_due_) return false;
  const int64_t time = now();
  // CPU threads that are done wait for those that are not: rarely where pieces are long.
  longest_ = std::max(longest_, time - last_);
  last_ = time;
  if (time - begin_ < std::clamp(5 * longest_, kBetweenPauses, kLongestBetween)) return false;
  may_be_due_ = is_main_thread();
  return may_be_due_;
}

void Pauses::pause() {
  check_interrupt();
  begin_ = last_ = now();
}

int threads_of_last_launch() { return threads_of_last; }

void note_threads(int threads) { threads_of_last = threads; }

int threads_to_use(int threads) {
  if (is_forked_child()) return 1;
  return threads > 0 ? threads : at::get_num_threads();
}

// By torch's own compiled loop over a tensor. at::parallel_for is a template, which calls the
// OpenMP runtime of whichever compiler it is compiled with: clang's is another one than torch's.
void on_cpu_threads(int64_t shares, c10::function_ref<void(int64_t, int64_t)> do_shares) {
  has_shared = true;
  // None is ever removed: a pause may launch a kernel on this thread.
  static thread_local std::map<int64_t, SharesAsTensor> made;
  made.try_emplace(shares, shares).first->second.for_each(do_shares);
}

}  // namespace metalops::exec

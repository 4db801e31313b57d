// Runs shares of a launch on torch's CPU threads, through torch's own compiled loop.
#include <exec/cpu_threads.h>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <pthread.h>

#include <map>

#include <locks.h>
#include <torch_internals.h>

namespace metalops::exec {

namespace {

thread_local bool has_shared = false;

// OpenMP's threads do not exist in a forked child, but it would wait for those of the forking
// thread; so would MKL, in torch's own kernels. With one thread they do not wait.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  if (has_shared) at::set_num_threads(1);
});

// A tensor with one byte per share, for torch to loop over.
class SharesAsTensor {
 public:
  explicit SharesAsTensor(int64_t shares)
      : bytes_(internals::empty_cpu({shares}, at::kByte)),
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

int threads_to_use(int threads) {
  if (is_forked_child()) return 1;
  return threads > 0 ? threads : at::get_num_threads();
}

bool is_one_of_several() { return at::in_parallel_region(); }

// Uses torch's own compiled loop over a tensor. at::parallel_for is a template, which calls the
// OpenMP runtime of the compiler that compiles it: clang's is a different one from torch's.
void on_cpu_threads(int64_t shares, c10::function_ref<void(int64_t, int64_t)> do_shares) {
  has_shared = true;
  // Elements are never removed: a pause may launch a kernel on this thread.
  static thread_local std::map<int64_t, SharesAsTensor> made;
  made.try_emplace(shares, shares).first->second.for_each(do_shares);
}

}  // namespace metalops::exec

// Forks while other threads make, use and destroy locks of csrc/host/locks.h, which fork() knows.
// Built with locks.cpp and called by test_forks.py.
#include <locks.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

using namespace metalops;

namespace {

void lock_and_unlock(ForkSafeMutex& mutex) { std::lock_guard<ForkSafeMutex> lock(mutex); }

// A child finds the lock free whatever the other threads of its parent did.
int child(ForkSafeMutex& shared) {
  alarm(30);
  lock_and_unlock(shared);
  ForkSafeMutex own;
  lock_and_unlock(own);
  return 0;
}

}  // namespace

// How many of the children did not end as they should.
extern "C" int forks_that_fail(int forks) {
  ForkSafeMutex shared;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!stop) {
      // Made and destroyed while another is held, too.
      const std::lock_guard<ForkSafeMutex> outer(shared);
      const auto made = std::make_unique<ForkSafeMutex>();
      lock_and_unlock(*made);
    }
  });
  threads.emplace_back([&] {
    while (!stop) {
      std::mutex of_torch;
      GilSafeMutex recursive;
      ForkSafeReference reference(of_torch);
      const std::lock_guard<GilSafeMutex> lock(recursive);
    }
  });
  int failed = 0;
  for (int i = 0; i < forks; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(child(shared));
    int status = -1;
    waitpid(pid, &status, 0);
    failed += status != 0;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return failed;
}

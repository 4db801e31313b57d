// When a launch pauses for signal handlers, and the count of CPU threads used.
#include <exec/share_out.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace metalops::exec {

void (*check_interrupt)() = nullptr;

namespace {

thread_local int threads_of_last = 0;

int64_t now() {
  using std::chrono::duration_cast;
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return duration_cast<std::chrono::nanoseconds>(time).count();
}

// Returns true on the main thread, the only one that runs Python's signal handlers.
bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

constexpr int64_t kBetweenPauses = 50'000'000;  // nanoseconds
constexpr int64_t kLongestBetween = 500'000'000;

}  // namespace

Pauses::Pauses() : may_be_due_(check_interrupt != nullptr && !is_one_of_several()) {
  if (may_be_due_) begin_ = last_ = now();
}

bool Pauses::is_due() {
  if (!may_be_due_) return false;
  const int64_t time = now();
  // Threads that are done wait for the others at a pause; pauses are rarer where pieces are long.
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

}  // namespace metalops::exec

// The engine for kernels that never synchronise: a loop over the grid, cut into pieces for the CPU
// threads.
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "runtime.h"

namespace metalops::exec {

thread_local const Kernel* kernel_in_loop = nullptr;

namespace {

// Restores the previous kernel, also when the kernel throws.
class InLoop {
 public:
  explicit InLoop(const Kernel& kernel) : before_(kernel_in_loop) { kernel_in_loop = &kernel; }
  ~InLoop() { kernel_in_loop = before_; }

 private:
  const Kernel* before_;
};

void run_piece(const Kernel& kernel, const Launch& launch, uint64_t begin, uint64_t end) {
  InLoop scope(kernel);
  kernel.loop(&launch, begin, end);
}

// As ATen: fewer cheap threads than this are not worth waking another CPU thread for.
constexpr uint64_t kGrain = 32768;
// Smaller grids run at once, without being timed.
constexpr uint64_t kTimed = 32;
constexpr double kWorthSharing = 20e3;  // nanoseconds of work
// Between pieces of about this long the CPU threads balance their load and the launching one looks
// for Ctrl-C.
constexpr double kPiece = 2e6;  // nanoseconds

// Runs [begin, end) on several CPU threads, which take the next piece when they are done with one.
void run_shared(const Kernel& kernel, const Launch& launch, uint64_t begin, uint64_t end,
                uint64_t piece, int threads) {
  std::atomic<uint64_t> next{begin};
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t) {
    // A pool smaller than `threads` gives several shares to one CPU thread; the first of them does
    // all the work.
    const bool launching = first == 0;
    InterruptPoll poll;
    for (;;) {
      const uint64_t from = next.fetch_add(piece, std::memory_order_relaxed);
      if (from >= end) break;
      try {
        run_piece(kernel, launch, from, std::min(from + piece, end));
        if (launching) poll();
      } catch (...) {
        next.store(end, std::memory_order_relaxed);  // the others stop after their piece
        throw;
      }
    }
  });
}

}  // namespace

void run_loop(const Kernel& kernel, const Launch& launch, int threads) {
  const uint64_t total = threads_in_grid(launch);
  if (total < kTimed || (threads == 1 && total <= kGrain)) {
    run_piece(kernel, launch, 0, total);
    return;
  }
  // Threads cost from less than a nanosecond to milliseconds (one for each row, say): time the
  // first few.
  using Clock = std::chrono::steady_clock;
  const uint64_t sample = total > kGrain ? kGrain / 8 : total / 32;
  const auto start = Clock::now();
  run_piece(kernel, launch, 0, sample);
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
  const double each = elapsed.count() / double(sample);
  const uint64_t rest = total - sample;

  // Whole cache lines of bytes, so that two CPU threads do not write to the same one.
  const auto piece_for = [&](uint64_t largest) {
    const double timed = std::max(1.0, kPiece / std::max(each, 1e-3));
    const uint64_t piece = timed < double(largest) ? uint64_t(timed) : largest;
    return piece > 64 ? (piece + 63) / 64 * 64 : piece;
  };
  if (threads > 1 && (total > kGrain || each * double(rest) > kWorthSharing)) {
    run_shared(kernel, launch, sample, total, piece_for((rest + threads - 1) / threads), threads);
    return;
  }
  const uint64_t piece = piece_for(rest);
  InterruptPoll poll;
  for (uint64_t begin = sample; begin < total; begin += piece) {
    run_piece(kernel, launch, begin, std::min(begin + piece, total));
    poll();
  }
}

}  // namespace metalops::exec

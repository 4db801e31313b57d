// Shares a launch out among CPU threads, with pauses for the host's signal handlers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <exec/cpu_threads.h>
#include <exec/exec.h>

namespace metalops::exec {

// Decides when a launch pauses. Used by the launching thread.
class Pauses {
 public:
  Pauses();
  // Called between pieces of work: returns true if it is time for a pause.
  bool is_due();
  // Runs signal handlers while no thread works on the launch. May throw, and launch other kernels.
  void pause();

 private:
  bool may_be_due_;
  // In nanoseconds: when the work began or resumed, when the last piece ended, the longest piece.
  int64_t begin_ = 0;
  int64_t last_ = 0;
  int64_t longest_ = 0;
};

// Sets the result of threads_of_last_launch().
void note_threads(int threads);

// Does the work [begin, end) on at most `threads` CPU threads. Each thread takes one `piece` at a
// time. When a piece begins, all earlier ones have begun, or are next on a thread that is at an
// earlier one. make_worker() is called on every CPU thread that gets work, and returns
// worker(from, to), with an optional worker.finish() that is called at the end. It is called again
// after a pause.
template <class MakeWorker>
void share_out(uint64_t begin, uint64_t end, uint64_t piece, int threads,
               const MakeWorker& make_worker) {
  threads = std::max(threads, 1);
  Pauses pauses;
  int most = 1;
  while (begin < end) {
    std::atomic<uint64_t> next{begin + uint64_t(threads) * piece};
    std::atomic<bool> stop{false};
    std::atomic<int> working{0};
    // One thread runs several shares if there are fewer CPU threads than `threads`.
    const auto do_shares = [&](int64_t first, int64_t last) {
      uint64_t from = begin + uint64_t(first) * piece;
      if (from >= end) return;
      working.fetch_add(1, std::memory_order_relaxed);
      try {
        auto worker = make_worker();
        for (int64_t share = first; share < last && from < end; ++share, from += piece) {
          worker(from, std::min(from + piece, end));
        }
        for (;;) {
          if (first == 0 && pauses.is_due()) stop.store(true, std::memory_order_relaxed);
          if (stop.load(std::memory_order_relaxed)) break;
          from = next.fetch_add(piece, std::memory_order_relaxed);
          if (from >= end) break;
          worker(from, std::min(from + piece, end));
        }
        if constexpr (requires { worker.finish(); }) worker.finish();
      } catch (...) {
        stop.store(true, std::memory_order_relaxed);  // the others stop after their piece
        throw;
      }
    };
    if (threads == 1) {
      do_shares(0, 1);
    } else {
      on_cpu_threads(threads, do_shares);
    }
    most = std::max(most, working.load(std::memory_order_relaxed));
    begin = std::min(next.load(std::memory_order_relaxed), end);
    if (begin < end) pauses.pause();
  }
  note_threads(most);
}

}  // namespace metalops::exec

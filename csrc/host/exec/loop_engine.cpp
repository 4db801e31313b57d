// The loop engine, for kernels that never synchronise: a work-item loop over the whole grid, split
// into pieces for the CPU threads.
#include <algorithm>
#include <chrono>

#include <exec/in_kernel.h>
#include <exec/runtime.h>
#include <exec/share_out.h>

namespace metalops::exec {

thread_local const Kernel* kernel_in_loop = nullptr;

namespace {

void run_piece(const Kernel& kernel, const Launch& launch, uint64_t begin, uint64_t end,
               bool one_by_one) {
  InLoop scope(kernel);
  InKernel(kernel, "loop").run([&] {
    if (!one_by_one) return kernel.loop(&launch, begin, end);
    for (uint64_t thread = begin; thread < end; ++thread) kernel.loop(&launch, thread, thread + 1);
  });
}

// ATen's grain size: fewer cheap threads than this are not worth waking another CPU thread for.
constexpr uint64_t kGrain = 32768;
// Smaller grids run at once, without being timed.
constexpr uint64_t kTimed = 32;
constexpr double kWorthSharing = 20e3;  // nanoseconds of work
// Target duration of a piece of work; between pieces CPU threads balance their load and the
// launching one checks for Ctrl-C.
constexpr double kPiece = 2e6;  // nanoseconds

}  // namespace

void run_loop(const Kernel& kernel, const Launch& launch, int threads, bool one_by_one) {
  const uint64_t total = threads_in_grid(launch);
  if (total < kTimed || (threads == 1 && total <= kGrain)) {
    run_piece(kernel, launch, 0, total, one_by_one);
    note_threads(1);
    return;
  }
  // Threads cost from less than a nanosecond to milliseconds (one per row, for example): time the
  // first few.
  using Clock = std::chrono::steady_clock;
  const uint64_t sample = total > kGrain ? kGrain / 8 : total / 32;
  const auto start = Clock::now();
  run_piece(kernel, launch, 0, sample, one_by_one);
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
  const double each = elapsed.count() / double(sample);
  const uint64_t rest = total - sample;

  // Pieces are whole cache lines of bytes, so that two CPU threads do not write to the same line.
  const auto piece_for = [&](uint64_t largest) {
    const double timed = std::max(1.0, kPiece / std::max(each, 1e-3));
    const uint64_t piece = timed < double(largest) ? uint64_t(timed) : largest;
    return piece > 64 ? (piece + 63) / 64 * 64 : piece;
  };
  const bool shared = threads > 1 && (total > kGrain || each * double(rest) > kWorthSharing);
  const uint64_t piece = piece_for(shared ? (rest + threads - 1) / threads : rest);
  share_out(sample, total, piece, shared ? threads : 1, [&] {
    return [&](uint64_t from, uint64_t to) { run_piece(kernel, launch, from, to, one_by_one); };
  });
}

}  // namespace metalops::exec

// Launching kernels that reduce rows, whose lengths are known at least on average. Such a kernel
// exists twice: NAME_rows_TYPE, with a threadgroup for each row, and NAME_short_rows_TYPE, with a
// thread for each, for rows that are short or too many.
#pragma once
#include <c10/metal/common.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <string>

namespace metalops {

// Threadgroups have a power of two of threads, whole simdgroups and at most 1024, and are numbered
// by threadgroup_position_in_grid; the threads for short rows by thread_index().
template <class... Arguments>
METALOPS_HIDDEN inline void launch_reduction(at::native::mps::MetalShaderLibrary& library,
                                             const std::string& name, const std::string& type,
                                             int64_t rows, int64_t length,
                                             const Arguments&... arguments) {
  constexpr int64_t kShort = 64;
  constexpr int64_t kLeastElements = 32;     // that a thread should have to itself
  constexpr int64_t kManyThreads = 1 << 15;  // enough for any GPU
  constexpr int64_t kMostInGroup = 1024;
  constexpr int64_t kLargestGrid = (int64_t{1} << 32) - 1;
  int64_t threads = c10::metal::simdgroup_size;
  while (threads < kMostInGroup && threads * rows < kManyThreads &&
         threads * kLeastElements < length) {
    threads *= 2;
  }
  if (length <= kShort || rows > kLargestGrid / threads) {
    launch_threads(library, name + "_short_rows_" + type, rows, arguments...);
  } else {
    launch_threadgroups(library, name + "_rows_" + type, rows, threads, arguments...);
  }
}

}  // namespace metalops

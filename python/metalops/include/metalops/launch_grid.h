// Grids of kernels that are not written for a TensorIterator: how many threads a launch has, and in
// which threadgroups, by the way in which the kernel divides its work.
#pragma once
#include <algorithm>
#include <cstdint>

namespace metalops {

// threads: those of the grid. group: those of a threadgroup; 0 leaves it to the device. may_shrink:
// the group may be made smaller for a kernel whose threadgroups cannot have as many threads.
struct LaunchGrid {
  uint64_t threads[3] = {0, 1, 1};
  uint64_t group[3] = {0, 1, 1};
  int32_t dims = 1;
  bool may_shrink = false;

  bool is_empty() const { return threads[0] == 0 || threads[1] == 0 || threads[2] == 0; }
  uint64_t threads_of_group() const { return group[0] * group[1] * group[2]; }
};

// At least `threads` threads: whole simdgroups, in rows of 2^30. A kernel finds its number with
// thread_index() of <metalops/strided.h>; threads past the last one must return.
inline LaunchGrid grid_of_threads(uint64_t threads) {
  constexpr uint64_t kRow = uint64_t{1} << 30;
  constexpr uint64_t kSimdgroup = 32;
  if (threads <= kRow) {
    return {{(threads + kSimdgroup - 1) / kSimdgroup * kSimdgroup, 1, 1}, {0, 1, 1}, 1};
  }
  return {{kRow, (threads + kRow - 1) / kRow, 1}, {0, 1, 1}, 2};
}

// `groups` threadgroups of `size` threads each, in one dimension. Their total must be less than
// 2^32 threads: a kernel for any number of rows strides over them by threadgroups_per_grid.
inline LaunchGrid grid_of_threadgroups(uint64_t groups, uint64_t size) {
  return {{groups * size, 1, 1}, {size, 1, 1}, 1};
}

// At least `simdgroups` simdgroups, `together` per threadgroup, or fewer where that would leave
// parts of a GPU idle. A kernel finds the number of its simdgroup as thread_index() / 32;
// simdgroups past the last one must return.
inline LaunchGrid grid_of_simdgroups(uint64_t simdgroups, uint64_t most_together = 8) {
  constexpr uint64_t kRow = uint64_t{1} << 25;
  constexpr uint64_t kManyGroups = 1024;  // enough for any GPU
  constexpr uint64_t kSimdgroup = 32;
  if (simdgroups == 0) {
    return {};
  }
  const auto together = std::clamp<uint64_t>(simdgroups / kManyGroups, 1, most_together);
  const auto columns = std::min((simdgroups + together - 1) / together * together, kRow);
  return {{columns * kSimdgroup, (simdgroups + columns - 1) / columns, 1},
          {together * kSimdgroup, 1, 1},
          2};
}

// Threads in `columns` x `rows` x `layers`. Threadgroups have at most `most` threads, so that
// several are resident; they are as wide as a row, or as wide as possible, and hold several rows if
// these are short, and several layers if there are few rows.
inline LaunchGrid grid_of_elements(uint64_t columns, uint64_t rows, uint64_t layers,
                                   uint64_t most = 256) {
  if (columns == 0 || rows == 0 || layers == 0) {
    return {};
  }
  const auto width = std::min(columns, most);
  const auto height = std::min(rows, most / width);
  return {{columns, rows, layers},
          {width, height, std::min(layers, most / (width * height))},
          3,
          /*may_shrink=*/true};
}

}  // namespace metalops

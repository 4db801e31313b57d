// How many matrices a launch takes: on a small GPU a launch should not take much longer than 50 ms,
// since the display waits for it (tests/exec/test_launch_lengths.py counts the steps of kernels).
#pragma once
#include <csrc/plans/plan.h>

#include <algorithm>
#include <cstdint>

namespace metalops::plans {

// Returns the steps that a panel costs: for each column, the threads of a simdgroup reduce
// something and wait for each other, and each row is updated.
inline int64_t steps_of_panel(int64_t rows, int64_t columns) {
  constexpr int64_t kWidest = 32;
  constexpr int64_t kOfColumn = 2048;
  return std::min(columns, kWidest) * (kOfColumn + kWidest * rows);
}

// Returns how many matrices a launch takes: a larger GPU, of which the multiprocessors are known,
// takes more in the same time. steps: of all threads of a matrix.
inline int64_t matrices_of_launch(int64_t steps, const Device& device) {
  constexpr int64_t kSmallGpu = 8;  // multiprocessors
  const auto times = std::max<int64_t>(device.multiprocessors / kSmallGpu, 1);
  return std::max<int64_t>((times << 28) / std::max<int64_t>(steps, 1), 1);
}

// Calls part(first, count) for as many matrices as a launch takes, until all are done.
template <class Part>
inline void in_launches(int64_t matrices, int64_t steps, const Device& device, Part part) {
  const auto most = matrices_of_launch(steps, device);
  for (int64_t first = 0; first < matrices; first += most) {
    part(first, std::min(most, matrices - first));
  }
}

}  // namespace metalops::plans

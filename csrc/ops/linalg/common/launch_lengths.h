// How many matrices kernels take at once: on a small GPU a launch should not last much longer than
// 50 ms, since a display waits for it (tests/exec/test_launch_lengths.py counts what kernels do).
#pragma once
#include <c10/macros/Macros.h>
#include <metalops/library.h>

#include <algorithm>
#include <cstdint>

namespace metalops {

// What a launch does with a panel of columns: for each of them the threads of a simdgroup find
// something and wait for each other, and each row is changed.
METALOPS_HIDDEN inline int64_t steps_of_panel(int64_t rows, int64_t columns) {
  constexpr int64_t kWidest = 32;
  constexpr int64_t kOfColumn = 2048;
  return std::min(columns, kWidest) * (kOfColumn + kWidest * rows);
}

// steps: that each of the matrices takes in a launch, of all its threads.
METALOPS_HIDDEN inline int64_t matrices_of_launch(int64_t steps) {
  return std::max<int64_t>((int64_t{1} << 28) / std::max<int64_t>(steps, 1), 1);
}

// Calls part(first, count) for so many matrices as a launch takes, until all are done.
template <class Part>
METALOPS_HIDDEN inline void in_launches(int64_t matrices, int64_t steps, Part part) {
  const auto most = matrices_of_launch(steps);
  for (int64_t first = 0; first < matrices; first += most) {
    part(first, std::min(most, matrices - first));
  }
}

}  // namespace metalops

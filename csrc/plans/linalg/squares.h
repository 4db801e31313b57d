// Launches of kernels that compute values and vectors of square matrices of moderate size, one
// kernel for each class of sizes: a thread for each matrix of at most kMostOfThread rows, a
// simdgroup for each larger one.
#pragma once
#include <csrc/plans/linalg/launch_lengths.h>
#include <csrc/plans/plan.h>
#include <kernels/linalg/common/squares.h>

#include <cstdint>

namespace metalops::plans {

inline constexpr int64_t kMostOfThread = 8;

struct SquareClasses {
  const char* family;  // of kernels; the name of the .metal file
  int64_t most;        // rows of the largest class
  const char* largest;
  int64_t work;  // steps of a matrix, in units of n^3

  // Returns how many matrices of n rows a launch takes.
  int64_t a_launch(int64_t n, const Device& device) const {
    return matrices_of_launch(work * n * n * n, device);
  }
};

// Returns the parameters of a: (batch, n, n).
inline SquaresParameters squares_of(const View& a, bool is_upper, bool with_vectors) {
  return {a.stride(0),
          a.stride(1),
          a.stride(2),
          0,
          static_cast<uint32_t>(a.size(0)),
          static_cast<int32_t>(a.size(1)),
          is_upper,
          with_vectors,
          /*padding=*/0};
}

// Launches the kernel of the smallest class that fits the matrices.
template <class... Arguments>
inline void launch_squares(Plan& plan, const Device& device, const SquareClasses& classes,
                           Type type, SquaresParameters p, const Arguments&... arguments) {
  const int64_t n = p.size;
  const auto* const name = n <= 4               ? "_thread_4_"
                           : n <= kMostOfThread ? "_thread_8_"
                           : n <= 16            ? "_simdgroup_16_"
                           : n <= 32            ? "_simdgroup_32_"
                                                : classes.largest;
  in_launches(p.end, classes.work * n * n * n, device, [&](int64_t first, int64_t matrices) {
    p.first = static_cast<uint32_t>(first);
    p.end = static_cast<uint32_t>(first + matrices);
    plan.launch(classes.family, Name(classes.family) + name + type,
                n <= kMostOfThread ? grid_of_threads(matrices) : grid_of_threadgroups(matrices, 32),
                arguments..., p);
  });
}

}  // namespace metalops::plans

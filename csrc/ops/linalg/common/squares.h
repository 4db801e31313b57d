// Launches of kernels that compute values and vectors of square matrices of moderate size, one
// kernel for each class of sizes: a thread for each matrix of at most kMostOfThread rows, a
// simdgroup for each larger one.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>

#include <cstdint>

#include <csrc/plans/linalg/launch_lengths.h>

namespace metalops {

inline constexpr int64_t kMostOfThread = 8;

struct METALOPS_HIDDEN SquareClasses {
  const char* family;  // of kernels; the name of the .metal file
  int64_t most;        // rows of the largest class
  const char* largest;
  int64_t work;  // steps of a matrix, in units of n^3

  // Returns how many matrices of n rows a launch takes.
  int64_t a_launch(int64_t n) const { return plans::matrices_of_launch(work * n * n * n); }
};

// Returns the parameters of a: (batch, n, n).
METALOPS_HIDDEN inline SquaresParameters squares_of(const at::Tensor& a, bool is_upper,
                                                    bool with_vectors) {
  return {a.stride(0),
          a.stride(1),
          a.stride(2),
          0,
          static_cast<uint32_t>(a.size(0)),
          static_cast<int32_t>(a.size(1)),
          is_upper,
          with_vectors};
}

// Launches the kernel of the smallest class that fits the matrices.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_squares(const SquareClasses& classes, at::ScalarType type,
                                           SquaresParameters p, const Arguments&... arguments) {
  const int64_t n = p.size;
  const auto* const name = n <= 4               ? "_thread_4_"
                           : n <= kMostOfThread ? "_thread_8_"
                           : n <= 16            ? "_simdgroup_16_"
                           : n <= 32            ? "_simdgroup_32_"
                                                : classes.largest;
  const auto kernel = KernelName(classes.family) + name + metal_type(type);
  auto& kernels = library(classes.family);
  plans::in_launches(p.end, classes.work * n * n * n, [&](int64_t first, int64_t matrices) {
    p.first = static_cast<uint32_t>(first);
    p.end = static_cast<uint32_t>(first + matrices);
    if (n <= kMostOfThread) {
      launch_threads(kernels, kernel, matrices, arguments..., p);
    } else {
      launch_threadgroups(kernels, kernel, matrices, c10::metal::simdgroup_size, arguments..., p);
    }
  });
}

}  // namespace metalops

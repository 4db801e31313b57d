// Launch of kernels that are written for their grid, not for a TensorIterator: the arguments are
// bound to the kernel's buffers 0, 1, 2 and so on.
//
//   metalops::launch_threads(library("range"), "range_logspace_float", layout.count, out,
//                            parameters, layout);
//
// Arguments are tensors (bound where they start, whatever their strides), numbers other than
// double, parameter structs, containers of numbers, and kErrorBuffer.
#pragma once
#include <ATen/core/TensorBase.h>
#include <c10/metal/common.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <metalops/kernel_name.h>
#include <metalops/library.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace metalops {

// Stands for the buffer (c10::metal::ErrorMessages) of errors that kernels report with
// TORCH_REPORT_ERROR. The host raises them when it next waits for the device.
struct ErrorBuffer {};
inline constexpr ErrorBuffer kErrorBuffer{};

// kPack: adjacent elements that a thread loads at once (a vector). begins_with_pack: returns true
// if a tensor's start is aligned for it.
inline constexpr int64_t kPack = 4;
METALOPS_HIDDEN inline bool begins_with_pack(const at::TensorBase& tensor) {
  return tensor.storage_offset() % kPack == 0;
}

// Returns true if kernels with one element per thread are fastest. This holds on a CPU, whose
// compiler vectorises across adjacent threads, but not within vectors with exponentials in them.
#ifdef __APPLE__
inline bool a_thread_for_each_element() { return false; }
#else
bool a_thread_for_each_element();
#endif

namespace detail {

template <class... Arguments>
METALOPS_HIDDEN inline void bind(at::native::mps::MetalKernelFunction& kernel,
                                 const Arguments&... arguments) {
  unsigned index = 0;
  const auto bind_one = [&](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, ErrorBuffer>) {
      kernel.setErrorBufferIndex(index++);
    } else {
      kernel.setArg(index++, argument);
    }
  };
  (bind_one(arguments), ...);
}

}  // namespace detail

// Launches at least `threads` threads: whole simdgroups, in rows of 2^30. A kernel finds its number
// with thread_index() of <metalops/strided.h>; threads past the last one must return.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_threads(at::native::mps::MetalShaderLibrary& library,
                                           const KernelName& name, uint64_t threads,
                                           const Arguments&... arguments) {
  constexpr uint64_t kRow = uint64_t{1} << 30;
  if (threads == 0) {
    return;
  }
  auto& function = kernel(library, name);
  encode(function, [&] {
    detail::bind(function, arguments...);
    if (threads <= kRow) {
      function.dispatch(c10::metal::round_up<uint64_t>(threads, c10::metal::simdgroup_size));
    } else {
      const std::array<uint64_t, 2> grid{kRow, c10::metal::ceil_div(threads, kRow)};
      function.dispatch(grid);
    }
  });
}

// Launches `groups` threadgroups of `size` threads each, in one dimension. Their total must be less
// than 2^32 threads: a kernel for any number of rows strides over them by threadgroups_per_grid.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_threadgroups(at::native::mps::MetalShaderLibrary& library,
                                                const KernelName& name, uint64_t groups,
                                                uint64_t size, const Arguments&... arguments) {
  if (groups == 0) {
    return;
  }
  auto& function = kernel(library, name);
  encode(function, [&] {
    detail::bind(function, arguments...);
    function.dispatch(groups * size, size);
  });
}

// Launches at least `simdgroups` simdgroups, kTogether per threadgroup, or fewer where that would
// leave parts of a GPU idle. A kernel finds the number of its simdgroup as thread_index() / 32;
// simdgroups past the last one must return.
template <uint64_t kTogether = 8, class... Arguments>
METALOPS_HIDDEN inline void launch_simdgroups(at::native::mps::MetalShaderLibrary& library,
                                              const KernelName& name, uint64_t simdgroups,
                                              const Arguments&... arguments) {
  constexpr uint64_t kRow = uint64_t{1} << 25;
  constexpr uint64_t kManyGroups = 1024;  // enough for any GPU
  if (simdgroups == 0) {
    return;
  }
  const auto together = std::clamp<uint64_t>(simdgroups / kManyGroups, 1, kTogether);
  const auto columns = std::min(c10::metal::round_up(simdgroups, together), kRow);
  const std::array<uint64_t, 2> grid{columns * c10::metal::simdgroup_size,
                                     c10::metal::ceil_div(simdgroups, columns)};
  const std::array<uint64_t, 2> group{together * c10::metal::simdgroup_size, 1};
  auto& function = kernel(library, name);
  encode(function, [&] {
    detail::bind(function, arguments...);
    function.dispatch(grid, c10::ArrayRef<uint64_t>(group));
  });
}

// Launches a grid of `columns` x `rows` x `layers` threads. Threadgroups have at most 256 threads,
// so that several are resident; they are as wide as a row, or as wide as possible, and hold several
// rows if these are short, and several layers if there are few rows.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_grid(at::native::mps::MetalShaderLibrary& library,
                                        const KernelName& name, const std::array<uint64_t, 3>& grid,
                                        const Arguments&... arguments) {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
    return;
  }
  constexpr uint64_t kLongest = (uint64_t{1} << 32) - 1;
  TORCH_CHECK(std::max({grid[0], grid[1], grid[2]}) <= kLongest, name.text(), ": a grid of ",
              grid[0], " times ", grid[1], " times ", grid[2], " threads is too large for MPS");
  auto& function = kernel(library, name);
  encode(function, [&] {
    detail::bind(function, arguments...);
    const auto most = std::min<uint64_t>(function.getMaxThreadsPerThreadgroup(), 256);
    const auto width = std::min(grid[0], most);
    const auto height = std::min(grid[1], most / width);
    const std::array<uint64_t, 3> group{width, height, std::min(grid[2], most / (width * height))};
    function.dispatch(grid, c10::ArrayRef<uint64_t>(group));
  });
}

// Launches a grid of one layer.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_rows(at::native::mps::MetalShaderLibrary& library,
                                        const KernelName& name, uint64_t columns, uint64_t rows,
                                        const Arguments&... arguments) {
  launch_grid(library, name, {columns, rows, 1}, arguments...);
}

// Launches a reduction of rows. Threadgroups have a power of two of threads, whole simdgroups and
// at most 1024, and are numbered by threadgroup_position_in_grid; in the kernel for short rows,
// threads are numbered by thread_index().
template <class... Arguments>
METALOPS_HIDDEN inline void launch_reduction(at::native::mps::MetalShaderLibrary& library,
                                             const KernelName& name, const KernelName& type,
                                             int64_t rows, int64_t length,
                                             const Arguments&... arguments) {
  constexpr int64_t kShort = 64;
  constexpr int64_t kLeastElements = 32;     // per thread, at least
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

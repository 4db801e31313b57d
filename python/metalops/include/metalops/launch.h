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
#include <metalops/launch_grid.h>
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

// Dispatches a kernel that is being encoded.
METALOPS_HIDDEN inline void dispatch(at::native::mps::MetalKernelFunction& function,
                                     const LaunchGrid& grid) {
  const c10::ArrayRef<uint64_t> threads(grid.threads, grid.dims);
  if (grid.group[0] == 0) {
    function.dispatch(threads);
    return;
  }
  auto group = grid;
  if (grid.may_shrink && grid.threads_of_group() > function.getMaxThreadsPerThreadgroup()) {
    group = grid_of_elements(grid.threads[0], grid.threads[1], grid.threads[2],
                             function.getMaxThreadsPerThreadgroup());
  }
  function.dispatch(threads, c10::ArrayRef<uint64_t>(group.group, grid.dims));
}

// Launches a grid of <metalops/launch_grid.h>.
template <class... Arguments>
METALOPS_HIDDEN inline void launch_in(const LaunchGrid& grid,
                                      at::native::mps::MetalShaderLibrary& library,
                                      const KernelName& name, const Arguments&... arguments) {
  if (grid.is_empty()) {
    return;
  }
  auto& function = kernel(library, name);
  encode(function, [&] {
    detail::bind(function, arguments...);
    dispatch(function, grid);
  });
}

// Launches grid_of_threads().
template <class... Arguments>
METALOPS_HIDDEN inline void launch_threads(at::native::mps::MetalShaderLibrary& library,
                                           const KernelName& name, uint64_t threads,
                                           const Arguments&... arguments) {
  launch_in(grid_of_threads(threads), library, name, arguments...);
}

// Launches grid_of_threadgroups().
template <class... Arguments>
METALOPS_HIDDEN inline void launch_threadgroups(at::native::mps::MetalShaderLibrary& library,
                                                const KernelName& name, uint64_t groups,
                                                uint64_t size, const Arguments&... arguments) {
  launch_in(grid_of_threadgroups(groups, size), library, name, arguments...);
}

// Launches grid_of_simdgroups(), kTogether in a threadgroup.
template <uint64_t kTogether = 8, class... Arguments>
METALOPS_HIDDEN inline void launch_simdgroups(at::native::mps::MetalShaderLibrary& library,
                                              const KernelName& name, uint64_t simdgroups,
                                              const Arguments&... arguments) {
  launch_in(grid_of_simdgroups(simdgroups, kTogether), library, name, arguments...);
}

// Launches grid_of_elements(). Raises RuntimeError for sides of 2^32 threads.
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
  launch_in(grid_of_elements(grid[0], grid[1], grid[2]), library, name, arguments...);
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

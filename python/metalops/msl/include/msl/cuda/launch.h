// One launch of a kernel on a CUDA device: the parameters of emitted entry points, and a thread's
// indices.
//
// A block has as many threads as Metal's threadgroup, in the same order; the threads that a partial
// group at the grid's end does not have return at once. A grid of more groups than one CUDA launch
// can have is launched in parts.
#pragma once

#include <msl/metal.h>
#include <msl/signature.h>

namespace msl::abi {

constexpr u32 kMaxBuffers = 31;
constexpr u32 kHandleTable = kMaxBuffers;  // the buffer after them (msl/cuda/texture_argument.h)
constexpr u32 kInlineBytes = 1024;
constexpr u32 kNumbersBytes = 128;  // a size or stride for each of 16 dimensions

struct Extent {
  u32 grid[3];    // threads_per_grid
  u32 group[3];   // dispatch_threads_per_threadgroup
  u32 groups[3];  // threadgroups_per_grid, partial groups counted
  u32 first[3];   // the first threadgroup of this part of the grid
};
// Parameters of every kernel's entry point.
struct Launch {
  Extent extent;
  u32 inlined;  // bit per buffer whose contents come with the launch, in `bytes`
  u32 threadgroup_offsets[kMaxBuffers];
  u64 buffers[kMaxBuffers + 1];  // addresses, or offsets in `bytes`
  alignas(16) u8 bytes[kInlineBytes];
};

}  // namespace msl::abi

namespace msl::msl_support {

using abi::Launch;
using abi::u32;
using abi::u64;
using abi::u8;

// ---- indices of a thread ------------------------------------------------------------------------

struct Three {
  u32 x, y, z;
};

// kIsLine: the grid is known to be one-dimensional.
template <bool kIsLine>
struct Place {
  Three group;   // threadgroup_position_in_grid
  Three size;    // threads_per_threadgroup
  Three thread;  // thread_position_in_threadgroup
  u32 index;     // thread_index_in_threadgroup
  u32 count;     // threads in the group
  bool exists;
  abi::Site site;  // the active lanes of this simdgroup

  MSL_INLINE explicit Place(const abi::Extent& extent) {
    index = threadIdx.x;
    if (abi::kMatrixLanes) {  // one-dimensional, of whole warps
      index = (index & ~(abi::kSimdWidth - 1)) | abi::lane_of(index & (abi::kSimdWidth - 1));
    }
    if (kIsLine) {
      group = {extent.first[0] + blockIdx.x, 0, 0};
      size = {length(extent, 0, group.x), 1, 1};
      count = size.x;
      thread = {index, 0, 0};
    } else {
      group = {extent.first[0] + blockIdx.x, extent.first[1] + blockIdx.y,
               extent.first[2] + blockIdx.z};
      size = {length(extent, 0, group.x), length(extent, 1, group.y), length(extent, 2, group.z)};
      count = size.x * size.y * size.z;
      index += blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      if (!abi::kMatrixLanes && size.x == blockDim.x && size.y == blockDim.y) {
        thread = {threadIdx.x, threadIdx.y, threadIdx.z};
      } else {
        const u32 row = index / size.x;
        thread = {index % size.x, row % size.y, row / size.y};
      }
    }
    exists = index < count;
    const u32 left = count - (index & ~(abi::kSimdWidth - 1));
    site.mask = abi::warp_lanes_of(left >= abi::kSimdWidth ? ~0u : (1u << left) - 1u);
  }

  MSL_INLINE Three thread_position_in_grid(const abi::Extent& extent) const {
    return {group.x * extent.group[0] + thread.x, group.y * extent.group[1] + thread.y,
            group.z * extent.group[2] + thread.z};
  }
  MSL_INLINE Three thread_position_in_threadgroup(const abi::Extent&) const { return thread; }
  MSL_INLINE Three threadgroup_position_in_grid(const abi::Extent&) const { return group; }
  MSL_INLINE Three threads_per_threadgroup(const abi::Extent&) const { return size; }
  MSL_INLINE Three threads_per_grid(const abi::Extent& extent) const { return three(extent.grid); }
  MSL_INLINE Three grid_size(const abi::Extent& extent) const { return three(extent.grid); }
  MSL_INLINE Three grid_origin(const abi::Extent&) const { return {0, 0, 0}; }
  MSL_INLINE Three dispatch_threads_per_threadgroup(const abi::Extent& extent) const {
    return three(extent.group);
  }
  MSL_INLINE Three threadgroups_per_grid(const abi::Extent& extent) const {
    return three(extent.groups);
  }
  MSL_INLINE u32 threads_per_simdgroup(const abi::Extent&) const { return abi::kSimdWidth; }
  MSL_INLINE u32 thread_execution_width(const abi::Extent&) const { return abi::kSimdWidth; }
  MSL_INLINE u32 thread_index_in_threadgroup(const abi::Extent&) const { return index; }
  MSL_INLINE u32 thread_index_in_simdgroup(const abi::Extent&) const {
    return index & (abi::kSimdWidth - 1);
  }
  MSL_INLINE u32 simdgroup_index_in_threadgroup(const abi::Extent&) const {
    return index / abi::kSimdWidth;
  }
  MSL_INLINE u32 simdgroups_per_threadgroup(const abi::Extent&) const {
    return (count + abi::kSimdWidth - 1) / abi::kSimdWidth;
  }
  MSL_INLINE u32 dispatch_simdgroups_per_threadgroup(const abi::Extent& extent) const {
    return (volume(extent.group) + abi::kSimdWidth - 1) / abi::kSimdWidth;
  }
  MSL_INLINE u32 thread_index_in_quadgroup(const abi::Extent&) const { return index & 3; }
  MSL_INLINE u32 quadgroup_index_in_threadgroup(const abi::Extent&) const { return index / 4; }
  MSL_INLINE u32 quadgroups_per_threadgroup(const abi::Extent&) const { return (count + 3) / 4; }
  MSL_INLINE u32 dispatch_quadgroups_per_threadgroup(const abi::Extent& extent) const {
    return (volume(extent.group) + 3) / 4;
  }

 private:
  static MSL_INLINE Three three(const u32* values) { return {values[0], values[1], values[2]}; }
  static MSL_INLINE u32 volume(const u32* values) { return values[0] * values[1] * values[2]; }
  static MSL_INLINE u32 length(const abi::Extent& extent, u32 axis, u32 position) {
    const u32 left = extent.grid[axis] - position * extent.group[axis];
    return left < extent.group[axis] ? left : extent.group[axis];
  }
};

// ---- arguments ----------------------------------------------------------------------------------

// Returns a pointer to memory that no other pointer in the kernel aliases, aligned to 16 bytes for
// vector loads.
template <class T>
MSL_INLINE T* aligned(T* pointer) {
  return static_cast<T*>(__builtin_assume_aligned(pointer, 16));
}
// Constant numbers that come with a launch.
struct alignas(16) Numbers {
  u8 bytes[abi::kNumbersBytes];
};
template <class P>
MSL_INLINE P brought(const Numbers& numbers) {
  return reinterpret_cast<P>(const_cast<u8*>(numbers.bytes));
}
template <class P>
struct plain_value;
template <class T>
struct plain_value<const T&> {
  typedef T type;
};

template <class T>
MSL_INLINE T* address(const Launch& launch, u32 index) {
  const u64 place = launch.buffers[index];
  return (launch.inlined >> index) & 1u
             ? reinterpret_cast<T*>(const_cast<u8*>(launch.bytes) + place)
             : reinterpret_cast<T*>(place);
}
template <class P>
struct buffer_of {
  static_assert(sizeof(P) == 0, "a kernel's buffer argument is a pointer or a reference");
};
template <class T>
struct buffer_of<T*> {
  static MSL_INLINE T* get(const Launch& launch, u32 index) { return address<T>(launch, index); }
};
template <class T>
struct buffer_of<T* const> : buffer_of<T*> {};
template <class T>
struct buffer_of<T&> {
  static MSL_INLINE T& get(const Launch& launch, u32 index) { return *address<T>(launch, index); }
};
template <class P>
MSL_INLINE P buffer(const Launch& launch, u32 index) {
  return buffer_of<P>::get(launch, index);
}

extern __shared__ u8 threadgroup_memory[];

template <class P>
struct threadgroup_of;
template <class T>
struct threadgroup_of<T*> {
  static MSL_INLINE T* get(u32 offset) { return reinterpret_cast<T*>(threadgroup_memory + offset); }
};
template <class T>
struct threadgroup_of<T* const> : threadgroup_of<T*> {};
template <class T>
struct threadgroup_of<T&> {
  static MSL_INLINE T& get(u32 offset) {
    return *reinterpret_cast<T*>(threadgroup_memory + offset);
  }
};
template <class P>
MSL_INLINE P threadgroup(const Launch& launch, u32 index) {
  return threadgroup_of<P>::get(launch.threadgroup_offsets[index]);
}

// Zeroes a variable in threadgroup memory.
template <class T>
MSL_INLINE void clear(T& variable) {
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) ::memset(&variable, 0, sizeof(T));
  ::__syncthreads();
}

// Converts a position or a number to the type of a parameter.
template <class P>
struct builtin {
  static MSL_INLINE P make(Three v) { return P(v.x); }
  static MSL_INLINE P make(u32 v) { return P(v); }
};
template <class P>
struct builtin<const P> : builtin<P> {};
template <class P>
struct builtin<P&> : builtin<P> {};
template <class T>
struct builtin<metal::vec<T, 2>> {
  static MSL_INLINE metal::vec<T, 2> make(Three v) { return metal::vec<T, 2>(T(v.x), T(v.y)); }
};
template <class T>
struct builtin<metal::vec<T, 3>> {
  static MSL_INLINE metal::vec<T, 3> make(Three v) {
    return metal::vec<T, 3>(T(v.x), T(v.y), T(v.z));
  }
};

}  // namespace msl::msl_support

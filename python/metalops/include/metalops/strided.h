// Strided indexing for kernels that are not elementwise functors: the layout of N tensors of one
// shape, shared by the kernels and by <metalops/strided_launch.h>, which makes the layout and
// launches them. Indices are 64-bit throughout.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

template <unsigned N>
struct StridedLayout {
  int64_t count;                             // number of elements
  int64_t sizes[c10::metal::max_ndim];       // the fastest dimension of `index` comes first
  int64_t strides[N][c10::metal::max_ndim];  // in bytes
  uint32_t dimensions;                       // at least 1
};

#ifdef __METAL__
// Returns a thread's number in a grid of two dimensions, which exists only because one dimension is
// limited to 32 bits. The grid may be larger than the number of elements; excess threads return.
inline int64_t thread_index(uint2 position, uint2 grid) {
  return static_cast<int64_t>(position.y) * grid.x + position.x;
}

// Returns index / size. count: more than the index; a 64-bit division is slow on a GPU.
inline int64_t quotient(int64_t index, int64_t size, int64_t count) {
  if (size == count) {
    return 0;
  }
  return count <= 0xffffffff ? static_cast<uint32_t>(index) / static_cast<uint32_t>(size)
                             : index / size;
}

// Returns the offsets of element `index` in the tensors, in bytes from their starts.
template <unsigned N>
inline ::metal::array<int64_t, N> offsets_of(int64_t index, constant StridedLayout<N>& layout) {
  ::metal::array<int64_t, N> offsets;
  for (unsigned tensor = 0; tensor < N; ++tensor) {
    offsets[tensor] = 0;
  }
  const uint32_t last = layout.dimensions - 1;
  for (uint32_t i = 0; i < last; ++i) {
    const int64_t rest = quotient(index, layout.sizes[i], layout.count);
    const int64_t position = index - rest * layout.sizes[i];
    index = rest;
    for (unsigned tensor = 0; tensor < N; ++tensor) {
      offsets[tensor] += position * layout.strides[tensor][i];
    }
  }
  for (unsigned tensor = 0; tensor < N; ++tensor) {
    offsets[tensor] += index * layout.strides[tensor][last];
  }
  return offsets;
}

template <typename T>
inline device T& element_at(device T* data, int64_t offset) {
  return *reinterpret_cast<device T*>(reinterpret_cast<device char*>(data) + offset);
}

template <typename T>
inline T element_at(constant T* data, int64_t offset) {
  return *reinterpret_cast<constant T*>(reinterpret_cast<constant char*>(data) + offset);
}
#endif

}  // namespace metalops

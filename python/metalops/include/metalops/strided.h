// How kernels that are not elementwise functors find their elements: the layout of N tensors of one
// shape, shared by the kernels and <metalops/strided_launch.h>, which makes it and launches them.
// Indices are 64 bits wide throughout.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

template <unsigned N>
struct StridedLayout {
  int64_t count;                        // number of elements
  int64_t sizes[c10::metal::max_ndim];  // the dimension that index runs through fastest comes first
  int64_t strides[N][c10::metal::max_ndim];  // in bytes
  uint32_t dimensions;                       // at least 1
};

#ifdef __METAL__
// Launches are two-dimensional only because one dimension ends at 32 bits. The grid may be larger
// than the number of elements; threads beyond it have nothing to do.
inline int64_t thread_index(uint2 position, uint2 grid) {
  return static_cast<int64_t>(position.y) * grid.x + position.x;
}

// Where element `index` lies in each of the tensors, in bytes from its start.
template <unsigned N>
inline ::metal::array<int64_t, N> offsets_of(int64_t index, constant StridedLayout<N>& layout) {
  ::metal::array<int64_t, N> offsets;
  for (unsigned tensor = 0; tensor < N; ++tensor) {
    offsets[tensor] = 0;
  }
  const uint32_t last = layout.dimensions - 1;
  for (uint32_t i = 0; i < last; ++i) {
    int64_t position;
    if (layout.count <= 0xffffffff) {  // a 64-bit division takes a GPU very long
      const uint32_t narrow = static_cast<uint32_t>(index);
      const uint32_t size = static_cast<uint32_t>(layout.sizes[i]);
      position = narrow % size;
      index = narrow / size;
    } else {
      position = index % layout.sizes[i];
      index /= layout.sizes[i];
    }
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

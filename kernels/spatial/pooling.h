// Shared code of pooling kernels: sizes, and a table of windows, which avoids divisions, slow on
// GPUs.
//
// Forward and backward have the same structure: an element of the result combines the elements in
// its window of the source. In the backward pass, the source is the gradient of the output, and the
// window of an input element is the set of output elements whose windows contain it.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Sizes of planes, which are pooled one by one: depth, height and width. The depth is 1 in two
// dimensions.
struct PoolingSizes {
  uint32_t source[3];
  uint32_t result[3];
};

#ifdef __METAL__
// A table of half-open windows [x, y) for all depths, heights and widths of the result.
struct Windows {
  constant uint2* depth;
  constant uint2* height;
  constant uint2* width;

  Windows(constant uint2* table, constant uint32_t* sizes) {
    depth = table;
    height = depth + sizes[0];
    width = height + sizes[1];
  }
};

// The position of an entry in that table: an index in one dimension, and the dimension's sizes.
struct WindowIndex {
  uint32_t dimension;
  uint32_t index;
  uint32_t source;
  uint32_t result;
  bool exists;

  WindowIndex(uint32_t entry, constant PoolingSizes& sizes) {
    dimension = 0;
    index = entry;
    while (dimension < 2 && index >= sizes.result[dimension]) {
      index -= sizes.result[dimension++];
    }
    source = sizes.source[dimension];
    result = sizes.result[dimension];
    exists = index < result;
  }
};

// The position of a thread's element in a tensor of contiguous planes.
struct PlanePosition {
  uint3 coordinates;  // (width, height, depth)
  int64_t plane;
  int64_t element;

  PlanePosition(uint3 position, constant uint32_t* sizes) {
    const bool flat = sizes[0] == 1;  // avoids a division, slow on GPUs
    const uint whole = flat ? position.z : position.z / sizes[0];
    plane = whole;
    coordinates = uint3(position.xy, flat ? 0 : position.z - whole * sizes[0]);
    element = (static_cast<int64_t>(position.z) * sizes[1] + position.y) * sizes[2] + position.x;
  }
};

// Returns the offset of a row in such a tensor.
inline int64_t row_of_plane(int64_t plane, uint32_t depth, uint32_t height,
                            constant uint32_t* sizes) {
  return ((plane * sizes[0] + depth) * sizes[1] + height) * sizes[2];
}
#endif

}  // namespace metalops

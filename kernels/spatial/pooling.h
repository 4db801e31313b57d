// What kernels of pooling share: sizes, and where windows begin and end. Windows are looked up in a
// table, because divisions take a GPU long.
//
// The forward and the backward direction are of one kind: an element of the result takes what lies
// in its window of the source. The source of the backward direction is the gradient of the output,
// and the window of an element of the input is the elements of the output that it belongs to.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Planes that are pooled one by one: depth, height and width. The depth is 1 in two dimensions.
struct PoolingSizes {
  uint32_t source[3];
  uint32_t result[3];
};

#ifdef __METAL__
// A table of windows, from x to before y: those of all depths, heights and widths of the result.
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

// What an entry of that table is about: an index of one dimension, and the sizes of this dimension.
struct WindowPlace {
  uint32_t dimension;
  uint32_t index;
  uint32_t source;
  uint32_t result;
  bool exists;

  WindowPlace(uint32_t entry, constant PoolingSizes& sizes) {
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

// A thread's element in a tensor of planes one after the other.
struct PlanePosition {
  uint3 place;  // the width, the height and the depth
  int64_t plane;
  int64_t element;

  PlanePosition(uint3 position, constant uint32_t* sizes) {
    const bool flat = sizes[0] == 1;  // a division takes a GPU long
    const uint whole = flat ? position.z : position.z / sizes[0];
    plane = whole;
    place = uint3(position.xy, flat ? 0 : position.z - whole * sizes[0]);
    element = (static_cast<int64_t>(position.z) * sizes[1] + position.y) * sizes[2] + position.x;
  }
};

// Where a row begins in such a tensor.
inline int64_t row_of_plane(int64_t plane, uint32_t depth, uint32_t height,
                            constant uint32_t* sizes) {
  return ((plane * sizes[0] + depth) * sizes[1] + height) * sizes[2];
}
#endif

}  // namespace metalops

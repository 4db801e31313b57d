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

// One dimension of an entry of that table.
struct WindowPlace {
  uint32_t index;
  uint32_t source;
  uint32_t result;
  bool exists;

  WindowPlace(uint32_t entry, constant PoolingSizes& sizes) {
    uint32_t dimension = 0;
    index = entry;
    while (dimension < 2 && index >= sizes.result[dimension]) {
      index -= sizes.result[dimension++];
    }
    source = sizes.source[dimension];
    result = sizes.result[dimension];
    exists = index < result;
  }
};
#endif

}  // namespace metalops

// Elementwise kernels on tensors that lie across each other, one transposed and another not, as
// NVIDIA's GPUs run them. kernel/functor/metal_text.py writes the kernels, of which each is for
// operands that lie and are aligned in one way; kernel/functor/crossed_tiles.py says in which, and
// makes their layouts.
//
// A threadgroup computes a square tile of a matrix, whose columns are the fastest dimension of the
// results and whose rows are the one along which operands lie that are across. Neighbouring lanes
// read neighbouring elements of every operand, as packs where these are aligned. What was read
// along the rows is exchanged in threadgroup memory, so that the results are written along the
// columns.
#pragma once
#include <metal_stdlib>

namespace metalops {

constant constexpr uint kCrossedElements = 16;   // of a thread
constant constexpr uint kCrossedDimensions = 6;  // besides those of the matrix

// Strides are in elements.
struct CrossedOperand {
  long strides[kCrossedDimensions];
  uint column_stride;  // from one column to the next
  uint row_stride;
};

// The results come first.
template <uint N>
struct CrossedLayout {
  CrossedOperand operands[N];
  uint columns;
  uint rows;
  uint column_tiles;
  uint row_tiles;
  uint dimensions;
  uint sizes[kCrossedDimensions];
};

template <typename T, uint Count>
struct alignas(Count * sizeof(T)) CrossedPack {
  T values[Count];
};

// How the threads share the elements of a tile of Side x Side: a line (that is a row, or a column
// where the rows are what neighbouring lanes read) has Side / kCount lanes, each with kCount
// elements: neighbours if they are read as Packs of so many, else apart by as many as there are
// lanes.
template <uint Side, uint Pack>
struct CrossedShares {
  static constexpr constant uint kCount = Pack > 1 ? Pack : 2;
  static constexpr constant uint kLanes = Side / kCount;
  static constexpr constant uint kLines = kCrossedElements / kCount;  // of a thread
  static constexpr constant uint kStep = Side / kLines;               // lines at once
  static constexpr constant uint kApart = Pack > 1 ? 1 : kLanes;

  static uint first(uint thread_index) { return thread_index % kLanes * (Pack > 1 ? kCount : 1); }
  static uint line(uint thread_index) { return thread_index / kLanes; }
};

// The elements of a thread, line after line.
template <typename T>
using CrossedTile = ::metal::array<T, kCrossedElements>;

struct CrossedPlace {
  uint column;  // of the tile
  uint row;
  uint outer;  // index of the matrix
  uint thread_index;
};

template <uint Side, uint N>
inline CrossedPlace crossed_place(uint group, uint thread_index,
                                  constant CrossedLayout<N>& layout) {
  CrossedPlace place;
  const uint rest = group / layout.column_tiles;
  place.column = (group - rest * layout.column_tiles) * Side;
  place.outer = rest / layout.row_tiles;
  place.row = (rest - place.outer * layout.row_tiles) * Side;
  place.thread_index = thread_index;
  return place;
}

// Of the matrix's first element in an operand.
template <uint N>
inline long crossed_offset(CrossedPlace place, uint operand, constant CrossedLayout<N>& layout) {
  long offset = 0;
  uint rest = place.outer;
#pragma clang loop unroll(disable)
  for (uint d = 0; d < layout.dimensions; ++d) {
    const uint size = layout.sizes[d];
    offset += rest % size * layout.operands[operand].strides[d];
    rest /= size;
  }
  return offset;
}

// Own: how the results are shared. Pack: how many elements of the operand are aligned together;
// those that do not cross are shared as the results are, also where they are not. Elements that the
// matrix does not have are copies of others.
template <typename T, uint Side, uint Own, uint Pack, bool Crosses, uint N>
inline CrossedTile<T> crossed_load(constant T* data, uint operand, CrossedPlace place,
                                   constant CrossedLayout<N>& layout) {
  using Shares = CrossedShares<Side, (Crosses ? Pack : Own)>;
  constant CrossedOperand& o = layout.operands[operand];
  const uint size = Crosses ? layout.rows : layout.columns;
  const uint last_line = (Crosses ? layout.columns : layout.rows) - 1;
  const uint stride = Crosses ? o.row_stride : o.column_stride;
  const uint line_stride = Crosses ? o.column_stride : o.row_stride;
  const uint first = (Crosses ? place.row : place.column) + Shares::first(place.thread_index);
  const uint line = (Crosses ? place.column : place.row) + Shares::line(place.thread_index);
  data += crossed_offset(place, operand, layout);
  CrossedTile<T> tile;
  if (Pack > 1) {
    using P = CrossedPack<T, Shares::kCount>;
    data += ::metal::min(first, size - Shares::kCount);
    for (uint i = 0; i < Shares::kLines; ++i) {
      const uint offset = ::metal::min(line + i * Shares::kStep, last_line) * line_stride;
      const P pack = *reinterpret_cast<constant P*>(data + offset);
      for (uint j = 0; j < Shares::kCount; ++j) {
        tile[i * Shares::kCount + j] = pack.values[j];
      }
    }
  } else {
    // From line to line they have one offset.
    constant T* elements[Shares::kCount];
    for (uint j = 0; j < Shares::kCount; ++j) {
      elements[j] = data + ::metal::min(first + j * Shares::kApart, size - 1) * stride;
    }
    for (uint i = 0; i < Shares::kLines; ++i) {
      const uint offset = ::metal::min(line + i * Shares::kStep, last_line) * line_stride;
      for (uint j = 0; j < Shares::kCount; ++j) {
        tile[i * Shares::kCount + j] = elements[j][offset];
      }
    }
  }
  return tile;
}

// Shares a tile as the results are that was read along the rows. Own, Pack: as for crossed_load.
template <typename T, uint Side, uint Own, uint Pack>
inline CrossedTile<T> crossed_exchange(CrossedTile<T> tile, threadgroup T* memory,
                                       uint thread_index) {
  using From = CrossedShares<Side, Pack>;
  using To = CrossedShares<Side, Own>;
  // Of a column in memory; odd, so that neighbouring lanes meet in few banks either way.
  constexpr uint kPitch = Side + 1;
  // What was exchanged before has been read.
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  threadgroup T* read = memory + From::line(thread_index) * kPitch + From::first(thread_index);
  for (uint i = 0; i < From::kLines; ++i) {
    for (uint j = 0; j < From::kCount; ++j) {
      read[i * From::kStep * kPitch + j * From::kApart] = tile[i * From::kCount + j];
    }
  }
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  threadgroup T* own = memory + To::first(thread_index) * kPitch + To::line(thread_index);
  CrossedTile<T> exchanged;
  for (uint i = 0; i < To::kLines; ++i) {
    for (uint j = 0; j < To::kCount; ++j) {
      exchanged[i * To::kCount + j] = own[j * To::kApart * kPitch + i * To::kStep];
    }
  }
  return exchanged;
}

template <typename T, uint Side, uint Own, uint N>
inline void crossed_store(CrossedTile<T> tile, device T* data, uint operand, CrossedPlace place,
                          constant CrossedLayout<N>& layout) {
  using Shares = CrossedShares<Side, Own>;
  constant CrossedOperand& o = layout.operands[operand];
  const uint first = place.column + Shares::first(place.thread_index);
  const uint line = place.row + Shares::line(place.thread_index);
  if (first >= layout.columns) {
    return;
  }
  data += crossed_offset(place, operand, layout) + first * o.column_stride;
  for (uint i = 0; i < Shares::kLines; ++i) {
    const uint row = line + i * Shares::kStep;
    if (row >= layout.rows) {
      break;
    }
    device T* const elements = data + row * o.row_stride;
    if (Own > 1) {
      using P = CrossedPack<T, Shares::kCount>;
      P pack;
      for (uint j = 0; j < Shares::kCount; ++j) {
        pack.values[j] = tile[i * Shares::kCount + j];
      }
      *reinterpret_cast<device P*>(elements) = pack;
    } else {
      for (uint j = 0; j < Shares::kCount; ++j) {
        if (first + j * Shares::kApart < layout.columns) {
          elements[j * Shares::kApart * o.column_stride] = tile[i * Shares::kCount + j];
        }
      }
    }
  }
}

}  // namespace metalops

// Elementwise kernels on tensors of which some are transposed relative to the others, for NVIDIA's
// GPUs. kernel/functor/metal_text.py generates the kernels, each for one combination of operand
// layouts and alignments; kernel/functor/crossed_tiles.py chooses the combination and makes the
// layouts.
//
// A threadgroup computes a square tile of a matrix. Its columns are the fastest dimension of the
// results, and its rows the dimension along which transposed operands are contiguous. Adjacent
// lanes load adjacent elements of every operand (coalesced), as vectors where these are aligned.
// Tiles of transposed operands are exchanged through threadgroup memory, so that results are stored
// along the columns.
#pragma once
#include <metal_stdlib>

namespace metalops {

constant constexpr uint kCrossedElements = 16;   // per thread
constant constexpr uint kCrossedDimensions = 6;  // besides those of the matrix

// Strides are in elements.
struct CrossedOperand {
  long strides[kCrossedDimensions];
  uint column_stride;  // between columns
  uint row_stride;
};

// The layout of all operands, results first.
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

// The distribution of a tile of Side x Side over threads. A line is a row, or a column in operands
// that are read along the rows. It has Side / kCount lanes with kCount elements each: adjacent ones
// if they are loaded as Packs, else elements kLanes apart.
template <uint Side, uint Pack>
struct CrossedShares {
  static constexpr constant uint kCount = Pack > 1 ? Pack : 2;
  static constexpr constant uint kLanes = Side / kCount;
  static constexpr constant uint kLines = kCrossedElements / kCount;  // per thread
  static constexpr constant uint kStep = Side / kLines;               // lines at once
  static constexpr constant uint kApart = Pack > 1 ? 1 : kLanes;

  static uint first(uint thread_index) { return thread_index % kLanes * (Pack > 1 ? kCount : 1); }
  static uint line(uint thread_index) { return thread_index / kLanes; }
};

// The elements of a thread, line by line.
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

// Returns the offset of the matrix's first element in an operand.
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

// Loads a thread's elements of an operand. Own: vector width in the distribution of the results.
// Pack: number of elements of the operand that are aligned together. Operands that do not cross are
// distributed as the results are, whatever their alignment. Out-of-range elements are copies of
// others.
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
    // Elements of all lines have one offset.
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

// Redistributes a tile that was read along the rows in the way of the results. Own, Pack: as for
// crossed_load.
template <typename T, uint Side, uint Own, uint Pack>
inline CrossedTile<T> crossed_exchange(CrossedTile<T> tile, threadgroup T* memory,
                                       uint thread_index) {
  using From = CrossedShares<Side, Pack>;
  using To = CrossedShares<Side, Own>;
  // The pitch of a column in memory; it is odd to avoid bank conflicts in both directions.
  constexpr uint kPitch = Side + 1;
  // The previous exchange must have been read.
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

// Elementwise kernels for GPUs in which a thread computes a tile of 4 x 4 elements of a matrix, for
// any strides of the operands. Its index computation is shared by sixteen elements, whose loads are
// all in flight at once. Shared by the kernels, which <metalops/registration.h> registers as
// NAME_tiles_OUT_IN next to torch's variants, and by <metalops/tiles_launch.h>, which chooses them
// (see Library in <metalops/library.h>).
//
// A tile's columns are the fastest dimension of the result, its rows the next one. Four adjacent
// elements along either are loaded as a vector where they are contiguous and aligned: rows of
// column slices and of broadcast tensors as well as columns of transposed ones. Where the result's
// rows cannot be stored as vectors, a tile's columns are kApart apart, and those of adjacent
// threads are adjacent (coalesced).
//
// One contiguous operand of 16-bit elements is processed by NAME_packs_OUT_IN instead: a thread
// computes eight adjacent elements.
#pragma once
#include <c10/metal/common.h>
#ifdef __METAL__
#include <c10/metal/utils.h>
#include <metalops/register_kernel.h>

#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR unsigned kTile = 4;  // elements, in either direction
C10_METAL_CONSTEXPR unsigned kApart = 32;
C10_METAL_CONSTEXPR unsigned kOuterDimensions = c10::metal::max_ndim - 2;
C10_METAL_CONSTEXPR unsigned kWidePack = 8;  // 16-bit elements per vector

// Strides are in elements.
struct TileOperand {
  uint32_t column_stride;  // between columns
  uint32_t row_stride;
  uint32_t strides[kOuterDimensions];
  // True if four adjacent elements of every tile, along a row or a column, are an aligned vector.
  uint16_t has_rows;
  uint16_t has_columns;
};

// The layout of all operands; the result is operand 0.
template <unsigned N>
struct TileLayout {
  uint32_t columns;
  uint32_t rows;
  uint32_t step;        // between a tile's columns: 1 or kApart
  uint32_t dimensions;  // besides the two of the tiles
  uint32_t sizes[kOuterDimensions];
  TileOperand operands[N];
};

#ifdef __METAL__

template <typename T>
struct alignas(kTile * sizeof(T)) Pack {
  T elements[kTile];
};

// The position and the extent of a thread's tile.
template <unsigned N>
struct TilePlace {
  ::metal::array<uint, N> offsets;  // of its first element in each operand
  uint columns;                     // columns and rows within the matrix
  uint rows;
};

template <unsigned N>
inline bool is_whole(thread const TilePlace<N>& place) {
  return place.columns == kTile && place.rows == kTile;
}

// position: x along the columns, y along the rows and all other dimensions.
template <unsigned N>
inline TilePlace<N> place_of(uint2 position, constant TileLayout<N>& layout) {
  const uint column = layout.step == 1
                          ? position.x * kTile
                          : position.x / kApart * (kApart * kTile) + position.x % kApart;
  uint row = position.y * kTile;
  uint outer = 0;
  if (layout.dimensions > 0) {
    const uint tiles = (layout.rows + kTile - 1) / kTile;
    row = position.y % tiles * kTile;
    outer = position.y / tiles;
  }
  TilePlace<N> place;
  for (uint i = 0; i < N; ++i) {
    place.offsets[i] =
        column * layout.operands[i].column_stride + row * layout.operands[i].row_stride;
  }
  for (uint d = 0; d < layout.dimensions; ++d) {
    const uint index = outer % layout.sizes[d];
    outer /= layout.sizes[d];
    for (uint i = 0; i < N; ++i) {
      place.offsets[i] += index * layout.operands[i].strides[d];
    }
  }
  // If columns are kApart apart, the last threads may have none: they are less than kApart too far.
  const uint left =
      layout.step == 1 ? layout.columns - column : (layout.columns + kApart - 1 - column) / kApart;
  place.columns = ::metal::min(kTile, left);
  place.rows = ::metal::min(kTile, layout.rows - row);
  return place;
}

// The elements of a tile, row by row. Out-of-range elements are copies of others.
template <typename T>
using Tile = ::metal::array<T, kTile * kTile>;

template <typename T, unsigned N>
inline void load_tile(thread Tile<T>& tile, constant T* data, uint operand,
                      thread const TilePlace<N>& place, constant TileLayout<N>& layout) {
  constant TileOperand& strides = layout.operands[operand];
  const uint column_stride = layout.step * strides.column_stride;
  data += place.offsets[operand];
  if (is_whole(place) && strides.has_rows) {
    for (uint r = 0; r < kTile; ++r) {
      const Pack<T> pack = *reinterpret_cast<constant Pack<T>*>(data + r * strides.row_stride);
      for (uint c = 0; c < kTile; ++c) {
        tile[r * kTile + c] = pack.elements[c];
      }
    }
  } else if (is_whole(place) && strides.has_columns) {
    for (uint c = 0; c < kTile; ++c) {
      const Pack<T> pack = *reinterpret_cast<constant Pack<T>*>(data + c * column_stride);
      for (uint r = 0; r < kTile; ++r) {
        tile[r * kTile + c] = pack.elements[r];
      }
    }
  } else {
    for (uint r = 0; r < kTile; ++r) {
      for (uint c = 0; c < kTile; ++c) {
        tile[r * kTile + c] = data[::metal::min(r, place.rows - 1) * strides.row_stride +
                                   ::metal::min(c, place.columns - 1) * column_stride];
      }
    }
  }
}

template <typename T, unsigned N>
inline void store_tile(thread const Tile<T>& tile, device T* data, thread const TilePlace<N>& place,
                       constant TileLayout<N>& layout) {
  constant TileOperand& strides = layout.operands[0];
  const uint column_stride = layout.step * strides.column_stride;
  data += place.offsets[0];
  if (is_whole(place) && strides.has_rows) {
    for (uint r = 0; r < kTile; ++r) {
      Pack<T> pack;
      for (uint c = 0; c < kTile; ++c) {
        pack.elements[c] = tile[r * kTile + c];
      }
      *reinterpret_cast<device Pack<T>*>(data + r * strides.row_stride) = pack;
    }
  } else {
    for (uint r = 0; r < kTile; ++r) {
      for (uint c = 0; c < kTile; ++c) {
        if (r < place.rows && c < place.columns) {
          data[r * strides.row_stride + c * column_stride] = tile[r * kTile + c];
        }
      }
    }
  }
}

template <typename T>
struct alignas(kWidePack * sizeof(T)) WidePack {
  T elements[kWidePack];
};

template <typename T, typename F>
kernel void unary_packs(device WidePack<c10::metal::result_of<F, T>>* out [[buffer(0)]],
                        constant WidePack<T>* input [[buffer(1)]],
                        uint index [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T>;
  F f;
  const WidePack<T> a = input[index];
  WidePack<Result> result;
  for (uint i = 0; i < kWidePack; ++i) {
    result.elements[i] = static_cast<Result>(f(a.elements[i]));
  }
  out[index] = result;
}

template <typename T, typename Alpha, typename F>
kernel void unary_alpha_packs(device WidePack<c10::metal::result_of<F, T, Alpha>>* out
                              [[buffer(0)]],
                              constant WidePack<T>* input [[buffer(1)]],
                              constant Alpha& alpha [[buffer(2)]],
                              uint index [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T, Alpha>;
  F f;
  const WidePack<T> a = input[index];
  WidePack<Result> result;
  for (uint i = 0; i < kWidePack; ++i) {
    result.elements[i] = static_cast<Result>(f(a.elements[i], alpha));
  }
  out[index] = result;
}

template <typename T, typename F>
kernel void unary_tiles(device c10::metal::result_of<F, T>* out [[buffer(0)]],
                        constant T* input [[buffer(1)]],
                        constant TileLayout<2>& layout [[buffer(2)]],
                        uint2 position [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T>;
  F f;
  const TilePlace<2> place = place_of(position, layout);
  if (place.columns == 0) {
    return;
  }
  Tile<T> a;
  Tile<Result> result;
  load_tile(a, input, 1, place, layout);
  for (uint i = 0; i < kTile * kTile; ++i) {
    result[i] = static_cast<Result>(f(a[i]));
  }
  store_tile(result, out, place, layout);
}

template <typename T, typename Alpha, typename F>
kernel void unary_alpha_tiles(device c10::metal::result_of<F, T, Alpha>* out [[buffer(0)]],
                              constant T* input [[buffer(1)]], constant Alpha& alpha [[buffer(2)]],
                              constant TileLayout<2>& layout [[buffer(3)]],
                              uint2 position [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T, Alpha>;
  F f;
  const TilePlace<2> place = place_of(position, layout);
  if (place.columns == 0) {
    return;
  }
  Tile<T> a;
  Tile<Result> result;
  load_tile(a, input, 1, place, layout);
  for (uint i = 0; i < kTile * kTile; ++i) {
    result[i] = static_cast<Result>(f(a[i], alpha));
  }
  store_tile(result, out, place, layout);
}

// In the following kernels, Op is the type with which the functor is called.

template <typename T, typename F, typename Op>
kernel void binary_tiles(device c10::metal::result_of<F, T, T>* out [[buffer(0)]],
                         constant T* input [[buffer(1)]], constant T* other [[buffer(2)]],
                         constant TileLayout<3>& layout [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T, T>;
  F f;
  const TilePlace<3> place = place_of(position, layout);
  if (place.columns == 0) {
    return;
  }
  Tile<T> a;
  Tile<T> b;
  Tile<Result> result;
  load_tile(a, input, 1, place, layout);
  load_tile(b, other, 2, place, layout);
  for (uint i = 0; i < kTile * kTile; ++i) {
    result[i] = static_cast<Result>(f(Op(a[i]), Op(b[i])));
  }
  store_tile(result, out, place, layout);
}

template <typename T, typename Alpha, typename F>
kernel void binary_alpha_tiles(device c10::metal::result_of<F, T, T, Alpha>* out [[buffer(0)]],
                               constant T* input [[buffer(1)]], constant T* other [[buffer(2)]],
                               constant Alpha& alpha [[buffer(3)]],
                               constant TileLayout<3>& layout [[buffer(4)]],
                               uint2 position [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T, T, Alpha>;
  F f;
  const TilePlace<3> place = place_of(position, layout);
  if (place.columns == 0) {
    return;
  }
  Tile<T> a;
  Tile<T> b;
  Tile<Result> result;
  load_tile(a, input, 1, place, layout);
  load_tile(b, other, 2, place, layout);
  for (uint i = 0; i < kTile * kTile; ++i) {
    result[i] = static_cast<Result>(f(a[i], b[i], alpha));
  }
  store_tile(result, out, place, layout);
}

template <typename T, typename F, typename Op>
kernel void ternary_tiles(device c10::metal::result_of<F, T, T, T>* out [[buffer(0)]],
                          constant T* input [[buffer(1)]], constant T* other1 [[buffer(2)]],
                          constant T* other2 [[buffer(3)]],
                          constant TileLayout<4>& layout [[buffer(4)]],
                          uint2 position [[thread_position_in_grid]]) {
  using Result = c10::metal::result_of<F, T, T, T>;
  F f;
  const TilePlace<4> place = place_of(position, layout);
  if (place.columns == 0) {
    return;
  }
  Tile<T> a;
  Tile<T> b;
  Tile<T> c;
  Tile<Result> result;
  load_tile(a, input, 1, place, layout);
  load_tile(b, other1, 2, place, layout);
  load_tile(c, other2, 3, place, layout);
  for (uint i = 0; i < kTile * kTile; ++i) {
    result[i] = static_cast<Result>(f(Op(a[i]), Op(b[i]), Op(c[i])));
  }
  store_tile(result, out, place, layout);
}

#endif

}  // namespace metalops

#ifdef __METAL__

#define REGISTER_UNARY_TILES(NAME, DTYPEI, DTYPEO)                                    \
  REGISTER_KERNEL(#NAME "_tiles_" #DTYPEO "_" #DTYPEI, metalops::unary_tiles, DTYPEI, \
                  NAME##_functor)

#define REGISTER_UNARY_PACKS(NAME, DTYPE) \
  REGISTER_KERNEL(#NAME "_packs_" #DTYPE "_" #DTYPE, metalops::unary_packs, DTYPE, NAME##_functor)

#define REGISTER_UNARY_ALPHA_PACKS(NAME, DTYPE, DTYPEA)                                       \
  REGISTER_KERNEL(#NAME "_packs_" #DTYPE "_" #DTYPE "_" #DTYPEA, metalops::unary_alpha_packs, \
                  DTYPE, DTYPEA, NAME##_functor)

#define REGISTER_UNARY_ALPHA_TILES(NAME, DTYPEI, DTYPEA, DTYPEO)                                \
  REGISTER_KERNEL(#NAME "_tiles_" #DTYPEO "_" #DTYPEI "_" #DTYPEA, metalops::unary_alpha_tiles, \
                  DTYPEI, DTYPEA, NAME##_functor)

#define REGISTER_BINARY_TILES_(NAME, DTYPEI, DTYPEO, OMT)                              \
  REGISTER_KERNEL(#NAME "_tiles_" #DTYPEO "_" #DTYPEI, metalops::binary_tiles, DTYPEI, \
                  NAME##_functor, OMT)

#define REGISTER_BINARY_ALPHA_TILES(NAME, DTYPEI, DTYPEA, DTYPEO)                                \
  REGISTER_KERNEL(#NAME "_tiles_" #DTYPEO "_" #DTYPEI "_" #DTYPEA, metalops::binary_alpha_tiles, \
                  DTYPEI, DTYPEA, NAME##_functor)

#define REGISTER_TERNARY_TILES_(NAME, DTYPEI, DTYPEO, OMT)                              \
  REGISTER_KERNEL(#NAME "_tiles_" #DTYPEO "_" #DTYPEI, metalops::ternary_tiles, DTYPEI, \
                  NAME##_functor, OMT)

#define REGISTER_BINARY_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_BINARY_TILES_(NAME, DTYPEI, DTYPEO, DTYPEI)
#define REGISTER_OPMATH_BINARY_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_BINARY_TILES_(NAME, DTYPEI, DTYPEO, ::c10::metal::opmath_t<DTYPEI>)
#define REGISTER_TERNARY_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_TERNARY_TILES_(NAME, DTYPEI, DTYPEO, DTYPEI)
#define REGISTER_OPMATH_TERNARY_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_TERNARY_TILES_(NAME, DTYPEI, DTYPEO, ::c10::metal::opmath_t<DTYPEI>)

#endif

// The fragment layout of tensor cores: how the elements of a tile are distributed over the lanes of
// a warp.
//
// Fragments of 16 x 16, in row-major order: each lane has two adjacent elements of a row, the two
// eight columns to the right, and the same eight rows below. 16-bit factors have the same layout as
// sums.
#pragma once

#include <msl/config.h>

namespace msl::msl_impl {

MSL_INLINE uint warp_lane() {
  uint lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane & 31;
}

template <int Rows, int Columns>
struct WarpTile {
  static constexpr int down = round_up(Rows, 16) / 16;
  static constexpr int across = round_up(Columns, 16) / 16;
  static constexpr int capacity = down * across * 8;
  // Split into the contribution of the lane, and that of the slot, which is a compile-time
  // constant.
  static MSL_INLINE constexpr int row_of_lane(uint lane) { return int(lane >> 2); }
  static MSL_INLINE constexpr int column_of_lane(uint lane) { return int(lane & 3) * 2; }
  static MSL_INLINE constexpr int row_of_slot(uint slot) {
    return int(slot >> 3) / across * 16 + int(slot >> 2 & 1) * 8;
  }
  static MSL_INLINE constexpr int column_of_slot(uint slot) {
    return int(slot >> 3) % across * 16 + int(slot >> 1 & 1) * 8 + int(slot & 1);
  }

  static MSL_INLINE constexpr TilePlace place(uint lane, uint slot) {
    const uint in_warp = abi::warp_lane_of(lane & 31);
    const int row = row_of_lane(in_warp) + row_of_slot(slot);
    const int column = column_of_lane(in_warp) + column_of_slot(slot);
    return {row, column, (Rows % 16 == 0 || row < Rows) && (Columns % 16 == 0 || column < Columns)};
  }
  static MSL_INLINE constexpr TileOwner owner(int row, int column) {
    const uint fragment = uint(row / 16 * across + column / 16);
    const uint r = uint(row % 16), c = uint(column % 16);
    return {abi::lane_of((r & 7) << 2 | (c >> 1 & 3)),
            fragment << 3 | (r >> 3) << 2 | (c >> 3) << 1 | (c & 1)};
  }
};

}  // namespace msl::msl_impl

// Layouts: how the elements of a tile are distributed over the threads of a simdgroup. Only code
// for one generation of GPUs may rely on it: MSL_COOPERATIVE_LAYOUT selects it, and portable code
// must not see a difference.
#pragma once

#include <msl/cooperative_tensor.h>

namespace msl::msl_impl {

struct TilePlace {
  int row, column;
  bool exists;
};

// The role of a tile: scrambled layouts differ by role.
enum class Operand {
  kDestination,
  kLeft = MSL_COOPERATIVE_LAYOUT == 0 ? 1 : 0,
  kRight = MSL_COOPERATIVE_LAYOUT == 0 ? 2 : 0
};

// The thread and slot that hold an element.
struct TileOwner {
  uint lane, slot;
};

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A tile of Rows x Columns in one simdgroup. IsTransposed: an operand that is stored transposed in
// memory.
#if MSL_COOPERATIVE_LAYOUT == 10
// Fragments of 16 x 16: four adjacent elements of a row, and the four that are eight rows below.
template <int Rows, int Columns, bool IsTransposed>
struct SimdgroupTile {
  static constexpr int down = round_up(Rows, 16) / 16;
  static constexpr int across = round_up(Columns, 16) / 16;
  static constexpr int capacity = down * across * 8;
  static MSL_INLINE constexpr TilePlace place(uint lane, uint slot) {
    const int fragment = int(slot >> 3);
    const int r = int(((lane >> 1) & 3) | ((lane >> 4) << 2) | (((slot >> 2) & 1) << 3));
    const int c = int((slot & 3) | ((lane & 1) << 2) | (((lane >> 3) & 1) << 3));
    const int row = fragment / across * 16 + (IsTransposed ? c : r);
    const int column = fragment % across * 16 + (IsTransposed ? r : c);
    return {row, column, row < Rows && column < Columns};
  }
  static MSL_INLINE constexpr TileOwner owner(int row, int column) {
    const uint fragment = uint(row / 16 * across + column / 16);
    const uint r = uint(IsTransposed ? column : row) % 16,
               c = uint(IsTransposed ? row : column) % 16;
    return {(r & 3) << 1 | (r >> 2 & 1) << 4 | (c >> 2 & 1) | (c >> 3) << 3,
            fragment << 3 | (r >> 3) << 2 | (c & 3)};
  }
};
#elif MSL_COOPERATIVE_LAYOUT == 8
// Fragments of 8 x 8, like those of a simdgroup_matrix.
template <int Rows, int Columns, bool IsTransposed>
struct SimdgroupTile {
  static constexpr int down = round_up(Rows, 8) / 8;
  static constexpr int across = round_up(Columns, 8) / 8;
  static constexpr int capacity = down * across * 2;
  static MSL_INLINE constexpr TilePlace place(uint lane, uint slot) {
    const int fragment = int(slot >> 1);
    const int row = fragment / across * 8 + int(((lane >> 4) & 1) * 4 + ((lane >> 1) & 3));
    const int column =
        fragment % across * 8 + int(((lane >> 3) & 1) * 4 + (lane & 1) * 2 + (slot & 1));
    return {row, column, row < Rows && column < Columns};
  }
  static MSL_INLINE constexpr TileOwner owner(int row, int column) {
    const uint fragment = uint(row / 8 * across + column / 8), r = uint(row % 8);
    const uint c = uint(column % 8);
    return {(r >> 2) << 4 | (r & 3) << 1 | (c >> 2) << 3 | (c >> 1 & 1), fragment << 1 | (c & 1)};
  }
};
#elif MSL_COOPERATIVE_LAYOUT == 0
// A random layout, with slots that hold nothing.
template <int Rows, int Columns, bool IsTransposed, Operand Of = Operand::kDestination>
struct SimdgroupTile {
  static constexpr uint elements = Rows * Columns;
  static constexpr uint places() {
    uint count = 64;
    while (count <= elements) count *= 2;
    return count;
  }
  static constexpr int capacity = int(places() / 32);
  static constexpr uint mask = places() - 1;
  static constexpr int log2(uint n) { return n <= 1 ? 0 : 1 + log2(n / 2); }
  static constexpr int bits = log2(places());
  static constexpr uint seed =
      (uint(MSL_COOPERATIVE_SEED) * 6 + uint(Of) * 2 + IsTransposed + 1) * 0x9e3779b1u;
  // Each step is a bijection of the integers below places().
  static constexpr uint factor(int round) { return ((seed >> round) * 2 + 1) | 5; }
  static constexpr uint inverse(uint factor) {
    uint found = factor;
    for (int digits = 3; digits < 32; digits *= 2) found *= 2 - factor * found;
    return found;
  }
  static MSL_INLINE constexpr TilePlace place(uint lane, uint slot) {
    uint at = lane * capacity + slot;
    for (int round = 0; round < 3; ++round) {
      at = (at * factor(round) + (seed >> (8 + round))) & mask;
      at ^= at >> (bits / 2);
    }
    return {int(at / Columns), int(at % Columns), at < elements};
  }
  static MSL_INLINE constexpr TileOwner owner(int row, int column) {
    uint at = uint(row * Columns + column) & mask;
    for (int round = 2; round >= 0; --round) {
      at ^= at >> (bits / 2) ^ at >> (bits / 2 * 2);
      at = (at - (seed >> (8 + round))) * inverse(factor(round)) & mask;
    }
    return {at / capacity, at % capacity};
  }
};
#elif MSL_COOPERATIVE_LAYOUT == 16
// The fragment layout of NVIDIA's tensor cores.
}  // namespace msl::msl_impl
#include <msl/cuda/warp_tile.h>
namespace msl::msl_impl {
template <int Rows, int Columns>
struct TransposedWarpTile {
  using Other = WarpTile<Columns, Rows>;
  static constexpr int down = Other::across, across = Other::down, capacity = Other::capacity;
  static MSL_INLINE constexpr TilePlace place(uint lane, uint slot) {
    const TilePlace in = Other::place(lane, slot);
    return {in.column, in.row, in.exists};
  }
  static MSL_INLINE constexpr TileOwner owner(int row, int column) {
    return Other::owner(column, row);
  }
};
template <int Rows, int Columns, bool IsTransposed>
using SimdgroupTile =
    metal::conditional_t<IsTransposed, TransposedWarpTile<Rows, Columns>, WarpTile<Rows, Columns>>;
#else
#error "MSL_COOPERATIVE_LAYOUT must be 16, 10, 8 or 0"
#endif

#if MSL_COOPERATIVE_LAYOUT == 0
template <int Rows, int Columns, bool IsTransposed, Operand Of>
using OperandTile = SimdgroupTile<Rows, Columns, IsTransposed, Of>;
#else
template <int Rows, int Columns, bool IsTransposed, Operand>
using OperandTile = SimdgroupTile<Rows, Columns, IsTransposed>;
#endif

#if !defined(__CUDACC_RTC__) || MSL_COOPERATIVE_LAYOUT == 0
// The tile of one of several simdgroups, whose layout is undocumented for Apple's GPUs.
template <int Rows, int Columns>
using SharedTile = SimdgroupTile<Rows, Columns, false>;
#else
}  // namespace msl::msl_impl
#include <msl/cuda/warp_tile.h>
namespace msl::msl_impl {
template <int Rows, int Columns>
using SharedTile = WarpTile<Rows, Columns>;
#endif

#if !defined(MSL_WARPGROUPS)
#define MSL_WARPGROUPS 0
#endif
// Returns true if groups of four simdgroups multiply together, as some GPUs can (warpgroups): then
// each has a band of rows.
template <int M, int N, int Simdgroups>
constexpr bool is_for_warpgroups() {
  return MSL_WARPGROUPS && Simdgroups != 0 && Simdgroups % 4 == 0 && M % (Simdgroups * 16) == 0 &&
         N % 16 == 0 && N <= 256;
}

// Partition of an M x N tile among simdgroups: Down bands of rows by Across bands of columns. If
// there are more simdgroups than parts, the last ones have none.
template <int M, int N, int Simdgroups>
struct Bands {
  // Returns the number of bands of columns that minimises a simdgroup's share, and then makes it as
  // square as possible.
  static constexpr int choose_across() {
    if (is_for_warpgroups<M, N, Simdgroups>()) return 1;
    int best = 1, least = 1 << 30;
    for (int across = 1; across <= Simdgroups; ++across) {
      if (Simdgroups % across != 0) continue;
      const int rows = round_up((M + Simdgroups / across - 1) / (Simdgroups / across), 8);
      const int columns = round_up((N + across - 1) / across, 8);
      const int cost = rows * columns * 64 + rows + columns;
      if (cost < least) {
        least = cost;
        best = across;
      }
    }
    return best;
  }
  static constexpr int across = choose_across();
  static constexpr int down = Simdgroups / across;
  static constexpr int rows = down == 1 ? M : round_up((M + down - 1) / down, 8);
  static constexpr int columns = across == 1 ? N : round_up((N + across - 1) / across, 8);
  static MSL_INLINE constexpr int first_row(uint simdgroup) {
    return int(simdgroup) / across * rows;
  }
  static MSL_INLINE constexpr int first_column(uint simdgroup) {
    return int(simdgroup) % across * columns;
  }
};

// A tile of M x N in a scope (0: one thread, which has all of it in row-major order).
template <int M, int N, int Simdgroups, bool IsTransposed = false,
          Operand Of = Operand::kDestination>
struct ScopeTile {
  using Part = Bands<M, N, Simdgroups>;
  using Tile = metal::conditional_t<Simdgroups == 1,
                                    OperandTile<Part::rows, Part::columns, IsTransposed, Of>,
                                    SharedTile<Part::rows, Part::columns>>;
  static constexpr bool is_of_thread = false;
  static constexpr int capacity = Tile::capacity;
  static MSL_INLINE constexpr TilePlace place(uint thread, uint slot) {
    const uint simdgroup = thread / 32;
    TilePlace in = Tile::place(thread % 32, slot);
    in.row += Part::first_row(simdgroup);
    in.column += Part::first_column(simdgroup);
    if constexpr (Simdgroups != 1) {  // else the tile is the whole one
      in.exists = in.exists && simdgroup < uint(Simdgroups) && in.row < M && in.column < N;
    }
    return in;
  }
};
template <int M, int N, bool IsTransposed, Operand Of>
struct ScopeTile<M, N, 0, IsTransposed, Of> {
  static constexpr bool is_of_thread = true;
  static constexpr int capacity = M * N, columns = N;
  static MSL_INLINE constexpr TilePlace place(uint, uint slot) {
    return {int(slot) / N, int(slot) % N, true};
  }
};

}  // namespace msl::msl_impl

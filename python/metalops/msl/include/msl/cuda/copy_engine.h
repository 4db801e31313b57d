// Copies of boxes of a matrix to shared memory by the GPU's copy engine (TMA) of compute capability
// 9.0. The engine needs a map of the matrix. The launch makes one of each argument that is a matrix
// of 8, 16 or 32 bits, in units of 16 bits; an operation looks up the one that its operand is in,
// and checks that the engine would read the same elements and zeros as threads do. So maps change
// no result.
#pragma once

#include <msl/cuda/launch.h>
#include <msl/cuda/staging.h>
#include <msl/cuda/tensor_cores.h>
#include <msl/cuda/warp_tile.h>
#include <msl/tensor_ops/matrix_view.h>

namespace msl::abi {

// Written by cuTensorMapEncodeTiled.
struct alignas(64) CopyMap {
  u64 opaque[16];
};
// A matrix of units of 16 bits: its address, and the bytes between rows.
struct MappedMatrix {
  u64 first, stride;
  u32 columns, rows;
};
constexpr u32 kMaps = 8;
// metalops/cuda/copy_maps.py. Lines of boxes are 64 units, in the 128-byte swizzle.
struct alignas(64) Maps {
  CopyMap of_64_rows[kMaps], of_16_rows[kMaps];
  MappedMatrix matrices[kMaps];
  u32 count;
  u32 gathered;  // bits of the gathered operands that have maps, which are the first of 64 rows
};

}  // namespace msl::abi

namespace msl::msl_support {

// The matrices of a launch, in shared memory: the threads of a block look them up there.
struct MapsOfLaunch {
  const abi::Maps* maps;
  abi::u32 count, gathered;
  abi::MappedMatrix matrices[abi::kMaps];
};
MSL_INLINE MapsOfLaunch& maps_of_launch() {
  __shared__ MapsOfLaunch maps;
  return maps;
}
// Called by every thread of a kernel first. Other threads see the maps after a barrier.
MSL_INLINE void take_maps(const abi::Maps& maps) {
#if MSL_WARPGROUPS
  const u32 m = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  if (m < abi::kMaps) {
    MapsOfLaunch& mine = maps_of_launch();
    mine.matrices[m] = maps.matrices[m];
    mine.maps = &maps;
    mine.count = maps.count;
    mine.gathered = maps.gathered;
    if (m < maps.count || (maps.gathered >> m & 1) != 0) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&maps.of_64_rows[m]) : "memory");
    }
  }
#endif
}

}  // namespace msl::msl_support

namespace msl::msl_impl {

// An operand in a matrix that has a map: its first element is at column x of row y.
struct MappedOperand {
  const abi::CopyMap *of_64_rows, *of_16_rows;
  int x, y;
  bool exists;
};

// Returns true if `count` units from `at` on are in a dimension of `size`, and what a box has
// beyond them is not: the copy engine writes zeros for it.
MSL_INLINE bool lie_in(abi::u32 at, long count, bool are_whole_boxes, abi::u32 size) {
  const long end = long(at) + count;
  return count > 0 && end <= long(size) && (are_whole_boxes || end == long(size));
}
// Finds the matrix of an operand with `rows` rows in a tile, and elements of Size bytes; each lane
// tries one. IsDeep: it is contiguous along K. Called by whole warps, with the same operand, after
// a barrier.
template <int Size, bool IsDeep, class View>
MSL_INLINE MappedOperand mapped(const View& view, int rows, int inner) {
  const msl_support::MapsOfLaunch& all = msl_support::maps_of_launch();
  const uint m = warp_lane() % abi::kMaps;
  const abi::MappedMatrix in = all.matrices[m];
  // Rows are multiples of 16 bytes apart, and matrices less than 64 GiB.
  const abi::u64 stride = abi::u64(IsDeep ? view.row_stride : view.column_stride) * Size;
  const abi::u64 apart = address_of(view.first.handle()) - in.first;
  const abi::u32 y = abi::u32(apart >> 4) / abi::u32(in.stride >> 4);
  const abi::u32 x_bytes = abi::u32(apart - y * in.stride), x = x_bytes / 2;
  // A line of an operand, in units.
  const long bytes = (IsDeep ? view.columns : view.rows) * Size, along = bytes / 2;
  const long lines = IsDeep ? view.rows : view.columns;
  const bool are_units = Size > 1 || (x_bytes | abi::u32(bytes)) % 2 == 0;
  const bool is_whole = view.rows >= rows, is_whole_inner = inner * Size % 128 == 0;
  const bool has_line = lie_in(x, along, IsDeep ? is_whole_inner : is_whole, in.columns);
  const bool has_lines = lie_in(y, lines, IsDeep ? is_whole : is_whole_inner, in.rows);
  const bool is_it = m < all.count && in.stride == stride && apart < (1ul << 36) && are_units &&
                     has_line && has_lines && view.columns == inner;
  const abi::u32 finders = ::__ballot_sync(~0u, is_it);
  if (finders == 0) return {nullptr, nullptr, 0, 0, false};
  const int finder = ::__ffs(int(finders)) - 1;
  return {&all.maps->of_64_rows[finder], &all.maps->of_16_rows[finder],
          ::__shfl_sync(~0u, int(x), finder), ::__shfl_sync(~0u, int(y), finder), true};
}

MSL_INLINE void begin_barrier(abi::u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
MSL_INLINE void end_barrier(abi::u32 barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
MSL_INLINE void arrive_at(abi::u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives at a barrier, which then also waits for copies of so many bytes.
MSL_INLINE void expect_bytes(abi::u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
MSL_INLINE void wait_at(abi::u32 barrier, abi::u32 parity) {
  asm volatile(
      "{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680; @p "
      "bra "
      "done; bra again; done: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Orders the threads' accesses to memory before those of the copy engine.
MSL_INLINE void show_to_copy_engine() { asm volatile("fence.proxy.async;" ::: "memory"); }
MSL_INLINE void copy_box(abi::u32 to, const abi::CopyMap* map, int x, int y, abi::u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// Copies blocks of an operand, as StagedBlock lays them out. A warp calls begin() and at(), one
// thread bring().
template <class Block, int Depth, bool IsDeep, int Fragments>
struct BoxLoader {
  static constexpr bool is_possible = Depth * Block::size == 128 && Block::rows % 64 == 0 &&
                                      (Fragments == 1 || IsDeep) && (IsDeep || Block::size == 2);
  MappedOperand operand;
  MSL_INLINE void begin() const {}
  MSL_INLINE int at(int block) const { return block; }
  MSL_INLINE void bring(abi::u32 to, int block, abi::u32 barrier) const {
    const int k = block * 64;  // in units, along a line; elsewhere elements are units
    if constexpr (Fragments == 1) {
      MSL_UNROLLED
      for (int r = 0; r < Block::rows; r += 64) {
        copy_box(to + r * 128, operand.of_64_rows, operand.x + (IsDeep ? k : r),
                 operand.y + (IsDeep ? r : k), barrier);
      }
    } else {
      MSL_UNROLLED
      for (int line = 0; line < Block::rows; line += 16) {
        copy_box(to + line * 128, operand.of_16_rows, operand.x + k,
                 operand.y + row_of_line<Fragments>(line), barrier);
      }
    }
  }
};

}  // namespace msl::msl_impl

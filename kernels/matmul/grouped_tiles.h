// Maps threadgroups to tiles of a grouped GEMM whose group sizes are known on the device only.
#pragma once
#include <kernels/common/matmul.h>
#include <kernels/matmul/grouped.h>

namespace metalops {
namespace groups {

// One product of the group, and a tile (column, row) of it. Elements that belong to no group get a
// product with K = 0, that is, zeros.
struct Work {
  int group;
  int left_line;  // where the group's operands begin
  int right_line;
  int k;
  matmul::Sizes sizes;
  uint2 tile;
  bool has_tile;  // false: this threadgroup has nothing to do
};

template <typename Tile, typename Parameters>
inline Work work_of(device const int* ends, constant Parameters& p, uint number) {
  const uint across = (static_cast<uint>(p.columns) + Tile::columns - 1) / Tile::columns;
  const uint down = (static_cast<uint>(p.rows) + Tile::rows - 1) / Tile::rows;
  Work work{0, 0, 0, 0, matmul::Sizes{p.rows, p.columns, p.inner}, uint2(0), true};
  if (p.grouped == Grouped::kRows) {
    const Part part =
        part_of_tile<Tile::rows>(ends, p.groups, p.rows, static_cast<int>(number / across));
    work.group = part.group;
    work.left_line = part.first;
    work.sizes.rows = part.size;
    work.tile = uint2(number % across, part.tile);
    work.has_tile = part.tile * Tile::rows < part.size;
  } else if (p.grouped == Grouped::kColumns) {
    const Part part =
        part_of_tile<Tile::columns>(ends, p.groups, p.columns, static_cast<int>(number / down));
    work.group = part.group;
    work.right_line = part.first;
    work.sizes.columns = part.size;
    work.tile = uint2(part.tile, number % down);
    work.has_tile = part.tile * Tile::columns < part.size;
  } else {
    work.group = static_cast<int>(number / (across * down));
    work.tile = uint2(number % across, number / across % down);
    if (p.grouped == Grouped::kInner) {
      const Part part = part_of_group(ends, work.group, p.inner);
      work.k = part.first;
      work.sizes.inner = part.size;
    }
  }
  if (work.group == p.groups) {
    work.group = 0;
    work.sizes.inner = 0;
  }
  return work;
}

}  // namespace groups
}  // namespace metalops

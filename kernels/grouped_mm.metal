// Products of the groups of matrices, of which only the device knows where they end: a threadgroup
// for each tile that there may be finds out which one it has.
#include <metal_stdlib>

#include "grouped_mm.h"
#include "matmul.h"
using namespace metal;
using metalops::Grouped;
using metalops::GroupedProductParameters;
namespace groups = metalops::groups;
namespace matmul = metalops::matmul;

template <typename T>
struct StoreRounded {
  device T* result;
  int64_t stride;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    result[row * stride + column] = static_cast<T>(sums.of[0]);
  }
};

// One of the products, and which of its tiles: of columns, of rows.
struct Work {
  int group;
  int left_line;
  int right_line;
  int k;
  matmul::Sizes sizes;
  uint2 tile;
};

template <typename Tile>
inline Work work_of(device const int* ends, constant GroupedProductParameters& p, uint number) {
  const uint across = (static_cast<uint>(p.columns) + Tile::columns - 1) / Tile::columns;
  const uint down = (static_cast<uint>(p.rows) + Tile::rows - 1) / Tile::rows;
  matmul::Sizes sizes{p.rows, p.columns, p.inner};
  if (p.grouped == Grouped::kRows) {
    const groups::Part part =
        groups::part_of_tile<Tile::rows>(ends, p.groups, p.rows, static_cast<int>(number / across));
    sizes.rows = part.size;
    return {part.group, part.first, 0, 0, sizes, uint2(number % across, part.tile)};
  }
  if (p.grouped == Grouped::kColumns) {
    const groups::Part part = groups::part_of_tile<Tile::columns>(ends, p.groups, p.columns,
                                                                  static_cast<int>(number / down));
    sizes.columns = part.size;
    return {part.group, 0, part.first, 0, sizes, uint2(part.tile, number % down)};
  }
  const int group = static_cast<int>(number / (across * down));
  const uint2 tile = uint2(number % across, number / across % down);
  if (p.grouped == Grouped::kInner) {
    const groups::Part part = groups::part_of_group(ends, group, p.inner);
    sizes.inner = part.size;
    return {group, 0, 0, part.first, sizes, tile};
  }
  return {group, 0, 0, 0, sizes, tile};
}

template <typename T, typename Tile>
kernel void grouped_mm(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                       device const T* right [[buffer(2)]], device const int* ends [[buffer(3)]],
                       constant GroupedProductParameters& p [[buffer(4)]],
                       uint number [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Dense<T>>()];
  Work work = work_of<Tile>(ends, p, number);
  if (static_cast<int>(work.tile.x) * Tile::columns >= work.sizes.columns ||
      static_cast<int>(work.tile.y) * Tile::rows >= work.sizes.rows) {
    return;
  }
  // What belongs to no group is zero.
  if (work.group == p.groups) {
    work.group = 0;
    work.sizes.inner = 0;
  }
  matmul::Dense<T> a{left + work.group * p.left_step, p.left_stride, p.left_transposed};
  matmul::Dense<T> b{right + work.group * p.right_step, p.right_stride, p.right_transposed};
  a.elements = a.run(work.left_line, work.k);
  b.elements = b.run(work.right_line, work.k);
  const StoreRounded<T> store{
      result + work.group * p.result_step + work.left_line * p.result_stride + work.right_line,
      p.result_stride};
  matmul::multiply_tile<Tile>(a, b, work.sizes, store, workspace,
                              matmul::Place{work.tile, index, simdgroup, lane});
}

#define REGISTER_GROUPED_MM(NAME, T, ...)                                                         \
  template [[host_name("grouped_mm_" #NAME "_" #T)]] kernel void                                  \
  grouped_mm<T, matmul::Tile<__VA_ARGS__>>(device T*, device const T*, device const T*,           \
                                           device const int*, constant GroupedProductParameters&, \
                                           uint, uint, uint, uint)
#define REGISTER_GROUPED_MMS(T)                \
  REGISTER_GROUPED_MM(large, T, 64, 64, 2, 2); \
  REGISTER_GROUPED_MM(small, T, 16, 64, 1, 4)

REGISTER_GROUPED_MMS(float);
REGISTER_GROUPED_MMS(half);
REGISTER_GROUPED_MMS(bfloat);

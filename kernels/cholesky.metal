// Cholesky factorisation: A = U^H U of diagonal blocks, a threadgroup each. Rows beside them are
// left to triangular.metal, blocks below to products of matrices. Upper triangles only are read.
#include <metal_stdlib>

#include "cholesky.h"
#include "complex.h"
#include "row_packs.h"
using namespace metal;
using metalops::CholeskyParameters;
using metalops::column;
using metalops::kCholeskyBlockRows;
using metalops::kColumnsOfPack;

// Threads lie along the packs of a row, and then along rows. infos: the order of the first leading
// minor that is not positive, counted from 1; a matrix that has one is left alone from there on.
template <typename T>
kernel void cholesky_block(device float4* matrices [[buffer(0)]], device int* infos [[buffer(1)]],
                           constant CholeskyParameters& p [[buffer(2)]],
                           uint matrix [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
  constexpr uint kColumns = kColumnsOfPack<T>;
  constexpr uint kPacks = kCholeskyBlockRows / kColumns;
  threadgroup float4 block[kCholeskyBlockRows][kPacks];
  threadgroup int failed;
  const uint packs = (p.rows + kColumns - 1) / kColumns;
  const uint rows_at_once = threads / packs;
  const uint pack = thread_index % packs;
  const uint first_row = thread_index / packs < rows_at_once ? thread_index / packs : p.rows;
  device float4* const given =
      matrices + matrix * p.matrix_step + p.first * p.row_step + p.first / kColumns;
  for (uint row = first_row; row < p.rows; row += rows_at_once) {
    block[row][pack] = given[row * p.row_step + pack];
  }
  if (thread_index == 0) {
    failed = infos[matrix];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 0; step < p.rows; ++step) {
    const bool has_failed = failed != 0;
    const float minor =
        metalops::real_part(column(block[step][step / kColumns], step % kColumns, T()));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!has_failed && !(minor > 0.0f)) {
      if (thread_index == 0) {
        failed = static_cast<int>(p.first + step + 1);
      }
    } else if (!has_failed && thread_index < packs && thread_index >= step / kColumns) {
      const float root = precise::sqrt(minor);
      float4 scaled = block[step][thread_index] / root;
      if (thread_index == step / kColumns) {
        metalops::set_column(scaled, step % kColumns, metalops::from_real<T>(root));
      }
      block[step][thread_index] = scaled;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float4 scaled = block[step][pack];
    const uint below = failed != 0 || first_row >= p.rows ? p.rows : step + 1 + first_row;
    for (uint row = below; row < p.rows; row += rows_at_once) {
      if (pack >= row / kColumns) {
        const T factor = column(block[step][row / kColumns], row % kColumns, T());
        block[row][pack] =
            metalops::minus_product(block[row][pack], metalops::conjugate(factor), scaled);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint row = first_row; row < p.rows; row += rows_at_once) {
    given[row * p.row_step + pack] = block[row][pack];
  }
  if (thread_index == 0) {
    infos[matrix] = failed;
  }
}

// Zeros below the diagonal. A thread for each pack of columns, row and matrix.
template <typename T>
kernel void cholesky_clear_lower(device float4* matrices [[buffer(0)]],
                                 constant CholeskyParameters& p [[buffer(1)]],
                                 uint3 position [[thread_position_in_grid]]) {
  constexpr uint kColumns = kColumnsOfPack<T>;
  const uint row = position.y;
  if (position.x * kColumns >= row) {
    return;
  }
  device float4& own = matrices[position.z * p.matrix_step + row * p.row_step + position.x];
  float4 cleared = own;
  for (uint i = 0; i < kColumns && position.x * kColumns + i < row; ++i) {
    metalops::set_column(cleared, i, T(0.0f));
  }
  own = cleared;
}

#define REGISTER_CHOLESKY(T)                                                              \
  template [[host_name("cholesky_block_" #T)]] kernel void cholesky_block<T>(             \
      device float4*, device int*, constant CholeskyParameters&, uint, uint, uint);       \
  template [[host_name("cholesky_clear_lower_" #T)]] kernel void cholesky_clear_lower<T>( \
      device float4*, constant CholeskyParameters&, uint3)

REGISTER_CHOLESKY(float);
REGISTER_CHOLESKY(float2);

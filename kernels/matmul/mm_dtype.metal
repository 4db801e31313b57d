// Batched GEMM of half or bfloat matrices with a float result: beta added + alpha left right^T.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/matmul/mm_dtype.h>
using namespace metal;
using metalops::WideProductParameters;
namespace matmul = metalops::matmul;

struct StoreWide {
  device float* result;
  device const float* added;
  int64_t row_stride;
  int64_t column_stride;
  int columns;
  float alpha;
  float beta;
  bool adds;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    float value = sums.of[0];
    if (adds) {
      value = alpha * value + beta * added[row * row_stride + column * column_stride];
    } else {
      value *= alpha;
    }
    result[static_cast<int64_t>(row) * columns + column] = value;
  }
};

// Computes one tile of one product per threadgroup.
template <typename T, typename Tile>
kernel void mm_dtype(device float* result [[buffer(0)]], device const T* left [[buffer(1)]],
                     device const T* right [[buffer(2)]], device const float* added [[buffer(3)]],
                     constant WideProductParameters& p [[buffer(4)]],
                     uint group [[threadgroup_position_in_grid]],
                     uint index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Dense<T>>()];
  const uint across = (static_cast<uint>(p.columns) + Tile::columns - 1) / Tile::columns;
  const uint down = (static_cast<uint>(p.rows) + Tile::rows - 1) / Tile::rows;
  const int64_t product = group / (across * down);
  const uint tile = group % (across * down);
  const matmul::Dense<T> a{left + product * p.left_step, p.left_stride, p.left_transposed};
  const matmul::Dense<T> b{right + product * p.right_step, p.right_stride, p.right_transposed};
  const matmul::Place place{uint2(tile % across, tile / across), index, simdgroup, lane};
  const StoreWide store{result + product * p.rows * p.columns,
                        added + product * p.added_strides[0],
                        p.added_strides[1],
                        p.added_strides[2],
                        p.columns,
                        p.alpha,
                        p.beta,
                        p.adds};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{p.rows, p.columns, p.inner}, store, workspace,
                              place);
}

#define REGISTER_MM_DTYPE(NAME, T, ...) \
  REGISTER_KERNEL("mm_dtype_" #NAME "_" #T, mm_dtype, T, matmul::Tile<__VA_ARGS__>)

REGISTER_MM_DTYPE(large, half, 64, 64, 2, 2);
REGISTER_MM_DTYPE(small, half, 16, 64, 1, 4);
REGISTER_MM_DTYPE(large, bfloat, 64, 64, 2, 2);
REGISTER_MM_DTYPE(small, bfloat, 16, 64, 1, 4);

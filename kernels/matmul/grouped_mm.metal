// Grouped GEMM whose group sizes are known on the device only: one threadgroup for each tile that
// may exist; it looks up which tile of which group it has.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/matmul/grouped_mm.h>
#include <kernels/matmul/grouped_tiles.h>
using namespace metal;
using metalops::GroupedProductParameters;
using metalops::groups::Work;
using metalops::groups::work_of;
namespace matmul = metalops::matmul;

template <typename T>
struct StoreRounded {
  device T* result;
  int64_t stride;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    result[row * stride + column] = static_cast<T>(sums.of[0]);
  }
};

template <typename T, typename Tile>
kernel void grouped_mm(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                       device const T* right [[buffer(2)]], device const int* ends [[buffer(3)]],
                       constant GroupedProductParameters& p [[buffer(4)]],
                       uint number [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Dense<T>>()];
  const Work work = work_of<Tile>(ends, p, number);
  if (!work.has_tile) {
    return;
  }
  matmul::Dense<T> a{left + work.group * p.left_step, p.left_stride, p.left_transposed};
  matmul::Dense<T> b{right + work.group * p.right_step, p.right_stride, p.right_transposed};
  a.elements = a.run(work.left_line, work.k);
  b.elements = b.run(work.right_line, work.k);
  const StoreRounded<T> store{
      result + work.group * p.result_step + work.left_line * p.result_stride + work.right_line,
      p.result_stride};
  matmul::multiply_tile<Tile>(a, b, work.sizes, store, workspace, work.tile,
                              matmul::Place{index, simdgroup, lane});
}

#define REGISTER_GROUPED_MM(NAME, T, ...) \
  REGISTER_KERNEL("grouped_mm_" #NAME "_" #T, grouped_mm, T, matmul::Tile<__VA_ARGS__>)
#define REGISTER_GROUPED_MMS(T)                \
  REGISTER_GROUPED_MM(large, T, 64, 64, 2, 2); \
  REGISTER_GROUPED_MM(small, T, 16, 64, 1, 4)

REGISTER_GROUPED_MMS(float);
REGISTER_GROUPED_MMS(half);
REGISTER_GROUPED_MMS(bfloat);

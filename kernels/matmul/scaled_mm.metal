// Scaled GEMM (torch._scaled_mm) of 8-bit and 4-bit floats: see scaled_operands.h.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/matmul/scaled_operands.h>
using namespace metal;
using namespace metalops::scaled;
using metalops::NarrowFormat;
using metalops::ScaledDecode;
using metalops::ScaledParameters;
namespace matmul = metalops::matmul;

template <typename Scales>
inline Coded<Scales> coded(device const uchar* codes, threadgroup half* table,
                           device const typename Scales::stored* scales,
                           constant ScaledParameters& p, uint index, uint threads) {
  fill_table(table, p.format, index, threads);
  return {codes, table, scales, p.scales, p.right_stride, p.format == NarrowFormat::kE2m1};
}

// Dequantises an operand: result[line * inner + k]. One thread per element.
template <typename Scales>
kernel void scaled_mm_decode(device typename Scales::element* result [[buffer(0)]],
                             device const uchar* codes [[buffer(1)]],
                             device const typename Scales::stored* scales [[buffer(2)]],
                             constant ScaledDecode& p [[buffer(3)]],
                             uint2 position [[thread_position_in_grid]],
                             uint2 grid [[threads_per_grid]]) {
  const int line = static_cast<int>(position.y);
  const int k = static_cast<int>(position.x);
  float value = decode(code_at(codes, line, k, p.line_stride, p.inner_stride, p.format), p.format);
  if (Scales::is_of_blocks) {
    value *= Scales::value(scales, place_of_scale(p.scales, line, k / p.scales.inner));
  }
  result[static_cast<int64_t>(line) * grid.x + k] = static_cast<typename Scales::element>(value);
}

inline StoreScaled epilogue_of(device void* result, device const float* row_scales,
                               device const float* column_scales, device const float* bias,
                               device const float* result_scale, constant ScaledParameters& p) {
  return {result,    row_scales, column_scales, bias,     result_scale, 0,
          p.columns, p.row_step, p.column_step, p.result, p.has_bias,   p.has_result_scale};
}

// ---- products -----------------------------------------------------------------------------------

// Tile GEMM with a quantised right operand. One threadgroup per tile.
template <typename Scales, typename Tile>
kernel void scaled_mm(
    device void* result [[buffer(0)]], device const typename Scales::element* left [[buffer(1)]],
    device const uchar* right [[buffer(2)]],
    device const typename Scales::stored* scales [[buffer(3)]],
    device const float* row_scales [[buffer(4)]], device const float* column_scales [[buffer(5)]],
    device const float* bias [[buffer(6)]], device const float* result_scale [[buffer(7)]],
    constant ScaledParameters& parameters [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  typedef typename Scales::element T;
  threadgroup half table[256];
  threadgroup T workspace[matmul::workspace<Tile, Coded<Scales>>()];
  const matmul::Dense<T> a{left, parameters.left_stride, false};
  const Coded<Scales> b = coded<Scales>(right, table, scales, parameters, index, Tile::threads);
  const matmul::Sizes sizes{parameters.rows, parameters.columns, parameters.inner};
  matmul::multiply_tile<Tile>(
      a, b, sizes, epilogue_of(result, row_scales, column_scales, bias, result_scale, parameters),
      workspace, matmul::tile_of<Tile>(group, parameters.columns),
      matmul::Place{index, simdgroup, lane});
}

// Skinny GEMM: a threadgroup has four simdgroups, each of which computes ROWS rows x COLUMNS
// columns.
template <typename Scales, int ROWS, int COLUMNS>
kernel void scaled_mm_skinny(
    device void* result [[buffer(0)]], device const typename Scales::element* left [[buffer(1)]],
    device const uchar* right [[buffer(2)]],
    device const typename Scales::stored* scales [[buffer(3)]],
    device const float* row_scales [[buffer(4)]], device const float* column_scales [[buffer(5)]],
    device const float* bias [[buffer(6)]], device const float* result_scale [[buffer(7)]],
    constant ScaledParameters& parameters [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half table[256];
  const matmul::Dense<typename Scales::element> a{left, parameters.left_stride, false};
  const Coded<Scales> b = coded<Scales>(right, table, scales, parameters, index, 128);
  const matmul::Sizes sizes{parameters.rows, parameters.columns, parameters.inner};
  const matmul::SkinnyBlock block =
      matmul::skinny_block_of<ROWS, COLUMNS>(group, parameters.columns);
  const int column = block.column + static_cast<int>(simdgroup) * COLUMNS;
  matmul::multiply_skinny<ROWS, COLUMNS, 1>(
      a, b, sizes, epilogue_of(result, row_scales, column_scales, bias, result_scale, parameters),
      block.row, column, lane);
}

#define REGISTER_TILE(NAME, SCALES, SCALE_NAME, ...) \
  REGISTER_KERNEL("scaled_mm_" #NAME "_" #SCALE_NAME, scaled_mm, SCALES, matmul::Tile<__VA_ARGS__>)

#define REGISTER_TILES(SCALES, NAME)                \
  REGISTER_TILE(large, SCALES, NAME, 64, 64, 2, 2); \
  REGISTER_TILE(small, SCALES, NAME, 16, 64, 1, 4)

REGISTER_TILES(Whole, whole);
REGISTER_TILES(Float, float);
REGISTER_TILES(E8m0, e8m0);
REGISTER_TILES(E4m3, e4m3);

// Kernels without a tile GEMM are in the library without tensors only.
#if !defined(__HAVE_TENSOR__)

#define REGISTER_OTHERS(SCALES, NAME)                                         \
  REGISTER_KERNEL("scaled_mm_skinny_" #NAME, scaled_mm_skinny, SCALES, 4, 2); \
  REGISTER_KERNEL("scaled_mm_decode_" #NAME, scaled_mm_decode, SCALES)

REGISTER_OTHERS(Whole, whole);
REGISTER_OTHERS(Float, float);
REGISTER_OTHERS(E8m0, e8m0);
REGISTER_OTHERS(E4m3, e4m3);

#endif

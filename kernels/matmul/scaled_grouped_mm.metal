// Grouped GEMM of 8-bit and 4-bit floats with scales: see scaled_operands.h and grouped_mm.metal.
// Swizzled scales are swizzled and padded per group, with one group after the other.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/matmul/grouped_tiles.h>
#include <kernels/matmul/scaled_grouped_mm.h>
#include <kernels/matmul/scaled_operands.h>
using namespace metal;
using namespace metalops::scaled;
using metalops::Grouped;
using metalops::NarrowFormat;
using metalops::ScaledGroupedDecode;
using metalops::ScaledGroupedParameters;
using metalops::ScalePlaces;
namespace groups = metalops::groups;
namespace matmul = metalops::matmul;

// Returns where the scales of a group of the reduction dimension begin in a matrix of `lines`
// lines, and the number of groups of four scales that its lines have (swizzled).
inline ScalePlaces places_of_group(ScalePlaces places, device const int* ends, int group,
                                   int length, int lines) {
  if (!places.is_swizzled) {
    places.first = groups::part_of_group(ends, group, length).first / places.inner;
    return places;
  }
  const int four = 4 * places.inner;
  int first = 0;
  int64_t before = 0;
  places.across = 0;
  for (int g = 0; g <= group; ++g) {
    before += places.across;
    const int end = groups::end_of(ends, g, first, length);
    places.across = (end - first + four - 1) / four;
    first = end;
  }
  places.first = before * ((lines + 127) / 128 * 512);
  return places;
}

// Returns the scale of one element of the left operand; zero if it belongs to no group.
template <typename Scales>
inline float scale_of_left(device const typename Scales::stored* scales, device const int* ends,
                           constant ScaledGroupedDecode& p, int line, int k) {
  ScalePlaces places = p.scales;
  if (p.grouped == Grouped::kInner) {
    int group = 0;
    int first = 0;
    int end = groups::end_of(ends, 0, 0, p.inner);
    while (k >= end && ++group < p.groups) {
      first = end;
      end = groups::end_of(ends, group, first, p.inner);
    }
    if (group == p.groups) {
      return 0.0f;
    }
    places = places_of_group(places, ends, group, p.inner, p.lines);
    k -= first;
  } else if (places.is_swizzled) {
    int first = 0;
    int padded = 0;
    int group = 0;
    for (; group < p.groups; ++group) {
      const int end = groups::end_of(ends, group, first, p.lines);
      if (line < end) {
        break;
      }
      padded += (end - first + 127) / 128 * 128;
      first = end;
    }
    if (group == p.groups) {
      return 0.0f;
    }
    line += padded - first;
  }
  return Scales::value(scales, place_of_scale(places, line, k / places.inner));
}

// Dequantises the left operand: result[line * inner + k], over the lines of all matrices. One
// thread per element.
template <typename Scales>
kernel void scaled_grouped_mm_decode(device typename Scales::element* result [[buffer(0)]],
                                     device const uchar* codes [[buffer(1)]],
                                     device const typename Scales::stored* scales [[buffer(2)]],
                                     device const int* ends [[buffer(3)]],
                                     constant ScaledGroupedDecode& p [[buffer(4)]],
                                     uint2 position [[thread_position_in_grid]]) {
  const int line = static_cast<int>(position.y);
  const int k = static_cast<int>(position.x);
  device const uchar* const matrix = codes + line / p.lines * p.matrix_stride;
  float value =
      decode(code_at(matrix, line % p.lines, k, p.line_stride, p.inner_stride, p.format), p.format);
  if (Scales::is_of_blocks) {
    value *= scale_of_left<Scales>(scales, ends, p, line, k);
  }
  result[static_cast<int64_t>(line) * p.inner + k] = static_cast<typename Scales::element>(value);
}

// Tile GEMM of the groups. One threadgroup for each tile that may exist.
template <typename Scales, typename Tile>
kernel void scaled_grouped_mm(
    device void* result [[buffer(0)]], device const typename Scales::element* left [[buffer(1)]],
    device const uchar* right [[buffer(2)]],
    device const typename Scales::stored* scales [[buffer(3)]],
    device const float* row_scales [[buffer(4)]], device const float* column_scales [[buffer(5)]],
    device const int* ends [[buffer(6)]], constant ScaledGroupedParameters& p [[buffer(7)]],
    uint number [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  typedef typename Scales::element T;
  threadgroup half table[256];
  threadgroup T workspace[matmul::workspace<Tile, Coded<Scales>>()];
  const groups::Work work = groups::work_of<Tile>(ends, p, number);
  if (!work.has_tile) {
    return;
  }
  fill_table(table, p.format, index, Tile::threads);
  const bool has_pairs = p.format == NarrowFormat::kE2m1;
  const matmul::Dense<T> a{
      left + work.group * p.left_step + work.left_line * p.left_stride + work.k, p.left_stride,
      false};
  ScalePlaces places = p.scales;
  if (Scales::is_of_blocks && p.grouped == Grouped::kInner) {
    places = places_of_group(places, ends, work.group, p.inner, p.columns);
  }
  places.first += work.group * p.scale_step;
  const Coded<Scales> b{right + work.group * p.right_step + work.right_line * p.right_stride +
                            (has_pairs ? work.k / 2 : work.k),
                        table,
                        scales,
                        places,
                        p.right_stride,
                        has_pairs};
  const int64_t place =
      work.group * p.result_step + work.left_line * p.result_stride + work.right_line;
  const StoreScaled store{
      result,
      row_scales + work.group * p.row_group_step + work.left_line * p.row_step,
      column_scales + work.group * p.column_group_step + work.right_line * p.column_step,
      row_scales,
      row_scales,
      place,
      p.result_stride,
      p.row_step,
      p.column_step,
      p.result,
      false,
      false};
  matmul::multiply_tile<Tile>(a, b, work.sizes, store, workspace, work.tile,
                              matmul::Place{index, simdgroup, lane});
}

#define REGISTER_TILE(NAME, SCALES, SCALE_NAME, ...)                                     \
  REGISTER_KERNEL("scaled_grouped_mm_" #NAME "_" #SCALE_NAME, scaled_grouped_mm, SCALES, \
                  matmul::Tile<__VA_ARGS__>)

#define REGISTER_TILES(SCALES, NAME)                \
  REGISTER_TILE(large, SCALES, NAME, 64, 64, 2, 2); \
  REGISTER_TILE(small, SCALES, NAME, 16, 64, 1, 4)

REGISTER_TILES(Whole, whole);
REGISTER_TILES(E8m0, e8m0);
REGISTER_TILES(E4m3, e4m3);

// Kernels without a GEMM are in the library without tensors only.
#if !defined(__HAVE_TENSOR__)

#define REGISTER_DECODE(SCALES, NAME) \
  REGISTER_KERNEL("scaled_grouped_mm_decode_" #NAME, scaled_grouped_mm_decode, SCALES)

REGISTER_DECODE(Whole, whole);
REGISTER_DECODE(E8m0, e8m0);
REGISTER_DECODE(E4m3, e4m3);

#endif

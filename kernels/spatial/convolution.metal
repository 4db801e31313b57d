// Convolutions of one to three dimensions and their gradients as implicit GEMM: each operand is a
// tensor whose elements are found from the digits of two coordinates, so that one product serves
// the convolution (weight by pixels), its transpose (a convolution for each remainder of positions
// by the stride) and the gradient of the weight (pixels are K). Any layout, grouped, strided and
// dilated. Sums are in float, and each result is rounded once.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/spatial/convolution.h>
using namespace metal;
using metalops::ConvolutionMoves;
using metalops::ConvolutionOperand;
using metalops::ConvolutionParameters;
using metalops::kConvolutionDigits;
namespace matmul = metalops::matmul;

// A position that is outside for every other coordinate, whose sum with another does not overflow.
constant constexpr int kOutside = -(1 << 30);

// Where a coordinate moves an operand: elements, and positions along depth, height and width.
struct Moved {
  int64_t offset;
  int3 position;
};

struct Digits {
  int of[kConvolutionDigits];
};

inline Digits digits_of(int coordinate, constant int* sizes) {
  Digits digits;
  uint rest = static_cast<uint>(coordinate);
  for (int d = kConvolutionDigits - 1; d > 0; --d) {
    const uint size = static_cast<uint>(sizes[d]);
    digits.of[d] = static_cast<int>(rest % size);
    rest /= size;
  }
  digits.of[0] = static_cast<int>(rest);
  return digits;
}

inline int64_t offset_of(Digits digits, constant int64_t* strides) {
  int64_t offset = 0;
  for (int d = 0; d < kConvolutionDigits; ++d) {
    offset += digits.of[d] * strides[d];
  }
  return offset;
}

inline Moved moved_by(Digits digits, constant ConvolutionMoves& by) {
  return {offset_of(digits, by.strides),
          int3(digits.of[1] * by.positions[0], digits.of[2] * by.positions[1],
               digits.of[3] * by.positions[2])};
}

// Returns the start of a line: of one that does not exist, a position that is always outside.
inline Moved line_of(int line, int lines, int group, constant int* sizes,
                     constant ConvolutionOperand& operand) {
  Moved start = moved_by(digits_of(line < lines ? line : 0, sizes), operand.line);
  start.offset += operand.begin + group * operand.group_stride;
  start.position += int3(operand.first[0], operand.first[1], operand.first[2]);
  start.position.x = line < lines ? start.position.x : kOutside;
  return start;
}

template <typename T>
inline T element_of(device const T* elements, Moved line, Moved k,
                    constant ConvolutionOperand& operand) {
  // A negative position is a large unsigned one.
  const uint3 at = uint3(line.position + k.position);
  const bool is_inside = at.x < static_cast<uint>(operand.limits[0]) &&
                         at.y < static_cast<uint>(operand.limits[1]) &&
                         at.z < static_cast<uint>(operand.limits[2]);
  return is_inside ? elements[line.offset + k.offset] : T(0);
}

// The part of the product that a threadgroup computes.
struct Share {
  int group;
  int begin, end;  // of K
  int64_t first;   // of the sums of its split
};

inline Share share_of(int index, constant ConvolutionParameters& p) {
  const int group = index % p.groups;
  const int split = index / p.groups;
  const int begin = split * p.inner_of_split;
  return {group, begin, min(begin + p.inner_of_split, p.inner),
          (split * static_cast<int64_t>(p.groups) + group) * p.rows * p.columns};
}

template <typename T>
inline float bias_of(device const T* bias, int group, int row, int column,
                     constant ConvolutionParameters& p) {
  if (!p.has_bias) {
    return 0.0f;
  }
  return static_cast<float>(
      bias[p.bias_of_rows ? group * static_cast<int64_t>(p.rows) + row
                          : group * static_cast<int64_t>(p.columns) + column]);
}

inline int64_t result_row(int row, int group, constant ConvolutionParameters& p) {
  return p.result_begin + group * p.result_group_stride +
         offset_of(digits_of(row, p.row_sizes), p.row_strides);
}

inline int64_t result_column(int column, constant ConvolutionParameters& p) {
  return offset_of(digits_of(column, p.column_sizes), p.column_strides);
}

// ---- tile GEMM ----------------------------------------------------------------------------------

constant constexpr int kTile = metalops::kConvolutionTile;
constant constexpr int kThreads = metalops::kConvolutionSimdgroups * 32;
constant constexpr int kStep = matmul::kTileK;
constant constexpr int kStride = kTile + matmul::kPadding;

template <typename T>
using Staged = matmul::Stored<T, kStride, true>;

// Stages elements [k, k + kStep) of a thread's line, whose lanes have adjacent lines.
template <typename T>
inline void stage_line(threadgroup T* to, device const T* elements, Moved line,
                       threadgroup const Moved* moves, constant ConvolutionOperand& operand,
                       int index) {
  for (int k = index / kTile; k < kStep; k += kThreads / kTile) {
    to[k * kStride + index % kTile] = element_of(elements, line, moves[k], operand);
  }
}

// Stores how kStep elements from k on move both operands: left's, then right's.
inline void store_moves(threadgroup Moved* moves, int k, int end, int index,
                        constant ConvolutionParameters& p) {
  if (index < 2 * kStep) {
    const int at = k + index % kStep;
    const Digits digits = digits_of(at < end ? at : 0, p.inner_sizes);
    Moved moved = index < kStep ? moved_by(digits, p.left.inner) : moved_by(digits, p.right.inner);
    moved.position.x = at < end ? moved.position.x : kOutside;
    moves[index] = moved;
  }
}

// Stores the sums of a tile, from the offsets of its rows and of its columns on. Sums of a split
// have no bias yet.
template <typename T, typename R, bool IS_SPLIT>
struct StoreTile {
  device R* result;
  device const T* bias;
  threadgroup const int64_t* offsets;
  constant ConvolutionParameters& p;
  int group;
  int row;
  int column;

  inline void operator()(int r, int c, float sum) const {
    if (row + r < p.rows && column + c < p.columns) {
      const float added = IS_SPLIT ? 0.0f : bias_of(bias, group, row + r, column + c, p);
      result[offsets[r] + offsets[kTile + c]] = static_cast<R>(sum + added);
    }
  }
};

// Computes a tile of one share per threadgroup. R: T, or float for the sums of a split.
template <typename T, typename R, bool IS_SPLIT>
kernel void convolution_tile(device R* result [[buffer(0)]], device const T* left [[buffer(1)]],
                             device const T* right [[buffer(2)]],
                             device const T* bias [[buffer(3)]],
                             constant ConvolutionParameters& p [[buffer(4)]],
                             uint threadgroup_index [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  typedef matmul::TileProduct<kTile, kTile, metalops::kConvolutionSimdgroups, Staged<T>, Staged<T>>
      Product;
  threadgroup T lefts[kStep * kStride];
  threadgroup T rights[kStep * kStride];
  threadgroup T workspace[Product::workspace > 0 ? Product::workspace : 1];
  threadgroup Moved moves[2][2 * kStep];
  threadgroup int64_t offsets[2 * kTile];
  const int index = static_cast<int>(thread_index);
  const int across = (p.columns + kTile - 1) / kTile;
  const int down = (p.rows + kTile - 1) / kTile;
  const int tile = static_cast<int>(threadgroup_index % static_cast<uint>(across * down));
  const Share share =
      share_of(static_cast<int>(threadgroup_index / static_cast<uint>(across * down)), p);
  const int row = tile / across * kTile;
  const int column = tile % across * kTile;
  const Moved left_line = line_of(row + index % kTile, p.rows, share.group, p.row_sizes, p.left);
  const Moved right_line =
      line_of(column + index % kTile, p.columns, share.group, p.column_sizes, p.right);
  const matmul::Place place{thread_index, simdgroup, lane};
  auto sums = Product::sums();
  Product::clear(sums, place);
  store_moves(moves[0], share.begin, share.end, index, p);
  int buffer = 0;
  for (int k = share.begin; k < share.end; k += kStep) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_line(lefts, left, left_line, moves[buffer], p.left, index);
    stage_line(rights, right, right_line, moves[buffer] + kStep, p.right, index);
    buffer = 1 - buffer;
    store_moves(moves[buffer], k + kStep, share.end, index, p);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Product::add(sums, Staged<T>{lefts}, kTile, Staged<T>{rights}, kTile, kStep, workspace, place);
  }
  // Offsets of rows and columns are computed once, not by each of the lanes that have them.
  if (index < 2 * kTile) {
    const int r = min(row + index, p.rows - 1);
    const int c = min(column + index - kTile, p.columns - 1);
    if (IS_SPLIT) {
      offsets[index] = index < kTile ? share.first + r * static_cast<int64_t>(p.columns) : c;
    } else {
      offsets[index] = index < kTile ? result_row(r, share.group, p) : result_column(c, p);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const StoreTile<T, R, IS_SPLIT> store{result, bias, offsets, p, share.group, row, column};
  Product::for_each(sums, store, place);
}

// ---- few rows or columns ------------------------------------------------------------------------

// The element of the result that a thread or simdgroup computes.
struct Element {
  int group;
  int row;
  int column;
  Moved left;
  Moved right;
};

inline Element element_at(uint index, int group, constant ConvolutionParameters& p) {
  const int row = static_cast<int>(index / static_cast<uint>(p.columns));
  const int column = static_cast<int>(index % static_cast<uint>(p.columns));
  return {group, row, column, line_of(row, p.rows, group, p.row_sizes, p.left),
          line_of(column, p.columns, group, p.column_sizes, p.right)};
}

template <typename T>
inline float product_of(device const T* left, device const T* right, Element e, int k,
                        constant ConvolutionParameters& p) {
  const Digits digits = digits_of(k, p.inner_sizes);
  return static_cast<float>(element_of(left, e.left, moved_by(digits, p.left.inner), p.left)) *
         static_cast<float>(element_of(right, e.right, moved_by(digits, p.right.inner), p.right));
}

template <typename T>
inline void store_element(device T* result, device const T* bias, Element e, float sum,
                          constant ConvolutionParameters& p) {
  result[result_row(e.row, e.group, p) + result_column(e.column, p)] =
      static_cast<T>(sum + bias_of(bias, e.group, e.row, e.column, p));
}

// A thread computes one element: for groups with few channels, as of depthwise convolutions.
template <typename T>
kernel void convolution_direct(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                               device const T* right [[buffer(2)]],
                               device const T* bias [[buffer(3)]],
                               constant ConvolutionParameters& p [[buffer(4)]],
                               uint2 thread_index [[thread_position_in_grid]]) {
  const Element e = element_at(thread_index.x, static_cast<int>(thread_index.y), p);
  float sum = 0.0f;
  for (int k = 0; k < p.inner; ++k) {
    sum += product_of(left, right, e, k, p);
  }
  store_element(result, bias, e, sum, p);
}

// A simdgroup computes one element, and its lanes split K: for few elements with long sums.
template <typename T>
kernel void convolution_reduce(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                               device const T* right [[buffer(2)]],
                               device const T* bias [[buffer(3)]],
                               constant ConvolutionParameters& p [[buffer(4)]],
                               uint threadgroup_index [[threadgroup_position_in_grid]],
                               uint lane [[thread_index_in_simdgroup]]) {
  const uint elements = static_cast<uint>(p.rows) * static_cast<uint>(p.columns);
  const Element e =
      element_at(threadgroup_index % elements, static_cast<int>(threadgroup_index / elements), p);
  float sum = 0.0f;
  for (int k = static_cast<int>(lane); k < p.inner; k += 32) {
    sum += product_of(left, right, e, k, p);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    store_element(result, bias, e, sum, p);
  }
}

// Adds the sums of the splits, in their order.
template <typename T>
kernel void convolution_combine(device T* result [[buffer(0)]],
                                device const float* sums [[buffer(1)]],
                                device const T* bias [[buffer(2)]],
                                constant ConvolutionParameters& p [[buffer(3)]],
                                uint2 thread_index [[thread_position_in_grid]]) {
  const int row = static_cast<int>(thread_index.x) / p.columns;
  const int column = static_cast<int>(thread_index.x) % p.columns;
  const int group = static_cast<int>(thread_index.y);
  const int64_t elements = static_cast<int64_t>(p.rows) * p.columns;
  float sum = 0.0f;
  for (int split = 0; split < p.splits; ++split) {
    sum += sums[(split * static_cast<int64_t>(p.groups) + group) * elements + thread_index.x];
  }
  result[result_row(row, group, p) + result_column(column, p)] =
      static_cast<T>(sum + bias_of(bias, group, row, column, p));
}

#define REGISTER_CONVOLUTION(T)                                               \
  REGISTER_KERNEL("convolution_tile_" #T, convolution_tile, T, T, false);     \
  REGISTER_KERNEL("convolution_split_" #T, convolution_tile, T, float, true); \
  REGISTER_KERNEL("convolution_direct_" #T, convolution_direct, T);           \
  REGISTER_KERNEL("convolution_reduce_" #T, convolution_reduce, T);           \
  REGISTER_KERNEL("convolution_combine_" #T, convolution_combine, T)

REGISTER_CONVOLUTION(float);
REGISTER_CONVOLUTION(half);
REGISTER_CONVOLUTION(bfloat);

// Tile GEMM of int8 matrices, exact in int32 modulo 2^32; one threadgroup per tile. With Metal 4
// tensors it uses matmul2d of bytes; otherwise simdgroup matrices of half, which represents every
// int8, over ranges of K whose sums are exact in float.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/matmul/int_mm.h>
using namespace metal;
using metalops::IntProductParameters;
namespace matmul = metalops::matmul;

#if defined(__HAVE_TENSOR__)

template <typename Tile, bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED>
inline void multiply_bytes(matmul::Dense<char> left, matmul::Dense<char> right, matmul::Sizes sizes,
                           device int* result, device const int* offsets, bool has_offsets,
                           uint2 group) {
  using namespace mpp::tensor_ops;
  constexpr auto descriptor = matmul2d_descriptor(
      Tile::rows, Tile::columns, static_cast<int>(dynamic_extent), LEFT_TRANSPOSED,
      !RIGHT_TRANSPOSED, false, matmul2d_descriptor::mode::multiply);
  matmul2d<descriptor, execution_simdgroups<Tile::down * Tile::across>> operation;
  const int row = static_cast<int>(group.y) * Tile::rows;
  const int column = static_cast<int>(group.x) * Tile::columns;
  const int rows = sizes.rows - row;
  const int columns = sizes.columns - column;
  auto a = matmul::tensor_of<LEFT_TRANSPOSED>(left, row, rows, 0, sizes.inner);
  auto b = matmul::tensor_of<RIGHT_TRANSPOSED>(right, column, columns, 0, sizes.inner);
  auto tile = tensor<device int, matmul::Extents, tensor_inline>(
      result + static_cast<int64_t>(row) * sizes.columns + column, matmul::Extents(columns, rows),
      array<int, 2>{1, sizes.columns});
  if (!has_offsets) {
    operation.run(a, b, tile);
    return;
  }
  auto sums =
      operation.template get_destination_cooperative_tensor<decltype(a), decltype(b), int>();
  operation.run(a, b, sums);
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    if (sums.is_valid_element(i)) {
      const int c = sums.get_multidimensional_index(i)[0];
      const uint offset = c < columns ? static_cast<uint>(offsets[column + c]) : 0u;
      sums[i] = static_cast<int>(static_cast<uint>(sums[i]) + offset);
    }
  }
  sums.store(tile);
}

template <typename Tile>
inline void multiply(matmul::Dense<char> left, matmul::Dense<char> right, matmul::Sizes sizes,
                     device int* result, device const int* offsets, bool has_offsets,
                     threadgroup half*, uint2 tile, matmul::Place) {
  if (!left.is_transposed && !right.is_transposed) {
    multiply_bytes<Tile, false, false>(left, right, sizes, result, offsets, has_offsets, tile);
  } else if (!left.is_transposed) {
    multiply_bytes<Tile, false, true>(left, right, sizes, result, offsets, has_offsets, tile);
  } else if (right.is_transposed) {
    multiply_bytes<Tile, true, true>(left, right, sizes, result, offsets, has_offsets, tile);
  } else {
    multiply_bytes<Tile, true, false>(left, right, sizes, result, offsets, has_offsets, tile);
  }
}

template <typename Tile>
constexpr int workspace() {
  return 1;
}

#else

// An int8 operand that is multiplied as half.
struct Halves {
  typedef half element;

  struct Run {
    device const char* bytes;
    inline half operator[](int i) const { return static_cast<half>(bytes[i]); }
  };

  matmul::Dense<char> matrix;
  int first;  // offset along K
  bool is_transposed;

  inline Run run(int64_t line, int64_t k) const { return {matrix.run(line, first + k)}; }
};

struct AddExact {
  device int* result;
  device const int* offsets;
  int columns;
  bool is_first;
  bool has_offsets;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    const int64_t place = static_cast<int64_t>(row) * columns + column;
    uint total = static_cast<uint>(static_cast<int>(sums.of[0]));
    if (!is_first) {
      total += static_cast<uint>(result[place]);
    } else if (has_offsets) {
      total += static_cast<uint>(offsets[column]);
    }
    result[place] = static_cast<int>(total);
  }
};

template <typename Tile>
inline void multiply(matmul::Dense<char> left, matmul::Dense<char> right, matmul::Sizes sizes,
                     device int* result, device const int* offsets, bool has_offsets,
                     threadgroup half* workspace, uint2 tile, matmul::Place place) {
  constexpr int exact = 1 << 10;  // products are at most 2^14, so sums at most 2^24
  for (int k = 0; k < sizes.inner; k += exact) {
    matmul::multiply_tile<Tile>(
        Halves{left, k, left.is_transposed}, Halves{right, k, right.is_transposed},
        matmul::Sizes{sizes.rows, sizes.columns, min(exact, sizes.inner - k)},
        AddExact{result, offsets, sizes.columns, k == 0, has_offsets}, workspace, tile, place);
  }
}

template <typename Tile>
constexpr int workspace() {
  return matmul::workspace<Tile, Halves>();
}

#endif

template <typename Tile>
kernel void int_mm(device int* result [[buffer(0)]], device const char* left [[buffer(1)]],
                   device const char* right [[buffer(2)]], device const int* offsets [[buffer(3)]],
                   constant IntProductParameters& parameters [[buffer(4)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half brought[workspace<Tile>()];
  multiply<Tile>(matmul::Dense<char>{left, parameters.left_stride, parameters.left_transposed},
                 matmul::Dense<char>{right, parameters.right_stride, parameters.right_transposed},
                 matmul::Sizes{parameters.rows, parameters.columns, parameters.inner}, result,
                 offsets, parameters.has_offsets, brought,
                 matmul::tile_of<Tile>(group, parameters.columns),
                 matmul::Place{index, simdgroup, lane});
}

#define REGISTER_INT_MM(NAME, ...) \
  REGISTER_KERNEL("int_mm_" #NAME, int_mm, matmul::Tile<__VA_ARGS__>)

REGISTER_INT_MM(large, 128, 64, 2, 2);
REGISTER_INT_MM(medium, 64, 64, 2, 2);
REGISTER_INT_MM(small, 16, 64, 1, 4);

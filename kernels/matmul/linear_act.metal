// GEMM with a fused epilogue: activation(x weight^T + bias). Formulas are those of
// python/metalops/ops/linear_act.py; half and bfloat are computed in float and rounded once.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/activations.h>
#include <kernels/common/matmul.h>
#include <kernels/matmul/linear_act.h>
using namespace metal;
using metalops::LinearActivation;
using metalops::LinearColumns;
using metalops::LinearParameters;
namespace matmul = metalops::matmul;

inline float activation_of(float x, LinearActivation activation) {
  switch (activation) {
    case LinearActivation::kRelu:
      return relu(x);
    case LinearActivation::kGelu:
      return gelu(x);
    case LinearActivation::kGeluTanh:
      return gelu_tanh(x);
    case LinearActivation::kSilu:
      return silu(x);
    default:
      return x;
  }
}

inline activated activation_with_derivative(float x, LinearActivation activation) {
  switch (activation) {
    case LinearActivation::kRelu:
      return relu_with_derivative(x);
    case LinearActivation::kGelu:
      return gelu_with_derivative(x);
    case LinearActivation::kGeluTanh:
      return gelu_tanh_with_derivative(x);
    case LinearActivation::kSilu:
      return silu_with_derivative(x);
    default:
      return {x, 1.0f};
  }
}

// The epilogue. With two products, the activation of the first one gates the second. result: rows x
// columns; before: the pre-activation, rows x (PRODUCTS columns).
template <typename T, int PRODUCTS>
struct store_activated {
  device T* result;
  device T* before;
  device const T* bias;
  int columns;
  LinearActivation activation;
  bool has_bias;
  bool keeps;

  inline void operator()(int row, int column, matmul::Sums<PRODUCTS> sums) const {
    for (int p = 0; p < PRODUCTS; ++p) {
      const int64_t place = static_cast<int64_t>(p) * columns + column;
      if (has_bias) {
        sums.of[p] += static_cast<float>(bias[place]);
      }
      if (keeps) {
        before[static_cast<int64_t>(row) * PRODUCTS * columns + place] = static_cast<T>(sums.of[p]);
      }
    }
    float value = activation_of(sums.of[0], activation);
    if (PRODUCTS == 2) {
      value *= sums.of[PRODUCTS - 1];
    }
    result[static_cast<int64_t>(row) * columns + column] = static_cast<T>(value);
  }
};

template <typename T, int PRODUCTS>
inline store_activated<T, PRODUCTS> epilogue_of(device T* result, device T* before,
                                                device const T* bias,
                                                constant LinearParameters& p) {
  return {result, before, bias, p.columns, p.activation, p.has_bias, p.keeps};
}

// Tile GEMM with activation. One threadgroup per tile.
template <typename T, typename Tile>
kernel void linear_act(device T* result [[buffer(0)]], device T* before [[buffer(1)]],
                       device const T* left [[buffer(2)]], device const T* right [[buffer(3)]],
                       device const T* bias [[buffer(4)]],
                       constant LinearParameters& parameters [[buffer(5)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Dense<T>>()];
  const matmul::Dense<T> a{left, parameters.left_stride, parameters.left_transposed};
  const matmul::Dense<T> b{right, parameters.right_stride, parameters.right_transposed};
  const matmul::Sizes sizes{parameters.rows, parameters.columns, parameters.inner};
  matmul::multiply_tile<Tile>(
      a, b, sizes, epilogue_of<T, Tile::products>(result, before, bias, parameters), workspace,
      matmul::tile_of<Tile>(group, parameters.columns), matmul::Place{index, simdgroup, lane});
}

// Skinny GEMM with activation: a threadgroup has four simdgroups, each of which computes ROWS rows
// x COLUMNS columns. left and right are not transposed.
template <typename T, int ROWS, int COLUMNS, int PRODUCTS>
kernel void linear_act_skinny(device T* result [[buffer(0)]], device T* before [[buffer(1)]],
                              device const T* left [[buffer(2)]],
                              device const T* right [[buffer(3)]],
                              device const T* bias [[buffer(4)]],
                              constant LinearParameters& parameters [[buffer(5)]],
                              uint group [[threadgroup_position_in_grid]],
                              uint simdgroup [[simdgroup_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
  const matmul::Dense<T> a{left, parameters.left_stride, false};
  const matmul::Dense<T> b{right, parameters.right_stride, false};
  const matmul::Sizes sizes{parameters.rows, parameters.columns, parameters.inner};
  const matmul::SkinnyBlock block =
      matmul::skinny_block_of<ROWS, COLUMNS>(group, parameters.columns);
  const int column = block.column + static_cast<int>(simdgroup) * COLUMNS;
  matmul::multiply_skinny<ROWS, COLUMNS, PRODUCTS>(
      a, b, sizes, epilogue_of<T, PRODUCTS>(result, before, bias, parameters), block.row, column,
      lane);
}

// Computes the gradient with respect to the pre-activation; for ReLU, `before` may be the result.
template <typename T>
kernel void linear_act_gradient(device T* result [[buffer(0)]],
                                device const T* grad_output [[buffer(1)]],
                                device const T* before [[buffer(2)]],
                                constant LinearActivation& activation [[buffer(3)]],
                                uint2 position [[thread_position_in_grid]],
                                uint2 grid [[threads_per_grid]]) {
  const int64_t i = static_cast<int64_t>(position.y) * grid.x + position.x;
  const activated at = activation_with_derivative(static_cast<float>(before[i]), activation);
  result[i] = static_cast<T>(static_cast<float>(grad_output[i]) * at.derivative);
}

// Computes the gradient with respect to the pre-activations of a gated activation; a row has the
// gate in its first half and the gated values in its second.
template <typename T>
kernel void linear_act_gradient_gated(device T* result [[buffer(0)]],
                                      device const T* grad_output [[buffer(1)]],
                                      device const T* before [[buffer(2)]],
                                      constant LinearActivation& activation [[buffer(3)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint2 grid [[threads_per_grid]]) {
  const int64_t columns = grid.x;
  const int64_t row = position.y;
  const int64_t gate = 2 * row * columns + position.x;
  const activated at = activation_with_derivative(static_cast<float>(before[gate]), activation);
  const float other = static_cast<float>(before[gate + columns]);
  const float grad = static_cast<float>(grad_output[row * columns + position.x]);
  result[gate] = static_cast<T>(grad * other * at.derivative);
  result[gate + columns] = static_cast<T>(grad * at.value);
}

// Sums the columns of a matrix: a threadgroup of 256 threads has 32 columns, and each of its
// simdgroups adds every eighth row.
template <typename T>
kernel void linear_act_column_sums(device T* result [[buffer(0)]],
                                   device const T* matrix [[buffer(1)]],
                                   constant LinearColumns& sizes [[buffer(2)]],
                                   uint group [[threadgroup_position_in_grid]],
                                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[8][32];
  const int64_t column = group * 32 + lane;
  float sum = 0.0f;
  if (column < sizes.columns) {
    for (int64_t row = simdgroup; row < sizes.rows; row += 8) {
      sum += static_cast<float>(matrix[row * sizes.columns + column]);
    }
  }
  parts[simdgroup][lane] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0 && column < sizes.columns) {
    for (int part = 1; part < 8; ++part) {
      sum += parts[part][lane];
    }
    result[column] = static_cast<T>(sum);
  }
}

#define REGISTER_TILE(NAME, T, ...) \
  REGISTER_KERNEL("linear_act_" #NAME "_" #T, linear_act, T, matmul::Tile<__VA_ARGS__>)

#define REGISTER_TILES(T)                         \
  REGISTER_TILE(large, T, 64, 64, 2, 2);          \
  REGISTER_TILE(small, T, 16, 64, 1, 4);          \
  REGISTER_TILE(large_gated, T, 64, 64, 2, 2, 2); \
  REGISTER_TILE(small_gated, T, 16, 64, 1, 4, 2)

REGISTER_TILES(float);
REGISTER_TILES(half);
REGISTER_TILES(bfloat);

// Kernels without a tile GEMM are in the library without tensors only.
#if !defined(__HAVE_TENSOR__)

#define REGISTER_SKINNY(NAME, T, ...) \
  REGISTER_KERNEL("linear_act_" #NAME "_" #T, linear_act_skinny, T, __VA_ARGS__)

#define REGISTER_OTHERS(T)                                                        \
  REGISTER_SKINNY(skinny_1, T, 1, 4, 1);                                          \
  REGISTER_SKINNY(skinny, T, 4, 2, 1);                                            \
  REGISTER_SKINNY(skinny_1_gated, T, 1, 4, 2);                                    \
  REGISTER_SKINNY(skinny_gated, T, 4, 2, 2);                                      \
  REGISTER_KERNEL("linear_act_gradient_" #T, linear_act_gradient, T);             \
  REGISTER_KERNEL("linear_act_gradient_gated_" #T, linear_act_gradient_gated, T); \
  REGISTER_KERNEL("linear_act_column_sums_" #T, linear_act_column_sums, T)

REGISTER_OTHERS(float);
REGISTER_OTHERS(half);
REGISTER_OTHERS(bfloat);

#endif

// Batched GEMM of all dtypes: beta added + alpha left right^T. Sums of floating-point numbers are
// in float, and each result is rounded once; those of integers are exact modulo 2^bits. Nothing of
// the added matrix is read where it has no part in the result.
#include <c10/metal/utils.h>
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/matmul/gemm.h>
using namespace metal;
using metalops::GemmParameters;
namespace matmul = metalops::matmul;

// An epilogue: stores one product of the batch.
template <typename R>
struct StoreScaled {
  device R* result;
  device const R* added;
  int64_t row_stride;
  int64_t column_stride;
  int columns;
  float alpha;
  float beta;
  bool adds;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    float value = alpha * sums.of[0];
    if (adds) {
      value += beta * static_cast<float>(added[row * row_stride + column * column_stride]);
    }
    result[static_cast<int64_t>(row) * columns + column] = static_cast<R>(value);
  }
};

template <typename R>
inline StoreScaled<R> store_scaled(device R* results, device const R* addends, int64_t product,
                                   constant GemmParameters& p) {
  return {results + product * p.rows * p.columns,
          addends + product * p.added_strides[0],
          p.added_strides[1],
          p.added_strides[2],
          p.columns,
          p.alpha[0],
          p.beta[0],
          p.adds};
}

template <typename T>
inline matmul::Dense<T> left_of(device const T* left, int64_t product, constant GemmParameters& p) {
  return {left + product * p.left_step, p.left_stride, p.left_transposed};
}

template <typename T>
inline matmul::Dense<T> right_of(device const T* right, int64_t product,
                                 constant GemmParameters& p) {
  return {right + product * p.right_step, p.right_stride, p.right_transposed};
}

// Computes one tile of one product per threadgroup.
template <typename T, typename R, typename Tile>
kernel void gemm(device R* result [[buffer(0)]], device const T* left [[buffer(1)]],
                 device const T* right [[buffer(2)]], device const R* added [[buffer(3)]],
                 constant GemmParameters& p [[buffer(4)]],
                 uint group [[threadgroup_position_in_grid]],
                 uint index [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Dense<T>>()];
  const uint across = (static_cast<uint>(p.columns) + Tile::columns - 1) / Tile::columns;
  const uint down = (static_cast<uint>(p.rows) + Tile::rows - 1) / Tile::rows;
  const int64_t product = group / (across * down);
  const uint tile = group % (across * down);
  matmul::multiply_tile<Tile>(
      left_of(left, product, p), right_of(right, product, p),
      matmul::Sizes{p.rows, p.columns, p.inner}, store_scaled(result, added, product, p), workspace,
      uint2(tile % across, tile / across), matmul::Place{index, simdgroup, lane});
}

// GEMV with operands that are not transposed: a simdgroup computes four elements.
template <typename T, typename R>
kernel void gemm_row(device R* result [[buffer(0)]], device const T* left [[buffer(1)]],
                     device const T* right [[buffer(2)]], device const R* added [[buffer(3)]],
                     constant GemmParameters& p [[buffer(4)]],
                     uint group [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  const uint across = (static_cast<uint>(p.columns) + 15) / 16;
  const int64_t product = group / across;
  const int column = static_cast<int>(group % across * 16 + simdgroup * 4);
  matmul::multiply_skinny<1, 4, 1>(left_of(left, product, p), right_of(right, product, p),
                                   matmul::Sizes{p.rows, p.columns, p.inner},
                                   store_scaled(result, added, product, p), 0, column, lane);
}

// ---- integers and complex numbers ---------------------------------------------------------------

// How numbers of a dtype are multiplied: sum, the type of sums.
template <typename T>
struct Arithmetic {  // of integers, modulo 2^bits: without overflow of signed ones
  typedef conditional_t<sizeof(T) == 8, ulong, uint> sum;

  static inline sum of(T x) { return static_cast<sum>(x); }
  static inline sum product(sum a, sum b) { return a * b; }
  static inline sum alpha(constant GemmParameters& p) { return static_cast<sum>(p.integer_alpha); }
  static inline sum beta(constant GemmParameters& p) { return static_cast<sum>(p.integer_beta); }
};

struct ComplexArithmetic {
  typedef float2 sum;

  static inline float2 product(float2 a, float2 b) { return c10::metal::mul(a, b); }
  static inline float2 alpha(constant GemmParameters& p) { return float2(p.alpha[0], p.alpha[1]); }
  static inline float2 beta(constant GemmParameters& p) { return float2(p.beta[0], p.beta[1]); }
};
template <>
struct Arithmetic<float2> : ComplexArithmetic {
  static inline float2 of(float2 x) { return x; }
};
template <>
struct Arithmetic<half2> : ComplexArithmetic {
  static inline float2 of(half2 x) { return float2(x); }
};

// A threadgroup computes kSide x kSide elements, a thread 2 x 2 of them, 16 apart.
constant constexpr int kSide = 32;
constant constexpr int kDepth = 16;

// Stages elements [k, k + kDepth) of kSide lines, at [k][line]; those outside are zero.
template <typename T>
inline void stage_lines(threadgroup T* to, matmul::Dense<T> from, int first, int lines, int k,
                        int inner, int index) {
  for (int i = index; i < kSide * kDepth; i += 256) {
    const int line = from.is_transposed ? i % kSide : i / kDepth;
    const int at = from.is_transposed ? i / kSide : i % kDepth;
    const bool is_inside = first + line < lines && k + at < inner;
    to[at * (kSide + 1) + line] = is_inside ? *from.run(first + line, k + at) : T(0);
  }
}

template <typename T>
kernel void gemm_scalars(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                         device const T* right [[buffer(2)]], device const T* added [[buffer(3)]],
                         constant GemmParameters& p [[buffer(4)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint index [[thread_index_in_threadgroup]]) {
  typedef Arithmetic<T> A;
  threadgroup T lefts[kDepth * (kSide + 1)];
  threadgroup T rights[kDepth * (kSide + 1)];
  const uint across = (static_cast<uint>(p.columns) + kSide - 1) / kSide;
  const uint down = (static_cast<uint>(p.rows) + kSide - 1) / kSide;
  const int64_t product = group / (across * down);
  const uint tile = group % (across * down);
  const int row = static_cast<int>(tile / across) * kSide;
  const int column = static_cast<int>(tile % across) * kSide;
  const int y = static_cast<int>(index) / 16;
  const int x = static_cast<int>(index) % 16;
  typename A::sum sums[2][2] = {};
  for (int k = 0; k < p.inner; k += kDepth) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_lines(lefts, left_of(left, product, p), row, p.rows, k, p.inner, static_cast<int>(index));
    stage_lines(rights, right_of(right, product, p), column, p.columns, k, p.inner,
                static_cast<int>(index));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int at = 0; at < kDepth; ++at) {
      threadgroup const T* const a = lefts + at * (kSide + 1) + y;
      threadgroup const T* const b = rights + at * (kSide + 1) + x;
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) {
          sums[i][j] += A::product(A::of(a[i * 16]), A::of(b[j * 16]));
        }
      }
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const int r = row + y + i * 16;
      const int c = column + x + j * 16;
      if (r >= p.rows || c >= p.columns) {
        continue;
      }
      typename A::sum value = A::product(A::alpha(p), sums[i][j]);
      if (p.adds) {
        const T addend =
            added[product * p.added_strides[0] + r * p.added_strides[1] + c * p.added_strides[2]];
        value += A::product(A::beta(p), A::of(addend));
      }
      result[(product * p.rows + r) * p.columns + c] = static_cast<T>(value);
    }
  }
}

#define REGISTER_GEMM(T, R)                                                         \
  REGISTER_KERNEL("gemm_large_" #T "_" #R, gemm, T, R, matmul::Tile<64, 64, 2, 2>); \
  REGISTER_KERNEL("gemm_small_" #T "_" #R, gemm, T, R, matmul::Tile<16, 64, 1, 4>); \
  REGISTER_KERNEL("gemm_row_" #T "_" #R, gemm_row, T, R)
#define REGISTER_GEMM_SCALARS(T) REGISTER_KERNEL("gemm_scalars_" #T, gemm_scalars, T)

REGISTER_GEMM(float, float);
REGISTER_GEMM(half, half);
REGISTER_GEMM(half, float);
REGISTER_GEMM(bfloat, bfloat);
REGISTER_GEMM(bfloat, float);

REGISTER_GEMM_SCALARS(long);
REGISTER_GEMM_SCALARS(int);
REGISTER_GEMM_SCALARS(short);
REGISTER_GEMM_SCALARS(char);
REGISTER_GEMM_SCALARS(uchar);
REGISTER_GEMM_SCALARS(float2);
REGISTER_GEMM_SCALARS(half2);

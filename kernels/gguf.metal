// Weights of GGUF files: to floats, rows of them, and products with them. Sums are in float.
#include <c10/metal/error.h>
#include <metal_stdlib>

#include "gguf_blocks.h"
#include "matmul.h"
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::GgufLayout;
using metalops::GgufProduct;
namespace gguf = metalops::gguf;
namespace matmul = metalops::matmul;

namespace metalops {
namespace matmul {

struct GgufSource {
  device const uchar* data;
  constant GgufLayout* layout;
};

// GGUF weights as an operand of products of tiles, which are multiplied as T.
template <typename T>
struct Blocks {
  typedef T element;
  static constant constexpr bool is_decoded = true;
  static constant constexpr bool is_transposed = false;

  GgufSource source;
};

template <int COUNT, typename E, typename T>
inline void bring_run(threadgroup E* to, Blocks<T> from, int64_t line, int64_t k, int left) {
  for (int first = 0; first < COUNT; first += 8) {
    if (first < left) {
      const gguf::Eight values =
          gguf::eight(from.source.data, *from.source.layout, line, static_cast<int>(k) + first);
      for (int e = 0; e < 8; ++e) {
        to[first + e] = static_cast<E>(values.of[e]);
      }
    } else {
      for (int e = 0; e < 8; ++e) {
        to[first + e] = E(0);
      }
    }
  }
}

}  // namespace matmul
}  // namespace metalops

template <typename T>
struct store_row {
  device T* result;
  device const T* bias;
  int columns;
  bool has_bias;

  inline void operator()(int row, int column, matmul::Sums<1> sums) const {
    const float offset = has_bias ? static_cast<float>(bias[column]) : 0.0f;
    result[static_cast<int64_t>(row) * columns + column] = static_cast<T>(sums.of[0] + offset);
  }
};

// A threadgroup for each tile.
template <typename T, typename Tile>
kernel void gguf_tiles(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                       device const uchar* data [[buffer(2)]], device const T* bias [[buffer(3)]],
                       constant GgufProduct& p [[buffer(4)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T workspace[matmul::workspace<Tile, matmul::Blocks<T>>()];
  const uint across = (static_cast<uint>(p.columns) + Tile::columns - 1) / Tile::columns;
  const matmul::Dense<T> a{left, p.inner, false};
  const matmul::Blocks<T> b{{data, &p.right}};
  const matmul::Place place{uint2(group % across, group / across), index, simdgroup, lane};
  const store_row<T> epilogue{result, bias, p.columns, p.has_bias};
  matmul::multiply_tile<Tile>(a, b, matmul::Sizes{p.rows, p.columns, p.inner}, epilogue, workspace,
                              place);
}

#define REGISTER_TILE(NAME, T, ...)                                                            \
  template [[host_name("gguf_tiles_" #NAME "_" #T)]] kernel void                               \
  gguf_tiles<T, matmul::Tile<__VA_ARGS__>>(device T*, device const T*, device const uchar*,    \
                                           device const T*, constant GgufProduct&, uint, uint, \
                                           uint, uint)

#define REGISTER_TILES(T)                \
  REGISTER_TILE(small, T, 16, 64, 1, 4); \
  REGISTER_TILE(large, T, 64, 64, 2, 2)

REGISTER_TILES(float);
REGISTER_TILES(half);
REGISTER_TILES(bfloat);

#if !defined(__HAVE_TENSOR__)

// Two columns of ROWS rows by each of four simdgroups; lanes have eight neighbouring elements.
template <typename T, int ROWS>
kernel void gguf_few_rows(device T* result [[buffer(0)]], device const T* left [[buffer(1)]],
                          device const uchar* data [[buffer(2)]],
                          device const T* bias [[buffer(3)]], constant GgufProduct& p [[buffer(4)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  constexpr int columns = 2;
  const uint across = (static_cast<uint>(p.columns) + 4 * columns - 1) / (4 * columns);
  const int row = static_cast<int>(group / across) * ROWS;
  const int column = static_cast<int>(group % across * 4 + simdgroup) * columns;
  float sums[ROWS][columns];
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < columns; ++c) {
      sums[r][c] = 0.0f;
    }
  }
  for (int k = static_cast<int>(lane) * 8; k < p.inner; k += 256) {
    float inputs[ROWS][8];
    for (int r = 0; r < ROWS; ++r) {
      device const T* const x = left + static_cast<int64_t>(min(row + r, p.rows - 1)) * p.inner + k;
      for (int e = 0; e < 8; ++e) {
        inputs[r][e] = static_cast<float>(x[e]);
      }
    }
    for (int c = 0; c < columns; ++c) {
      const gguf::Eight values = gguf::eight(data, p.right, min(column + c, p.columns - 1), k);
      for (int r = 0; r < ROWS; ++r) {
        for (int e = 0; e < 8; ++e) {
          sums[r][c] = fma(inputs[r][e], values.of[e], sums[r][c]);
        }
      }
    }
  }
  const store_row<T> store{result, bias, p.columns, p.has_bias};
  for (int r = 0; r < ROWS; ++r) {
    for (int c = 0; c < columns; ++c) {
      matmul::Sums<1> total;
      total.of[0] = simd_sum(sums[r][c]);
      if (lane == 0 && row + r < p.rows && column + c < p.columns) {
        store(row + r, column + c, total);
      }
    }
  }
}

// A thread for eight elements of a line; of each line, or of those that are given.
template <typename T>
kernel void gguf_dequantize(device T* result [[buffer(0)]], device const uchar* data [[buffer(1)]],
                            device const int64_t* indices [[buffer(2)]],
                            constant GgufLayout& layout [[buffer(3)]],
                            constant bool& has_indices [[buffer(4)]],
                            device ErrorMessages* errors [[buffer(5)]],
                            uint2 position [[thread_position_in_grid]]) {
  int64_t line = position.y;
  if (has_indices) {
    line = indices[position.y];
    if (line < 0 || line >= layout.lines) {
      TORCH_REPORT_ERROR(errors, "gguf_embedding: index ", line, " is not one of ", layout.lines);
      return;
    }
  }
  const int k = static_cast<int>(position.x) * 8;
  const gguf::Eight values = gguf::eight(data, layout, line, k);
  device T* const to = result + static_cast<int64_t>(position.y) * layout.inner + k;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    vec<T, 4> four;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      four[e] = static_cast<T>(values.of[4 * i + e]);
    }
    reinterpret_cast<device vec<T, 4>*>(to)[i] = four;
  }
}

#define REGISTER_OTHERS(T)                                                                         \
  template [[host_name("gguf_one_row_" #T)]] kernel void gguf_few_rows<T, 1>(                      \
      device T*, device const T*, device const uchar*, device const T*, constant GgufProduct&,     \
      uint, uint, uint);                                                                           \
  template [[host_name("gguf_few_rows_" #T)]] kernel void gguf_few_rows<T, 4>(                     \
      device T*, device const T*, device const uchar*, device const T*, constant GgufProduct&,     \
      uint, uint, uint);                                                                           \
  template [[host_name("gguf_dequantize_" #T)]] kernel void gguf_dequantize<T>(                    \
      device T*, device const uchar*, device const int64_t*, constant GgufLayout&, constant bool&, \
      device ErrorMessages*, uint2)

REGISTER_OTHERS(float);
REGISTER_OTHERS(half);
REGISTER_OTHERS(bfloat);

#endif

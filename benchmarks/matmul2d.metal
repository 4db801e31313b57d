// C = A B by matmul2d, with sums in float, or of bytes in int: a tile of M x N for each
// threadgroup, all of the inner dimension at once (matmul2d_*; matmul2d_nt_* has B transposed in
// memory, as a linear layer's weight; matmul2d_relaxed_* relaxes the precision) or in steps of 32
// (matmul2d_steps_*).
//
// Threads: (columns / N * 32 * SIMDGROUPS, rows / M) in groups of (32 * SIMDGROUPS, 1). Sizes:
// rows, columns, inner.
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_stdlib>
#include <metal_tensor>
using namespace metal;
using namespace mpp::tensor_ops;

template <typename T>
using Matrix = tensor<device T, dextents<int, 2>, tensor_inline>;
// The type of a pointer to elements, and of the result.
template <typename T>
struct Stored {
  typedef T element;
  typedef T result;
};
template <>
struct Stored<char> {
  typedef char element;
  typedef int result;
};
#if defined(__HAVE_METAL_FP8_E4M3_FORMAT_TYPE__)  // Metal 4.1
typedef metal_fp8_e4m3_format e4m3;
typedef metal_fp8_e5m2_format e5m2;
template <>
struct Stored<e4m3> {
  typedef uchar element;
  typedef half result;
};
template <>
struct Stored<e5m2> {
  typedef uchar element;
  typedef half result;
};
#endif

// The tile of a threadgroup: down bands of eight tiles, so that threadgroups that run at the same
// time share rows and columns.
inline uint2 tile_of(uint2 group, uint2 groups) {
  const uint band = 8 * groups.x, index = group.y * groups.x + group.x;
  const uint first = index / band * 8, rows = min(8u, groups.y - first);
  return uint2(index % band / rows, first + index % band % rows);
}

template <typename T, int M, int N, int SIMDGROUPS, bool IS_TRANSPOSED, bool IS_RELAXED = false>
kernel void product(device typename Stored<T>::element* a, device typename Stored<T>::element* b,
                    device typename Stored<T>::result* c, constant int3& sizes,
                    uint2 group [[threadgroup_position_in_grid]],
                    uint2 groups [[threadgroups_per_grid]]) {
  constexpr auto description =
      matmul2d_descriptor(M, N, static_cast<int>(dynamic_extent), false, IS_TRANSPOSED, IS_RELAXED);
  matmul2d<description, execution_simdgroups<SIMDGROUPS>> op;
  const int rows = sizes.x, columns = sizes.y, inner = sizes.z;
  const uint2 tile = tile_of(group, groups);
  const int row = int(tile.y) * M, column = int(tile.x) * N;
  auto left = Matrix<T>(a, dextents<int, 2>(inner, rows)).slice(0, row);
  auto right = IS_TRANSPOSED ? Matrix<T>(b, dextents<int, 2>(inner, columns)).slice(0, column)
                             : Matrix<T>(b, dextents<int, 2>(columns, inner)).slice(column, 0);
  auto result = Matrix<typename Stored<T>::result>(c, dextents<int, 2>(columns, rows));
  auto tile_of_result = result.slice(column, row);
  op.run(left, right, tile_of_result);
}

template <typename T, int M, int N, int SIMDGROUPS>
kernel void product_in_steps(device T* a, device T* b, device T* c, constant int3& sizes,
                             uint2 group [[threadgroup_position_in_grid]],
                             uint2 groups [[threadgroups_per_grid]]) {
  constexpr auto description = matmul2d_descriptor(M, N, 32, false, false, false,
                                                   matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<description, execution_simdgroups<SIMDGROUPS>> op;
  const int rows = sizes.x, columns = sizes.y, inner = sizes.z;
  const uint2 tile = tile_of(group, groups);
  const int row = int(tile.y) * M, column = int(tile.x) * N;
  auto left = Matrix<T>(a, dextents<int, 2>(inner, rows));
  auto right = Matrix<T>(b, dextents<int, 2>(columns, inner));
  auto result = Matrix<T>(c, dextents<int, 2>(columns, rows)).slice(column, row);
  auto sums = op.template get_destination_cooperative_tensor<Matrix<T>, Matrix<T>, float>();
#pragma clang loop unroll(full)
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) sums[i] = 0.0f;
  for (int k = 0; k < inner; k += 32) {
    auto x = left.slice(k, row);
    auto y = right.slice(column, k);
    op.run(x, y, sums);
  }
#pragma clang loop unroll(full)
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    if (sums.is_valid_element(i)) {
      auto at = sums.get_multidimensional_index(i);
      result.store(T(sums[i]), at[0], at[1]);
    }
  }
}

#define INSTANTIATE(KERNEL, NAME, T, M, N, SIMDGROUPS, ...)                     \
  template [[host_name(NAME "_" #T "_" #M "x" #N "_" #SIMDGROUPS)]] kernel void \
  KERNEL<T, M, N, SIMDGROUPS, ##__VA_ARGS__>(                                   \
      device typename Stored<T>::element*, device typename Stored<T>::element*, \
      device typename Stored<T>::result*, constant int3&, uint2, uint2);
#define INSTANTIATE_TILES(T)                                \
  INSTANTIATE(product, "matmul2d", T, 64, 64, 4, false)     \
  INSTANTIATE(product, "matmul2d", T, 128, 64, 4, false)    \
  INSTANTIATE(product, "matmul2d", T, 128, 128, 4, false)   \
  INSTANTIATE(product, "matmul2d", T, 128, 128, 8, false)   \
  INSTANTIATE(product, "matmul2d", T, 128, 256, 8, false)   \
  INSTANTIATE(product, "matmul2d_nt", T, 128, 256, 8, true) \
  INSTANTIATE(product_in_steps, "matmul2d_steps", T, 64, 64, 4)
INSTANTIATE_TILES(half)
INSTANTIATE_TILES(bfloat)
#define INSTANTIATE_LARGE_TILES(NAME, T, IS_RELAXED)            \
  INSTANTIATE(product, NAME, T, 128, 256, 8, false, IS_RELAXED) \
  INSTANTIATE(product, NAME "_nt", T, 128, 256, 8, true, IS_RELAXED)
INSTANTIATE_LARGE_TILES("matmul2d", char, false)
INSTANTIATE_LARGE_TILES("matmul2d_relaxed", float, true)
INSTANTIATE_LARGE_TILES("matmul2d", float, false)
INSTANTIATE(product, "matmul2d", char, 128, 128, 4, false)
INSTANTIATE(product, "matmul2d_nt", char, 128, 128, 4, true)
INSTANTIATE(product, "matmul2d", char, 256, 128, 8, false)
INSTANTIATE(product, "matmul2d_relaxed", float, 256, 128, 8, false, true)
INSTANTIATE(product, "matmul2d", float, 64, 64, 4, false)
#if defined(__HAVE_METAL_FP8_E4M3_FORMAT_TYPE__)
INSTANTIATE_LARGE_TILES("matmul2d_relaxed", e4m3, true)
INSTANTIATE_LARGE_TILES("matmul2d_relaxed", e5m2, true)
INSTANTIATE_LARGE_TILES("matmul2d", e4m3, false)
INSTANTIATE(product, "matmul2d_relaxed", e4m3, 256, 128, 8, false, true)
#endif

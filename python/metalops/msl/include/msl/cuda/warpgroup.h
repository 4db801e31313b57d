// Products by the tensor cores of compute capability 9.0, which take their factors from shared
// memory by themselves: what four warps, which begin at a multiple of four, do together.
#pragma once

#include <msl/cuda/tensor_cores.h>

namespace msl::msl_impl {

// Where blocks of an operand are in shared memory, as StagedBlock has them. between_blocks: bytes
// between columns of lines, if there are several; between_eights: between eights of lines.
template <int LineBytes>
MSL_INLINE constexpr abi::u64 matrix_in_memory(int between_blocks, int between_eights) {
  constexpr abi::u64 swizzle = LineBytes == 128 ? 1 : LineBytes == 64 ? 2 : 3;
  return swizzle << 62 | abi::u64(between_eights / 16) << 32 | abi::u64(between_blocks / 16) << 16;
}
MSL_INLINE abi::u64 matrix_at(abi::u64 description, abi::u32 address) {
  return description | (address & 0x3ffffu) >> 4;
}

// What was written to shared memory is there for the tensor cores too, after a barrier.
MSL_INLINE void show_to_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
MSL_INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MSL_INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until what ended before is there.
MSL_INLINE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// The instructions for 64 x 16 by 16 x N elements, as compilers take them. SUMS: the operands for
// the sums, each eight with the pairs of two rows in turn, NUMBERS: their places, OTHERS: what
// follows.
#define MSL_SUMS_8(I)                                                                        \
  "+f"(sums[I]), "+f"(sums[I + 1]), "+f"(sums[I + 4]), "+f"(sums[I + 5]), "+f"(sums[I + 2]), \
      "+f"(sums[I + 3]), "+f"(sums[I + 6]), "+f"(sums[I + 7])
#define MSL_SUMS_32(I) MSL_SUMS_8(I), MSL_SUMS_8(I + 8), MSL_SUMS_8(I + 16), MSL_SUMS_8(I + 24)
#define MSL_SUMS_OF_16 MSL_SUMS_8(0)
#define MSL_SUMS_OF_32 MSL_SUMS_8(0), MSL_SUMS_8(8)
#define MSL_SUMS_OF_64 MSL_SUMS_32(0)
#define MSL_SUMS_OF_128 MSL_SUMS_32(0), MSL_SUMS_32(32)
#define MSL_WGMMA(N, TYPE, SUMS, NUMBERS, OTHERS)                                         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" #N \
               "k16.f32." TYPE "." TYPE " {" NUMBERS "}, " OTHERS ";}"                    \
               : SUMS                                                                     \
               : "l"(a), "l"(b), "n"(int(!LeftDeep)), "n"(int(!RightDeep)))
#define MSL_WGMMA_16(TYPE) \
  MSL_WGMMA(16, TYPE, MSL_SUMS_OF_16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, p, 1, 1, %10, %11")
#define MSL_WGMMA_32(TYPE)                                                          \
  MSL_WGMMA(32, TYPE, MSL_SUMS_OF_32,                                               \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", \
            "%16, %17, p, 1, 1, %18, %19")
#define MSL_WGMMA_64(TYPE)                                                                     \
  MSL_WGMMA(64, TYPE, MSL_SUMS_OF_64,                                                          \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
            "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",            \
            "%32, %33, p, 1, 1, %34, %35")
#define MSL_WGMMA_128(TYPE)                                                                    \
  MSL_WGMMA(128, TYPE, MSL_SUMS_OF_128,                                                        \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
            "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, " \
            "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
            "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63",            \
            "%64, %65, p, 1, 1, %66, %67")

// sums += a b for 64 x 16 elements of a, of which each warp has sixteen rows, and 16 x N of b; sums
// as WarpTile<16, N> has them. LeftDeep, RightDeep: whether lines go along the inner dimension.
template <class T, int N, bool LeftDeep, bool RightDeep>
MSL_INLINE void multiply_in_warpgroup(float* sums, abi::u64 a, abi::u64 b) {
  constexpr bool is_half = same<T, half>;
  if constexpr (N == 128 && is_half) MSL_WGMMA_128("f16");
  if constexpr (N == 128 && !is_half) MSL_WGMMA_128("bf16");
  if constexpr (N == 64 && is_half) MSL_WGMMA_64("f16");
  if constexpr (N == 64 && !is_half) MSL_WGMMA_64("bf16");
  if constexpr (N == 32 && is_half) MSL_WGMMA_32("f16");
  if constexpr (N == 32 && !is_half) MSL_WGMMA_32("bf16");
  if constexpr (N == 16 && is_half) MSL_WGMMA_16("f16");
  if constexpr (N == 16 && !is_half) MSL_WGMMA_16("bf16");
}

}  // namespace msl::msl_impl

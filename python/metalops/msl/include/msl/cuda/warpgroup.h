// wgmma: tensor core products of compute capability 9.0, which read their factors from shared
// memory themselves. Run by a warpgroup: four warps, the first of which is a multiple of four.
#pragma once

#include <msl/cuda/tensor_cores.h>
#include <msl/numeric_format.h>

namespace msl::msl_impl {

// Returns the wgmma matrix descriptor, without an address, of blocks in shared memory laid out as
// StagedBlock. between_blocks: bytes between columns of lines, if there are several;
// between_eights: bytes between groups of eight lines.
template <int LineBytes>
MSL_INLINE constexpr abi::u64 matrix_in_memory(int between_blocks, int between_eights) {
  constexpr abi::u64 swizzle = LineBytes == 128 ? 1 : LineBytes == 64 ? 2 : 3;
  return swizzle << 62 | abi::u64(between_eights / 16) << 32 | abi::u64(between_blocks / 16) << 16;
}
MSL_INLINE abi::u64 matrix_at(abi::u64 description, abi::u32 address) {
  return description | (address & 0x3ffffu) >> 4;
}

// Makes writes to shared memory visible to the tensor cores (async proxy), after a barrier.
MSL_INLINE void show_to_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
MSL_INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MSL_INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all but the last Left committed groups of products.
template <int Left>
MSL_INLINE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
// Keeps the compiler from moving reads and writes of sums across this point: it does not know that
// products in flight still write to them.
template <int Count>
MSL_INLINE void pin_sums(float* sums) {
  MSL_UNROLLED
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int Count>
MSL_INLINE void pin_sums(int* sums) {
  MSL_UNROLLED
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}

// A factor of which tensor cores take the sign, the exponent and ten bits of the mantissa. It is
// stored as a float.
struct Tf32 {
  abi::u32 bits;
};
template <class T>
using SumOfFactors =
    metal::conditional_t<same<T, signed char> || same<T, unsigned char>, int, float>;
// Tensor cores read factors of 16 bits from lines along K or across it, all others along K only.
template <class T>
inline constexpr bool is_read_across = sizeof(T) == 2;

// Operands for the sums of an instruction, with the constraint C; each eight of them list the pairs
// of two rows in turn. MSL_NUMBERS_OF_*: their operand numbers.
#define MSL_SUMS_8(C, I)                                                                      \
  C(sums[I]), C(sums[I + 1]), C(sums[I + 4]), C(sums[I + 5]), C(sums[I + 2]), C(sums[I + 3]), \
      C(sums[I + 6]), C(sums[I + 7])
#define MSL_SUMS_32(C, I) \
  MSL_SUMS_8(C, I), MSL_SUMS_8(C, I + 8), MSL_SUMS_8(C, I + 16), MSL_SUMS_8(C, I + 24)
#define MSL_SUMS_OF_16(C) MSL_SUMS_8(C, 0)
#define MSL_SUMS_OF_32(C) MSL_SUMS_8(C, 0), MSL_SUMS_8(C, 8)
#define MSL_SUMS_OF_64(C) MSL_SUMS_32(C, 0)
#define MSL_SUMS_OF_128(C) MSL_SUMS_32(C, 0), MSL_SUMS_32(C, 32)
#define MSL_SUMS_OF_256(C) MSL_SUMS_OF_128(C), MSL_SUMS_32(C, 64), MSL_SUMS_32(C, 96)
#define MSL_NUMBERS_OF_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MSL_NUMBERS_OF_32 MSL_NUMBERS_OF_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MSL_NUMBERS_OF_64 \
  MSL_NUMBERS_OF_32       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MSL_NUMBERS_OF_128                                                                  \
  MSL_NUMBERS_OF_64                                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MSL_NUMBERS_OF_256                                                                     \
  MSL_NUMBERS_OF_128                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "    \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, " \
  "%99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, "  \
  "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The wgmma instructions for 64 x 16 by 16 x N elements of 16 bits. P: the number of the predicate,
// whether products are added to the sums. OTHERS: the operands after the sums.
#define MSL_WGMMA(N, TYPE, P, OTHERS)                                                         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
               "k16.f32." TYPE "." TYPE " {" MSL_NUMBERS_OF_##N "}, " OTHERS ";}"             \
               : MSL_SUMS_OF_##N("+f")                                                        \
               : "l"(a), "l"(b), "n"(int(!LeftDeep)), "n"(int(!RightDeep)), "r"(abi::u32(adds)))
#define MSL_WGMMA_16(TYPE) MSL_WGMMA(16, TYPE, "%12", "%8, %9, p, 1, 1, %10, %11")
#define MSL_WGMMA_32(TYPE) MSL_WGMMA(32, TYPE, "%20", "%16, %17, p, 1, 1, %18, %19")
#define MSL_WGMMA_64(TYPE) MSL_WGMMA(64, TYPE, "%36", "%32, %33, p, 1, 1, %34, %35")
#define MSL_WGMMA_128(TYPE) MSL_WGMMA(128, TYPE, "%68", "%64, %65, p, 1, 1, %66, %67")
#define MSL_WGMMA_256(TYPE) MSL_WGMMA(256, TYPE, "%132", "%128, %129, p, 1, 1, %130, %131")

// Likewise of 32 bytes of factors that are read along K only. C: the constraint of sums. OTHERS:
// also the signs of float factors.
#define MSL_WGMMA_ALONG(N, TYPES, C, P, OTHERS)                                          \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " P                                        \
               ", 0; wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" MSL_NUMBERS_OF_##N \
               "}, " OTHERS ";}"                                                         \
               : MSL_SUMS_OF_##N(C)                                                      \
               : "l"(a), "l"(b), "r"(abi::u32(adds)))
#define MSL_WGMMA_ALONG_16(TYPES, C, SIGNS) MSL_WGMMA_ALONG(16, TYPES, C, "%10", "%8, %9, p" SIGNS)
#define MSL_WGMMA_ALONG_32(TYPES, C, SIGNS) \
  MSL_WGMMA_ALONG(32, TYPES, C, "%18", "%16, %17, p" SIGNS)
#define MSL_WGMMA_ALONG_64(TYPES, C, SIGNS) \
  MSL_WGMMA_ALONG(64, TYPES, C, "%34", "%32, %33, p" SIGNS)
#define MSL_WGMMA_ALONG_128(TYPES, C, SIGNS) \
  MSL_WGMMA_ALONG(128, TYPES, C, "%66", "%64, %65, p" SIGNS)
#define MSL_WGMMA_ALONG_256(TYPES, C, SIGNS) \
  MSL_WGMMA_ALONG(256, TYPES, C, "%130", "%128, %129, p" SIGNS)
#define MSL_WGMMA_ALONG_OF(TYPES, C, SIGNS)                     \
  if constexpr (N == 256) MSL_WGMMA_ALONG_256(TYPES, C, SIGNS); \
  if constexpr (N == 128) MSL_WGMMA_ALONG_128(TYPES, C, SIGNS); \
  if constexpr (N == 64) MSL_WGMMA_ALONG_64(TYPES, C, SIGNS);   \
  if constexpr (N == 32) MSL_WGMMA_ALONG_32(TYPES, C, SIGNS);   \
  if constexpr (N == 16) MSL_WGMMA_ALONG_16(TYPES, C, SIGNS)

// Returns how many columns of a product of so many one instruction computes.
constexpr int widest_instruction(int columns) {
  return columns == 256       ? 256
         : columns % 128 == 0 ? 128
         : columns % 64 == 0  ? 64
         : columns % 32 == 0  ? 32
                              : 16;
}

// sums = a b, or += if it `adds`, for 64 lines of a, sixteen rows for each warp, and N of b, both
// of 32 bytes along K; sums in the layout of WarpTile<16, N>. LeftDeep, RightDeep: lines run along
// K.
template <class T, int N, bool LeftDeep, bool RightDeep>
MSL_INLINE void multiply_in_warpgroup(SumOfFactors<T>* sums, abi::u64 a, abi::u64 b,
                                      bool adds = true) {
  static_assert(is_read_across<T> || (LeftDeep && RightDeep));
  if constexpr (same<T, signed char>) {
    MSL_WGMMA_ALONG_OF("k32.s32.s8.s8", "+r", "");
  } else if constexpr (same<T, unsigned char>) {
    MSL_WGMMA_ALONG_OF("k32.s32.u8.u8", "+r", "");
  } else if constexpr (same<T, Tf32>) {
    MSL_WGMMA_ALONG_OF("k8.f32.tf32.tf32", "+f", ", 1, 1");
  } else if constexpr (same<T, metal::metal_fp8_e4m3_format>) {
    MSL_WGMMA_ALONG_OF("k32.f32.e4m3.e4m3", "+f", ", 1, 1");
  } else if constexpr (same<T, metal::metal_fp8_e5m2_format>) {
    MSL_WGMMA_ALONG_OF("k32.f32.e5m2.e5m2", "+f", ", 1, 1");
  } else {
    constexpr bool is_half = same<T, half>;
    if constexpr (N == 256 && is_half) MSL_WGMMA_256("f16");
    if constexpr (N == 256 && !is_half) MSL_WGMMA_256("bf16");
    if constexpr (N == 128 && is_half) MSL_WGMMA_128("f16");
    if constexpr (N == 128 && !is_half) MSL_WGMMA_128("bf16");
    if constexpr (N == 64 && is_half) MSL_WGMMA_64("f16");
    if constexpr (N == 64 && !is_half) MSL_WGMMA_64("bf16");
    if constexpr (N == 32 && is_half) MSL_WGMMA_32("f16");
    if constexpr (N == 32 && !is_half) MSL_WGMMA_32("bf16");
    if constexpr (N == 16 && is_half) MSL_WGMMA_16("f16");
    if constexpr (N == 16 && !is_half) MSL_WGMMA_16("bf16");
  }
}

// Likewise with the left operand in registers: a fragment of each warp. P: the operand number of
// the predicate, whether products are added to the sums.
#define MSL_WGMMA_OF_REGISTERS(N, TYPE, P, OTHERS)                                            \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
               "k16.f32." TYPE "." TYPE " {" MSL_NUMBERS_OF_##N "}, " OTHERS ";}"             \
               : MSL_SUMS_OF_##N("+f")                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(abi::u32(adds)),     \
                 "n"(int(!RightDeep)))
#define MSL_WGMMA_OF_REGISTERS_32(TYPE) \
  MSL_WGMMA_OF_REGISTERS(32, TYPE, "%21", "{%16, %17, %18, %19}, %20, p, 1, 1, %22")
#define MSL_WGMMA_OF_REGISTERS_64(TYPE) \
  MSL_WGMMA_OF_REGISTERS(64, TYPE, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38")
#define MSL_WGMMA_OF_REGISTERS_128(TYPE) \
  MSL_WGMMA_OF_REGISTERS(128, TYPE, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70")
#define MSL_WGMMA_OF_REGISTERS_256(TYPE) \
  MSL_WGMMA_OF_REGISTERS(256, TYPE, "%133", "{%128, %129, %130, %131}, %132, p, 1, 1, %134")

// sums = a b, or += if it `adds`, for a in registers: 16 rows of each warp.
template <class T, int N, bool RightDeep>
MSL_INLINE void multiply_registers_in_warpgroup(float* sums, const abi::u32 (&a)[4], abi::u64 b,
                                                bool adds) {
  constexpr bool is_half = same<T, half>;
  if constexpr (N == 256 && is_half) MSL_WGMMA_OF_REGISTERS_256("f16");
  if constexpr (N == 256 && !is_half) MSL_WGMMA_OF_REGISTERS_256("bf16");
  if constexpr (N == 128 && is_half) MSL_WGMMA_OF_REGISTERS_128("f16");
  if constexpr (N == 128 && !is_half) MSL_WGMMA_OF_REGISTERS_128("bf16");
  if constexpr (N == 64 && is_half) MSL_WGMMA_OF_REGISTERS_64("f16");
  if constexpr (N == 64 && !is_half) MSL_WGMMA_OF_REGISTERS_64("bf16");
  if constexpr (N == 32 && is_half) MSL_WGMMA_OF_REGISTERS_32("f16");
  if constexpr (N == 32 && !is_half) MSL_WGMMA_OF_REGISTERS_32("bf16");
}

}  // namespace msl::msl_impl

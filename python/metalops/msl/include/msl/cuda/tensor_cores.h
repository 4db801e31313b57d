// Tensor core instructions (mma, ldmatrix, cp.async) of NVIDIA's GPUs, from compute capability 8.0
// on. All 32 lanes of a warp run each of them together.
//
// An 8 x 8 matrix of 16-bit elements is one word per lane: two adjacent elements of row lane / 4,
// from column lane % 4 * 2 on, the first in the lower half.
#pragma once

#include <msl/half.h>

namespace msl::msl_impl {

#if __CUDA_ARCH__ >= 800
template <class T>
inline constexpr bool is_of_tensor_cores = same<T, half> || same<T, bfloat>;
#else
template <class T>
inline constexpr bool is_of_tensor_cores = false;
#endif

MSL_INLINE abi::u32 transposed(abi::u32 matrix) {
  abi::u32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(matrix));
  return result;
}

// mma.m16n8k8: (x, y) += a b for 8 x 8 matrices of half or bfloat, b transposed; x and y are this
// lane's two adjacent elements of a float matrix. Products are exact, sums those of the tensor
// cores. The instruction multiplies 16 x 8 by 8 x 8: the second eight rows are left empty.
template <class T>
MSL_INLINE void multiply_accumulate_8x8x8(float& x, float& y, abi::u32 a, abi::u32 b) {
  float empty_x = 0, empty_y = 0;
  const abi::u32 empty = 0;
  if constexpr (same<T, half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(empty_x), "+f"(empty_y)
        : "r"(a), "r"(empty), "r"(b));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(x), "+f"(y), "+f"(empty_x), "+f"(empty_y)
        : "r"(a), "r"(empty), "r"(b));
  }
}

// Packs two adjacent elements of a 16-bit matrix.
template <class T>
MSL_INLINE abi::u32 pair_of(float first, float second) {
  return abi::u32(T(first).bits) | abi::u32(T(second).bits) << 16;
}

// mma.m16n8k16: sums += a b for 16 x 16 elements of a and 16 x 8 of b. a: two adjacent elements of
// row lane / 4 from column lane % 4 * 2 on, those eight rows below, and both again eight columns to
// the right. b: the same of its transpose, without the rows below. sums: two adjacent elements of a
// row, and those eight rows below.
template <class T>
MSL_INLINE void multiply_accumulate_16x8x16(float& s0, float& s1, float& s2, float& s3,
                                            const abi::u32 (&a)[4], abi::u32 b0, abi::u32 b1) {
  if constexpr (same<T, half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// ldmatrix.x4: loads four 8 x 8 matrices from shared memory. Lane 8 i + j passes the address of row
// j of matrix i.
template <bool IsTransposed>
MSL_INLINE void load_matrices(abi::u32 (&to)[4], abi::u32 row) {
  if constexpr (IsTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  }
}

// In inline assembly, because NVRTC 13.0 sometimes crashes when it analyses pointers to arrays in
// registers.
MSL_INLINE abi::u64 address_of(const void* generic) {
  abi::u64 address;
  asm("mov.b64 %0, %1;" : "=l"(address) : "l"(generic));
  return address;
}
MSL_INLINE bool is_global(abi::u64 address) {
  abi::u32 is;
  asm("{\n.reg .pred p;\nisspacep.global p, %1;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(is)
      : "l"(address));
  return is != 0;
}
// cp.async: starts copying 16 bytes from global to shared memory; those beyond `bytes` are
// zero-filled.
MSL_INLINE void copy_ahead(abi::u32 to, abi::u64 from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
MSL_INLINE void copy_ahead(abi::u32 to, abi::u64 from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
MSL_INLINE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last N groups of copies have arrived.
template <int N>
MSL_INLINE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace msl::msl_impl

// GEMV with quantised weights, for GPUs with many registers. A lane keeps 32 elements of the input
// vector in registers, and loads nothing but weights while it loops over rows of W ("lines"). All
// simdgroups of a threadgroup have the same lines, and 1024 elements of K each.
#pragma once
#include <metal_simdgroup>
#include <metal_stdlib>

#include <kernels/quantized/skinny_gemm.h>

namespace metalops {
namespace gemv {

// Lines per load: a lane loads as many while it multiplies the ones before.
constant constexpr int kTogether = 2;
// Limit on a threadgroup's lines times its simdgroups.
constant constexpr int kMostParts = 128;
// With this limit, GPUs of 65536 registers have 32 resident simdgroups; with fewer, too few loads
// are in flight.
constant constexpr int kMostThreads = 1024;

// Loads COUNT adjacent elements that begin at a 16-byte boundary, 16 bytes at a time. Lanes'
// elements are far apart, so the number of loads matters.
template <int COUNT, typename T>
inline void load_adjacent(thread float* to, device const T* from) {
  constexpr int in_word = 4 / sizeof(T);
#pragma unroll
  for (int i = 0; i < COUNT / (4 * in_word); ++i) {
    const uint4 words = reinterpret_cast<device const uint4*>(from)[i];
#pragma unroll
    for (int e = 0; e < 4 * in_word; ++e) {
      const auto of_word = ::metal::as_type<::metal::vec<T, in_word>>(words[e / in_word]);
      to[i * 4 * in_word + e] = static_cast<float>(of_word[e % in_word]);
    }
  }
}
template <int COUNT>
inline void load_adjacent(thread float* to, device const float* from) {
  skinny::load_adjacent<COUNT>(to, from);
}

// Returns the first line of a threadgroup that has `lines` lines, at most `columns`. The last
// threadgroup ends at the last column and may overlap the one before.
inline int first_line(uint group, int lines, int columns) {
  return ::metal::min(static_cast<int>(group) * lines, columns - lines);
}

// Sums each line's partial results over lanes and simdgroups, and stores the totals. parts: for
// each simdgroup, its lines, of 32 lanes each.
template <typename T>
inline void store_lines(skinny::StoreRow<T> store, threadgroup const float* parts, uint group,
                        int lines, uint simdgroups, uint simdgroup, uint lane) {
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  for (int from = 0; from < lines; from += static_cast<int>(simdgroups)) {
    const int line = ::metal::min(from + static_cast<int>(simdgroup), lines - 1);
    float total = 0.0f;
    for (int i = 0; i < static_cast<int>(simdgroups); ++i) {
      total += parts[(i * lines + line) * 32 + static_cast<int>(lane)];
    }
    total = ::metal::simd_sum(total);
    if (lane == 0 && from + static_cast<int>(simdgroup) < lines) {
      store(0, first_line(group, lines, store.columns) + line, total);
    }
  }
}

}  // namespace gemv
}  // namespace metalops

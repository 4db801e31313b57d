// What products of one row with encoded weights have in common on GPUs whose registers are many: a
// lane keeps 32 elements of the row, and all that it loads while it goes through lines of weights
// are weights. The simdgroups of a threadgroup have the same lines, and 1024 elements of them each.
#pragma once
#include <metal_simdgroup>
#include <metal_stdlib>

#include <kernels/quantized/skinny_gemm.h>

namespace metalops {
namespace one_row {

// That a lane loads at once, while it multiplies as many that it has.
constant constexpr int kTogether = 2;
// Of a threadgroup: its lines times its simdgroups.
constant constexpr int kMostParts = 128;
// So that GPUs of 65536 registers have 32 simdgroups: with fewer, less is on its way from memory.
constant constexpr int kMostThreads = 1024;

// COUNT neighbours, which 16 bytes begin with: lanes have them far from each other, so that the
// number of loads is what counts.
template <int COUNT, typename T>
inline void neighbours(thread float* to, device const T* from) {
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
inline void neighbours(thread float* to, device const float* from) {
  few_rows::neighbours<COUNT>(to, from);
}

// The first line of a threadgroup of `lines`, which are no more than columns. Those of the last one
// end where the columns do: it may have some that the one before has too.
inline int first_line(uint group, int lines, int columns) {
  return ::metal::min(static_cast<int>(group) * lines, columns - lines);
}

// Adds up what lanes and simdgroups have of each line, and stores it. parts: a simdgroup has those
// of its lines one after the other, of 32 lanes each.
template <typename T>
inline void store_lines(few_rows::StoreRow<T> store, threadgroup const float* parts, uint group,
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

}  // namespace one_row
}  // namespace metalops

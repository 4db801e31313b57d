// The first elements of runs of equal ones, the number of the run that each element is in, and
// where runs begin. Runs are counted in blocks, the counts are summed, and each block then knows
// the number of its first run: no atomics, however many elements are equal.
//
// NaN is equal to nothing, and -0 is equal to 0.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_simdgroup>
#include <metal_stdlib>

#include <kernels/reduction/unique.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kPerThread = kUniqueBlock / kUniqueThreads;
constant constexpr uint kSimdgroups = kUniqueThreads / 32;

// Returns whether a run begins with element i. The elements are compared by their bits.
template <typename K>
inline bool begins_run(device const K* elements, int i, constant UniqueParameters& p) {
  if (i == 0) {
    return true;
  }
  const K a = elements[i - 1];
  const K b = elements[i];
  if (p.is_float != 0) {
    const K sign = static_cast<K>(static_cast<K>(1) << (8 * sizeof(K) - 1));
    const K mask = static_cast<K>(~sign);
    const K infinity = static_cast<K>(p.infinity);
    if (static_cast<K>(a & mask) > infinity || static_cast<K>(b & mask) > infinity) {
      return true;
    }
    if (static_cast<K>((a | b) & mask) == 0) {
      return false;
    }
  }
  return a != b;
}

// Returns the sum of the counts of the threads before this one. sums: those of simdgroups, written
// here; total: that of all threads.
inline uint sum_before(uint count, threadgroup uint* sums, uint thread_index, thread uint& total) {
  const uint in_simdgroup = simd_prefix_exclusive_sum(count);
  if (thread_index % 32 == 31) {
    sums[thread_index / 32] = in_simdgroup + count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = 0;
  total = 0;
  for (uint i = 0; i < kSimdgroups; ++i) {
    before += i < thread_index / 32 ? sums[i] : 0;
    total += sums[i];
  }
  return before + in_simdgroup;
}

// Counts the runs that begin in each block.
template <typename K>
kernel void unique_count(device int* counts [[buffer(0)]], device const K* elements [[buffer(1)]],
                         constant UniqueParameters& p [[buffer(2)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup uint sums[kSimdgroups];
  const int first = static_cast<int>(group * kUniqueBlock);
  uint count = 0;
  for (uint i = thread_index; i < kUniqueBlock; i += kUniqueThreads) {
    const int element = first + static_cast<int>(i);
    count += element < p.elements && begins_run(elements, element, p) ? 1 : 0;
  }
  uint total;
  sum_before(count, sums, thread_index, total);
  if (thread_index == 0) {
    counts[group] = static_cast<int>(total);
  }
}

// Turns the counts of blocks into the sums of those before them, and adds the sum of all. One
// threadgroup.
kernel void unique_offsets(device int* counts [[buffer(0)]],
                           constant UniqueParameters& p [[buffer(1)]],
                           uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup uint sums[kSimdgroups];
  uint before = 0;
  for (int first = 0; first < p.blocks; first += static_cast<int>(kUniqueThreads)) {
    const int block = first + static_cast<int>(thread_index);
    const uint count = block < p.blocks ? static_cast<uint>(counts[block]) : 0;
    uint total;
    const uint sum = sum_before(count, sums, thread_index, total);
    if (block < p.blocks) {
      counts[block] = static_cast<int>(before + sum);
    }
    before += total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (thread_index == 0) {
    counts[p.blocks] = static_cast<int>(before);
  }
}

// Writes the first element of each run, where it begins, and the runs of the elements.
template <typename K>
kernel void unique_write(device K* unique [[buffer(0)]], device long* begins [[buffer(1)]],
                         device long* inverse [[buffer(2)]], device const K* elements [[buffer(3)]],
                         device const long* order [[buffer(4)]],
                         device const int* offsets [[buffer(5)]],
                         constant UniqueParameters& p [[buffer(6)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup uint sums[kSimdgroups];
  const int first = static_cast<int>(group * kUniqueBlock + thread_index * kPerThread);
  uint flags = 0;
  for (uint i = 0; i < kPerThread; ++i) {
    const int element = first + static_cast<int>(i);
    flags |= element < p.elements && begins_run(elements, element, p) ? 1u << i : 0u;
  }
  uint total;
  const uint sum = sum_before(popcount(flags), sums, thread_index, total);
  int run = offsets[group] + static_cast<int>(sum) - 1;
  for (uint i = 0; i < kPerThread; ++i) {
    const int element = first + static_cast<int>(i);
    if (element >= p.elements) {
      return;
    }
    if ((flags >> i & 1) != 0) {
      ++run;
      unique[run] = elements[element];
      begins[run] = element;
    }
    if (p.returns_inverse != 0) {
      inverse[p.has_order != 0 ? order[element] : element] = run;
    }
  }
}

// Turns where runs begin into their lengths.
kernel void unique_lengths(device long* lengths [[buffer(0)]],
                           device const long* begins [[buffer(1)]],
                           constant int64_t& runs [[buffer(2)]],
                           constant int64_t& elements [[buffer(3)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t run = thread_index(position, grid);
  if (run < runs) {
    lengths[run] = (run + 1 < runs ? begins[run + 1] : elements) - begins[run];
  }
}

#define REGISTER_UNIQUE(K)                              \
  REGISTER_KERNEL("unique_count_" #K, unique_count, K); \
  REGISTER_KERNEL("unique_write_" #K, unique_write, K)

REGISTER_UNIQUE(uchar);
REGISTER_UNIQUE(ushort);
REGISTER_UNIQUE(uint);
REGISTER_UNIQUE(ulong);

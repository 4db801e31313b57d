// Stable sorting of rows, by a merge sort whose threads merge as many elements each (merge path:
// Odeh et al., 2012). A row of up to kSortBlock elements is sorted in threadgroup memory, short
// rows several together; the blocks of a longer one are sorted, and merged in pairs.
//
// Elements are compared by unsigned keys made of their bits: NaN is the largest number, and -0 is
// equal to 0. What is written are elements of self, found by their columns.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/sort.h>
using namespace metal;
using namespace metalops;

constant constexpr uint kPerThread = kSortBlock / kSortThreads;

template <typename K>
inline K largest_key() {
  return static_cast<K>(~static_cast<K>(0));
}

// Returns the key of an element with these bits.
template <typename K>
inline K key_of(K bits, constant SortParameters& p) {
  const K sign = static_cast<K>(static_cast<K>(1) << (8 * sizeof(K) - 1));
  K key = bits;
  if (p.kind == kSortSigned) {
    key = bits ^ sign;
  } else if (p.kind == kSortFloat) {
    const K magnitude = static_cast<K>(bits & static_cast<K>(~sign));
    if (magnitude > static_cast<K>(p.infinity)) {
      key = largest_key<K>();
    } else if (magnitude == 0) {
      key = sign;
    } else {
      key = (bits & sign) != 0 ? static_cast<K>(~bits) : static_cast<K>(bits | sign);
    }
  }
  return p.descending != 0 ? static_cast<K>(~key) : key;
}

// ---- in threadgroup memory ----------------------------------------------------------------------

// The elements of a thread: their keys, and where they come from.
template <typename K>
struct Elements {
  K keys[kPerThread];
  ushort places[kPerThread];

  inline void load(threadgroup const K* from, threadgroup const ushort* from_places) {
    for (uint i = 0; i < kPerThread; ++i) {
      keys[i] = from[i];
      places[i] = from_places[i];
    }
  }

  inline void store(threadgroup K* to, threadgroup ushort* to_places) const {
    for (uint i = 0; i < kPerThread; ++i) {
      to[i] = keys[i];
      to_places[i] = places[i];
    }
  }

  // Odd-even transposition. Only unequal neighbours change places, so it is stable.
  inline void sort() {
    for (uint round = 0; round < kPerThread; ++round) {
      for (uint i = round % 2; i + 1 < kPerThread; i += 2) {
        const bool swaps = keys[i + 1] < keys[i];
        const K key = keys[i];
        const ushort place = places[i];
        keys[i] = swaps ? keys[i + 1] : key;
        places[i] = swaps ? places[i + 1] : place;
        keys[i + 1] = swaps ? key : keys[i + 1];
        places[i + 1] = swaps ? place : places[i + 1];
      }
    }
  }

  // Takes the elements that follow `a` and `b` in two runs, merged. The left run is first among
  // equals.
  inline void merge(threadgroup const K* from, threadgroup const ushort* from_places, uint a,
                    uint a_end, uint b, uint b_end) {
    for (uint i = 0; i < kPerThread; ++i) {
      const bool is_left = b >= b_end || (a < a_end && from[a] <= from[b]);
      const uint next = min(is_left ? a : b, kSortBlock - 1);
      keys[i] = from[next];
      places[i] = from_places[next];
      a += is_left ? 1 : 0;
      b += is_left ? 0 : 1;
    }
  }
};

// Returns how many of the first `count` elements of two merged runs are those of the left one.
template <typename Pointer>
inline uint left_share(Pointer a, uint a_count, Pointer b, uint b_count, uint count) {
  uint low = count > b_count ? count - b_count : 0;
  uint high = min(count, a_count);
  while (low < high) {
    const uint middle = (low + high) / 2;
    if (b[count - 1 - middle] < a[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Sorts rows of `width` elements, a power of two of at least kPerThread.
template <typename K>
inline void sort_in_threadgroup(threadgroup K* keys, threadgroup ushort* places, uint width,
                                uint thread_index) {
  const uint first = thread_index * kPerThread;
  Elements<K> elements;
  elements.load(keys + first, places + first);
  elements.sort();
  elements.store(keys + first, places + first);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint run = kPerThread; run < width; run *= 2) {
    const uint left = first & ~(2 * run - 1);
    const uint right = left + run;
    const uint share = left_share(keys + left, run, keys + right, run, first - left);
    elements.merge(keys, places, left + share, right, right + (first - left) - share, right + run);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    elements.store(keys + first, places + first);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// ---- what is written ----------------------------------------------------------------------------

// Returns the sorted column that is written to column `column`.
template <typename K, typename Pointer>
inline int sorted_column(Pointer keys, int column, constant SortParameters& p) {
  if (p.choice == kSortColumns) {
    return p.first + column;
  }
  int numbers = p.columns;  // those that are not NaN
  if (p.kind == kSortFloat) {
    int low = 0;
    while (low < numbers) {
      const int middle = low + (numbers - low) / 2;
      if (keys[middle] == largest_key<K>()) {
        numbers = middle;
      } else {
        low = middle + 1;
      }
    }
  }
  if (p.choice == kSortMedian && numbers < p.columns) {
    return numbers;
  }
  return max(numbers - 1, 0) / 2;
}

// Writes the element of a column of self.
template <typename K>
inline void write_element(device K* values, device long* indices, constant K* self, int place,
                          int column, int64_t row, constant SortParameters& p,
                          constant StridedLayout<3>& layout) {
  const auto offsets = offsets_of(row, layout);
  element_at(values, offsets[1] + column * p.strides[1]) =
      element_at(self, offsets[0] + place * p.strides[0]);
  element_at(indices, offsets[2] + column * p.strides[2]) = place;
}

// ---- kernels ------------------------------------------------------------------------------------

// Rows of up to kSortBlock elements.
template <typename K>
kernel void sort_rows(device K* values [[buffer(0)]], device long* indices [[buffer(1)]],
                      constant K* self [[buffer(2)]], constant SortParameters& p [[buffer(3)]],
                      constant StridedLayout<3>& layout [[buffer(4)]],
                      uint group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup K keys[kSortBlock];
  threadgroup ushort places[kSortBlock];
  const uint width = 1u << p.width_log2;
  const uint rows = kSortBlock >> p.width_log2;
  const int64_t first_row = static_cast<int64_t>(group) * rows;
  for (uint i = thread_index; i < kSortBlock; i += kSortThreads) {
    const uint row = p.is_across != 0 ? i % rows : i / width;
    const uint column = p.is_across != 0 ? i / rows : i % width;
    K key = largest_key<K>();
    if (first_row + row < p.rows && static_cast<int>(column) < p.columns) {
      const auto offsets = offsets_of(first_row + row, layout);
      key = key_of(element_at(self, offsets[0] + column * p.strides[0]), p);
    }
    keys[row * width + column] = key;
    places[row * width + column] = static_cast<ushort>(column);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sort_in_threadgroup(keys, places, width, thread_index);
  for (uint i = thread_index; i < kSortBlock; i += kSortThreads) {
    const uint row = p.is_across != 0 ? i % rows : i / width;
    const int column = static_cast<int>(p.is_across != 0 ? i / rows : i % width);
    if (first_row + row < p.rows && column < p.written) {
      const int from = sorted_column<K>(keys + row * width, column, p);
      write_element(values, indices, self, static_cast<int>(places[row * width + from]), column,
                    first_row + row, p, layout);
    }
  }
}

// Sorts the blocks of longer rows: keys and columns of the first p.kept elements of each. stride:
// from row to row of the result.
template <typename K>
kernel void sort_blocks(device K* sorted [[buffer(0)]], device int* sorted_places [[buffer(1)]],
                        constant K* self [[buffer(2)]], constant int64_t& stride [[buffer(3)]],
                        constant SortParameters& p [[buffer(4)]],
                        constant StridedLayout<3>& layout [[buffer(5)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup K keys[kSortBlock];
  threadgroup ushort places[kSortBlock];
  const int64_t row = group / static_cast<uint>(p.blocks);
  const uint block = group % static_cast<uint>(p.blocks);
  const int first = static_cast<int>(block * kSortBlock);
  const uint count = min(kSortBlock, static_cast<uint>(p.columns - first));
  const auto offsets = offsets_of(row, layout);
  for (uint i = thread_index; i < kSortBlock; i += kSortThreads) {
    K key = largest_key<K>();
    if (i < count) {
      key = key_of(element_at(self, offsets[0] + (first + static_cast<int>(i)) * p.strides[0]), p);
    }
    keys[i] = key;
    places[i] = static_cast<ushort>(i);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sort_in_threadgroup(keys, places, kSortBlock, thread_index);
  const int64_t to = row * stride + static_cast<int64_t>(block) * p.kept;
  for (uint i = thread_index; i < min(count, static_cast<uint>(p.kept)); i += kSortThreads) {
    sorted[to + i] = keys[i];
    sorted_places[to + i] = first + static_cast<int>(places[i]);
  }
}

// Merges pairs of runs, kSortBlock elements of the result in each threadgroup. A run without
// another one is copied.
template <typename K>
kernel void sort_merge(device K* merged [[buffer(0)]], device int* merged_places [[buffer(1)]],
                       device const K* sorted [[buffer(2)]],
                       device const int* sorted_places [[buffer(3)]],
                       constant SortMergeParameters& p [[buffer(4)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_position_in_threadgroup]]) {
  threadgroup K keys[kSortBlock];
  threadgroup ushort places[kSortBlock];
  threadgroup uint shares[2];
  const uint tiles = static_cast<uint>(p.tiles);
  const uint pairs = static_cast<uint>(p.runs + 1) / 2;
  const uint pair = group / tiles % pairs;
  const int64_t row = group / tiles / pairs;
  const uint left = 2 * pair;
  const uint right = left + 1;
  const uint runs = static_cast<uint>(p.runs);
  const uint run = static_cast<uint>(p.run);
  const uint a_count = left + 1 < runs ? run : static_cast<uint>(p.last);
  const uint b_count = right + 1 < runs ? run : right < runs ? static_cast<uint>(p.last) : 0;
  const int64_t a_first = row * p.stride + static_cast<int64_t>(left) * run;
  const int64_t b_first = a_first + run;
  const uint total = min(a_count + b_count, static_cast<uint>(p.kept));
  const uint begin = min(group % tiles * kSortBlock, total);
  const uint end = min(begin + kSortBlock, total);
  if (thread_index < 2) {
    shares[thread_index] = left_share(sorted + a_first, a_count, sorted + b_first, b_count,
                                      thread_index == 0 ? begin : end);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int64_t a = a_first + shares[0];
  const int64_t b = b_first + (begin - shares[0]);
  const uint of_a = shares[1] - shares[0];
  const uint count = end - begin;
  for (uint i = thread_index; i < kSortBlock; i += kSortThreads) {
    keys[i] = i < count ? sorted[i < of_a ? a + i : b + (i - of_a)] : largest_key<K>();
    places[i] = static_cast<ushort>(i);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint first = min(thread_index * kPerThread, count);
  const uint share = left_share(keys, of_a, keys + of_a, count - of_a, first);
  Elements<K> elements;
  elements.merge(keys, places, share, of_a, of_a + first - share, count);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  elements.store(keys + thread_index * kPerThread, places + thread_index * kPerThread);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int64_t to = row * p.merged_stride + static_cast<int64_t>(pair) * p.kept + begin;
  for (uint i = thread_index; i < count; i += kSortThreads) {
    const uint place = places[i];
    merged[to + i] = keys[i];
    merged_places[to + i] = sorted_places[place < of_a ? a + place : b + (place - of_a)];
  }
}

// Writes the elements of rows of several blocks, whose keys have been sorted.
template <typename K>
kernel void sort_write(device K* values [[buffer(0)]], device long* indices [[buffer(1)]],
                       constant K* self [[buffer(2)]], device const K* sorted [[buffer(3)]],
                       device const int* sorted_places [[buffer(4)]],
                       constant int64_t& stride [[buffer(5)]],
                       constant SortParameters& p [[buffer(6)]],
                       constant StridedLayout<3>& layout [[buffer(7)]],
                       uint2 position [[thread_position_in_grid]]) {
  const int64_t row = position.y;
  const int column = static_cast<int>(position.x);
  const int from = sorted_column<K>(sorted + row * stride, column, p);
  write_element(values, indices, self, sorted_places[row * stride + from], column, row, p, layout);
}

#define REGISTER_SORT(K)                              \
  REGISTER_KERNEL("sort_rows_" #K, sort_rows, K);     \
  REGISTER_KERNEL("sort_blocks_" #K, sort_blocks, K); \
  REGISTER_KERNEL("sort_merge_" #K, sort_merge, K);   \
  REGISTER_KERNEL("sort_write_" #K, sort_write, K)

REGISTER_SORT(uchar);
REGISTER_SORT(ushort);
REGISTER_SORT(uint);
REGISTER_SORT(ulong);

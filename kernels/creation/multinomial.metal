// Draws of categories. A category of probability 0 is never drawn while there are others.
//
// With replacement: inversion of the distribution function, whose values at the ends of chunks are
// stored; within a chunk the categories are walked, those of probability 0 left out. Without, and
// for one draw: the categories of the largest log(p) - log(exponential random number), which is the
// Gumbel-max trick.
#include <c10/metal/atomic.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_atomic>
#include <metal_simdgroup>
#include <metal_stdlib>

#include <kernels/creation/multinomial.h>
#include <kernels/creation/random_bits.h>
using namespace metal;
using namespace metalops;

template <typename T>
inline float probability_of(device const T* probabilities, constant MultinomialParameters& p,
                            int64_t row, int category) {
  return static_cast<float>(
      probabilities[row * p.row_stride + static_cast<int64_t>(category) * p.category_stride]);
}

// ---- the distribution function ------------------------------------------------------------------

// Sums the chunks, one per simdgroup. problems: what is wrong is added to it.
template <typename T>
kernel void multinomial_sums(device float* sums [[buffer(0)]],
                             device const T* probabilities [[buffer(1)]],
                             device atomic_uint* problems [[buffer(2)]],
                             constant MultinomialParameters& p [[buffer(3)]],
                             uint2 position [[thread_position_in_grid]],
                             uint2 grid [[threads_per_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  const int64_t chunk = thread_index(position, grid) / 32;
  if (chunk >= p.rows * p.chunks) {
    return;
  }
  const int64_t row = chunk / p.chunks;
  const int first = static_cast<int>(chunk % p.chunks) * kMultinomialChunk;
  const int end = min(first + kMultinomialChunk, p.categories);
  float sum = 0.0f;
  bool is_valid = true;
  for (int i = first + static_cast<int>(lane); i < end; i += 32) {
    const float x = probability_of(probabilities, p, row, i);
    is_valid = is_valid && x >= 0.0f && x < INFINITY;
    sum += x;
  }
  if (!simd_all(is_valid) && lane == 0) {
    atomic_fetch_or_explicit(problems, kInvalidProbability, memory_order_relaxed);
  }
  const float total = simd_sum(sum);
  if (lane == 0) {
    sums[chunk] = total;
  }
}

// Turns the sums of the chunks of each row into those of all chunks up to them. They never
// decrease.
kernel void multinomial_prefixes(device float* sums [[buffer(0)]],
                                 device atomic_uint* problems [[buffer(1)]],
                                 constant MultinomialParameters& p [[buffer(2)]],
                                 uint2 position [[thread_position_in_grid]],
                                 uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  if (row >= p.rows) {
    return;
  }
  float total = 0.0f;
  for (int i = 0; i < p.chunks; ++i) {
    total += sums[row * p.chunks + i];
    sums[row * p.chunks + i] = total;
  }
  if (total == 0.0f) {
    atomic_fetch_or_explicit(problems, kNoProbability, memory_order_relaxed);
  }
}

// Returns the first of `count` ascending numbers that is greater than x, or at least x.
inline int first_beyond(device const float* numbers, int count, float x, bool or_equal) {
  int first = 0;
  int end = count;
  while (first < end) {
    const int middle = first + (end - first) / 2;
    if (numbers[middle] > x || (or_equal && numbers[middle] == x)) {
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

template <typename T>
kernel void multinomial_with_replacement(device int64_t* result [[buffer(0)]],
                                         device const T* probabilities [[buffer(1)]],
                                         device const float* prefixes [[buffer(2)]],
                                         constant MultinomialParameters& p [[buffer(3)]],
                                         uint2 position [[thread_position_in_grid]],
                                         uint2 grid [[threads_per_grid]]) {
  const int64_t draw = thread_index(position, grid);
  if (draw >= p.rows * p.draws) {
    return;
  }
  const int64_t row = draw / p.draws;
  device const float* const ends = prefixes + row * p.chunks;
  const float total = ends[p.chunks - 1];
  constexpr float kStep = 2.32830644e-10f;  // 2^-32
  const float target =
      static_cast<float>(random_bits(p.seed, p.offset + draw / 4)[draw % 4]) * kStep * total;
  int chunk = first_beyond(ends, p.chunks, target, false);
  if (chunk == p.chunks) {  // the target was rounded up to the total
    chunk = first_beyond(ends, p.chunks, total, true);
  }
  float left = target - (chunk == 0 ? 0.0f : ends[chunk - 1]);
  const int first = chunk * kMultinomialChunk;
  const int end = min(first + kMultinomialChunk, p.categories);
  int drawn = first;
  for (int i = first; i < end; ++i) {
    const float x = probability_of(probabilities, p, row, i);
    if (x > 0.0f) {
      drawn = i;
      left -= x;
      if (left < 0.0f) {
        break;
      }
    }
  }
  result[draw] = drawn;
}

// ---- the largest keys ---------------------------------------------------------------------------

template <typename T>
inline float key_of(device const T* probabilities, constant MultinomialParameters& p, int64_t row,
                    int category) {
  const float x = probability_of(probabilities, p, row, category);
  const int64_t number = row * p.categories + category;
  const uint bits = random_bits(p.seed, p.offset + number / 4)[number % 4];
  return x > 0.0f ? precise::log(x) - precise::log(exponential_of(bits)) : -INFINITY;
}

struct Best {
  float key;
  int category;

  // The first category of equal keys is kept; NaN never is.
  inline void keep(float other_key, int other) {
    if (other_key > key || (other_key == key && other < category)) {
      key = other_key;
      category = other;
    }
  }
};

// Returns the best of all threads of a threadgroup of 1024 at most.
inline Best best_of_group(Best best, threadgroup float* keys, threadgroup int* categories,
                          uint simdgroup, uint lane, uint simdgroups) {
  for (ushort step = 16; step > 0; step /= 2) {
    best.keep(simd_shuffle_xor(best.key, step), simd_shuffle_xor(best.category, step));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    keys[simdgroup] = best.key;
    categories[simdgroup] = best.category;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < simdgroups; ++i) {
    best.keep(keys[i], categories[i]);
  }
  return best;
}

// One draw for each row, by one threadgroup.
template <typename T>
kernel void multinomial_first(
    device int64_t* result [[buffer(0)]], device const T* probabilities [[buffer(1)]],
    constant MultinomialParameters& p [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint size [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float keys[32];
  threadgroup int categories[32];
  Best best{-INFINITY, p.categories};
  for (int i = static_cast<int>(index); i < p.categories; i += static_cast<int>(size)) {
    best.keep(key_of(probabilities, p, row, i), i);
  }
  best = best_of_group(best, keys, categories, simdgroup, lane, simdgroups);
  if (index == 0) {
    result[row] = best.category;
  }
}

template <typename T>
kernel void multinomial_keys(device float* keys [[buffer(0)]],
                             device const T* probabilities [[buffer(1)]],
                             constant MultinomialParameters& p [[buffer(2)]],
                             uint2 position [[thread_position_in_grid]],
                             uint2 grid [[threads_per_grid]]) {
  const int64_t number = thread_index(position, grid);
  if (number < p.rows * p.categories) {
    keys[number] =
        key_of(probabilities, p, number / p.categories, static_cast<int>(number % p.categories));
  }
}

// The categories of the largest keys of each row in descending order, by one threadgroup. Keys that
// are taken become NaN.
kernel void multinomial_select(
    device int64_t* result [[buffer(0)]], device float* all_keys [[buffer(1)]],
    constant MultinomialParameters& p [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint size [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float best_keys[32];
  threadgroup int categories[32];
  device float* const keys = all_keys + static_cast<int64_t>(row) * p.categories;
  for (int draw = 0; draw < p.draws; ++draw) {
    Best best{-INFINITY, p.categories};
    for (int i = static_cast<int>(index); i < p.categories; i += static_cast<int>(size)) {
      best.keep(keys[i], i);
    }
    best = best_of_group(best, best_keys, categories, simdgroup, lane, simdgroups);
    // A thread alone reads and writes its keys.
    if (best.category % static_cast<int>(size) == static_cast<int>(index)) {
      keys[best.category] = NAN;
      result[static_cast<int64_t>(row) * p.draws + draw] = best.category;
    }
  }
}

#define REGISTER_MULTINOMIAL(T)                                                         \
  REGISTER_KERNEL("multinomial_sums_" #T, multinomial_sums, T);                         \
  REGISTER_KERNEL("multinomial_with_replacement_" #T, multinomial_with_replacement, T); \
  REGISTER_KERNEL("multinomial_first_" #T, multinomial_first, T);                       \
  REGISTER_KERNEL("multinomial_keys_" #T, multinomial_keys, T)

REGISTER_MULTINOMIAL(float);
REGISTER_MULTINOMIAL(half);
REGISTER_MULTINOMIAL(bfloat);

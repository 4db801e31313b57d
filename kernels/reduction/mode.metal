// mode: for each row, the most frequent value (the smallest of several) and the index of its last
// occurrence. Rows have been sorted stably, so equal elements are adjacent and in their original
// order. NaN is not equal to anything, itself included, and comes last.
//
// A row is processed by a threadgroup, or by a single thread if rows are short or have 2^31
// elements.
#include <c10/metal/reduction_utils.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/mode.h>
using namespace metal;
using namespace metalops;

// A run of equal elements of a row, from row[start] on.
struct Run {
  int64_t length;
  int64_t start;
};

// Returns the length of the run that starts at `start`, by galloping and then binary search.
template <typename T>
inline int64_t run_length(constant T* row, int64_t start, int64_t columns) {
  int64_t last = start;
  int64_t step = 1;
  while (last + step < columns && row[last + step] == row[start]) {
    last += step;
    step *= 2;
  }
  for (; step > 0; step /= 2) {
    if (last + step < columns && row[last + step] == row[start]) {
      last += step;
    }
  }
  return last - start + 1;
}

// Returns the first of the longest runs among those that start at lane, lane + lanes, ...
template <typename T>
inline Run longest_run(constant T* row, int64_t columns, uint lane, uint lanes) {
  Run longest = {0, 0};
  for (int64_t i = lane; i < columns; i += lanes) {
    if (i > 0 && row[i] == row[i - 1]) {
      continue;
    }
    const int64_t length = run_length(row, i, columns);
    if (length > longest.length) {
      longest = {length, i};
    }
  }
  return longest;
}

template <typename T>
kernel void mode_short_rows(device T* values [[buffer(0)]], device long* indices [[buffer(1)]],
                            constant T* sorted [[buffer(2)]], constant long* order [[buffer(3)]],
                            constant ModeParameters& parameters [[buffer(4)]],
                            uint2 position [[thread_position_in_grid]],
                            uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.rows) {
    return;
  }
  const int64_t first = index * parameters.columns;
  const Run run = longest_run(sorted + first, parameters.columns, 0, 1);
  const int64_t last = first + run.start + run.length - 1;
  values[index] = sorted[last];
  indices[index] = order[last];
}

template <typename T>
kernel void mode_rows(device T* values [[buffer(0)]], device long* indices [[buffer(1)]],
                      constant T* sorted [[buffer(2)]], constant long* order [[buffer(3)]],
                      constant ModeParameters& parameters [[buffer(4)]],
                      uint index [[threadgroup_position_in_grid]],
                      uint lane [[thread_position_in_threadgroup]],
                      uint lanes [[threads_per_threadgroup]]) {
  // The reductions are in 32 bits: partial simdgroups have no reductions of wider integers.
  threadgroup int lengths[c10::metal::simdgroup_size];
  threadgroup int starts[c10::metal::simdgroup_size];
  const int64_t first = index * parameters.columns;
  const Run run = longest_run(sorted + first, parameters.columns, lane, lanes);
  const int own_length = static_cast<int>(run.length);
  const int length = c10::metal::threadgroup_max(lengths, own_length, lane, lanes);
  const int candidate = static_cast<int>(own_length == length ? run.start : parameters.columns);
  const int start = c10::metal::threadgroup_min(starts, candidate, lane, lanes);
  if (lane == 0) {
    const int64_t last = first + start + length - 1;
    values[index] = sorted[last];
    indices[index] = order[last];
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_MODE(T)                                      \
  REGISTER_KERNEL("mode_short_rows_" #T, mode_short_rows, T); \
  REGISTER_KERNEL("mode_rows_" #T, mode_rows, T)

REGISTER_MODE(float);
REGISTER_MODE(half);
REGISTER_MODE(bfloat);
REGISTER_MODE(long);
REGISTER_MODE(int);
REGISTER_MODE(short);
REGISTER_MODE(char);
REGISTER_MODE(uchar);
REGISTER_MODE(bool);

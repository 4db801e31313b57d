// Conversion between jagged and padded tensors in two steps: computing the source row of each row
// of the result, or -1 for padding, and moving the rows. T is any type of the elements' width.
// Offsets that do not fit the tensors are reported to the host, and their rows are left out.
#include <c10/metal/error.h>

#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/indexing/jagged.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline bool in_order(int64_t start, int64_t end) { return start >= 0 && start <= end; }

// Computes the source rows of the padded tensor, one per thread. Longer sequences are truncated.
kernel void jagged_rows_of_padded(device long* sources [[buffer(0)]],
                                  constant long* offsets [[buffer(1)]],
                                  constant JaggedParameters& parameters [[buffer(2)]],
                                  device ErrorMessages* errors [[buffer(3)]],
                                  uint2 position [[thread_position_in_grid]],
                                  uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  if (row >= parameters.sequences * parameters.length) {
    return;
  }
  const int64_t sequence = row / parameters.length;
  const int64_t place = row - sequence * parameters.length;
  const int64_t start = offsets[sequence];
  const int64_t end = offsets[sequence + 1];
  const int64_t length = in_order(start, end) ? min(end - start, parameters.length) : 0;
  const bool fits = in_order(start, end) && length <= parameters.rows - start;
  if (!fits && place == 0) {
    TORCH_REPORT_ERROR(errors, "_jagged_to_padded_dense_forward(): sequence ", sequence,
                       " has offsets ", start, " and ", end, ", but there are ", parameters.rows,
                       " values");
  }
  sources[row] = fits && place < length ? start + place : -1;
}

// Reports errors in the offsets of one sequence, or in the last offset.
inline void check_offsets(int64_t sequence, constant long* offsets,
                          constant JaggedParameters& parameters, device ErrorMessages* errors) {
  if (sequence < parameters.sequences) {
    const int64_t start = offsets[sequence];
    const int64_t end = offsets[sequence + 1];
    if (!in_order(start, end)) {
      TORCH_REPORT_ERROR(errors, "_padded_dense_to_jagged_forward(): sequence ", sequence,
                         " has offsets ", start, " and ", end);
    } else if (end - start > parameters.length) {
      TORCH_REPORT_ERROR(errors, "_padded_dense_to_jagged_forward(): found batch item of length ",
                         end - start, " when max length specified by padded input is ",
                         parameters.length);
    }
  } else if (sequence == parameters.sequences && offsets[sequence] != parameters.rows) {
    TORCH_REPORT_ERROR(errors,
                       "_padded_dense_to_jagged_forward(): final offset should match total_L "
                       "value, but they are ",
                       offsets[sequence], " and ", parameters.rows);
  }
}

// Returns the last sequence that begins at or before `row`; -1 if there is none.
inline int64_t sequence_of(int64_t row, constant long* offsets,
                           constant JaggedParameters& parameters) {
  int64_t first = 0;
  int64_t end = parameters.sequences;
  while (first < end) {
    const int64_t middle = first + (end - first) / 2;
    if (offsets[middle] <= row) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first - 1;
}

// Computes the source rows of the jagged tensor. One thread per value, and at least as many as
// there are offsets. Values before the first sequence are padding.
kernel void jagged_rows_of_jagged(device long* sources [[buffer(0)]],
                                  constant long* offsets [[buffer(1)]],
                                  constant JaggedParameters& parameters [[buffer(2)]],
                                  device ErrorMessages* errors [[buffer(3)]],
                                  uint2 position [[thread_position_in_grid]],
                                  uint2 grid [[threads_per_grid]]) {
  const int64_t row = thread_index(position, grid);
  check_offsets(row, offsets, parameters, errors);
  if (row >= parameters.rows) {
    return;
  }
  const int64_t sequence = sequence_of(row, offsets, parameters);
  const int64_t start = sequence < 0 ? -1 : offsets[sequence];
  const int64_t place = start < 0 ? parameters.length : row - start;
  sources[row] = place < parameters.length ? sequence * parameters.length + place : -1;
}

// Moves or pads one element per thread.
template <typename T>
kernel void jagged_move_rows(device T* to [[buffer(0)]], constant T* from [[buffer(1)]],
                             constant long* sources [[buffer(2)]],
                             constant T* filling [[buffer(3)]],
                             uint2 position [[thread_position_in_grid]],
                             uint2 grid [[threads_per_grid]]) {
  const int64_t source = sources[position.y];
  device T* row = to + static_cast<int64_t>(position.y) * grid.x;
  if (source >= 0) {
    row[position.x] = from[source * grid.x + position.x];
  } else {
    row[position.x] = *filling;
  }
}

#define REGISTER_MOVE_ROWS(T) REGISTER_KERNEL("jagged_move_rows_" #T, jagged_move_rows, T)

REGISTER_MOVE_ROWS(uchar);
REGISTER_MOVE_ROWS(short);
REGISTER_MOVE_ROWS(int);
REGISTER_MOVE_ROWS(long);
REGISTER_MOVE_ROWS(uint4);

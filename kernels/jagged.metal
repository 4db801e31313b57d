// Sequences of different lengths to a padded tensor and back. Elements are moved and not looked at,
// so that T is any type of their width. Offsets that do not fit the tensors are reported to the
// host, and what they concern is left out. A row of the grid is a row of the result, of which a
// thread takes a share.
#include <c10/metal/error.h>

#include <metal_stdlib>

#include "jagged.h"
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

inline bool in_order(int64_t start, int64_t end) { return start >= 0 && start <= end; }

template <typename T>
inline void copy(device T* to, constant T* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}

template <typename T>
inline void fill(device T* to, T value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = value;
  }
}

// Sequences longer than the padded ones are cut off.
template <typename T>
kernel void jagged_to_padded(device T* padded [[buffer(0)]], constant T* values [[buffer(1)]],
                             constant long* offsets [[buffer(2)]],
                             constant T* padding [[buffer(3)]],
                             constant JaggedParameters& parameters [[buffer(4)]],
                             device ErrorMessages* errors [[buffer(5)]],
                             uint2 position [[thread_position_in_grid]]) {
  const int64_t row = position.y;
  const int64_t place = row % parameters.length;
  const int64_t sequence = row / parameters.length;
  const int64_t start = offsets[sequence];
  const int64_t end = offsets[sequence + 1];
  const int64_t length = in_order(start, end) ? min(end - start, parameters.length) : 0;
  const bool fits = in_order(start, end) && length <= parameters.rows - start;
  if (!fits && place == 0 && position.x == 0) {
    TORCH_REPORT_ERROR(errors, "_jagged_to_padded_dense_forward(): sequence ", sequence,
                       " has offsets ", start, " and ", end, ", but there are ", parameters.rows,
                       " values");
  }
  const int64_t first = position.x * parameters.share;
  const int64_t count = min(parameters.columns - first, parameters.share);
  device T* to = padded + row * parameters.columns + first;
  if (fits && place < length) {
    copy(to, values + (start + place) * parameters.columns + first, count);
  } else {
    fill(to, *padding, count);
  }
}

// Reports what is wrong with the offsets of one sequence, or with the last of them.
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

// The last sequence that begins at `row` or before; -1 if there is none.
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

// The grid has more rows than there are sequences. Values before the first one become zero.
template <typename T>
kernel void padded_to_jagged(device T* values [[buffer(0)]], constant T* padded [[buffer(1)]],
                             constant long* offsets [[buffer(2)]],
                             constant JaggedParameters& parameters [[buffer(3)]],
                             device ErrorMessages* errors [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]]) {
  const int64_t row = position.y;
  if (position.x == 0) {
    check_offsets(row, offsets, parameters, errors);
  }
  if (row >= parameters.rows) {
    return;
  }
  const int64_t sequence = sequence_of(row, offsets, parameters);
  const int64_t start = sequence < 0 ? -1 : offsets[sequence];
  const int64_t place = start < 0 ? parameters.length : row - start;
  const int64_t first = position.x * parameters.share;
  const int64_t count = min(parameters.columns - first, parameters.share);
  device T* to = values + row * parameters.columns + first;
  if (place < parameters.length) {
    const int64_t from = (sequence * parameters.length + place) * parameters.columns + first;
    copy(to, padded + from, count);
  } else {
    fill(to, T(0), count);
  }
}

#define REGISTER_JAGGED(T)                                                                       \
  template [[host_name("jagged_to_padded_" #T)]] kernel void jagged_to_padded<T>(                \
      device T*, constant T*, constant long*, constant T*, constant JaggedParameters&,           \
      device ErrorMessages*, uint2);                                                             \
  template [[host_name("padded_to_jagged_" #T)]] kernel void padded_to_jagged<T>(                \
      device T*, constant T*, constant long*, constant JaggedParameters&, device ErrorMessages*, \
      uint2)

REGISTER_JAGGED(uchar);
REGISTER_JAGGED(short);
REGISTER_JAGGED(int);
REGISTER_JAGGED(long);

// Conversion between the row indices of sparse matrices (COO, in ascending order) and CSR row
// pointers. Each thread uses binary search.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/indexing/compressed_indices.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::CompressedIndicesParameters;

// Returns how many of the ascending numbers are below a bound.
template <typename T>
inline int64_t count_below(device const T* numbers, int64_t count, int64_t bound) {
  int64_t begin = 0;
  int64_t end = count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (numbers[middle] < bound) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Computes CSR row pointers. One thread per row, and one for the end of the last row.
template <typename T, typename R>
kernel void compressed_indices_row_pointers(device R* pointers [[buffer(0)]],
                                            device const T* rows [[buffer(1)]],
                                            constant CompressedIndicesParameters& p [[buffer(2)]],
                                            device ErrorMessages* errors [[buffer(3)]],
                                            uint row [[thread_position_in_grid]]) {
  const int64_t found = count_below(rows, p.elements, row);
  const bool is_first = row == 0;
  if ((is_first && found != 0) || (row == p.rows && found != p.elements)) {
    TORCH_REPORT_ERROR(errors, "_convert_indices_from_coo_to_csr: found row ",
                       static_cast<int64_t>(rows[is_first ? 0 : p.elements - 1]),
                       " of a matrix of ", p.rows, " rows");
    return;
  }
  pointers[row] = static_cast<R>(found);
}

// Computes row indices from CSR row pointers. One thread per element and matrix.
template <typename T, typename R>
kernel void compressed_indices_row_indices(device R* rows [[buffer(0)]],
                                           device const T* pointers [[buffer(1)]],
                                           constant CompressedIndicesParameters& p [[buffer(2)]],
                                           uint2 position [[thread_position_in_grid]]) {
  device const T* const own = pointers + position.y * (p.rows + 1);
  const int64_t element = position.x;
  // The last row that begins at or before this element.
  const int64_t row = count_below(own + 1, p.rows, element + 1);
  rows[position.y * p.elements + element] = static_cast<R>(row);
}

#define REGISTER_COMPRESSED_INDICES(T, R)                                                        \
  REGISTER_KERNEL("compressed_indices_row_pointers_" #T "_" #R, compressed_indices_row_pointers, \
                  T, R);                                                                         \
  REGISTER_KERNEL("compressed_indices_row_indices_" #T "_" #R, compressed_indices_row_indices, T, R)

REGISTER_COMPRESSED_INDICES(int, int);
REGISTER_COMPRESSED_INDICES(int, long);
REGISTER_COMPRESSED_INDICES(long, int);
REGISTER_COMPRESSED_INDICES(long, long);

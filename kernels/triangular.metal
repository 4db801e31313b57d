// Solving with triangular matrices by substitution. A thread has four neighbouring columns to
// itself (two complex ones) and takes eight rows at a time, which stay in registers while what is
// known of the rows before is subtracted; so nothing waits for another thread. Larger matrices than
// a few such blocks are the host's: products of matrices do most of their work.
#include <metal_stdlib>

#include "complex.h"
#include "row_packs.h"
#include "triangular.h"
using namespace metal;
using metalops::minus_product;
using metalops::TriangularParameters;

constant constexpr int kRows = 8;

template <typename T>
struct Triangle {
  device const T* start;
  int64_t row;
  int64_t column;
  bool is_conjugated;

  T operator()(int i, int j) const thread {
    const T value = start[i * row + j * column];
    return is_conjugated ? metalops::conjugate(value) : value;
  }
};

// One column of the grid for each pack of columns, one row for each matrix.
template <typename T>
kernel void triangular_solve(device float4* columns [[buffer(0)]],
                             device const T* matrix [[buffer(1)]],
                             constant TriangularParameters& p [[buffer(2)]],
                             uint2 position [[thread_position_in_grid]]) {
  device float4* const x = columns + p.columns_start + position.y * p.columns_batch + position.x;
  const Triangle<T> a{matrix + p.matrix_start + position.y * p.matrix_batch, p.matrix_row,
                      p.matrix_column, p.is_conjugated != 0};
  for (int first = 0; first < p.size; first += kRows) {
    // Rows that there are not are the last one again, and are not stored.
    const int last = min(kRows, p.size - first) - 1;
    float4 block[kRows];
    for (int i = 0; i < kRows; ++i) {
      block[i] = x[(first + min(i, last)) * p.columns_row];
    }
    for (int j = 0; j < first; ++j) {
      const float4 known = x[j * p.columns_row];
      for (int i = 0; i < kRows; ++i) {
        block[i] = minus_product(block[i], a(first + min(i, last), j), known);
      }
    }
    for (int j = 0; j < kRows; ++j) {
      const int column = first + min(j, last);
      if (p.is_unit == 0) {
        const metalops::Divisor<T> divisor = metalops::divisor_of(a(column, column));
        block[j] = divisor.divide(block[j]);
      }
      for (int i = j + 1; i < kRows; ++i) {
        block[i] = minus_product(block[i], a(first + min(i, last), column), block[j]);
      }
    }
    for (int i = 0; i <= last; ++i) {
      x[(first + i) * p.columns_row] = block[i];
    }
  }
}

#define REGISTER_TRIANGULAR(T)                                                    \
  template [[host_name("triangular_solve_" #T)]] kernel void triangular_solve<T>( \
      device float4*, device const T*, constant TriangularParameters&, uint2)

REGISTER_TRIANGULAR(float);
REGISTER_TRIANGULAR(float2);

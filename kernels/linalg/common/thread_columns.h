// Small triangular solves (xTRSM) in registers: a thread holds kColumnsOfThread adjacent columns of
// few rows. Elements of the triangular matrix are loaded where they are used: all threads with
// columns of the same system load the same ones.
#pragma once
#include <c10/metal/common.h>

#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

C10_METAL_CONSTEXPR unsigned kColumnsOfThread = 4;

// Parameters of kernels that compute the columns of X from those of B, with small matrices A.
struct SmallSystemsParameters {
  MatrixStrides matrix;
  MatrixStrides given;
  MatrixStrides solutions;
  uint32_t matrices;
  uint32_t rows;
  uint32_t columns;
  uint32_t mode;           // meaning depends on the kernel
  uint32_t is_conjugated;  // the conjugate of A is used
};

}  // namespace metalops

#ifdef __METAL__
#include <metal_stdlib>

#include <kernels/linalg/common/planar_packs.h>
#include <kernels/linalg/common/row_packs.h>

namespace metalops {

// A row permutation of at most eight rows, four bits each: row interchanges move nothing in memory.
struct RowOrder {
  uint positions = 0x76543210;

  METAL_FUNC uint position(uint row) const thread { return positions >> (4 * row) & 15; }
  METAL_FUNC void swap(uint row, uint other) thread {
    const uint difference = position(row) ^ position(other);
    positions ^= row == other ? 0 : difference << (4 * row) | difference << (4 * other);
  }
};

METAL_FUNC RealPack joined(float a, float b, float c, float d) {
  return {::metal::float4(a, b, c, d)};
}
METAL_FUNC ComplexPack joined(::metal::float2 a, ::metal::float2 b, ::metal::float2 c,
                              ::metal::float2 d) {
  return {::metal::float4(a.x, b.x, c.x, d.x), ::metal::float4(a.y, b.y, c.y, d.y)};
}

METAL_FUNC RealPack divided(RealPack a, Divisor<float> divisor) { return {divisor.divide(a.re)}; }
METAL_FUNC ComplexPack divided(ComplexPack a, Divisor<::metal::float2> divisor) {
  const ComplexPack x = {divisor.is_steep ? a.im : a.re, divisor.is_steep ? -a.re : a.im};
  const ::metal::float4 ratio(divisor.ratio);
  return {divisor.whole.divide(::metal::fma(ratio, x.im, x.re)),
          divisor.whole.divide(::metal::fma(-ratio, x.re, x.im))};
}

// Four adjacent columns of at most SIZE rows. Functions that process one row are templates of its
// index, so that all indices are compile-time constants and the elements stay in registers.
template <typename T, uint SIZE>
struct ThreadColumns {
  Pack<T> x[SIZE];
  uint rows;
  uint count;  // existing columns; accesses to others are clamped to the last one

  static ThreadColumns of(constant SmallSystemsParameters& p, uint first) {
    ThreadColumns result;
    result.rows = p.rows;
    result.count = p.columns - first;
    return result;
  }

  METAL_FUNC int64_t column(uint i, MatrixStrides strides) const thread {
    return ::metal::min(i, count - 1) * strides.column;
  }

  // from, to: address of the first column.
  template <uint ROW>
  METAL_FUNC void load_row(device const T* from, MatrixStrides strides, RowOrder order) thread {
    if (ROW < rows) {
      device const T* const own = from + order.position(ROW) * strides.row;
      x[ROW] =
          joined(own[0], own[column(1, strides)], own[column(2, strides)], own[column(3, strides)]);
    }
  }
  template <uint ROW>
  METAL_FUNC void store_row(device T* to, MatrixStrides strides, RowOrder order) const thread {
    if (ROW < rows) {
      device T* const own = to + order.position(ROW) * strides.row;
      own[0] = element(x[ROW], 0);
      own[column(1, strides)] = element(x[ROW], 1);
      own[column(2, strides)] = element(x[ROW], 2);
      own[column(3, strides)] = element(x[ROW], 3);
    }
  }

  // Forward substitution goes by rows of the lower triangle, back substitution by columns of the
  // upper one, so that no element out of range is loaded. With is_unit the diagonal is taken to be
  // ones.
  template <uint ROW>
  METAL_FUNC void lower_row(device const T* a, MatrixStrides strides, bool is_unit) thread {
    if (ROW < rows) {
      device const T* const own = a + ROW * strides.row;
      for (uint i = 0; i < ROW; ++i) {
        x[ROW] = multiply_add(x[ROW], all_of(-own[i * strides.column]), x[i]);
      }
      if (!is_unit) {
        x[ROW] = divided(x[ROW], divisor_of(own[ROW * strides.column]));
      }
    }
  }
  template <uint ROW>
  METAL_FUNC void upper_row(device const T* a, MatrixStrides strides, bool is_unit) thread {
    if (ROW < rows) {
      device const T* const own = a + ROW * strides.column;
      if (!is_unit) {
        x[ROW] = divided(x[ROW], divisor_of(own[ROW * strides.row]));
      }
      for (uint i = 0; i < ROW; ++i) {
        x[i] = multiply_add(x[i], all_of(-own[i * strides.row]), x[ROW]);
      }
    }
  }

  template <uint FIRST>
  METAL_FUNC void load_four(device const T* from, MatrixStrides strides, RowOrder order) thread {
    load_row<FIRST>(from, strides, order);
    load_row<FIRST + 1>(from, strides, order);
    load_row<FIRST + 2>(from, strides, order);
    load_row<FIRST + 3>(from, strides, order);
  }
  template <uint FIRST>
  METAL_FUNC void store_four(device T* to, MatrixStrides strides, RowOrder order) const thread {
    store_row<FIRST>(to, strides, order);
    store_row<FIRST + 1>(to, strides, order);
    store_row<FIRST + 2>(to, strides, order);
    store_row<FIRST + 3>(to, strides, order);
  }
  template <uint FIRST>
  METAL_FUNC void lower_four(device const T* a, MatrixStrides strides, bool is_unit) thread {
    lower_row<FIRST>(a, strides, is_unit);
    lower_row<FIRST + 1>(a, strides, is_unit);
    lower_row<FIRST + 2>(a, strides, is_unit);
    lower_row<FIRST + 3>(a, strides, is_unit);
  }
  template <uint FIRST>
  METAL_FUNC void upper_four(device const T* a, MatrixStrides strides, bool is_unit) thread {
    upper_row<FIRST + 3>(a, strides, is_unit);
    upper_row<FIRST + 2>(a, strides, is_unit);
    upper_row<FIRST + 1>(a, strides, is_unit);
    upper_row<FIRST>(a, strides, is_unit);
  }

  METAL_FUNC void load(device const T* from, MatrixStrides strides, RowOrder order) thread {
    load_four<0>(from, strides, order);
    if (SIZE > 4) {
      load_four<SIZE - 4>(from, strides, order);
    }
  }
  METAL_FUNC void store(device T* to, MatrixStrides strides, RowOrder order) const thread {
    store_four<0>(to, strides, order);
    if (SIZE > 4) {
      store_four<SIZE - 4>(to, strides, order);
    }
  }
  // Solves L X = B or U X = B; the columns of B become those of X.
  METAL_FUNC void solve_lower(device const T* a, MatrixStrides strides, bool is_unit) thread {
    lower_four<0>(a, strides, is_unit);
    if (SIZE > 4) {
      lower_four<SIZE - 4>(a, strides, is_unit);
    }
  }
  METAL_FUNC void solve_upper(device const T* a, MatrixStrides strides, bool is_unit) thread {
    if (SIZE > 4) {
      upper_four<SIZE - 4>(a, strides, is_unit);
    }
    upper_four<0>(a, strides, is_unit);
  }
  METAL_FUNC void conjugate_where(bool is_conjugated) thread {
    if (is_conjugated) {
      for (uint row = 0; row < SIZE; ++row) {
        x[row] = conjugate(x[row]);
      }
    }
  }
};

// A thread's matrix and the first of its columns.
struct ThreadCoordinates {
  uint matrix;
  uint first;

  static ThreadCoordinates of(uint index, constant SmallSystemsParameters& p) {
    const uint threads = (p.columns + kColumnsOfThread - 1) / kColumnsOfThread;
    return {index / threads, index % threads * kColumnsOfThread};
  }
  METAL_FUNC int64_t offset(MatrixStrides strides) const thread {
    return matrix * strides.matrix + first * strides.column;
  }
};

}  // namespace metalops
#endif

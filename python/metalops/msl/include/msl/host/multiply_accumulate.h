// Multiplication of simdgroup matrices on the host, and functions in which one CPU thread acts for
// all lanes.
#pragma once

#include <msl/simdgroup_matrix.h>

namespace msl::msl_impl {

// Returns where the four elements of a row from column 4 * half on begin, if the elements of lane 0
// are followed by those of lane 1, and so on.
MSL_INLINE constexpr uint matrix_four(uint row, uint half) {
  return row / 4 * 32 + half * 16 + row % 4 * 4;
}
constexpr bool fours_are_where_lanes_are() {
  for (uint lane = 0; lane < 32; ++lane) {
    const uint row = matrix_row(lane), column = matrix_column(lane);
    if (matrix_four(row, column / 4) + column % 4 != 2 * lane) return false;
  }
  return true;
}
static_assert(fours_are_where_lanes_are());

// Loads the parts of all 32 lanes, which are contiguous.
template <class T, class U>
MSL_INLINE void matrix_load_all(metal::simdgroup_matrix<T, 8, 8>* d, const U* source,
                                ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                                bool transpose = false) {
  T* const to = reinterpret_cast<T*>(d);
  const U* const from = source + matrix_index(0, 0, elements_per_row, origin, transpose);
  for (uint row = 0; row < 8; ++row) {
    for (uint half = 0; half < 2; ++half) {
      T* const four = to + matrix_four(row, half);
      if (transpose) {
        for (uint i = 0; i < 4; ++i) four[i] = T(from[(half * 4 + i) * elements_per_row + row]);
      } else {
        for (uint i = 0; i < 4; ++i) four[i] = T(from[row * elements_per_row + half * 4 + i]);
      }
    }
  }
}
template <class T, class U>
MSL_INLINE void matrix_store_all(const metal::simdgroup_matrix<T, 8, 8>* a, U* destination,
                                 ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                                 bool transpose = false) {
  const T* const from = reinterpret_cast<const T*>(a);
  U* const to = destination + matrix_index(0, 0, elements_per_row, origin, transpose);
  for (uint row = 0; row < 8; ++row) {
    for (uint half = 0; half < 2; ++half) {
      const T* const four = from + matrix_four(row, half);
      if (transpose) {
        for (uint i = 0; i < 4; ++i) to[(half * 4 + i) * elements_per_row + row] = U(four[i]);
      } else {
        for (uint i = 0; i < 4; ++i) to[row * elements_per_row + half * 4 + i] = U(four[i]);
      }
    }
  }
}

typedef float MatrixRow __attribute__((vector_size(32)));
template <class T>
MSL_INLINE void read_rows(const metal::simdgroup_matrix<T, 8, 8>* from, MatrixRow* rows) {
  const T* const elements = reinterpret_cast<const T*>(from);
  for (uint row = 0; row < 8; ++row) {
    for (uint i = 0; i < 8; ++i) rows[row][i] = float(elements[matrix_four(row, i / 4) + i % 4]);
  }
}
template <class T>
MSL_INLINE void write_rows(const MatrixRow* rows, metal::simdgroup_matrix<T, 8, 8>* to) {
  T* const elements = reinterpret_cast<T*>(to);
  for (uint row = 0; row < 8; ++row) {
    for (uint i = 0; i < 8; ++i) elements[matrix_four(row, i / 4) + i % 4] = T(rows[row][i]);
  }
}
// D = A B + D
MSL_INLINE void multiply_accumulate_rows(const MatrixRow* a, const MatrixRow* b, MatrixRow* d) {
  for (uint row = 0; row < 8; ++row) {
    MatrixRow sum = d[row];
    for (uint k = 0; k < 8; ++k) sum += a[row][k] * b[k];
    d[row] = sum;
  }
}

template <class D, class A, class B, class C>
struct MultiplyAccumulate {
  static void run(const void* const* in, void* const* out, u32 mask) {
    using Operands = MatrixOperands<A, B, C>;
    if (mask != ~0u) {
      msl_runtime->undefined(abi::Undefined::kNotAll, u32(__builtin_ctz(mask)),
                             u32(__builtin_popcount(mask)));
    }
    float a[8][8] = {}, b[8][8] = {}, d[8][8] = {};
    for_lanes(mask, [&](u32 lane) {
      const Operands& mine = operand_of<Operands>(in, lane);
      const uint row = matrix_row(lane), column = matrix_column(lane);
      a[row][column] = float(mine.a.x);
      a[row][column + 1] = float(mine.a.y);
      b[row][column] = float(mine.b.x);
      b[row][column + 1] = float(mine.b.y);
      d[row][column] = float(mine.c.x);
      d[row][column + 1] = float(mine.c.y);
    });
    for (uint row = 0; row < 8; ++row) {
      for (uint k = 0; k < 8; ++k) {
        for (uint column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
      }
    }
    for_lanes(mask, [&](u32 lane) {
      const uint row = matrix_row(lane), column = matrix_column(lane);
      result_of<metal::vec<D, 2>>(out, lane) =
          metal::vec<D, 2>(D(d[row][column]), D(d[row][column + 1]));
    });
  }
};

}  // namespace msl::msl_impl

// xTRSM: solves with triangular matrices by substitution. A thread owns some adjacent columns and
// processes eight rows at a time, which stay in registers while products with the rows solved
// before are subtracted; so no thread waits for another one. Triangles are first loaded into
// threadgroup memory, from which all threads of a group read them. Matrices larger than a few such
// blocks are split by the host: GEMMs do most of their work. Small ones, and their columns, are
// loaded from where they are.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/linalg/common/column_of_thread.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/thread_columns.h>
#include <kernels/linalg/triangular.h>
using namespace metal;
using metalops::ColumnOfThread;
using metalops::elements_of_triangle;
using metalops::kColumnsOfPack;
using metalops::kTriangleElements;
using metalops::kTriangleThreads;
using metalops::RowOrder;
using metalops::SmallSystemsParameters;
using metalops::ThreadCoordinates;
using metalops::TriangularParameters;

constant constexpr uint kPacks = metalops::kTrianglePacks;
constant constexpr uint kRows = metalops::kTriangleBlockRows;

// Loads kRows elements of a column, or of a row up to its diagonal's block, into the column-major
// storage of a row block in threadgroup memory. Out-of-range indices are clamped.
template <typename T>
inline void load_elements(threadgroup T* to, uint to_stride, device const T* from,
                          int64_t from_stride, uint last, bool is_conjugated) {
  T elements[kRows];
  for (uint i = 0; i < kRows; ++i) {
    elements[i] = from[min(i, last) * from_stride];
  }
  for (uint i = 0; i < kRows; ++i) {
    to[i * to_stride] = is_conjugated ? metalops::conjugate(elements[i]) : elements[i];
  }
}

// Loads a column or a row of a triangle, whichever is adjacent to its neighbours in memory: so
// loads of adjacent threads are coalesced, and each thread has several in flight.
template <typename T>
inline void load_line(threadgroup T* triangle, device const T* matrix,
                      constant TriangularParameters& p, uint line) {
  const uint last = p.size - 1;
  const uint own_block = line / kRows * kRows;
  if (p.matrix_column_stride == 1 || p.matrix_column_stride == -1) {
    device const T* const column = matrix + min(line, last) * p.matrix_column_stride;
    for (uint first = own_block; first < p.size; first += kRows) {
      load_elements<T>(triangle + elements_of_triangle(first) + line * kRows, 1,
                       column + first * p.matrix_row_stride, p.matrix_row_stride, last - first,
                       p.is_conjugated != 0);
    }
  } else {
    device const T* const row = matrix + min(line, last) * p.matrix_row_stride;
    threadgroup T* const to = triangle + elements_of_triangle(own_block) + line % kRows;
    for (uint first = 0; first <= own_block; first += kRows) {
      load_elements<T>(to + first * kRows, kRows, row + first * p.matrix_column_stride,
                       p.matrix_column_stride, last - first, p.is_conjugated != 0);
    }
  }
}

// A thread's adjacent columns of one row. They are scalars and not packs: so the software device
// keeps them in vector registers.
template <typename T>
struct Columns;

template <>
struct Columns<float> {
  float x[4 * kPacks];

  void load(device const float4* from, uint next) thread {
#pragma unroll
    for (uint i = 0; i < 4 * kPacks; ++i) {
      x[i] = from[i / 4 * next][i % 4];
    }
  }
  void store(device float4* to, uint next) const thread {
#pragma unroll
    for (uint i = 0; i < kPacks; ++i) {
      to[i * next] = float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
  }
  void subtract_product(float a, Columns<float> known) thread {
#pragma unroll
    for (uint i = 0; i < 4 * kPacks; ++i) {
      x[i] = fma(-a, known.x[i], x[i]);
    }
  }
  void divide(metalops::Divisor<float> divisor) thread {
#pragma unroll
    for (uint i = 0; i < 4 * kPacks; ++i) {
      x[i] = divisor.divide(x[i]);
    }
  }
};

template <>
struct Columns<float2> {
  float re[2 * kPacks];
  float im[2 * kPacks];

  void load(device const float4* from, uint next) thread {
#pragma unroll
    for (uint i = 0; i < 2 * kPacks; ++i) {
      const float4 pack = from[i / 2 * next];
      re[i] = pack[i % 2 * 2];
      im[i] = pack[i % 2 * 2 + 1];
    }
  }
  void store(device float4* to, uint next) const thread {
#pragma unroll
    for (uint i = 0; i < kPacks; ++i) {
      to[i * next] = float4(re[2 * i], im[2 * i], re[2 * i + 1], im[2 * i + 1]);
    }
  }
  void subtract_product(float2 a, Columns<float2> known) thread {
#pragma unroll
    for (uint i = 0; i < 2 * kPacks; ++i) {
      re[i] = fma(a.y, known.im[i], fma(-a.x, known.re[i], re[i]));
      im[i] = fma(-a.y, known.re[i], fma(-a.x, known.im[i], im[i]));
    }
  }
  void divide(metalops::Divisor<float2> divisor) thread {
#pragma unroll
    for (uint i = 0; i < 2 * kPacks; ++i) {
      const float2 quotient = divisor.divide(float2(re[i], im[i]));
      re[i] = quotient.x;
      im[i] = quotient.y;
    }
  }
};

// Forward substitution of a thread's columns. next: packs from the first pack of columns to the
// second.
template <typename T>
inline void substitute(device float4* x, int64_t stride, uint next, threadgroup const T* triangle,
                       uint size, bool is_unit) {
  for (uint first = 0; first < size; first += kRows) {
    // Rows past the end are clamped to the last one, and are not stored.
    const uint last = min(kRows, size - first) - 1;
    Columns<T> block[kRows];
#pragma unroll
    for (uint i = 0; i < kRows; ++i) {
      block[i].load(x + (first + min(i, last)) * stride, next);
    }
    for (uint j = 0; j < first; ++j) {
      Columns<T> known;
      known.load(x + j * stride, next);
#pragma unroll
      for (uint i = 0; i < kRows; ++i) {
        block[i].subtract_product(triangle[i], known);
      }
      triangle += kRows;
    }
#pragma unroll
    for (uint j = 0; j < kRows; ++j) {
      if (!is_unit) {
        block[j].divide(metalops::divisor_of(triangle[j]));
      }
#pragma unroll
      for (uint i = j + 1; i < kRows; ++i) {
        block[i].subtract_product(triangle[i], block[j]);
      }
      triangle += kRows;
    }
#pragma unroll
    for (uint i = 0; i < kRows; ++i) {
      if (i <= last) {
        block[i].store(x + (first + i) * stride, next);
      }
    }
  }
}

// One threadgroup for some packs of columns of some matrices, which its threads share.
template <typename T>
kernel void triangular_solve(device float4* columns [[buffer(0)]],
                             device const T* matrix [[buffer(1)]],
                             constant TriangularParameters& p [[buffer(2)]],
                             uint group [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]],
                             uint threads [[threads_per_threadgroup]]) {
  threadgroup T triangles[kTriangleElements];
  const uint elements = elements_of_triangle(p.size);
  const uint groups_of_row = (p.packs + p.group_packs - 1) / p.group_packs;
  const uint first_matrix = group / groups_of_row * p.group_matrices;
  const uint matrices = min(p.group_matrices, p.matrices - first_matrix);
  const uint lines = metalops::filled_rows(p.size);
  for (uint i = thread_index; i < matrices * lines; i += threads) {
    const uint own = i / lines;
    load_line<T>(&triangles[own * elements],
                 matrix + p.matrix_start + (first_matrix + own) * p.matrix_batch_stride, p,
                 i % lines);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint threads_of_matrix = (p.group_packs + kPacks - 1) / kPacks;
  const uint own = thread_index / threads_of_matrix;
  const uint pack =
      group % groups_of_row * p.group_packs + thread_index % threads_of_matrix * kPacks;
  if (own < matrices && pack < p.packs) {
    substitute<T>(columns + p.columns_start + (first_matrix + own) * p.columns_batch_stride + pack,
                  p.columns_row_stride, min(1u, p.packs - 1 - pack), &triangles[own * elements],
                  p.size, p.is_unit != 0);
  }
}

// Loads the columns of a triangle of at most ROWS rows into threadgroup memory, `line` packs apart.
// Each thread has several elements in flight, adjacent threads adjacent ones.
template <typename T, uint ROWS>
METAL_FUNC void load_triangle(threadgroup float4* triangle, uint line, device const T* from,
                              constant TriangularParameters& p, uint thread_index) {
  constexpr uint kInFlight = 16;
  const bool by_rows = p.matrix_column_stride == 1 || p.matrix_column_stride == -1;
  for (uint first = thread_index; first < ROWS * ROWS; first += kInFlight * kTriangleThreads) {
    T elements[kInFlight];
#pragma unroll
    for (uint i = 0; i < kInFlight; ++i) {
      const uint place = first + i * kTriangleThreads;
      const uint row = by_rows ? place / ROWS : place % ROWS;
      const uint column = by_rows ? place % ROWS : place / ROWS;
      elements[i] = T(0.0f);
      if (row < p.size && column <= row) {
        elements[i] = from[row * p.matrix_row_stride + column * p.matrix_column_stride];
      }
    }
#pragma unroll
    for (uint i = 0; i < kInFlight; ++i) {
      const uint place = first + i * kTriangleThreads;
      const uint row = by_rows ? place / ROWS : place % ROWS;
      const uint column = by_rows ? place % ROWS : place / ROWS;
      if (row < ROWS && column < ROWS) {
        metalops::elements_of<T>(triangle + column * line)[row] =
            p.is_conjugated != 0 ? metalops::conjugate(elements[i]) : elements[i];
      }
    }
  }
}

// xTRSM of a matrix of at most ROWS rows on a GPU: threads have a column of X each, in registers,
// and a threadgroup has columns of one matrix.
template <typename T, uint ROWS>
[[max_total_threads_per_threadgroup(kTriangleThreads)]] kernel void triangular_columns(
    device T* columns [[buffer(0)]], device const T* matrix [[buffer(1)]],
    constant TriangularParameters& p [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  typedef ColumnOfThread<T, ROWS> Column;
  constexpr uint kLine = Column::kPacks + 1;  // so that columns are not all in the same banks
  threadgroup float4 triangle[ROWS * kLine];
  threadgroup metalops::Divisor<T> divisors[ROWS];
  const uint elements = p.packs * kColumnsOfPack<T>;
  const uint groups_of_matrix = (elements + kTriangleThreads - 1) / kTriangleThreads;
  const ulong own = group / groups_of_matrix;
  const uint column = group % groups_of_matrix * kTriangleThreads + thread_index;
  load_triangle<T, ROWS>(&triangle[0], kLine, matrix + p.matrix_start + own * p.matrix_batch_stride,
                         p, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < ROWS) {
    const bool has_diagonal = p.is_unit == 0 && thread_index < p.size;
    const T diagonal = metalops::elements_of<T>(&triangle[thread_index * kLine])[thread_index];
    divisors[thread_index] =
        metalops::divisor_of(has_diagonal ? diagonal : metalops::from_real<T>(1.0f));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (column >= elements) {
    return;
  }
  const int64_t stride = p.columns_row_stride * int64_t(kColumnsOfPack<T>);
  const int64_t start = p.columns_start + own * p.columns_batch_stride;
  device T* const x = columns + start * int64_t(kColumnsOfPack<T>) + column;
  Column solved;
  solved.load(x, stride, p.size);
  for (uint turn = 0; turn < Column::kTurns && turn * Column::kSteps < p.size; ++turn) {
    const uint first = turn * Column::kSteps;
    threadgroup const float4* const factors = &triangle[first * kLine + turn * Column::kTogether];
    T known[Column::kSteps];
#pragma unroll
    for (uint at = 0; at < Column::kSteps; ++at) {
      const metalops::Divisor<T> divisor = divisors[first + at];
      known[at] = p.is_unit != 0 ? solved.element(at) : divisor.divide(solved.element(at));
      solved.reduce_near(at, known[at], factors[at * kLine], factors[at * kLine + 1]);
    }
#pragma unroll
    for (uint at = 0; at < Column::kSteps; ++at) {
      if (first + at < p.size) {
        x[(first + at) * stride] = known[at];
      }
    }
    solved.reduce_far(&known[0], factors, kLine, /*is_conjugated=*/false, turn);
    solved.move_on();
  }
}

// xTRSM with a matrix of at most SIZE rows, in registers. One thread per four columns.
template <typename T, uint SIZE>
kernel void triangular_thread(device T* solutions [[buffer(0)]],
                              device const T* matrix [[buffer(1)]],
                              device const T* given [[buffer(2)]],
                              constant SmallSystemsParameters& p [[buffer(3)]],
                              uint2 position [[thread_position_in_grid]],
                              uint2 grid [[threads_per_grid]]) {
  const ThreadCoordinates coordinates =
      ThreadCoordinates::of(metalops::thread_index(position, grid), p);
  if (coordinates.matrix >= p.matrices) {
    return;
  }
  const bool is_unit = (p.mode & metalops::kUnitTriangle) != 0;
  device const T* const own = matrix + coordinates.matrix * p.matrix.matrix;
  auto x = metalops::ThreadColumns<T, SIZE>::of(p, coordinates.first);
  x.load(given + coordinates.offset(p.given), p.given, RowOrder());
  x.conjugate_where(p.is_conjugated != 0);
  if ((p.mode & metalops::kUpperTriangle) != 0) {
    x.solve_upper(own, p.matrix, is_unit);
  } else {
    x.solve_lower(own, p.matrix, is_unit);
  }
  x.conjugate_where(p.is_conjugated != 0);
  x.store(solutions + coordinates.offset(p.solutions), p.solutions, RowOrder());
}

#define REGISTER_TRIANGULAR(T) REGISTER_KERNEL("triangular_solve_" #T, triangular_solve, T)

#define REGISTER_TRIANGULAR_COLUMNS(T, ROWS) \
  REGISTER_KERNEL("triangular_columns_" #ROWS "_" #T, triangular_columns, T, ROWS)

#define REGISTER_TRIANGULAR_THREAD(T, SIZE) \
  REGISTER_KERNEL("triangular_thread_" #SIZE "_" #T, triangular_thread, T, SIZE)

REGISTER_TRIANGULAR(float);
REGISTER_TRIANGULAR(float2);
REGISTER_TRIANGULAR_COLUMNS(float, 32);
REGISTER_TRIANGULAR_COLUMNS(float, 64);
REGISTER_TRIANGULAR_COLUMNS(float2, 32);
REGISTER_TRIANGULAR_THREAD(float, 4);
REGISTER_TRIANGULAR_THREAD(float, 8);
REGISTER_TRIANGULAR_THREAD(float2, 4);
REGISTER_TRIANGULAR_THREAD(float2, 8);

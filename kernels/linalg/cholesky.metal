// xPOTRF: Cholesky factorisation A = U^H U (xPOTF2) of diagonal blocks, one threadgroup each, or of
// small matrices, one thread or some lanes each. Rows of U right of blocks are left to
// triangular.metal (xTRSM), the trailing update to the host's GEMM. Only one triangle is read.
// The result holds U, or its adjoint L, and zeros in the other triangle:
//
//     [ u u u ]
//     [ 0 u u ]
//     [ 0 0 u ]
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/linalg/cholesky.h>
#include <kernels/linalg/common/column_of_thread.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/lane_rows.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>
using namespace metal;
using metalops::CholeskyPanelParameters;
using metalops::CholeskyParameters;
using metalops::column;
using metalops::ColumnOfThread;
using metalops::kCholeskyBlockRows;
using metalops::kColumnsOfPack;
using metalops::kLanes;
using metalops::MatrixStrides;
using metalops::RowsOfLane;
using metalops::SmallMatricesMode;
using metalops::SmallMatricesParameters;

// Returns true if a minor can be a pivot: division by an infinite root would leave zeros that hide
// it.
METAL_FUNC bool is_pivot(float minor) { return minor > 0.0f && minor < INFINITY; }

// xPOTF2 of a diagonal block, one threadgroup per block. Threads lie along the packs of a row, and
// then along rows. infos: the order of the first leading minor that is not a pivot, counted from 1;
// from there on a matrix is not changed. Rows are divided by the roots of their minors only at the
// end: so a step takes one barrier.
template <typename T>
kernel void cholesky_block(device float4* matrices [[buffer(0)]], device int* infos [[buffer(1)]],
                           constant CholeskyParameters& p [[buffer(2)]],
                           uint matrix [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
  constexpr uint kColumns = kColumnsOfPack<T>;
  constexpr uint kPacks = kCholeskyBlockRows / kColumns;
  threadgroup float4 block[kCholeskyBlockRows][kPacks];
  const uint packs = (p.rows + kColumns - 1) / kColumns;
  const uint rows_at_once = threads / packs;
  const uint pack = thread_index % packs;
  const uint first_row = thread_index / packs < rows_at_once ? thread_index / packs : p.rows;
  const uint end_row = min(p.rows, (pack + 1) * kColumns);  // rows behind it are below the diagonal
  device float4* const given =
      matrices + matrix * p.matrix_stride + p.first * p.row_stride + p.first / kColumns;
  for (uint row = first_row; row < p.rows; row += rows_at_once) {
    block[row][pack] = given[row * p.row_stride + pack];
  }
  int failed = infos[matrix];  // uniform over the threadgroup
  for (uint step = 0; step < p.rows; ++step) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup T* const factors = metalops::elements_of<T>(&block[step][0]);
    const float minor = metalops::real_part(factors[step]);
    failed = failed == 0 && !is_pivot(minor) ? static_cast<int>(p.first + step + 1) : failed;
    const metalops::Divisor<float> divisor = metalops::divisor_of(minor);
    const float4 divided = divisor.divide(block[step][pack]);
    const uint below = failed != 0 ? p.rows : step + 1 + first_row;
    for (uint row = below; row < end_row; row += rows_at_once) {
      block[row][pack] =
          metalops::minus_product(block[row][pack], metalops::conjugate(factors[row]), divided);
    }
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  for (uint row = first_row; row < p.rows; row += rows_at_once) {
    const float minor = metalops::real_part(metalops::elements_of<T>(&block[row][0])[row]);
    const float root = precise::sqrt(minor);
    float4 scaled = block[row][pack] / root;
    if (pack == row / kColumns) {
      metalops::set_column(scaled, row % kColumns, metalops::from_real<T>(root));
    }
    const bool is_done = failed == 0 || p.first + row + 1 < static_cast<uint>(failed);
    given[row * p.row_stride + pack] = is_done ? scaled : block[row][pack];
  }
  if (thread_index == 0) {
    infos[matrix] = failed;
  }
}

// The diagonal block of a panel's current steps, which each thread eliminates for itself.
template <typename T, uint STEPS>
struct Corner {
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = STEPS / kColumns;

  float4 x[STEPS][kPacks];

  // Loads it from rows, `line` packs apart.
  METAL_FUNC void load(threadgroup const float4* rows, uint line) thread {
#pragma unroll
    for (uint row = 0; row < STEPS; ++row) {
#pragma unroll
      for (uint b = 0; b < kPacks; ++b) {
        x[row][b] = rows[row * line + b];
      }
    }
  }
  METAL_FUNC T element(uint row, uint at) const thread {
    return column(x[row][at / kColumns], at % kColumns, T());
  }

  // Applies a step to the rows below. inverse: of its minor, or zero.
  METAL_FUNC void reduce(uint step, float scale, float inverse) thread {
#pragma unroll
    for (uint row = step + 1; row < STEPS; ++row) {
      const T factor = metalops::conjugate(element(step, row));
#pragma unroll
      for (uint b = row / kColumns; b < kPacks; ++b) {
        x[row][b] = metalops::minus_product(x[row][b], factor, x[step][b] * scale * inverse);
      }
    }
  }
};

// xPOTF2 of a diagonal block, and xTRSM of the rows right of it, both at once: threads have a
// column each in registers, the first ones the block's, in all threadgroups of a matrix. Each
// thread eliminates the corner of some steps for itself, so that these take two barriers together.
// matrices: not changed, since all threadgroups read the block. infos as above.
template <typename T, uint ROWS>
kernel void cholesky_panel(device T* factors [[buffer(0)]], device atomic_int* infos [[buffer(1)]],
                           device const T* matrices [[buffer(2)]],
                           constant CholeskyPanelParameters& p [[buffer(3)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
  typedef ColumnOfThread<T, ROWS> Column;
  constexpr uint kSteps = Column::kSteps;
  // Rows of the block before and after their elimination among themselves.
  threadgroup float4 given[kSteps * Column::kPacks];
  threadgroup float4 made[kSteps * Column::kPacks];
  const uint matrix = group / p.groups;
  const uint part = group % p.groups;
  const bool is_of_block = thread_index < p.block_threads;
  const uint others = p.rows + part * (threads - p.block_threads) - p.block_threads;
  const uint column = is_of_block ? thread_index : others + thread_index;
  const bool is_there = column < (is_of_block ? p.rows : p.columns);
  const ulong start = matrix * p.matrix_stride + p.first * (p.row_stride + 1) + column;
  Column own;
  own.load(matrices + start, p.row_stride, is_there ? min(p.rows, column + 1) : 0);
  // The other threadgroups need not know what fails in this launch.
  int failed = atomic_load_explicit(&infos[matrix], memory_order_relaxed);
  failed = failed > static_cast<int>(p.first) ? 0 : failed;
  for (uint turn = 0; turn < Column::kTurns && turn * kSteps < p.rows; ++turn) {
    own.give(&given[0], thread_index, is_of_block);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Corner<T, kSteps> corner;
    corner.load(&given[turn * Column::kTogether], Column::kPacks);
    T divided[kSteps];
    float minors[kSteps];  // or zero from the first one on that is no pivot
#pragma unroll
    for (uint at = 0; at < kSteps; ++at) {
      const float minor = metalops::real_part(corner.element(at, at));
      const int order = static_cast<int>(p.first + turn * kSteps + at + 1);
      const bool is_step = failed == 0 && turn * kSteps + at < p.rows;
      failed = is_step && !is_pivot(minor) ? order : failed;
      minors[at] = is_step && failed == 0 ? minor : 0.0f;
      // The inverse of a scaled minor is a normal number.
      const float scale = minor < 0x1p-100f ? 0x1p64f : minor > 0x1p100f ? 0x1p-64f : 1.0f;
      const float inverse = minors[at] > 0.0f ? 1.0f / (minor * scale) : 0.0f;
      divided[at] = own.element(at) * scale * inverse;
      own.reduce_near(at, divided[at], metalops::conjugate_columns(corner.x[at][0], T()),
                      metalops::conjugate_columns(corner.x[at][1], T()));
      corner.reduce(at, scale, inverse);
    }
    own.give(&made[0], thread_index, is_of_block);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_there && (part == 0 || !is_of_block)) {
#pragma unroll
      for (uint at = 0; at < kSteps; ++at) {
        const uint row = turn * kSteps + at;
        if (row < p.rows && (row <= column || !is_of_block)) {
          const float root = precise::sqrt(minors[at]);
          const T divided_by_root = own.element(at) * (1.0f / root);
          const T element =
              is_of_block && row == column ? metalops::from_real<T>(root) : divided_by_root;
          factors[start + row * p.row_stride] = minors[at] > 0.0f ? element : own.element(at);
        }
      }
    }
    own.reduce_far(&divided[0], &made[turn * Column::kTogether], Column::kPacks,
                   /*is_conjugated=*/true, turn);
    own.move_on();
  }
  if (part == 0 && thread_index == 0 && failed != 0) {
    atomic_store_explicit(&infos[matrix], failed, memory_order_relaxed);
  }
}

// The upper triangle of a matrix of at most SIZE rows, in registers. Functions that process one row
// are templates of its index, so that all indices are compile-time constants. Indices of rows and
// columns past the end are clamped; those elements, and those below the diagonal, do not matter.
template <typename T, uint SIZE>
struct ThreadTriangle {
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = metalops::kPacksOfRow<T, SIZE>;

  float4 x[SIZE * kPacks];
  uint count;  // rows of the matrix
  bool is_conjugated;
  int info = 0;

  METAL_FUNC T element(T in_memory) const thread {
    return is_conjugated ? metalops::conjugate(in_memory) : in_memory;
  }

  template <uint ROW>
  METAL_FUNC void load_row(device const T* from, MatrixStrides strides) thread {
    device const T* const own = from + min(ROW, count - 1) * strides.row;
    for (uint b = ROW / kColumns; b < kPacks; ++b) {
      for (uint i = 0; i < kColumns; ++i) {
        const uint at = b * kColumns + i;
        metalops::set_column(
            x[ROW * kPacks + b], i,
            at < ROW ? T(0.0f) : element(own[min(at, count - 1) * strides.column]));
      }
    }
  }
  template <uint FIRST>
  METAL_FUNC void load_four(device const T* from, MatrixStrides strides) thread {
    load_row<FIRST>(from, strides);
    load_row<FIRST + 1>(from, strides);
    load_row<FIRST + 2>(from, strides);
    load_row<FIRST + 3>(from, strides);
  }

  template <uint STEP>
  METAL_FUNC void factor() thread {
    constexpr uint kPack = STEP / kColumns;
    const float minor = metalops::real_part(column(x[STEP * kPacks + kPack], STEP % kColumns, T()));
    if (STEP >= count || info != 0) {
      return;
    }
    if (!is_pivot(minor)) {
      info = static_cast<int>(STEP + 1);
      return;
    }
    const float root = precise::sqrt(minor);
    for (uint b = kPack; b < kPacks; ++b) {
      x[STEP * kPacks + b] /= root;
    }
    metalops::set_column(x[STEP * kPacks + kPack], STEP % kColumns, metalops::from_real<T>(root));
    for (uint row = STEP + 1; row < SIZE; ++row) {
      const T factor =
          metalops::conjugate(column(x[STEP * kPacks + row / kColumns], row % kColumns, T()));
      for (uint b = row / kColumns; b < kPacks; ++b) {
        x[row * kPacks + b] =
            metalops::minus_product(x[row * kPacks + b], factor, x[STEP * kPacks + b]);
      }
    }
  }
  template <uint FIRST>
  METAL_FUNC void factor_four() thread {
    factor<FIRST>();
    factor<FIRST + 1>();
    factor<FIRST + 2>();
    factor<FIRST + 3>();
  }

  template <uint ROW>
  METAL_FUNC void store_row(device T* to, MatrixStrides strides) const thread {
    if (ROW < count) {
      device T* const own = to + ROW * strides.row;
      for (uint at = 0; at < SIZE; ++at) {
        if (at < count) {
          own[at * strides.column] =
              at < ROW ? T(0.0f)
                       : element(column(x[ROW * kPacks + at / kColumns], at % kColumns, T()));
        }
      }
    }
  }
  template <uint FIRST>
  METAL_FUNC void store_four(device T* to, MatrixStrides strides) const thread {
    store_row<FIRST>(to, strides);
    store_row<FIRST + 1>(to, strides);
    store_row<FIRST + 2>(to, strides);
    store_row<FIRST + 3>(to, strides);
  }
};

// xPOTF2, one thread per matrix; infos as above. mode: kUpper if upper triangles are read and
// written, else they are the adjoints of lower ones.
template <typename T, uint SIZE>
kernel void cholesky_thread(device T* factors [[buffer(0)]], device int* infos [[buffer(1)]],
                            device const T* input [[buffer(2)]],
                            constant SmallMatricesParameters& p [[buffer(3)]],
                            uint2 position [[thread_position_in_grid]],
                            uint2 grid [[threads_per_grid]]) {
  const uint matrix = metalops::thread_index(position, grid);
  if (matrix >= p.matrices) {
    return;
  }
  device const T* const from = input + matrix * p.input.matrix;
  device T* const to = factors + matrix * p.output.matrix;
  ThreadTriangle<T, SIZE> triangle;
  triangle.count = p.rows;
  triangle.is_conjugated = p.mode != SmallMatricesMode::kUpper;
  triangle.template load_four<0>(from, p.input);
  if (SIZE > 4) {
    triangle.template load_four<SIZE - 4>(from, p.input);
  }
  triangle.template factor_four<0>();
  if (SIZE > 4) {
    triangle.template factor_four<SIZE - 4>();
  }
  infos[matrix] = triangle.info;
  triangle.template store_four<0>(to, p.output);
  if (SIZE > 4) {
    triangle.template store_four<SIZE - 4>(to, p.output);
  }
}

// One lane's rows of the upper triangle; elements below the diagonal do not matter.
template <typename T, uint SIZE, uint LANES>
struct TriangleRows {
  RowsOfLane<T, SIZE, LANES> own;

  void conjugate_all() thread {
    for (uint r = 0; r < own.kRows; ++r) {
      for (uint b = 0; b < own.kPacks; ++b) {
        own.x[r][b] = metalops::conjugate_columns(own.x[r][b], T());
      }
    }
  }

  // Divides row `step`, if the lane has it, by the root of its minor, if that is a pivot, and
  // stores it and the minor for the other lanes.
  void give(uint step, threadgroup float4* row, threadgroup float& minor) thread {
    for (uint r = 0; r < own.kRows; ++r) {
      if (own.row(r) == step) {
        const uint pack = step / own.kColumns;
        for (uint b = 0; b < own.kPacks; ++b) {
          row[b] = own.x[r][b];
        }
        minor = metalops::real_part(column(row[pack], step % own.kColumns, T()));
        if (is_pivot(minor)) {
          const float root = precise::sqrt(minor);
          for (uint b = 0; b < own.kPacks; ++b) {
            own.x[r][b] /= root;
            if (b == pack) {
              metalops::set_column(own.x[r][b], step % own.kColumns, metalops::from_real<T>(root));
            }
            row[b] = own.x[r][b];
          }
        }
      }
    }
  }

  // Updates the lane's rows below row `step`.
  void reduce(uint step, threadgroup const float4* row) thread {
    for (uint r = 0; r < own.kRows; ++r) {
      if (own.row(r) > step) {
        const T factor = metalops::conjugate(metalops::elements_of<T>(row)[own.row(r)]);
        for (uint b = r * LANES / own.kColumns; b < own.kPacks; ++b) {
          own.x[r][b] = metalops::minus_product(own.x[r][b], factor, row[b]);
        }
      }
    }
  }

  // Clears elements below the diagonal.
  void clear_lower() thread {
    for (uint r = 0; r < own.kRows; ++r) {
      for (uint b = 0; b < own.kPacks; ++b) {
        if (b * own.kColumns < own.row(r)) {
          own.x[r][b] = select(own.x[r][b], float4(0.0f),
                               metalops::columns_before<T>(own.row(r) - b * own.kColumns));
        }
      }
    }
  }
};

// xPOTF2 of a matrix of at most SIZE rows: lanes have some rows each, in registers, and a simdgroup
// has several matrices. infos and mode as above.
template <typename T, uint SIZE, uint LANES>
kernel void cholesky_rows(device T* factors [[buffer(0)]], device int* infos [[buffer(1)]],
                          device const T* input [[buffer(2)]],
                          constant SmallMatricesParameters& p [[buffer(3)]],
                          uint2 position [[thread_position_in_grid]],
                          uint2 grid [[threads_per_grid]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kSimdgroups = 8;
  constexpr uint kMatrices = 32 / LANES;
  // One row is loaded while the next one is stored.
  threadgroup float4 given[kSimdgroups][kMatrices][2][metalops::kPacksOfRow<T, SIZE>];
  threadgroup float minors[kSimdgroups][kMatrices][2];
  const uint matrix = metalops::thread_index(position, grid) / LANES;
  const uint of_simdgroup = lane / LANES;
  const bool is_upper = p.mode == SmallMatricesMode::kUpper;
  TriangleRows<T, SIZE, LANES> rows;
  rows.own.lane = lane % LANES;
  rows.own.count = matrix < p.matrices ? p.rows : 0;
  rows.own.load(input + matrix * p.input.matrix, p.input, p.rows);
  if (!is_upper) {
    rows.conjugate_all();
  }
  int info = 0;
  for (uint step = 0; step < p.rows; ++step) {
    threadgroup float4* const row = given[simdgroup][of_simdgroup][step % 2];
    threadgroup float& minor = minors[simdgroup][of_simdgroup][step % 2];
    if (info == 0) {
      rows.give(step, row, minor);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    info = info == 0 && !is_pivot(minor) ? static_cast<int>(step + 1) : info;
    if (info == 0) {
      rows.reduce(step, row);
    }
  }
  if (rows.own.lane == 0 && rows.own.count != 0) {
    infos[matrix] = info;
  }
  rows.clear_lower();
  if (!is_upper) {
    rows.conjugate_all();
  }
  rows.own.store(factors + matrix * p.output.matrix, p.output, p.rows);
}

// Clears elements below the diagonal. One thread per pack of columns, row and matrix.
template <typename T>
kernel void cholesky_clear_lower(device float4* matrices [[buffer(0)]],
                                 constant CholeskyParameters& p [[buffer(1)]],
                                 uint3 position [[thread_position_in_grid]]) {
  constexpr uint kColumns = kColumnsOfPack<T>;
  const uint row = position.y;
  if (position.x * kColumns >= row) {
    return;
  }
  device float4& own = matrices[position.z * p.matrix_stride + row * p.row_stride + position.x];
  float4 cleared = own;
  for (uint i = 0; i < kColumns && position.x * kColumns + i < row; ++i) {
    metalops::set_column(cleared, i, T(0.0f));
  }
  own = cleared;
}

#define REGISTER_CHOLESKY(T)                                \
  REGISTER_KERNEL("cholesky_block_" #T, cholesky_block, T); \
  REGISTER_KERNEL("cholesky_clear_lower_" #T, cholesky_clear_lower, T)

#define REGISTER_CHOLESKY_THREAD(T, SIZE) \
  REGISTER_KERNEL("cholesky_thread_" #SIZE "_" #T, cholesky_thread, T, SIZE)

#define REGISTER_CHOLESKY_ROWS(T, SIZE) \
  REGISTER_KERNEL("cholesky_rows_" #SIZE "_" #T, cholesky_rows, T, SIZE, kLanes)

#define REGISTER_CHOLESKY_PANEL(T, ROWS) \
  REGISTER_KERNEL("cholesky_panel_" #ROWS "_" #T, cholesky_panel, T, ROWS)

REGISTER_CHOLESKY_PANEL(float, 32);
REGISTER_CHOLESKY_PANEL(float, 64);
REGISTER_CHOLESKY_PANEL(float2, 32);
REGISTER_CHOLESKY(float);
REGISTER_CHOLESKY(float2);
REGISTER_CHOLESKY_THREAD(float, 4);
REGISTER_CHOLESKY_THREAD(float, 8);
REGISTER_CHOLESKY_THREAD(float2, 4);
REGISTER_CHOLESKY_THREAD(float2, 8);
REGISTER_CHOLESKY_ROWS(float, 16);
REGISTER_CHOLESKY_ROWS(float2, 16);

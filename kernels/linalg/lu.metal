// xGETRF, xGETRS and xLASWP: LU factorisation with partial pivoting (xGETF2) of panels, one
// threadgroup each, or of small matrices, one thread or some lanes each; row interchanges, solves
// of small systems, and determinants of factored matrices. A factored matrix or panel holds U and,
// below the diagonal, the multipliers of L, whose diagonal is ones:
//
//     [ u u u ]
//     [ l u u ]
//     [ l l u ]
//     [ l l l ]
//
// The rows of U right of a panel are left to triangular.metal (xTRSM), the trailing update to the
// host's GEMM.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/lane_rows.h>
#include <kernels/linalg/common/pivoted_rows.h>
#include <kernels/linalg/common/pivots.h>
#include <kernels/linalg/common/planar.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>
#include <kernels/linalg/common/thread_columns.h>
#include <kernels/linalg/lu.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::Candidate;
using metalops::divisor_of_step;
using metalops::elements_of;
using metalops::is_zero;
using metalops::kColumnsOfPack;
using metalops::kLuPanelColumns;
using metalops::kLuPermutedPacks;
using metalops::kLuPermutingThreads;
using metalops::kLuSimdgroup;
using metalops::kMostLuThreads;
using metalops::kMostSimdgroups;
using metalops::LuDeterminantParameters;
using metalops::LuPanelParameters;
using metalops::LuRowsParameters;
using metalops::LuSwapParameters;
using metalops::MatrixStrides;
using metalops::Parts;
using metalops::pivot_magnitude;
using metalops::PivotedRows;
using metalops::PivotKey;
using metalops::reduced_pack;
using metalops::RowOrder;
using metalops::RowsOfLane;
using metalops::SmallMatricesMode;
using metalops::SmallMatricesParameters;
using metalops::SmallSystemsParameters;
using metalops::ThreadColumns;
using metalops::ThreadCoordinates;

// Loads kWidth columns of a row into planar storage; columns from `count` on become zero.
template <typename T>
METAL_FUNC void load_row(device float* x, ulong ld, device const float* from, int64_t stride,
                         uint count) {
  typedef Parts<T> P;
#pragma unroll
  for (uint i = 0; i < P::kWidth; ++i) {
    P element = P();
    if (i < count) {
      element = P::load(from + i * stride * P::kParts, 1);
    }
    element.store(x + i * P::kParts * ld, ld);
  }
}

// Stores kWidth columns of a row from planar storage; columns from `count` on are not stored.
template <typename T>
METAL_FUNC void store_row(device const float* x, ulong ld, device float* to, int64_t stride,
                          uint count) {
  typedef Parts<T> P;
#pragma unroll
  for (uint i = 0; i < P::kWidth; ++i) {
    if (i < count) {
      P::load(x + i * P::kParts * ld, ld).store(to + i * stride * P::kParts, 1);
    }
  }
}

// Applies step `step` of the factorisation to one element below the pivot row: columns left of
// `step` are final, column `step` receives the multiplier, columns right of it are updated (a -= l
// * u). Returns the magnitude of the updated element.
template <typename T>
METAL_FUNC float reduce_element(device float* x, device const float* pivot_row, Parts<T> factor,
                                ulong ld, uint column, uint step) {
  typedef Parts<T> P;
  const P old = P::load(x, ld);
  const P reduced = old.minus_product(factor, P::load(pivot_row, ld));
  reduced.or_else(factor.or_else(old, column == step), column > step).store(x, ld);
  return reduced.magnitude();
}

// Applies a step to four columns from `first` on of such a row. Here and below, columns that a
// thread processes at once are not counted by a loop, so that adjacent threads may be vectorised on
// a CPU. Returns the magnitude of the element right of the step's column, or `next` if it is not
// among these.
template <typename T>
METAL_FUNC float reduce_four(device float* x, device const float* pivot_row, Parts<T> factor,
                             ulong ld, uint first, uint step, float next) {
  const ulong width = Parts<T>::kParts * ld;
  device float* const own = x + first * width;
  device const float* const of_pivot = pivot_row + first * width;
  const float a = reduce_element<T>(own, of_pivot, factor, ld, first, step);
  const float b = reduce_element<T>(own + width, of_pivot + width, factor, ld, first + 1, step);
  const float c =
      reduce_element<T>(own + 2 * width, of_pivot + 2 * width, factor, ld, first + 2, step);
  const float d =
      reduce_element<T>(own + 3 * width, of_pivot + 3 * width, factor, ld, first + 3, step);
  next = first == step + 1 ? a : next;
  next = first + 1 == step + 1 ? b : next;
  next = first + 2 == step + 1 ? c : next;
  return first + 3 == step + 1 ? d : next;
}

// Applies a step to a row below the pivot row, in the columns that the step covers. Returns the
// magnitude of its element in the next column.
template <typename T>
METAL_FUNC float reduce_row(device float* x, device const float* pivot_row, ulong ld, uint step) {
  typedef Parts<T> P;
  const ulong width = P::kParts * ld;
  const P pivot = P::load(pivot_row + step * width, ld);
  const P current = P::load(x + step * width, ld);
  // Below a zero pivot there are only zeros and NaN, unless rows are not interchanged.
  const P factor = current.or_else(current.divided_by(pivot), pivot.is_zero());
  const float next = reduce_four<T>(x, pivot_row, factor, ld, 0, step, 0.0f);
  return P::kWidth > 4 ? reduce_four<T>(x, pivot_row, factor, ld, 4, step, next) : next;
}

// Solves with the unit lower triangle of `count` steps (xTRSM) for their pivot rows of a column
// right of them. x, lower: address of the first pivot row in that column and in the steps' first
// column.
template <typename T>
inline void solve_column(device float* x, device const float* lower, ulong ld, uint count) {
  typedef Parts<T> P;
  for (uint k = 0; k + 1 < count; ++k) {
    const P known = P::load(x + k, ld);
    for (uint i = k + 1; i < count; ++i) {
      const P factor = P::load(lower + k * P::kParts * ld + i, ld);
      P::load(x + i, ld).minus_product(factor, known).store(x + i, ld);
    }
  }
}

// Four elements of a row of L.
template <typename T>
struct FourFactors {
  Parts<T> a;
  Parts<T> b;
  Parts<T> c;
  Parts<T> d;

  static FourFactors load(device const float* x, ulong ld) {
    typedef Parts<T> P;
    const ulong width = P::kParts * ld;
    return {P::load(x, ld), P::load(x + width, ld), P::load(x + 2 * width, ld),
            P::load(x + 3 * width, ld)};
  }
  // Subtracts the product with a column of four pivot rows. upper: that column.
  Parts<T> reduce(Parts<T> element, device const float* upper, ulong ld) const {
    typedef Parts<T> P;
    return element.minus_product(a, P::load(upper, ld))
        .minus_product(b, P::load(upper + 1, ld))
        .minus_product(c, P::load(upper + 2, ld))
        .minus_product(d, P::load(upper + 3, ld));
  }
};

// Updates one element below the pivot rows, in a column right of the steps.
template <typename T>
METAL_FUNC void update_element(device float* x, FourFactors<T> first, FourFactors<T> second,
                               device const float* upper, ulong ld) {
  typedef Parts<T> P;
  P element = first.reduce(P::load(x, ld), upper, ld);
  if (P::kWidth > 4) {
    element = second.reduce(element, upper + 4, ld);
  }
  element.store(x, ld);
}

template <typename T>
METAL_FUNC void update_four(device float* x, FourFactors<T> first, FourFactors<T> second,
                            device const float* upper, ulong ld) {
  const ulong width = Parts<T>::kParts * ld;
  update_element<T>(x, first, second, upper, ld);
  update_element<T>(x + width, first, second, upper + width, ld);
  update_element<T>(x + 2 * width, first, second, upper + 2 * width, ld);
  update_element<T>(x + 3 * width, first, second, upper + 3 * width, ld);
}

// Updates a row below the pivot rows in kWidth columns. upper: the pivot rows there.
template <typename T>
METAL_FUNC void update_row(device float* x, device const float* lower, device const float* upper,
                           ulong ld) {
  typedef Parts<T> P;
  const ulong four = 4 * P::kParts * ld;
  const FourFactors<T> first = FourFactors<T>::load(lower, ld);
  if (P::kWidth > 4) {
    const FourFactors<T> second = FourFactors<T>::load(lower + four, ld);
    update_four<T>(x, first, second, upper, ld);
    update_four<T>(x + four, first, second, upper + four, ld);
  } else {
    update_four<T>(x, first, first, upper, ld);
  }
}

// Swaps two rows of one column.
template <typename T>
inline void swap_rows(device float* column, ulong ld, uint row, uint other) {
  typedef Parts<T> P;
  const P moved = P::load(column + row, ld);
  P::load(column + other, ld).store(column + row, ld);
  moved.store(column + other, ld);
}

// xGETF2 of a panel of at most kLuPanelColumns columns, one threadgroup per panel. panels:
// column-major planar copies. Steps cover kWidth columns only; columns right of these are updated
// after them, all at once.
template <typename T>
kernel void lu_panel(device float* output [[buffer(0)]], device float* panels [[buffer(1)]],
                     device int* pivots [[buffer(2)]], device int* infos [[buffer(3)]],
                     device const float* input [[buffer(4)]],
                     constant LuPanelParameters& p [[buffer(5)]],
                     uint matrix [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]]) {
  typedef Parts<T> P;
  threadgroup float magnitudes[kMostSimdgroups];
  threadgroup uint rows[kMostSimdgroups];
  const ulong width = P::kParts * p.ld;  // stride of columns
  device float* const panel = panels + matrix * (kLuPanelColumns * width);
  device const float* const from = input + matrix * p.input.matrix * P::kParts;
  device float* const to = output + matrix * p.output.matrix * P::kParts;
  for (uint column = 0; column < p.columns; column += P::kWidth) {
    device float* const x = panel + column * width;
    device const float* const own = from + column * p.input.column * P::kParts;
    for (uint row = thread_index; row < p.rows; row += threads) {
      load_row<T>(&x[row], p.ld, own + row * p.input.row * P::kParts, p.input.column,
                  p.columns - column);
    }
  }
  for (uint first = 0; first < p.steps; first += P::kWidth) {
    device float* const x = panel + first * width;
    const uint end = first + P::kWidth < p.steps ? first + P::kWidth : p.steps;
    Candidate best;
    for (uint row = first + thread_index; row < p.rows; row += threads) {
      best.combine(P::load(&x[row], p.ld).magnitude(), row);
    }
    for (uint step = first; step < end; ++step) {
      best.combine_simdgroup();
      if (lane == 0) {
        magnitudes[simdgroup] = best.magnitude;
        rows[simdgroup] = best.row;
      }
      threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
      if (simdgroup == 0) {
        if (simdgroups > 1) {
          best = Candidate();
          if (lane < simdgroups) {
            best.combine(magnitudes[lane], rows[lane]);
          }
          best.combine_simdgroup();
        }
        const uint pivot = p.is_pivoted != 0 && best.magnitude > 0.0f ? best.row : step;
        if (lane == 0) {
          pivots[matrix * p.pivots_stride + step] = static_cast<int>(p.first + pivot + 1);
          if (P::load(&x[(step - first) * width + pivot], p.ld).is_zero() && infos[matrix] == 0) {
            infos[matrix] = static_cast<int>(p.first + step + 1);
          }
        }
        simdgroup_barrier(mem_flags::mem_device);
        if (lane < p.columns && pivot != step) {
          swap_rows<T>(panel + lane * width, p.ld, step, pivot);
        }
      }
      threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
      best = Candidate();
      // Iterations are independent: each writes a row that no other one reads.
#pragma clang loop vectorize(assume_safety)
      for (uint row = step + 1 + thread_index; row < p.rows; row += threads) {
        best.combine(reduce_row<T>(&x[row], x + step, p.ld, step - first), row);
      }
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (uint column = first + P::kWidth + thread_index; column < p.columns; column += threads) {
      solve_column<T>(panel + column * width + first, x + first, p.ld, end - first);
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (uint column = first + P::kWidth; column < p.columns; column += P::kWidth) {
      device float* const behind = panel + column * width;
      // These iterations are independent, too.
#pragma clang loop vectorize(assume_safety)
      for (ulong row = end + thread_index; row < p.rows; row += threads) {
        update_row<T>(&behind[row], x + row, behind + first, p.ld);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (uint column = 0; column < p.columns; column += P::kWidth) {
    device const float* const x = panel + column * width;
    device float* const own = to + column * p.output.column * P::kParts;
    for (uint row = thread_index; row < p.rows; row += threads) {
      store_row<T>(&x[row], p.ld, own + row * p.output.row * P::kParts, p.output.column,
                   p.columns - column);
    }
  }
}

// A matrix of at most SIZE rows and columns, in registers: all indices are compile-time constants.
template <typename T, uint SIZE>
struct ThreadRows {
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = metalops::kPacksOfRow<T, SIZE>;

  float4 x[SIZE * kPacks];
  int info = 0;

  template <uint STEP>
  METAL_FUNC T current(uint row) const thread {
    return metalops::column(x[row * kPacks + STEP / kColumns], STEP % kColumns, T());
  }

  template <uint STEP>
  METAL_FUNC void factor(uint steps, bool is_pivoted, device int* pivots) thread {
    if (STEP >= steps) {
      return;
    }
    // The pivot is the first one of the elements of largest magnitude, and neither zero nor NaN.
    float largest = is_pivoted ? 0.0f : INFINITY;
    uint pivot = STEP;
    for (uint row = STEP; row < SIZE; ++row) {
      const float size = metalops::cabs1(current<STEP>(row));
      const bool is_larger = size > largest;
      pivot = is_larger ? row : pivot;
      largest = is_larger ? size : largest;
    }
    pivots[STEP] = static_cast<int>(pivot + 1);
    for (uint b = 0; b < kPacks; ++b) {
      const float4 step_row = x[STEP * kPacks + b];
      float4 pivot_row = step_row;
      for (uint row = STEP + 1; row < SIZE; ++row) {
        const float4 pack = x[row * kPacks + b];
        pivot_row = row == pivot ? pack : pivot_row;
        x[row * kPacks + b] = row == pivot ? step_row : pack;
      }
      x[STEP * kPacks + b] = pivot_row;
    }
    const T pivot_element = current<STEP>(STEP);
    info = is_zero(pivot_element) && info == 0 ? static_cast<int>(STEP + 1) : info;
    const metalops::Divisor<T> divisor = divisor_of_step(pivot_element);
    for (uint row = STEP + 1; row < SIZE; ++row) {
      const T factor = divisor.divide(current<STEP>(row));
      for (uint b = STEP / kColumns; b < kPacks; ++b) {
        x[row * kPacks + b] =
            reduced_pack(x[row * kPacks + b], factor, x[STEP * kPacks + b], b * kColumns, STEP);
      }
    }
  }

  // Does four steps from FIRST on. pivots: those of the matrix.
  template <uint FIRST>
  METAL_FUNC void factor_four(uint steps, bool is_pivoted, device int* pivots) thread {
    factor<FIRST>(steps, is_pivoted, pivots);
    factor<FIRST + 1>(steps, is_pivoted, pivots);
    factor<FIRST + 2>(steps, is_pivoted, pivots);
    factor<FIRST + 3>(steps, is_pivoted, pivots);
  }
};

// xGETF2, one thread per matrix. mode: kPivoted if rows are interchanged.
template <typename T, uint SIZE>
kernel void lu_thread(device T* factors [[buffer(0)]], device int* pivots [[buffer(1)]],
                      device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                      constant SmallMatricesParameters& p [[buffer(4)]],
                      uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const uint matrix = metalops::thread_index(position, grid);
  if (matrix >= p.matrices) {
    return;
  }
  const uint steps = min(p.rows, p.columns);
  const bool is_pivoted = p.mode == SmallMatricesMode::kPivoted;
  ThreadRows<T, SIZE> rows;
  metalops::load_matrix<T, SIZE>(&rows.x[0], input + matrix * p.input.matrix, p.input, p.rows,
                                 p.columns);
  rows.template factor_four<0>(steps, is_pivoted, pivots + matrix * steps);
  if (SIZE > 4) {
    rows.template factor_four<SIZE - 4>(steps, is_pivoted, pivots + matrix * steps);
  }
  infos[matrix] = rows.info;
  metalops::store_matrix<T, SIZE>(&rows.x[0], factors + matrix * p.output.matrix, p.output, p.rows,
                                  p.columns);
}

// One lane's rows during elimination.
template <typename T, uint SIZE, uint LANES>
struct LaneElimination {
  RowsOfLane<T, SIZE, LANES> own;
  T current[RowsOfLane<T, SIZE, LANES>::kRows];  // elements in the step's column

  // Takes the elements of the first column, after `own` was loaded.
  void begin() thread {
    for (uint r = 0; r < own.kRows; ++r) {
      current[r] = metalops::column(own.x[r][0], 0, T());
    }
  }

  // Returns the pivot candidate of the lane's rows from `first` on.
  Candidate best(uint first) const thread {
    Candidate result;
    for (uint r = 0; r < own.kRows; ++r) {
      if (own.row(r) >= first && own.row(r) < own.count) {
        result.combine(pivot_magnitude(current[r]), own.row(r));
      }
    }
    return result;
  }

  // Stores those of the two rows that are interchanged that the lane has.
  void give(uint step, uint pivot, threadgroup float4* step_row,
            threadgroup float4* pivot_row) const thread {
    for (uint r = 0; r < own.kRows; ++r) {
      if (own.row(r) == step || own.row(r) == pivot) {
        for (uint b = 0; b < own.kPacks; ++b) {
          if (own.row(r) == step) {
            step_row[b] = own.x[r][b];
          }
          if (own.row(r) == pivot) {
            pivot_row[b] = own.x[r][b];
          }
        }
      }
    }
  }

  // Puts the interchanged rows into their places and applies the step to the rows below the pivot
  // row.
  void reduce(uint step, uint pivot, threadgroup const float4* step_row,
              threadgroup const float4* pivot_row) thread {
    const T pivot_element = elements_of<T>(pivot_row)[step];
    const metalops::Divisor<T> divisor = divisor_of_step(pivot_element);
    for (uint r = 0; r < own.kRows; ++r) {
      if (own.row(r) == step || own.row(r) == pivot) {
        threadgroup const float4* const moved = own.row(r) == step ? pivot_row : step_row;
        for (uint b = 0; b < own.kPacks; ++b) {
          own.x[r][b] = moved[b];
        }
        current[r] = elements_of<T>(moved)[step];
      }
      if (own.row(r) > step && own.row(r) < own.count) {
        const T factor = divisor.divide(current[r]);
        for (uint b = 0; b < own.kPacks; ++b) {
          if ((b + 1) * own.kColumns > step) {
            own.x[r][b] = reduced_pack(own.x[r][b], factor, pivot_row[b], b * own.kColumns, step);
            if (b == (step + 1) / own.kColumns) {
              current[r] = metalops::column(own.x[r][b], (step + 1) % own.kColumns, T());
            }
          }
        }
      }
    }
  }
};

template <uint LANES>
inline Candidate best_of_lanes(threadgroup const Candidate* candidates) {
  Candidate result;
  for (uint i = 0; i < LANES; ++i) {
    result.combine(candidates[i].magnitude, candidates[i].row);
  }
  return result;
}

// xGETF2 of a matrix of at most SIZE rows and columns: lanes have some rows each, in registers, and
// a simdgroup has several matrices. mode: as above.
template <typename T, uint SIZE, uint LANES>
kernel void lu_rows(device T* factors [[buffer(0)]], device int* pivots [[buffer(1)]],
                    device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                    constant SmallMatricesParameters& p [[buffer(4)]],
                    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kSimdgroups = 8;
  constexpr uint kMatrices = 32 / LANES;
  constexpr uint kPacks = metalops::kPacksOfRow<T, SIZE>;
  threadgroup Candidate candidates[kSimdgroups][kMatrices][LANES];
  threadgroup float4 step_rows[kSimdgroups][kMatrices][kPacks];
  threadgroup float4 pivot_rows[kSimdgroups][kMatrices][kPacks];
  const uint matrix = metalops::thread_index(position, grid) / LANES;
  const uint of_simdgroup = lane / LANES;
  const uint steps = min(p.rows, p.columns);
  const bool is_pivoted = p.mode == SmallMatricesMode::kPivoted;
  LaneElimination<T, SIZE, LANES> rows;
  rows.own.lane = lane % LANES;
  rows.own.count = matrix < p.matrices ? p.rows : 0;
  rows.own.load(input + matrix * p.input.matrix, p.input, p.columns);
  rows.begin();
  int info = 0;
  for (uint step = 0; step < steps; ++step) {
    candidates[simdgroup][of_simdgroup][rows.own.lane] = rows.best(step);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const Candidate best = best_of_lanes<LANES>(candidates[simdgroup][of_simdgroup]);
    const uint pivot = is_pivoted && best.magnitude > 0.0f ? best.row : step;
    rows.give(step, pivot, step_rows[simdgroup][of_simdgroup], pivot_rows[simdgroup][of_simdgroup]);
    if (rows.own.lane == 0 && rows.own.count != 0) {
      pivots[matrix * steps + step] = static_cast<int>(pivot + 1);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    rows.reduce(step, pivot, step_rows[simdgroup][of_simdgroup],
                pivot_rows[simdgroup][of_simdgroup]);
    const T pivot_element = elements_of<T>(pivot_rows[simdgroup][of_simdgroup])[step];
    info = is_zero(pivot_element) && info == 0 ? static_cast<int>(step + 1) : info;
  }
  if (rows.own.lane == 0 && rows.own.count != 0) {
    infos[matrix] = info;
  }
  rows.own.store(factors + matrix * p.output.matrix, p.output, p.columns);
}

// xGETF2 of a matrix of at most SIZE rows and columns by a simdgroup, whose lanes have a row each.
template <typename T, uint SIZE>
kernel void lu_simdgroup(device T* factors [[buffer(0)]], device int* pivots [[buffer(1)]],
                         device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                         constant LuRowsParameters& p [[buffer(4)]],
                         uint2 position [[thread_position_in_grid]],
                         uint2 grid [[threads_per_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  typedef PivotedRows<T, 1, SIZE> Rows;
  constexpr uint kSimdgroups = 8;
  threadgroup float4 pivot_rows[kSimdgroups][2][Rows::kPacks];
  const uint own = metalops::thread_index(position, grid) / 32;
  const bool is_there = own < p.matrices;
  const ulong matrix =
      min(own, p.matrices - 1);  // simdgroups past the end factor the last one, too
  Rows rows;
  rows.load(input + matrix * p.input.matrix, p.input, p.input_in_packs != 0, p.rows, p.columns,
            lane, 32);
  int info = 0;
  for (uint turn = 0; turn < Rows::kTurns; ++turn) {
#pragma unroll
    for (uint at = 0; at < Rows::kSteps; ++at) {
      const uint step = turn * Rows::kSteps + at;
      if (step < p.steps) {
        PivotKey best = rows.best(at, step, p.is_pivoted != 0);
        best.combine_simdgroup();
        threadgroup float4* const pivot_row = pivot_rows[simdgroup][step % 2];
        rows.give(best.place, pivot_row);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        rows.reduce(pivot_row, at, step, best.place, turn);
        info = is_zero(elements_of<T>(pivot_row)[at]) && info == 0 ? int(step + 1) : info;
        if (is_there && lane == 0) {
          pivots[matrix * p.pivots_stride + step] = static_cast<int>(best.place + 1);
        }
      }
    }
    rows.move_on();
  }
  if (is_there) {
    rows.store(factors + matrix * p.output.matrix, p.output, p.output_in_packs != 0, p.columns);
    if (lane == 0) {
      infos[matrix] = info;
    }
  }
}

// The candidates of a threadgroup's simdgroups in a step, and their rows.
template <uint PACKS>
struct PivotCandidates {
  uint keys[kMostLuThreads / 32];
  uint places[kMostLuThreads / 32];
  float4 rows[kMostLuThreads / 32][PACKS];
};

// xGETF2 of a panel by a threadgroup, whose threads have ROWS rows each in registers. A step has a
// barrier: each simdgroup gives the row that it would take as pivot, before it is known which one
// it is. Parameters and results are those of lu_panel.
template <typename T, uint ROWS, uint COLUMNS>
[[max_total_threads_per_threadgroup(kMostLuThreads)]] kernel void lu_panel_rows(
    device T* output [[buffer(0)]], device int* pivots [[buffer(1)]],
    device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
    constant LuRowsParameters& p [[buffer(4)]], uint matrix [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  typedef PivotedRows<T, ROWS, COLUMNS> Rows;
  threadgroup PivotCandidates<Rows::kPacks> candidates[2];
  Rows rows;
  rows.load(input + matrix * p.input.matrix, p.input, p.input_in_packs != 0, p.rows, p.columns,
            thread_index, threads);
  int info = 0;
  for (uint turn = 0; turn < Rows::kTurns; ++turn) {
#pragma unroll
    for (uint at = 0; at < Rows::kSteps; ++at) {
      const uint step = turn * Rows::kSteps + at;
      if (step < p.steps) {
        threadgroup PivotCandidates<Rows::kPacks>& given = candidates[step % 2];
        PivotKey best = rows.best(at, step, p.is_pivoted != 0);
        best.combine_simdgroup();
        rows.give(best.place, given.rows[simdgroup]);
        if (lane == 0) {
          given.keys[simdgroup] = best.key;
          given.places[simdgroup] = best.place;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        PivotKey other;
        if (lane < simdgroups) {
          other.key = given.keys[lane];
          other.place = given.places[lane];
        }
        best = other;
        best.combine_simdgroup();
        const uint giver = simd_min(other.key != 0 && other.place == best.place ? lane : 31u);
        threadgroup const float4* const pivot_row = given.rows[giver];
        rows.reduce(pivot_row, at, step, best.place, turn);
        info = is_zero(elements_of<T>(pivot_row)[at]) && info == 0 ? int(p.first + step + 1) : info;
        if (thread_index == 0) {
          pivots[matrix * p.pivots_stride + step] = static_cast<int>(p.first + best.place + 1);
        }
      }
    }
    rows.move_on();
  }
  rows.store(output + matrix * p.output.matrix, p.output, p.output_in_packs != 0, p.columns);
  if (thread_index == 0 && info != 0 && infos[matrix] == 0) {
    infos[matrix] = info;
  }
}

inline uint row_of_pivot(int pivot, uint row, uint rows, device ErrorMessages* errors) {
  if (pivot < 1 || pivot > static_cast<int>(rows)) {
    TORCH_REPORT_ERROR(errors, "Pivots given to lu_solve must all be ",
                       pivot < 1 ? "greater or equal to 1" : "smaller or equal to LU.size(-2)",
                       ". Did you properly pass the result of lu_factor?");
    return row;
  }
  return static_cast<uint>(pivot) - 1;
}

// xLASWP: interchanges rows by some of the pivots, forwards or backwards. There are several
// threadgroups per matrix, and their threads have a pack of columns each. Several interchanges that
// have no row in common are made at once: one after the other, each would wait for memory.
kernel void lu_swap_rows(device float4* matrices [[buffer(0)]],
                         device const int* pivots [[buffer(1)]],
                         constant LuSwapParameters& p [[buffer(2)]],
                         device ErrorMessages* errors [[buffer(3)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint threads [[threads_per_threadgroup]]) {
  constexpr uint kTogether = 64;
  constexpr uint kAtOnce = 8;
  threadgroup uint rows[kTogether];
  threadgroup uint others[kTogether];
  threadgroup uint are_disjoint[kTogether / kAtOnce];
  const uint matrix = group / p.groups;
  const uint first_pack = group % p.groups * threads;
  const uint end_pack = first_pack + threads < p.packs ? first_pack + threads : p.packs;
  device float4* const x = matrices + matrix * p.matrix_stride;
  device const int* const own = pivots + matrix * p.pivots_stride;
  for (uint first = 0; first < p.count; first += kTogether) {
    const uint end = first + kTogether < p.count ? first + kTogether : p.count;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = first + thread_index; i < end; i += threads) {
      const uint row = p.first + (p.is_backward != 0 ? p.count - 1 - i : i);
      rows[i - first] = row;
      others[i - first] = row_of_pivot(own[row], row, p.rows, errors);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint part = thread_index; part < kTogether / kAtOnce; part += threads) {
      are_disjoint[part] = first + (part + 1) * kAtOnce <= end;
      for (uint i = part * kAtOnce; i < (part + 1) * kAtOnce && are_disjoint[part] != 0; ++i) {
        for (uint j = part * kAtOnce; j < (part + 1) * kAtOnce; ++j) {
          if (i != j && (others[i] == rows[j] || others[i] == others[j])) {
            are_disjoint[part] = 0;
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint begin = first; begin < end; begin += kAtOnce) {
      const uint known = begin - first;
      if (are_disjoint[known / kAtOnce] != 0) {
        for (uint pack = first_pack + thread_index; pack < end_pack; pack += threads) {
          float4 here[kAtOnce];
          float4 there[kAtOnce];
#pragma unroll
          for (uint i = 0; i < kAtOnce; ++i) {
            here[i] = x[rows[known + i] * p.row_stride + pack];
            there[i] = x[others[known + i] * p.row_stride + pack];
          }
#pragma unroll
          for (uint i = 0; i < kAtOnce; ++i) {
            x[rows[known + i] * p.row_stride + pack] = there[i];
            x[others[known + i] * p.row_stride + pack] = here[i];
          }
        }
        continue;
      }
      for (uint i = known; i < known + kAtOnce && first + i < end; ++i) {
        if (others[i] == rows[i]) {
          continue;
        }
        device float4* const here = x + rows[i] * p.row_stride;
        device float4* const there = x + others[i] * p.row_stride;
        for (uint pack = first_pack + thread_index; pack < end_pack; pack += threads) {
          const float4 moved = here[pack];
          here[pack] = there[pack];
          there[pack] = moved;
        }
      }
    }
  }
}

// xLASWP on a GPU. Where rows go to is found first, by following each one through the interchanges,
// so that they are moved all at once: kTogether interchanges wait for memory as long as one.
// Threadgroups have kLuPermutedPacks packs of columns each.
kernel void lu_permute_rows(device float4* matrices [[buffer(0)]],
                            device const int* pivots [[buffer(1)]],
                            constant LuSwapParameters& p [[buffer(2)]],
                            device ErrorMessages* errors [[buffer(3)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  constexpr uint kTogether = 64;
  constexpr uint kPlaces = 2 * kTogether;  // rows that are interchanged, and those with which
  constexpr uint kRowsAtOnce = kLuPermutingThreads / kLuPermutedPacks;
  constexpr uint kHeld = kPlaces / kRowsAtOnce;
  constexpr uint kNone = 0xffffffff;
  threadgroup uint others[kTogether];
  threadgroup uint sources[kPlaces];
  threadgroup uint targets[kPlaces];
  const uint matrix = group / p.groups;
  const uint pack = group % p.groups * kLuPermutedPacks + thread_index % kLuPermutedPacks;
  device float4* const x = matrices + matrix * p.matrix_stride + pack;
  device const int* const own = pivots + matrix * p.pivots_stride;
  for (uint first = 0; first < p.count; first += kTogether) {
    const uint count = min(kTogether, p.count - first);
    // The row of interchange i is `begin` + i, or `begin` - i if they are undone.
    const bool is_backward = p.is_backward != 0;
    const uint begin = is_backward ? p.first + p.count - 1 - first : p.first + first;
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (thread_index < count) {
      const uint row = is_backward ? begin - thread_index : begin + thread_index;
      others[thread_index] = row_of_pivot(own[row], row, p.rows, errors);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < kPlaces) {
      const uint i = thread_index % kTogether;
      const uint row = is_backward ? begin - i : begin + i;
      uint source = i >= count ? kNone : thread_index < kTogether ? row : others[i];
      if (thread_index >= kTogether && i < count) {
        const uint distance = is_backward ? begin - source : source - begin;
        bool is_known = distance < count;  // it is the row of an interchange
        for (uint j = 0; j < i; ++j) {
          is_known = is_known || others[j] == source;
        }
        source = is_known ? kNone : source;
      }
      uint target = source;
      for (uint j = 0; j < count; ++j) {
        const uint here = is_backward ? begin - j : begin + j;
        const uint there = others[j];
        target = target == here ? there : target == there ? here : target;
      }
      sources[thread_index] = source == target ? kNone : source;
      targets[thread_index] = target;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 held[kHeld];
    const uint place = thread_index / kLuPermutedPacks;
#pragma unroll
    for (uint i = 0; i < kHeld; ++i) {
      const uint source = sources[place + i * kRowsAtOnce];
      held[i] = pack < p.packs && source != kNone ? x[source * p.row_stride] : float4(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_device);
#pragma unroll
    for (uint i = 0; i < kHeld; ++i) {
      if (pack < p.packs && sources[place + i * kRowsAtOnce] != kNone) {
        x[targets[place + i * kRowsAtOnce] * p.row_stride] = held[i];
      }
    }
  }
}

// xGETRS: solves A X = B for a factored A of at most SIZE rows, with the pivots applied to rows of
// B; or, if mode has kLuTransposed, A^T X = B by the transposed factors, with the pivots applied
// backwards to rows of X.
template <typename T, uint SIZE>
kernel void lu_solve_thread(
    device T* solutions [[buffer(0)]], device const T* factors [[buffer(1)]],
    device const T* given [[buffer(2)]], constant SmallSystemsParameters& p [[buffer(3)]],
    device const int* pivots [[buffer(4)]], device ErrorMessages* errors [[buffer(5)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const ThreadCoordinates coordinates =
      ThreadCoordinates::of(metalops::thread_index(position, grid), p);
  if (coordinates.matrix >= p.matrices) {
    return;
  }
  RowOrder permutation;
  for (uint row = 0; row < p.rows; ++row) {
    const int pivot = pivots[coordinates.matrix * p.rows + row];
    permutation.swap(row, row_of_pivot(pivot, row, p.rows, errors));
  }
  const bool is_transposed = (p.mode & metalops::kLuTransposed) != 0;
  device const T* const own = factors + coordinates.matrix * p.matrix.matrix;
  auto x = ThreadColumns<T, SIZE>::of(p, coordinates.first);
  x.load(given + coordinates.offset(p.given), p.given, is_transposed ? RowOrder() : permutation);
  x.conjugate_where(p.is_conjugated != 0);
  x.solve_lower(own, p.matrix, !is_transposed);
  x.solve_upper(own, p.matrix, is_transposed);
  x.conjugate_where(p.is_conjugated != 0);
  x.store(solutions + coordinates.offset(p.solutions), p.solutions,
          is_transposed ? permutation : RowOrder());
}

// Returns a / |a|, which is zero for zero and NaN for NaN.
inline float sign_of(float a) { return isnan(a) ? a : sign(a); }
inline float2 sign_of(float2 a) {
  const float size = metalops::magnitude(a);
  return size == 0.0f ? float2(0.0f) : a / size;
}

// A lane's part of a determinant, or of its sign and the logarithm of its magnitude.
template <typename T>
struct Determinant {
  T product = metalops::from_real<T>(1.0f);
  float logarithm = 0.0f;
  uint interchanges = 0;  // row interchanges: each changes the sign

  // Multiplies diagonal elements, every `stride`-th from `first` on.
  void take(device const T* diagonal, device const int* pivots, LuDeterminantParameters p,
            uint first, uint stride) thread {
    for (uint i = first; i < p.size; i += stride) {
      product = metalops::multiply(product, diagonal[i * p.diagonal_stride]);
      interchanges += pivots[i] != static_cast<int>(i + 1);
    }
  }
  void take_logarithms(device const T* diagonal, device const int* pivots,
                       LuDeterminantParameters p, uint first, uint stride) thread {
    for (uint i = first; i < p.size; i += stride) {
      const T element = diagonal[i * p.diagonal_stride];
      product = metalops::multiply(product, sign_of(element));
      logarithm += precise::log(metalops::magnitude(element));
      interchanges += pivots[i] != static_cast<int>(i + 1);
    }
  }
  void combine_simdgroup() thread {
    for (ushort distance = 16; distance != 0; distance /= 2) {
      product = metalops::multiply(product, simd_shuffle_xor(product, distance));
    }
    logarithm = simd_sum(logarithm);
    interchanges = simd_sum(interchanges);
  }
  T value() const thread {
    return metalops::multiply(metalops::from_real<T>(interchanges % 2 == 0 ? 1.0f : -1.0f),
                              product);
  }
};

// One thread per matrix.
template <typename T>
kernel void lu_determinant_thread(device T* determinants [[buffer(0)]],
                                  device const T* factors [[buffer(1)]],
                                  device const int* pivots [[buffer(2)]],
                                  constant LuDeterminantParameters& p [[buffer(3)]],
                                  uint2 position [[thread_position_in_grid]],
                                  uint2 grid [[threads_per_grid]]) {
  const ulong matrix = metalops::thread_index(position, grid);
  if (matrix < p.matrices) {
    Determinant<T> own;
    own.take(factors + matrix * p.matrix_stride, pivots + matrix * p.size, p, 0, 1);
    determinants[matrix] = own.value();
  }
}

template <typename T>
kernel void lu_log_determinant_thread(device T* signs [[buffer(0)]],
                                      device float* logarithms [[buffer(1)]],
                                      device const T* factors [[buffer(2)]],
                                      device const int* pivots [[buffer(3)]],
                                      constant LuDeterminantParameters& p [[buffer(4)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint2 grid [[threads_per_grid]]) {
  const ulong matrix = metalops::thread_index(position, grid);
  if (matrix < p.matrices) {
    Determinant<T> own;
    own.take_logarithms(factors + matrix * p.matrix_stride, pivots + matrix * p.size, p, 0, 1);
    signs[matrix] = own.value();
    logarithms[matrix] = own.logarithm;
  }
}

// One simdgroup per matrix.
template <typename T>
kernel void lu_determinant_simdgroup(device T* determinants [[buffer(0)]],
                                     device const T* factors [[buffer(1)]],
                                     device const int* pivots [[buffer(2)]],
                                     constant LuDeterminantParameters& p [[buffer(3)]],
                                     uint2 position [[thread_position_in_grid]],
                                     uint2 grid [[threads_per_grid]],
                                     uint lane [[thread_index_in_simdgroup]]) {
  const ulong matrix = metalops::thread_index(position, grid) / 32;
  if (matrix >= p.matrices) {
    return;
  }
  Determinant<T> own;
  own.take(factors + matrix * p.matrix_stride, pivots + matrix * p.size, p, lane, 32);
  own.combine_simdgroup();
  if (lane == 0) {
    determinants[matrix] = own.value();
  }
}

template <typename T>
kernel void lu_log_determinant_simdgroup(
    device T* signs [[buffer(0)]], device float* logarithms [[buffer(1)]],
    device const T* factors [[buffer(2)]], device const int* pivots [[buffer(3)]],
    constant LuDeterminantParameters& p [[buffer(4)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const ulong matrix = metalops::thread_index(position, grid) / 32;
  if (matrix >= p.matrices) {
    return;
  }
  Determinant<T> own;
  own.take_logarithms(factors + matrix * p.matrix_stride, pivots + matrix * p.size, p, lane, 32);
  own.combine_simdgroup();
  if (lane == 0) {
    signs[matrix] = own.value();
    logarithms[matrix] = own.logarithm;
  }
}

#define REGISTER_LU(T)                                                            \
  REGISTER_KERNEL("lu_panel_" #T, lu_panel, T);                                   \
  REGISTER_KERNEL("lu_determinant_thread_" #T, lu_determinant_thread, T);         \
  REGISTER_KERNEL("lu_log_determinant_thread_" #T, lu_log_determinant_thread, T); \
  REGISTER_KERNEL("lu_determinant_simdgroup_" #T, lu_determinant_simdgroup, T);   \
  REGISTER_KERNEL("lu_log_determinant_simdgroup_" #T, lu_log_determinant_simdgroup, T)

#define REGISTER_LU_THREAD(T, SIZE) REGISTER_KERNEL("lu_thread_" #SIZE "_" #T, lu_thread, T, SIZE)

#define REGISTER_LU_SOLVE_THREAD(T, SIZE) \
  REGISTER_KERNEL("lu_solve_thread_" #SIZE "_" #T, lu_solve_thread, T, SIZE)

#define REGISTER_LU_ROWS(T) \
  REGISTER_KERNEL("lu_rows_16_" #T, lu_rows, T, metalops::kMostOfLanes, metalops::kLanes)

#define REGISTER_LU_SIMDGROUP(T) \
  REGISTER_KERNEL("lu_simdgroup_32_" #T, lu_simdgroup, T, kLuSimdgroup)

#define REGISTER_LU_PANEL_ROWS(T, ROWS, COLUMNS) \
  REGISTER_KERNEL("lu_panel_rows_" #ROWS "_" #COLUMNS "_" #T, lu_panel_rows, T, ROWS, COLUMNS)

REGISTER_LU_ROWS(float);
REGISTER_LU_ROWS(float2);
REGISTER_LU_SIMDGROUP(float);
REGISTER_LU_SIMDGROUP(float2);
REGISTER_LU_PANEL_ROWS(float, 1, 32);
REGISTER_LU_PANEL_ROWS(float, 2, 32);
REGISTER_LU_PANEL_ROWS(float, 4, 16);
REGISTER_LU_PANEL_ROWS(float, 8, 8);
REGISTER_LU_PANEL_ROWS(float2, 1, 32);
REGISTER_LU_PANEL_ROWS(float2, 2, 16);
REGISTER_LU_PANEL_ROWS(float2, 4, 8);
REGISTER_LU(float);
REGISTER_LU(float2);
REGISTER_LU_THREAD(float, 4);
REGISTER_LU_THREAD(float, 8);
REGISTER_LU_THREAD(float2, 4);
REGISTER_LU_THREAD(float2, 8);
REGISTER_LU_SOLVE_THREAD(float, 4);
REGISTER_LU_SOLVE_THREAD(float, 8);
REGISTER_LU_SOLVE_THREAD(float2, 4);
REGISTER_LU_SOLVE_THREAD(float2, 8);

// LU factorisation with partial pivoting: of panels, a threadgroup each, or of small matrices, a
// thread each; exchanges of rows by pivots, and the determinants of what was factored. What lies
// beside and below panels is left to triangular.metal and to products of matrices.
#include <c10/metal/error.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include "complex.h"
#include "lu.h"
#include "pivots.h"
#include "row_packs.h"
#include "small_matrices.h"
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::Candidate;
using metalops::elements_of;
using metalops::kColumnsOfPack;
using metalops::kMostSimdgroups;
using metalops::LuDeterminantParameters;
using metalops::LuPanelParameters;
using metalops::LuSwapParameters;
using metalops::MatrixSteps;
using metalops::pivot_size;
using metalops::SmallMatricesParameters;

inline bool is_zero(float a) { return a == 0.0f; }
inline bool is_zero(float2 a) { return a.x == 0.0f && a.y == 0.0f; }

// Threads lie along rows where columns are looked for pivots and divided by them, and along the
// packs of a row, and then along rows, where products are subtracted. factors: a column of each
// matrix.
template <typename T>
kernel void lu_panel(device float4* matrices [[buffer(0)]], device T* factors [[buffer(1)]],
                     device int* pivots [[buffer(2)]], device int* infos [[buffer(3)]],
                     constant LuPanelParameters& p [[buffer(4)]],
                     uint matrix [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint kColumns = kColumnsOfPack<T>;
  threadgroup float sizes[kMostSimdgroups];
  threadgroup uint rows[kMostSimdgroups];
  threadgroup T pivot_number;
  device float4* const panel =
      matrices + matrix * p.matrix_step + p.first * p.row_step + p.first / kColumns;
  device T* const own_factors = factors + matrix * int64_t{p.matrix_rows};
  const uint rows_at_once = threads / p.packs;
  const uint pack = thread_index % p.packs;
  const uint own_row = thread_index / p.packs;
  for (uint step = 0; step < p.steps; ++step) {
    device T* const current = reinterpret_cast<device T*>(panel) + step;
    Candidate best;
    for (uint row = step + thread_index; row < p.rows; row += threads) {
      best.meet(pivot_size(current[row * p.row_step * kColumns]), row);
    }
    best.meet_simdgroup();
    if (simdgroups > 1) {
      if (lane == 0) {
        sizes[simdgroup] = best.size;
        rows[simdgroup] = best.row;
      }
      threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
      if (simdgroup == 0) {
        best = Candidate();
        if (lane < simdgroups) {
          best.meet(sizes[lane], rows[lane]);
        }
        best.meet_simdgroup();
      }
    }
    if (simdgroup == 0) {
      const uint pivot = p.is_pivoted != 0 && best.size > 0.0f ? best.row : step;
      if (lane == 0) {
        const T number = current[pivot * p.row_step * kColumns];
        pivot_number = number;
        pivots[matrix * p.pivots_step + p.first + step] = static_cast<int>(p.first + pivot + 1);
        if (is_zero(number) && infos[matrix] == 0) {
          infos[matrix] = static_cast<int>(p.first + step + 1);
        }
      }
      simdgroup_barrier(mem_flags::mem_device);
      if (lane < p.packs && pivot != step) {
        device float4& here = panel[step * p.row_step + lane];
        device float4& there = panel[pivot * p.row_step + lane];
        const float4 moved = here;
        here = there;
        there = moved;
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    // Below a pivot of zero is nothing but zeros and NaN, unless rows are not exchanged.
    const T number = pivot_number;
    const metalops::Divisor<T> divisor =
        metalops::divisor_of(is_zero(number) ? metalops::from_real<T>(1.0f) : number);
    for (uint row = step + 1 + thread_index; row < p.rows; row += threads) {
      const T factor = divisor.divide(current[row * p.row_step * kColumns]);
      current[row * p.row_step * kColumns] = factor;
      own_factors[row] = factor;
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    float4 pivot_row = panel[step * p.row_step + pack];
    if (pack == step / kColumns) {
      for (uint i = 0; i <= step % kColumns; ++i) {
        metalops::set_column(pivot_row, i, T(0.0f));
      }
    }
    const bool has_rows = own_row < rows_at_once && pack >= (step + 1) / kColumns;
    const uint first_row = has_rows ? step + 1 + own_row : p.rows;
    for (uint row = first_row; row < p.rows; row += rows_at_once) {
      panel[row * p.row_step + pack] =
          metalops::minus_product(panel[row * p.row_step + pack], own_factors[row], pivot_row);
    }
    threadgroup_barrier(mem_flags::mem_device);
  }
}

// A matrix of at most SIZE rows and columns. mode: whether rows are exchanged.
template <typename T, uint SIZE>
kernel void lu_thread(device T* factors [[buffer(0)]], device int* pivots [[buffer(1)]],
                      device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                      constant SmallMatricesParameters& p [[buffer(4)]],
                      uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const uint matrix = metalops::thread_index(position, grid);
  if (matrix >= p.matrices) {
    return;
  }
  constexpr uint kPacks = metalops::kPacksOfRow<T, SIZE>;
  float4 packs[SIZE * kPacks];
  float4 pivot_row[kPacks];
  metalops::load_matrix<T, SIZE>(&packs[0], input + matrix * p.input.matrix, p.input, p.rows,
                                 p.columns);
  const auto numbers = metalops::elements_of<T>(&packs[0]);
  const uint steps = min(p.rows, p.columns);
  int info = 0;
  for (uint step = 0; step < steps; ++step) {
    Candidate best;
    for (uint row = step; row < p.rows; ++row) {
      best.meet(pivot_size(numbers[row * SIZE + step]), row);
    }
    const uint pivot = p.mode != 0 && best.size > 0.0f ? best.row : step;
    pivots[matrix * steps + step] = static_cast<int>(pivot + 1);
    for (uint i = 0; i < kPacks; ++i) {
      const float4 moved = packs[pivot * kPacks + i];
      packs[pivot * kPacks + i] = packs[step * kPacks + i];
      packs[step * kPacks + i] = moved;
    }
    const T number = numbers[step * SIZE + step];
    if (is_zero(number) && info == 0) {
      info = static_cast<int>(step + 1);
    }
    metalops::copy_row<T, SIZE>(&pivot_row[0], &packs[step * kPacks], step + 1);
    const metalops::Divisor<T> divisor =
        metalops::divisor_of(is_zero(number) ? metalops::from_real<T>(1.0f) : number);
    for (uint row = step + 1; row < p.rows; ++row) {
      const T factor = divisor.divide(numbers[row * SIZE + step]);
      metalops::subtract_row<T, SIZE>(&packs[row * kPacks], factor, &pivot_row[0]);
      numbers[row * SIZE + step] = factor;
    }
  }
  infos[matrix] = info;
  metalops::store_matrix<T, SIZE>(&packs[0], factors + matrix * p.output.matrix, p.output, p.rows,
                                  p.columns);
}

// The rows that a lane has of a matrix of at most SIZE rows and columns, whose lanes take turns.
template <typename T, uint SIZE, uint LANES>
struct LaneRows {
  static constexpr constant uint kRows = SIZE / LANES;
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = metalops::kPacksOfRow<T, SIZE>;

  float4 x[kRows][kPacks];
  T current[kRows];  // of the column of a step
  uint lane;
  uint count;  // of the rows of the matrix, or zero

  uint row(uint r) const thread { return r * LANES + lane; }

  void load(device const T* matrix, MatrixSteps steps, uint columns) thread {
    for (uint r = 0; r < kRows; ++r) {
      for (uint b = 0; b < kPacks; ++b) {
        x[r][b] = float4(0.0f);
        for (uint i = 0; i < kColumns; ++i) {
          const uint column = b * kColumns + i;
          if (row(r) < count && column < columns) {
            metalops::set_column(x[r][b], i, matrix[row(r) * steps.row + column * steps.column]);
          }
        }
      }
      current[r] = metalops::column(x[r][0], 0, T());
    }
  }

  void store(device T* matrix, MatrixSteps steps, uint columns) const thread {
    for (uint r = 0; r < kRows; ++r) {
      for (uint b = 0; b < kPacks; ++b) {
        for (uint i = 0; i < kColumns; ++i) {
          const uint column = b * kColumns + i;
          if (row(r) < count && column < columns) {
            matrix[row(r) * steps.row + column * steps.column] = metalops::column(x[r][b], i, T());
          }
        }
      }
    }
  }

  // Of the rows from `first` on.
  Candidate best(uint first) const thread {
    Candidate result;
    for (uint r = 0; r < kRows; ++r) {
      if (row(r) >= first && row(r) < count) {
        result.meet(pivot_size(current[r]), row(r));
      }
    }
    return result;
  }

  // Those two rows that are exchanged.
  void give(uint step, uint pivot, threadgroup float4* step_row,
            threadgroup float4* pivot_row) const thread {
    for (uint r = 0; r < kRows; ++r) {
      if (row(r) == step || row(r) == pivot) {
        for (uint b = 0; b < kPacks; ++b) {
          if (row(r) == step) {
            step_row[b] = x[r][b];
          }
          if (row(r) == pivot) {
            pivot_row[b] = x[r][b];
          }
        }
      }
    }
  }

  void reduce(uint step, uint pivot, threadgroup const float4* step_row,
              threadgroup const float4* pivot_row) thread {
    const T number = elements_of<T>(pivot_row)[step];
    const metalops::Divisor<T> divisor =
        metalops::divisor_of(is_zero(number) ? metalops::from_real<T>(1.0f) : number);
    for (uint r = 0; r < kRows; ++r) {
      if (row(r) == step || row(r) == pivot) {
        threadgroup const float4* const moved = row(r) == step ? pivot_row : step_row;
        for (uint b = 0; b < kPacks; ++b) {
          x[r][b] = moved[b];
        }
        current[r] = elements_of<T>(moved)[step];
      }
      if (row(r) > step && row(r) < count) {
        const T factor = divisor.divide(current[r]);
        for (uint b = 0; b < kPacks; ++b) {
          if ((b + 1) * kColumns > step) {
            const float4 reduced = metalops::minus_product(x[r][b], factor, pivot_row[b]);
            if (b * kColumns > step) {
              x[r][b] = reduced;
            } else {
              const uint i = step % kColumns;
              const float4 left =
                  select(metalops::all_columns(factor), x[r][b], metalops::columns_before<T>(i));
              x[r][b] = select(reduced, left, metalops::columns_before<T>(i + 1));
            }
            if (b == (step + 1) / kColumns) {
              current[r] = metalops::column(x[r][b], (step + 1) % kColumns, T());
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
    result.meet(candidates[i].size, candidates[i].row);
  }
  return result;
}

// A matrix of at most SIZE rows and columns: lanes have some rows each, in registers, and a
// simdgroup has several matrices. mode: as above.
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
  const uint own = lane / LANES;
  const uint steps = min(p.rows, p.columns);
  LaneRows<T, SIZE, LANES> rows;
  rows.lane = lane % LANES;
  rows.count = matrix < p.matrices ? p.rows : 0;
  rows.load(input + matrix * p.input.matrix, p.input, p.columns);
  int info = 0;
  for (uint step = 0; step < steps; ++step) {
    candidates[simdgroup][own][rows.lane] = rows.best(step);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const Candidate best = best_of_lanes<LANES>(candidates[simdgroup][own]);
    const uint pivot = p.mode != 0 && best.size > 0.0f ? best.row : step;
    rows.give(step, pivot, step_rows[simdgroup][own], pivot_rows[simdgroup][own]);
    if (rows.lane == 0 && rows.count != 0) {
      pivots[matrix * steps + step] = static_cast<int>(pivot + 1);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    rows.reduce(step, pivot, step_rows[simdgroup][own], pivot_rows[simdgroup][own]);
    const T number = elements_of<T>(pivot_rows[simdgroup][own])[step];
    info = is_zero(number) && info == 0 ? static_cast<int>(step + 1) : info;
  }
  if (rows.lane == 0 && rows.count != 0) {
    infos[matrix] = info;
  }
  rows.store(factors + matrix * p.output.matrix, p.output, p.columns);
}

// Exchanges rows by some of the pivots, in their order or backwards. One column of the grid for
// each pack of columns, one row for each matrix.
kernel void lu_swap_rows(device float4* matrices [[buffer(0)]],
                         device const int* pivots [[buffer(1)]],
                         constant LuSwapParameters& p [[buffer(2)]],
                         device ErrorMessages* errors [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
  device float4* const x = matrices + position.y * p.matrix_step + position.x;
  device const int* const own = pivots + position.y * p.pivots_step;
  for (uint i = 0; i < p.count; ++i) {
    const uint row = p.first + (p.is_backward != 0 ? p.count - 1 - i : i);
    const int pivot = own[row];
    if (pivot < 1 || pivot > static_cast<int>(p.rows)) {
      TORCH_REPORT_ERROR(errors, "Pivots given to lu_solve must all be ",
                         pivot < 1 ? "greater or equal to 1" : "smaller or equal to LU.size(-2)",
                         ". Did you properly pass the result of lu_factor?");
      return;
    }
    const uint other = static_cast<uint>(pivot) - 1;
    if (other != row) {
      const float4 moved = x[row * p.row_step];
      x[row * p.row_step] = x[other * p.row_step];
      x[other * p.row_step] = moved;
    }
  }
}

template <typename T>
inline T product_of_simdgroup(T own) {
  for (ushort distance = 16; distance != 0; distance /= 2) {
    own = metalops::multiply(own, simd_shuffle_xor(own, distance));
  }
  return own;
}

// Of magnitude one, or zero, or NaN.
inline float sign_of(float a) { return isnan(a) ? a : sign(a); }
inline float2 sign_of(float2 a) {
  const float size = metalops::magnitude(a);
  return size == 0.0f ? float2(0.0f) : a / size;
}

// Each exchange of rows changes the sign.
template <typename T>
inline T sign_of_exchanges(device const int* pivots, uint size, uint lane) {
  uint exchanges = 0;
  for (uint i = lane; i < size; i += 32) {
    exchanges += pivots[i] != static_cast<int>(i + 1);
  }
  return metalops::from_real<T>(simd_sum(exchanges) % 2 == 0 ? 1.0f : -1.0f);
}

// A simdgroup for each matrix.
template <typename T>
kernel void lu_determinant(device T* determinants [[buffer(0)]],
                           device const T* factors [[buffer(1)]],
                           device const int* pivots [[buffer(2)]],
                           constant LuDeterminantParameters& p [[buffer(3)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
  const uint matrix = metalops::thread_index(position, grid) / 32;
  if (matrix >= p.matrices) {
    return;
  }
  device const T* const diagonal = factors + matrix * p.matrix_step;
  T product = metalops::from_real<T>(1.0f);
  for (uint i = lane; i < p.size; i += 32) {
    product = metalops::multiply(product, diagonal[i * p.diagonal_step]);
  }
  product = product_of_simdgroup(product);
  const T sign = sign_of_exchanges<T>(pivots + matrix * static_cast<ulong>(p.size), p.size, lane);
  if (lane == 0) {
    determinants[matrix] = metalops::multiply(sign, product);
  }
}

// A simdgroup for each matrix: the determinant's sign, and the logarithm of its magnitude.
template <typename T>
kernel void lu_log_determinant(
    device T* signs [[buffer(0)]], device float* logarithms [[buffer(1)]],
    device const T* factors [[buffer(2)]], device const int* pivots [[buffer(3)]],
    constant LuDeterminantParameters& p [[buffer(4)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint matrix = metalops::thread_index(position, grid) / 32;
  if (matrix >= p.matrices) {
    return;
  }
  device const T* const diagonal = factors + matrix * p.matrix_step;
  T product = metalops::from_real<T>(1.0f);
  float logarithm = 0.0f;
  for (uint i = lane; i < p.size; i += 32) {
    const T number = diagonal[i * p.diagonal_step];
    product = metalops::multiply(product, sign_of(number));
    logarithm += precise::log(metalops::magnitude(number));
  }
  product = product_of_simdgroup(product);
  logarithm = simd_sum(logarithm);
  const T sign = sign_of_exchanges<T>(pivots + matrix * static_cast<ulong>(p.size), p.size, lane);
  if (lane == 0) {
    signs[matrix] = metalops::multiply(sign, product);
    logarithms[matrix] = logarithm;
  }
}

#define REGISTER_LU(T)                                                                         \
  template [[host_name("lu_panel_" #T)]] kernel void lu_panel<T>(                              \
      device float4*, device T*, device int*, device int*, constant LuPanelParameters&, uint,  \
      uint, uint, uint, uint, uint);                                                           \
  template [[host_name("lu_determinant_" #T)]] kernel void lu_determinant<T>(                  \
      device T*, device const T*, device const int*, constant LuDeterminantParameters&, uint2, \
      uint2, uint);                                                                            \
  template [[host_name("lu_log_determinant_" #T)]] kernel void lu_log_determinant<T>(          \
      device T*, device float*, device const T*, device const int*,                            \
      constant LuDeterminantParameters&, uint2, uint2, uint)

#define REGISTER_LU_THREAD(T, SIZE)                                                            \
  template [[host_name("lu_thread_" #SIZE "_" #T)]] kernel void lu_thread<T, SIZE>(            \
      device T*, device int*, device int*, device const T*, constant SmallMatricesParameters&, \
      uint2, uint2)

#define REGISTER_LU_ROWS(T)                                                                    \
  template [[host_name("lu_rows_16_" #T)]] kernel void                                         \
  lu_rows<T, metalops::kMostOfLanes, metalops::kLanes>(                                        \
      device T*, device int*, device int*, device const T*, constant SmallMatricesParameters&, \
      uint2, uint2, uint, uint)

REGISTER_LU_ROWS(float);
REGISTER_LU_ROWS(float2);
REGISTER_LU(float);
REGISTER_LU(float2);
REGISTER_LU_THREAD(float, 4);
REGISTER_LU_THREAD(float, 8);
REGISTER_LU_THREAD(float2, 4);
REGISTER_LU_THREAD(float2, 8);

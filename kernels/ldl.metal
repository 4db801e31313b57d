// The factorisation of symmetric and Hermitian matrices, P A P^T = L D L^T or L D L^H, with
// diagonal blocks of one or two rows, by the pivots of J. R. Bunch and L. Kaufman (Mathematics of
// Computation 31, 1977), chosen as by LAPACK's xSYTF2 and xHETF2 with UPLO = 'L'; and the steps of
// solving with it that are not triangular.
#include <c10/metal/error.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include "complex.h"
#include "ldl.h"
#include "pivots.h"
#include "row_packs.h"
#include "small_matrices.h"
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::Candidate;
using metalops::conjugate;
using metalops::from_real;
using metalops::kColumnsOfPack;
using metalops::kMostSimdgroups;
using metalops::LdlParameters;
using metalops::multiply;
using metalops::pivot_size;
using metalops::real_part;
using metalops::SmallMatricesParameters;

constant constexpr uint kThreadsOfRow = 8;
constant constexpr float kAlpha = 0.640388203f;  // (1 + sqrt(17)) / 8

template <typename T>
inline T mirrored(T a, bool is_hermitian) {
  return is_hermitian ? conjugate(a) : a;
}

// For numbers of the diagonal.
template <typename T>
inline T on_diagonal(T a, bool is_hermitian) {
  return is_hermitian ? from_real<T>(real_part(a)) : a;
}

// Of all threads: its size to sizes[0], its row to rows[0].
inline void find_best_of_threadgroup(Candidate own, threadgroup float* sizes,
                                     threadgroup uint* rows, uint lane, uint simdgroup,
                                     uint simdgroups) {
  own.meet_simdgroup();
  if (lane == 0) {
    sizes[simdgroup] = own.size;
    rows[simdgroup] = own.row;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    Candidate of_all;
    if (lane < simdgroups) {
      of_all.meet(sizes[lane], rows[lane]);
    }
    of_all.meet_simdgroup();
    if (lane == 0) {
      sizes[0] = of_all.size;
      rows[0] = of_all.row;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// What is known of a step, which is for all threads to read.
struct Step {
  uint k;          // the column
  float size;      // of the diagonal's number
  float largest;   // below it
  uint row;        // where that is
  uint is_zero;    // the column: there is nothing to do
  uint is_unsure;  // whether that row has to be looked at
  uint pivot;      // the row that is exchanged
  uint is_pair;    // a block of two rows
};

inline void begin(threadgroup Step& step, uint k) { step.k = k; }

inline void judge_column(threadgroup Step& step, float size, float largest, uint row) {
  step.size = size;
  step.largest = max(largest, 0.0f);
  step.row = row;
  step.is_zero = size < 0.0f || max(size, step.largest) == 0.0f;
  step.is_unsure = step.is_zero == 0 && size < kAlpha * step.largest;
  step.pivot = step.k;
  step.is_pair = 0;
}

// size: of the number of its diagonal.
inline void judge_row(threadgroup Step& step, float size, float largest) {
  if (step.size < kAlpha * step.largest * (step.largest / largest)) {
    step.pivot = step.row;
    step.is_pair = size < kAlpha * largest;
  }
}

// A diagonal block of two rows, divided by its number beside the diagonal so that nothing
// overflows.
template <typename T>
struct Block {
  T first;  // of the diagonal, divided
  T second;
  T beside;
  T inverse;  // of the determinant, of all divided

  // The rows of X of X D = (x, y).
  T first_of(T x, T y, bool is_hermitian) const thread {
    return multiply(inverse,
                    metalops::divide(multiply(second, x) - y, mirrored(beside, is_hermitian)));
  }
  T second_of(T x, T y) const thread {
    return multiply(inverse, metalops::divide(multiply(first, y) - x, beside));
  }
};

template <typename T>
inline Block<T> block_of(T d11, T d21, T d22, bool is_hermitian) {
  const T first = metalops::divide(d11, mirrored(d21, is_hermitian));
  const T second = metalops::divide(d22, d21);
  const T one = from_real<T>(1.0f);
  return {first, second, d21, metalops::divide(one, multiply(first, second) - one)};
}

// Factors on from column progress[matrix], which it moves. A threadgroup for each matrix; only
// lower triangles are read. `numbers`: four columns of each matrix.
template <typename T>
kernel void ldl_factor(device T* matrices [[buffer(0)]], device T* numbers [[buffer(1)]],
                       device int* pivots [[buffer(2)]], device int* infos [[buffer(3)]],
                       device int* progress [[buffer(4)]], constant LdlParameters& p [[buffer(5)]],
                       uint matrix [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint threads [[threads_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint kColumns = kColumnsOfPack<T>;
  threadgroup float sizes[2][kMostSimdgroups];
  threadgroup uint rows[2][kMostSimdgroups];
  const uint n = p.size;
  const bool is_hermitian = p.is_hermitian != 0;
  device T* const a = matrices + matrix * p.matrix_step;
  // Both columns of a step, as they are and divided by the block of the diagonal.
  const int64_t padded = (n + kColumns - 1) / kColumns * kColumns;
  device T* const x = numbers + 4 * padded * matrix;
  device T* const y = x + padded;
  device T* const u = y + padded;
  device T* const v = u + padded;
  device int* const own_pivots = pivots + int64_t{n} * matrix;
  threadgroup Step step;
  if (thread_index == 0) {
    begin(step, static_cast<uint>(progress[matrix]));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  while (step.k < p.last) {
    const uint k = step.k;
    Candidate best;
    for (uint i = k + 1 + thread_index; i < n; i += threads) {
      best.meet(pivot_size(a[i * p.row_step + k]), i);
    }
    find_best_of_threadgroup(best, sizes[0], rows[0], lane, simdgroup, simdgroups);
    if (thread_index == 0) {
      judge_column(step, pivot_size(on_diagonal(a[k * p.row_step + k], is_hermitian)), sizes[0][0],
                   rows[0][0]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (step.is_unsure != 0) {
      const uint row = step.row;
      Candidate of_row;
      for (uint j = k + thread_index; j < row; j += threads) {
        of_row.meet(pivot_size(a[row * p.row_step + j]), j);
      }
      for (uint i = row + 1 + thread_index; i < n; i += threads) {
        of_row.meet(pivot_size(a[i * p.row_step + row]), i);
      }
      find_best_of_threadgroup(of_row, sizes[1], rows[1], lane, simdgroup, simdgroups);
      if (thread_index == 0) {
        const T number = on_diagonal(a[row * p.row_step + row], is_hermitian);
        judge_row(step, pivot_size(number), sizes[1][0]);
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    const bool is_zero = step.is_zero != 0;
    const bool is_pair = step.is_pair != 0;
    const uint pivot = step.pivot;
    const uint last = is_pair ? k + 1 : k;  // of the block
    if (pivot != last) {
      for (uint i = pivot + 1 + thread_index; i < n; i += threads) {
        const T moved = a[i * p.row_step + last];
        a[i * p.row_step + last] = a[i * p.row_step + pivot];
        a[i * p.row_step + pivot] = moved;
      }
      for (uint i = last + 1 + thread_index; i < pivot; i += threads) {
        const T moved = mirrored(a[i * p.row_step + last], is_hermitian);
        a[i * p.row_step + last] = mirrored(a[pivot * p.row_step + i], is_hermitian);
        a[pivot * p.row_step + i] = moved;
      }
      if (thread_index == 0) {
        const T moved = a[last * p.row_step + last];
        a[last * p.row_step + last] = a[pivot * p.row_step + pivot];
        a[pivot * p.row_step + pivot] = moved;
        a[pivot * p.row_step + last] = mirrored(a[pivot * p.row_step + last], is_hermitian);
        if (is_pair) {
          const T other = a[last * p.row_step + k];
          a[last * p.row_step + k] = a[pivot * p.row_step + k];
          a[pivot * p.row_step + k] = other;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_device);
    if (thread_index == 0) {
      own_pivots[k] = is_pair ? -static_cast<int>(pivot + 1) : static_cast<int>(pivot + 1);
      if (is_pair) {
        own_pivots[last] = own_pivots[k];
      }
      if (is_zero && infos[matrix] == 0) {
        infos[matrix] = static_cast<int>(k + 1);
      }
    }
    const T d11 = on_diagonal(a[k * p.row_step + k], is_hermitian);
    const T d21 = is_pair ? a[last * p.row_step + k] : from_real<T>(1.0f);
    const T d22 = on_diagonal(a[last * p.row_step + last], is_hermitian);
    const metalops::Divisor<T> divisor = metalops::divisor_of(d11);
    Block<T> block = {d11, d11, d11, d11};
    if (is_pair) {
      block = block_of(d11, d21, d22, is_hermitian);
    }
    const uint next = last + 1;
    // From the pack on in which the columns that are left begin.
    const uint first_pack = next / kColumns;
    for (uint i = first_pack * kColumns + thread_index; i < padded; i += threads) {
      const bool is_left = i >= next && i < n;
      const T own = is_left ? a[i * p.row_step + k] : T(0.0f);
      const T other = is_left && is_pair ? a[i * p.row_step + last] : T(0.0f);
      x[i] = own;
      y[i] = other;
      if (is_pair) {
        u[i] = is_left ? block.first_of(own, other, is_hermitian) : T(0.0f);
        v[i] = is_left ? block.second_of(own, other) : T(0.0f);
      } else {
        u[i] = is_left && !is_zero ? divisor.divide(own) : T(0.0f);
        v[i] = T(0.0f);
      }
    }
    threadgroup_barrier(mem_flags::mem_device);
    // a[i][j] -= x[i] u[j] + y[i] v[j], of which conjugates, packs of j at a time; some threads lie
    // along a row.
    const uint rows_at_once = threads / kThreadsOfRow;
    const uint first_row = is_zero ? n : next + thread_index / kThreadsOfRow;
    for (uint i = first_row; i < n; i += rows_at_once) {
      device float4* const row = reinterpret_cast<device float4*>(a + i * p.row_step);
      const T of_x = x[i];
      const T of_y = y[i];
      for (uint j = first_pack + thread_index % kThreadsOfRow; j <= i / kColumns;
           j += kThreadsOfRow) {
        const float4 of_u = reinterpret_cast<device const float4*>(u)[j];
        float4 sum = metalops::minus_product(
            row[j], of_x, is_hermitian ? metalops::conjugate_columns(of_u, T()) : of_u);
        if (is_pair) {
          const float4 of_v = reinterpret_cast<device const float4*>(v)[j];
          sum = metalops::minus_product(
              sum, of_y, is_hermitian ? metalops::conjugate_columns(of_v, T()) : of_v);
        }
        row[j] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (uint i = next + thread_index; i < n; i += threads) {
      if (!is_zero) {
        a[i * p.row_step + k] = u[i];
        if (is_pair) {
          a[i * p.row_step + last] = v[i];
        }
      }
    }
    if (thread_index == 0 && is_hermitian) {
      a[k * p.row_step + k] = d11;
      a[last * p.row_step + last] = is_pair ? d22 : d11;
    }
    if (thread_index == 0) {
      begin(step, next);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  if (thread_index == 0) {
    progress[matrix] = static_cast<int>(step.k);
  }
}

// A matrix of at most SIZE rows, of which the lower triangle is read; the same steps as above.
// mode: whether it is Hermitian.
template <typename T, uint SIZE>
kernel void ldl_thread(device T* factors [[buffer(0)]], device int* pivots [[buffer(1)]],
                       device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                       constant SmallMatricesParameters& p [[buffer(4)]],
                       uint2 position [[thread_position_in_grid]],
                       uint2 grid [[threads_per_grid]]) {
  const uint matrix = metalops::thread_index(position, grid);
  if (matrix >= p.matrices) {
    return;
  }
  constexpr uint kPacks = metalops::kPacksOfRow<T, SIZE>;
  float4 packs[SIZE * kPacks];
  float4 u_packs[kPacks];
  float4 v_packs[kPacks];
  const uint n = p.rows;
  const bool is_hermitian = p.mode != 0;
  metalops::load_matrix<T, SIZE>(&packs[0], input + matrix * p.input.matrix, p.input, n, n);
  const auto a = metalops::elements_of<T>(&packs[0]);
  const auto u = metalops::elements_of<T>(&u_packs[0]);
  const auto v = metalops::elements_of<T>(&v_packs[0]);
  device int* const own_pivots = pivots + matrix * n;
  int info = 0;
  for (uint k = 0; k < n;) {
    Candidate best;
    for (uint i = k + 1; i < n; ++i) {
      best.meet(pivot_size(a[i * SIZE + k]), i);
    }
    const float size = pivot_size(on_diagonal(a[k * SIZE + k], is_hermitian));
    const float largest = max(best.size, 0.0f);
    const bool is_zero = size < 0.0f || max(size, largest) == 0.0f;
    uint pivot = k;
    bool is_pair = false;
    if (!is_zero && size < kAlpha * largest) {
      const uint row = best.row;
      Candidate of_row;
      for (uint j = k; j < row; ++j) {
        of_row.meet(pivot_size(a[row * SIZE + j]), j);
      }
      for (uint i = row + 1; i < n; ++i) {
        of_row.meet(pivot_size(a[i * SIZE + row]), i);
      }
      if (size < kAlpha * largest * (largest / of_row.size)) {
        pivot = row;
        is_pair = pivot_size(on_diagonal(a[row * SIZE + row], is_hermitian)) < kAlpha * of_row.size;
      }
    }
    const uint last = is_pair ? k + 1 : k;
    const uint next = last + 1;
    if (pivot != last) {
      for (uint i = pivot + 1; i < n; ++i) {
        const T moved = a[i * SIZE + last];
        a[i * SIZE + last] = a[i * SIZE + pivot];
        a[i * SIZE + pivot] = moved;
      }
      for (uint i = last + 1; i < pivot; ++i) {
        const T moved = mirrored(a[i * SIZE + last], is_hermitian);
        a[i * SIZE + last] = mirrored(a[pivot * SIZE + i], is_hermitian);
        a[pivot * SIZE + i] = moved;
      }
      const T moved = a[last * SIZE + last];
      a[last * SIZE + last] = a[pivot * SIZE + pivot];
      a[pivot * SIZE + pivot] = moved;
      a[pivot * SIZE + last] = mirrored(a[pivot * SIZE + last], is_hermitian);
      if (is_pair) {
        const T other = a[last * SIZE + k];
        a[last * SIZE + k] = a[pivot * SIZE + k];
        a[pivot * SIZE + k] = other;
      }
    }
    own_pivots[k] = is_pair ? -static_cast<int>(pivot + 1) : static_cast<int>(pivot + 1);
    own_pivots[last] = own_pivots[k];
    if (is_zero && info == 0) {
      info = static_cast<int>(k + 1);
    }
    const T d11 = on_diagonal(a[k * SIZE + k], is_hermitian);
    const T d22 = on_diagonal(a[last * SIZE + last], is_hermitian);
    a[k * SIZE + k] = d11;
    a[last * SIZE + last] = d22;
    const T d21 = is_pair ? a[last * SIZE + k] : from_real<T>(1.0f);
    const metalops::Divisor<T> divisor = metalops::divisor_of(d11);
    Block<T> block = {d11, d11, d11, d11};
    if (is_pair) {
      block = block_of(d11, d21, d22, is_hermitian);
    }
    for (uint i = 0; i < SIZE; ++i) {
      const bool is_left = i >= next && i < n;
      const T own = is_left ? a[i * SIZE + k] : T(0.0f);
      const T other = is_left && is_pair ? a[i * SIZE + last] : T(0.0f);
      if (is_pair) {
        u[i] = is_left ? block.first_of(own, other, is_hermitian) : T(0.0f);
        v[i] = is_left ? block.second_of(own, other) : T(0.0f);
      } else {
        u[i] = is_left && !is_zero ? divisor.divide(own) : T(0.0f);
      }
    }
    for (uint i = is_zero ? n : next; i < n; ++i) {
      const T of_x = a[i * SIZE + k];
      const T of_y = a[i * SIZE + last];
      thread float4* const row = &packs[i * kPacks];
      for (uint j = 0; j < kPacks; ++j) {
        row[j] = metalops::minus_product(
            row[j], of_x, is_hermitian ? metalops::conjugate_columns(u_packs[j], T()) : u_packs[j]);
        if (is_pair) {
          row[j] = metalops::minus_product(
              row[j], of_y,
              is_hermitian ? metalops::conjugate_columns(v_packs[j], T()) : v_packs[j]);
        }
      }
    }
    for (uint i = is_zero ? n : next; i < n; ++i) {
      a[i * SIZE + k] = u[i];
      if (is_pair) {
        a[i * SIZE + last] = v[i];
      }
    }
    k = next;
  }
  infos[matrix] = info;
  for (uint row = 0; row < n; ++row) {
    for (uint column = row + 1; column < n; ++column) {
      a[row * SIZE + column] = T(0.0f);
    }
  }
  metalops::store_matrix<T, SIZE>(&packs[0], factors + matrix * p.output.matrix, p.output, n, n);
}

// Zeros above the diagonal. A thread for each column, row and matrix.
template <typename T>
kernel void ldl_clear_upper(device T* matrices [[buffer(0)]],
                            constant LdlParameters& p [[buffer(1)]],
                            uint3 position [[thread_position_in_grid]]) {
  if (position.x > position.y) {
    matrices[position.z * p.matrix_step + position.y * p.row_step + position.x] = T(0.0f);
  }
}

// L with its rows in their last order, of factors, whose rows have the order that they had when
// their column was made; its diagonal is not written. A thread for each column and matrix.
template <typename T>
kernel void ldl_order_rows(device T* matrices [[buffer(0)]], device const int* pivots [[buffer(1)]],
                           constant LdlParameters& p [[buffer(2)]],
                           uint2 position [[thread_position_in_grid]]) {
  device T* const a = matrices + position.y * p.matrix_step + position.x;
  device const int* const own = pivots + int64_t{p.size} * position.y;
  for (uint k = 0; k < p.size;) {
    const bool is_pair = own[k] < 0;
    const uint last = is_pair ? k + 1 : k;
    const uint other = static_cast<uint>(abs(own[k])) - 1;
    if (k > position.x && last < p.size && other < p.size && other != last) {
      const T moved = a[last * p.row_step];
      a[last * p.row_step] = a[other * p.row_step];
      a[other * p.row_step] = moved;
    } else if (k == position.x && is_pair && last < p.size) {
      a[last * p.row_step] = T(0.0f);  // of the diagonal block
    }
    k = last + 1;
  }
}

// Exchanges rows by all pivots, in their order or backwards. A thread for each pack of columns and
// matrix, as in what follows.
kernel void ldl_swap_rows(device float4* matrices [[buffer(0)]],
                          device const int* pivots [[buffer(1)]],
                          constant LdlParameters& p [[buffer(2)]],
                          device ErrorMessages* errors [[buffer(3)]],
                          uint2 position [[thread_position_in_grid]]) {
  device float4* const x = matrices + position.y * p.matrix_step + position.x;
  device const int* const own = pivots + int64_t{p.size} * position.y;
  for (uint done = 0; done < p.size;) {
    const uint k = p.is_backward != 0 ? p.size - 1 - done : done;
    const int pivot = own[k];
    const uint row = pivot < 0 && p.is_backward == 0 ? k + 1 : k;
    const uint other = static_cast<uint>(abs(pivot)) - 1;
    if (other >= p.size || row >= p.size) {
      TORCH_REPORT_ERROR(errors, "torch.linalg.ldl_solve: pivot ", pivot, " of row ", k,
                         " is none of ldl_factor's, of a matrix of ", p.size, " rows");
      return;
    }
    if (other != row) {
      const float4 moved = x[row * p.row_step];
      x[row * p.row_step] = x[other * p.row_step];
      x[other * p.row_step] = moved;
    }
    done += pivot < 0 ? 2 : 1;
  }
}

// Solves with D. factors: LD, whose steps are given apart.
template <typename T>
kernel void ldl_solve_blocks(device float4* matrices [[buffer(0)]],
                             device const T* factors [[buffer(1)]],
                             device const int* pivots [[buffer(2)]],
                             constant LdlParameters& p [[buffer(3)]],
                             constant LdlParameters& of_factors [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]]) {
  device float4* const x = matrices + position.y * p.matrix_step + position.x;
  device const T* const a = factors + position.y * of_factors.matrix_step;
  device const int* const own = pivots + int64_t{p.size} * position.y;
  const bool is_hermitian = p.is_hermitian != 0;
  for (uint k = 0; k < p.size;) {
    const T d11 = on_diagonal(a[k * of_factors.row_step + k], is_hermitian);
    float4 first = x[k * p.row_step];
    if (own[k] > 0 || k + 1 >= p.size) {
      const metalops::Divisor<T> divisor = metalops::divisor_of(d11);
      x[k * p.row_step] = divisor.divide(first);
      k += 1;
      continue;
    }
    const T d21 = a[(k + 1) * of_factors.row_step + k];
    const T d22 = on_diagonal(a[(k + 1) * of_factors.row_step + k + 1], is_hermitian);
    // D X = B is X^T D^T = B^T.
    const Block<T> block = block_of(d11, mirrored(d21, is_hermitian), d22, is_hermitian);
    float4 second = x[(k + 1) * p.row_step];
    for (uint i = 0; i < kColumnsOfPack<T>; ++i) {
      const T b1 = metalops::column(first, i, T());
      const T b2 = metalops::column(second, i, T());
      metalops::set_column(first, i, block.first_of(b1, b2, is_hermitian));
      metalops::set_column(second, i, block.second_of(b1, b2));
    }
    x[k * p.row_step] = first;
    x[(k + 1) * p.row_step] = second;
    k += 2;
  }
}

#define REGISTER_LDL(T)                                                                           \
  template [[host_name("ldl_factor_" #T)]] kernel void ldl_factor<T>(                             \
      device T*, device T*, device int*, device int*, device int*, constant LdlParameters&, uint, \
      uint, uint, uint, uint, uint);                                                              \
  template [[host_name("ldl_clear_upper_" #T)]] kernel void ldl_clear_upper<T>(                   \
      device T*, constant LdlParameters&, uint3);                                                 \
  template [[host_name("ldl_order_rows_" #T)]] kernel void ldl_order_rows<T>(                     \
      device T*, device const int*, constant LdlParameters&, uint2);                              \
  template [[host_name("ldl_solve_blocks_" #T)]] kernel void ldl_solve_blocks<T>(                 \
      device float4*, device const T*, device const int*, constant LdlParameters&,                \
      constant LdlParameters&, uint2)

#define REGISTER_LDL_THREAD(T, SIZE)                                                           \
  template [[host_name("ldl_thread_" #SIZE "_" #T)]] kernel void ldl_thread<T, SIZE>(          \
      device T*, device int*, device int*, device const T*, constant SmallMatricesParameters&, \
      uint2, uint2)

REGISTER_LDL(float);
REGISTER_LDL(float2);
REGISTER_LDL_THREAD(float, 4);
REGISTER_LDL_THREAD(float, 8);
REGISTER_LDL_THREAD(float2, 4);
REGISTER_LDL_THREAD(float2, 8);

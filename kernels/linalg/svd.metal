// xGESVD: singular values and vectors of square matrices, by Householder reduction to a real upper
// bidiagonal matrix and implicit QR iterations on it (LAPACK's xGEBD2, xORGBR and xBDSQR).
//
// A team (teams.h), one thread or one simdgroup, processes a small matrix. It holds the matrix, and
// V, in columns of packs. Each lane owns whole columns, or, when rotations are applied, packs of
// rows.
#include <c10/metal/utils.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/linalg/common/bidiagonal.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/reflectors.h>
#include <kernels/linalg/common/rotations.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/square_sources.h>
#include <kernels/linalg/common/squares.h>
#include <kernels/linalg/common/team_columns.h>
#include <kernels/linalg/common/teams.h>
using namespace metal;
using namespace metalops;

// The info of a matrix with an element that is not finite.
constant constexpr int kNotFinite = -4;

// ---- reduction to a bidiagonal matrix -----------------------------------------------------------

// A bidiagonal matrix, and the taus of the left and the right reflectors.
template <typename T, int SIZE>
struct Bidiagonal {
  float diagonal[SIZE];
  float superdiagonal[SIZE];
  T left[SIZE];
  T right[SIZE];
};

// A step of the reduction: vectors in packs, and scalars that one lane computes. Until a reflector
// is written, the position of its leading 1 holds the element that it was made from.
template <typename T, int SIZE>
struct Step {
  static constexpr constant int kPacks = SIZE / ColumnPacks<T>::kRows;
  float4 row[kPacks];       // conjugate row of the matrix, from which the right reflector is made
  float4 shares[kPacks];    // conjugate multiples of the left reflector, to subtract from columns
  float4 products[kPacks];  // to subtract, times the right reflector's conjugate elements
  T factor;                 // scale of the left reflector's vector
  T row_factor;
  T overlap;  // inner product of the shares and the right reflector
};

// Makes the left reflector of column k, in the rows from k on. One lane does it.
template <typename T, typename Column, typename Result, typename Shared>
inline void make_left_reflector(Column column, int k, int used, Result result, Shared step) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  float tail = 0.0f;
  for (int i = k / kRows; i < used; ++i) {
    const float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, k + 1);
    tail += dot(x, x);
  }
  const ScaledReflector<T> made =
      scaled_reflector(elements_of<T>(column)[k], significant_tail(tail));
  step->factor = made.factor;
  result->left[k] = made.tau;
  result->diagonal[k] = made.beta;
}

// Makes the right reflector of step->row, from element k + 1 on. One lane does it.
template <typename T, typename Result, typename Shared>
inline void make_right_reflector(int k, int used, Result result, Shared step) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  float tail = 0.0f;
  T overlap = from_real<T>(0.0f);
  for (int i = (k + 1) / kRows; i < used; ++i) {
    const float4 x = ColumnPacks<T>::rows_from(step->row[i], i * kRows, k + 2);
    tail += dot(x, x);
    overlap += ColumnPacks<T>::inner_product(step->shares[i], x);
  }
  const ScaledReflector<T> made =
      scaled_reflector(elements_of<T>(&step->row[0])[k + 1], significant_tail(tail));
  step->row_factor = made.factor;
  step->overlap =
      conjugate(elements_of<T>(&step->shares[0])[k + 1]) + multiply(overlap, made.factor);
  result->right[k] = made.tau;
  result->superdiagonal[k] = made.beta;
}

// xGEBD2: reduces the matrix. Column k of `packs` then holds the vector of left reflector k, which
// is zero in rows before k, and column k of `right`, with_vectors, that of the right one, zero in
// rows 0 to k. Both reflectors of a step are applied in one pass, as in xLABRD.
template <typename T, typename Team, int SIZE, typename Columns, typename RightColumns,
          typename Result, typename Shared>
inline void bidiagonalise(Columns packs, RightColumns right, int lane, int n, bool with_vectors,
                          Result result, Shared step) {
  typedef Layout<T, SIZE, Team> L;
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = with_padding<T>(n) / kRows;
  const auto row = elements_of<T>(&step->row[0]);
  const auto shares = elements_of<T>(&step->shares[0]);
  for (int i = lane; i < L::kPacks; i += Team::kLanes) {
    step->row[i] = float4(0.0f);
    step->shares[i] = float4(0.0f);
  }
  if (lane == 0) {
    make_left_reflector<T>(packs, 0, used, result, step);
  }
  Team::wait();
  for (int k = 0; k < n - 1; ++k) {
    const auto column = packs + k * L::kStride;
    const int first = k / kRows;  // the first pack that matters
    const T tau = conjugate(result->left[k]);
    const T factor = step->factor;
    const float4 begin = ColumnPacks<T>::rows_from(column[first], first * kRows, k + 1);
    for (int j = k + 1 + lane; j < n; j += Team::kLanes) {
      const auto other = packs + j * L::kStride;
      T product = ColumnPacks<T>::inner_product(begin, other[first]);
      for (int i = first + 1; i < used; ++i) {
        product += ColumnPacks<T>::inner_product(column[i], other[i]);
      }
      const T corner = elements_of<T>(other)[k];
      product = multiply(corner + multiply(conjugate(factor), product), tau);
      shares[j] = conjugate(product);
      row[j] = conjugate(corner - product);
    }
    Team::wait();
    if (lane == 0) {
      make_right_reflector<T>(k, used, result, step);
    }
    Team::wait();
    const T row_tau = result->right[k];
    const T row_factor = step->row_factor;
    const T overlap = step->overlap;
    for (int i = lane; i < L::kPacks; i += Team::kLanes) {
      const float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, k + 1);
      const float4 vector = times(x, factor);
      float4 sum(0.0f);
      for (int j = k + 2; i >= first && i < used && j < n; ++j) {
        sum += times(packs[j * L::kStride + i], row[j]);
      }
      sum = times(sum, row_factor) + packs[(k + 1) * L::kStride + i] - times(vector, overlap);
      step->products[i] = ColumnPacks<T>::rows_from(times(sum, row_tau), i * kRows, k + 1);
      column[i] = vector + ColumnPacks<T>::unit(i * kRows, k);
      if (with_vectors) {
        const float4 y = ColumnPacks<T>::rows_from(step->row[i], i * kRows, k + 2);
        right[k * L::kStride + i] = times(y, row_factor) + ColumnPacks<T>::unit(i * kRows, k + 1);
      }
    }
    Team::wait();
    for (int j = k + 1 + lane; j < n; j += Team::kLanes) {
      const auto other = packs + j * L::kStride;
      const T share = conjugate(shares[j]);
      const T weight = j == k + 1 ? from_real<T>(1.0f) : conjugate(multiply(row[j], row_factor));
      for (int i = first; i < used; ++i) {
        other[i] -= times(column[i], share) + times(step->products[i], weight);
      }
      if (j == k + 1) {
        make_left_reflector<T>(other, j, used, result, step);
      }
    }
    Team::wait();
  }
  for (int i = lane; i < L::kPacks; i += Team::kLanes) {
    packs[(n - 1) * L::kStride + i] = ColumnPacks<T>::unit(i * kRows, n - 1);
  }
  Team::wait();
}

// ---- results ------------------------------------------------------------------------------------

// Stores the singular values in descending order, and U and V^H, both column-major and contiguous.
// order: scratch, n elements.
template <typename T, typename Team, int STRIDE, typename Columns, typename RightColumns,
          typename Floats, typename Order>
inline void store(Columns packs, RightColumns right, Floats diagonal, Order order, int lane,
                  int exponent, bool is_finite, constant SquaresParameters& p, uint matrix,
                  device float* values, device T* u, device T* v_adjoint) {
  const int n = p.size;
  for (int j = lane; j < n; j += Team::kLanes) {
    const int rank = descending_rank_of(diagonal, n, j);
    order[rank] = j;
    values[int64_t(matrix) * n + rank] =
        is_finite ? with_exponent(abs(diagonal[j]), exponent) : NAN;
  }
  if (!p.with_vectors) {
    return;
  }
  Team::wait();
  device T* const to = u + int64_t(matrix) * n * n;
  device T* const to_adjoint = v_adjoint + int64_t(matrix) * n * n;
  for (int j = 0; j < n; ++j) {
    const auto column = elements_of<T>(packs + order[j] * STRIDE);
    for (int i = lane; i < n; i += Team::kLanes) {
      to[j * n + i] = is_finite ? column[i] : from_real<T>(NAN);
    }
  }
  for (int i = lane; i < n; i += Team::kLanes) {
    const auto column = elements_of<T>(right + order[i] * STRIDE);
    const float sign = diagonal[order[i]] < 0.0f ? -1.0f : 1.0f;
    for (int j = 0; j < n; ++j) {
      const T element = conjugate(column[j]) * sign;
      const int offset = j * n + i;
      to_adjoint[offset] = is_finite ? element : from_real<T>(NAN);
    }
  }
}

// ---- at most 8 rows, one thread per matrix ------------------------------------------------------

template <typename T, int SIZE>
kernel void svd_thread(device float* values [[buffer(0)]], device T* u [[buffer(1)]],
                       device T* v_adjoint [[buffer(2)]], device int* infos [[buffer(3)]],
                       device const T* input [[buffer(4)]],
                       constant SquaresParameters& p [[buffer(5)]],
                       uint thread_index [[thread_position_in_grid]]) {
  const uint matrix = p.first + thread_index;
  if (matrix >= p.end) {
    return;
  }
  typedef Layout<T, SIZE, Alone> L;
  const int n = p.size;
  float4 packs[SIZE * L::kStride];
  float4 right[SIZE * L::kStride];
  Bidiagonal<T, SIZE> result;
  Step<T, SIZE> step;
  float2 rotations[SIZE];
  float2 right_rotations[SIZE];
  int order[SIZE];
  bool is_finite;
  const int exponent = load_columns<T, Alone, SIZE>(
      &packs[0], 0, n, GeneralSource<T>{input + matrix * p.matrix_stride, p}, is_finite);
  bidiagonalise<T, Alone, SIZE>(&packs[0], &right[0], 0, n, p.with_vectors, &result, &step);
  if (p.with_vectors) {
    form_q<T, Alone, SIZE, 0>(&packs[0], 0, n, &result.left[0]);
    form_q<T, Alone, SIZE, 1>(&right[0], 0, n, &result.right[0]);
  }
  BidiagonalIteration iteration = {0, 0, 0, 0, 0, 0.0f};
  while (true) {
    const Sweep sweep = next_sweep(&result.diagonal[0], &result.superdiagonal[0], n, iteration,
                                   &rotations[0], &right_rotations[0]);
    if (sweep.count == 0) {
      break;
    }
    if (p.with_vectors) {
      for (int i = 0; i < L::kPacks; ++i) {
        apply_sweep<float4>(&packs[i], L::kStride, sweep, &rotations[0]);
        apply_sweep<float4>(&right[i], L::kStride, sweep, &right_rotations[0]);
      }
    }
  }
  store<T, Alone, L::kStride>(&packs[0], &right[0], &result.diagonal[0], &order[0], 0, exponent,
                              is_finite, p, matrix, values, u, v_adjoint);
  infos[matrix] = is_finite ? iteration.count_unfinished(n) : kNotFinite;
}

// ---- at most 64 rows, one simdgroup per matrix --------------------------------------------------

// The memory of V: threadgroup memory if there is room, otherwise device memory.
template <bool HAS_ROOM>
struct Room {
  typedef Simdgroup Team;
  static threadgroup float4* memory(threadgroup float4* here, device float4*, int64_t) {
    return here;
  }
};
template <>
struct Room<false> {
  typedef SimdgroupOfDevice Team;
  static device float4* memory(threadgroup float4*, device float4* kept, int64_t offset) {
    return kept + offset;
  }
};

template <typename T, int SIZE, bool HAS_ROOM>
kernel void svd_simdgroup(device float* values [[buffer(0)]], device T* u [[buffer(1)]],
                          device T* v_adjoint [[buffer(2)]], device int* infos [[buffer(3)]],
                          device const T* input [[buffer(4)]], device float4* kept [[buffer(5)]],
                          constant SquaresParameters& p [[buffer(6)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef typename Room<HAS_ROOM>::Team Team;
  typedef Layout<T, SIZE, Team> L;
  constexpr int kRotations = 4 * SIZE;  // recorded before they are applied
  constexpr int kSweeps = 16;
  threadgroup float4 packs[SIZE * L::kStride];
  threadgroup float4 of_right[HAS_ROOM ? SIZE * L::kStride : 1];
  threadgroup Bidiagonal<T, SIZE> result;
  threadgroup Step<T, SIZE> step;
  threadgroup float2 rotations[kRotations];
  threadgroup float2 right_rotations[kRotations];
  threadgroup Sweep sweeps[kSweeps];
  threadgroup int order[SIZE];
  threadgroup int sweep_count;
  const uint matrix = p.first + group;
  const int lane = simd_lane;
  const int n = p.size;
  const int padded = with_padding<T>(n);
  const int used = padded / ColumnPacks<T>::kRows;
  // Without vectors, `kept` has no room for V.
  const int64_t of_kept = p.with_vectors ? int64_t(group) * SIZE * L::kStride : 0;
  const auto right = Room<HAS_ROOM>::memory(&of_right[0], kept, of_kept);
  bool is_finite;
  const int exponent = load_columns<T, Team, SIZE>(
      &packs[0], lane, n, GeneralSource<T>{input + matrix * p.matrix_stride, p}, is_finite);
  bidiagonalise<T, Team, SIZE>(&packs[0], right, lane, n, p.with_vectors, &result, &step);
  if (p.with_vectors) {
    form_q<T, Team, SIZE, 0>(&packs[0], lane, n, &result.left[0]);
    form_q<T, Team, SIZE, 1>(right, lane, n, &result.right[0]);
  }
  BidiagonalIteration iteration = {0, 0, 0, 0, 0, 0.0f};
  int count = 1;
  while (count > 0) {
    if (lane == 0) {
      int room = 0;
      int done = 0;
      int last = 1;
      while (last > 0 && done < kSweeps && room + n <= kRotations) {
        const Sweep sweep = next_sweep(&result.diagonal[0], &result.superdiagonal[0], n, iteration,
                                       &rotations[room], &right_rotations[room]);
        last = sweep.count;
        if (last > 0) {
          sweeps[done++] = sweep;
        }
        room += last;
      }
      sweep_count = done;
    }
    Team::wait();
    count = sweep_count;
    if (p.with_vectors) {
      for (int i = lane; i < 2 * used; i += Team::kLanes) {
        if (i < used) {
          apply_sweeps<float4>(&packs[i], L::kStride, &sweeps[0], count, &rotations[0]);
        } else {
          apply_sweeps<float4>(right + (i - used), L::kStride, &sweeps[0], count,
                               &right_rotations[0]);
        }
      }
    }
    Team::wait();
  }
  store<T, Team, L::kStride>(&packs[0], right, &result.diagonal[0], &order[0], lane, exponent,
                             is_finite, p, matrix, values, u, v_adjoint);
  if (lane == 0) {
    infos[matrix] = is_finite ? iteration.count_unfinished(n) : kNotFinite;
  }
}

#define REGISTER_THREAD(T, SIZE) REGISTER_KERNEL("svd_thread_" #SIZE "_" #T, svd_thread, T, SIZE)

#define REGISTER_SIMDGROUP(T, SIZE, HAS_ROOM) \
  REGISTER_KERNEL("svd_simdgroup_" #SIZE "_" #T, svd_simdgroup, T, SIZE, HAS_ROOM)

REGISTER_THREAD(float, 4);
REGISTER_THREAD(float, 8);
REGISTER_THREAD(float2, 4);
REGISTER_THREAD(float2, 8);
REGISTER_SIMDGROUP(float, 16, true);
REGISTER_SIMDGROUP(float, 32, true);
REGISTER_SIMDGROUP(float, 64, false);
REGISTER_SIMDGROUP(float2, 16, true);
REGISTER_SIMDGROUP(float2, 32, true);
REGISTER_SIMDGROUP(float2, 48, false);

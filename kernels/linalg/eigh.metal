// xHEEV (xSYEV): eigenvalues and eigenvectors of Hermitian matrices, by Householder reduction to a
// real tridiagonal matrix and implicit QL and QR iterations on it (LAPACK's xSYTD2, xORG2R and
// xSTEQR).
//
// A team (teams.h), one thread or one simdgroup, processes a small matrix. It holds both triangles,
// in columns of packs. Each lane owns whole columns, or, when rotations are applied, packs of rows.
#include <c10/metal/utils.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

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

// ---- a team's matrix ----------------------------------------------------------------------------

// xSYTD2: reduces the matrix to the tridiagonal one of `diagonal` and `off_diagonal`.
// Column k then holds the vector of reflector k, which is zero in rows 0 to k. other: scratch,
// packs for a column.
template <typename T, typename Team, int STRIDE, typename Columns, typename Floats, typename Taus>
inline void tridiagonalise(Columns packs, Columns other, int lane, int n, int padded,
                           Floats diagonal, Floats off_diagonal, Taus taus) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  const int used = padded / kRows;
  const auto products = elements_of<T>(other);
  for (int i = lane; i < used; i += Team::kLanes) {
    other[i] = float4(0.0f);
  }
  for (int k = 0; k < n - 1; ++k) {
    const auto column = packs + k * STRIDE;
    const auto vector = elements_of<T>(column);
    const int first = (k + 1) / kRows;  // the first pack that matters
    float tail = 0.0f;
    for (int i = first + lane; i < used; i += Team::kLanes) {
      const float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, k + 2);
      tail += dot(x, x);
    }
    const float corner = real_part(vector[k]);
    tail = Team::sum(tail);
    const ScaledReflector<T> reflector = scaled_reflector(vector[k + 1], significant_tail(tail));
    const T tau = reflector.tau;
    const T factor = reflector.factor;
    Team::wait();
    for (int i = lane; i < used; i += Team::kLanes) {
      const float4 x = ColumnPacks<T>::rows_from(column[i], i * kRows, k + 2);
      column[i] = times(x, factor) + ColumnPacks<T>::unit(i * kRows, k + 1);
    }
    if (lane == 0) {
      diagonal[k] = corner;
      off_diagonal[k] = reflector.beta;
      taus[k] = tau;
    }
    Team::wait();
    T overlap = from_real<T>(0.0f);
    for (int j = k + 1 + lane; j < n; j += Team::kLanes) {
      T product = from_real<T>(0.0f);
      for (int i = first; i < used; ++i) {
        product += ColumnPacks<T>::inner_product(packs[j * STRIDE + i], column[i]);
      }
      product = multiply(product, tau);
      products[j] = product;
      overlap += multiply(conjugate(product), vector[j]);
    }
    const T share = multiply(tau, Team::sum(overlap)) * -0.5f;
    for (int j = k + 1 + lane; j < n; j += Team::kLanes) {
      products[j] += multiply(share, vector[j]);
    }
    Team::wait();
    for (int j = k + 1 + lane; j < n; j += Team::kLanes) {
      const T of_vector = conjugate(products[j]);
      const T of_products = conjugate(vector[j]);
      for (int i = first; i < used; ++i) {
        packs[j * STRIDE + i] -= times(column[i], of_vector) + times(other[i], of_products);
      }
    }
    Team::wait();
  }
  if (lane == 0) {
    diagonal[n - 1] = real_part(elements_of<T>(packs + (n - 1) * STRIDE)[n - 1]);
  }
  Team::wait();
}

// Stores the eigenvalues and vectors, in ascending order, of a matrix whose iteration is done.
template <typename T, typename Team, int STRIDE, typename Columns, typename Floats>
inline void store(Columns packs, Floats diagonal, int lane, int exponent, bool is_finite,
                  constant SquaresParameters& p, uint matrix, device float* values,
                  device T* vectors) {
  const int n = p.size;
  for (int j = lane; j < n; j += Team::kLanes) {
    const int64_t offset = int64_t(matrix) * n + rank_of(diagonal, n, j);
    values[offset] = is_finite ? with_exponent(diagonal[j], exponent) : NAN;
  }
  if (!p.with_vectors) {
    return;
  }
  for (int j = 0; j < n; ++j) {
    const auto column = elements_of<T>(packs + j * STRIDE);
    device T* const to = vectors + (int64_t(matrix) * n + rank_of(diagonal, n, j)) * n;
    for (int i = lane; i < n; i += Team::kLanes) {
      to[i] = is_finite ? column[i] : from_real<T>(NAN);
    }
  }
}

// ---- at most 8 rows, one thread per matrix ------------------------------------------------------

template <typename T, int SIZE>
kernel void eigh_thread(device float* values [[buffer(0)]], device T* vectors [[buffer(1)]],
                        device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                        constant SquaresParameters& p [[buffer(4)]],
                        uint thread_index [[thread_position_in_grid]]) {
  const uint matrix = p.first + thread_index;
  if (matrix >= p.end) {
    return;
  }
  typedef Layout<T, SIZE, Alone> L;
  const int n = p.size;
  float4 packs[SIZE * L::kStride];
  float4 other[L::kPacks];
  float diagonal[SIZE];
  float off_diagonal[SIZE];
  T taus[SIZE];
  float2 rotations[SIZE];
  bool is_finite;
  const int exponent = load_columns<T, Alone, SIZE>(
      &packs[0], 0, n, HermitianSource<T>{input + matrix * p.matrix_stride, p}, is_finite);
  tridiagonalise<T, Alone, L::kStride>(&packs[0], &other[0], 0, n, SIZE, &diagonal[0],
                                       &off_diagonal[0], &taus[0]);
  if (p.with_vectors) {
    form_q<T, Alone, SIZE, 1>(&packs[0], 0, n, &taus[0]);
  }
  TridiagonalIteration iteration = {0, 0, 0, 0, 0};
  while (true) {
    const Sweep sweep = next_sweep(&diagonal[0], &off_diagonal[0], n, iteration, &rotations[0]);
    if (sweep.count == 0) {
      break;
    }
    if (p.with_vectors) {
      for (int i = 0; i < L::kPacks; ++i) {
        apply_sweep<float4>(&packs[i], L::kStride, sweep, &rotations[0]);
      }
    }
  }
  store<T, Alone, L::kStride>(&packs[0], &diagonal[0], 0, exponent, is_finite, p, matrix, values,
                              vectors);
  infos[matrix] = is_finite ? iteration.count_unfinished(n) : 1;
}

// ---- at most 64 rows, one simdgroup per matrix --------------------------------------------------

template <typename T, int SIZE>
kernel void eigh_simdgroup(device float* values [[buffer(0)]], device T* vectors [[buffer(1)]],
                           device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                           constant SquaresParameters& p [[buffer(4)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint simd_lane [[thread_index_in_simdgroup]]) {
  typedef Layout<T, SIZE, Simdgroup> L;
  constexpr int kRotations = 4 * SIZE;  // recorded before they are applied
  constexpr int kSweeps = 16;
  threadgroup float4 packs[SIZE * L::kStride];
  threadgroup float4 other[L::kPacks];
  threadgroup float diagonal[SIZE];
  threadgroup float off_diagonal[SIZE];
  threadgroup T taus[SIZE];
  threadgroup float2 rotations[kRotations];
  threadgroup Sweep sweeps[kSweeps];
  threadgroup int sweep_count;
  const uint matrix = p.first + group;
  const int lane = simd_lane;
  const int n = p.size;
  const int padded = with_padding<T>(n);
  bool is_finite;
  const int exponent = load_columns<T, Simdgroup, SIZE>(
      &packs[0], lane, n, HermitianSource<T>{input + matrix * p.matrix_stride, p}, is_finite);
  tridiagonalise<T, Simdgroup, L::kStride>(&packs[0], &other[0], lane, n, padded, &diagonal[0],
                                           &off_diagonal[0], &taus[0]);
  if (p.with_vectors) {
    form_q<T, Simdgroup, SIZE, 1>(&packs[0], lane, n, &taus[0]);
  }
  TridiagonalIteration iteration = {0, 0, 0, 0, 0};
  int count = 1;
  while (count > 0) {
    if (lane == 0) {
      int used = 0;
      int done = 0;
      int last = 1;
      while (last > 0 && done < kSweeps && used + n <= kRotations) {
        const Sweep sweep =
            next_sweep(&diagonal[0], &off_diagonal[0], n, iteration, &rotations[used]);
        last = sweep.count;
        if (last > 0) {
          sweeps[done++] = sweep;
        }
        used += last;
      }
      sweep_count = done;
    }
    Simdgroup::wait();
    count = sweep_count;
    if (p.with_vectors) {
      for (int i = lane; i < padded / ColumnPacks<T>::kRows; i += Simdgroup::kLanes) {
        apply_sweeps<float4>(&packs[i], L::kStride, &sweeps[0], count, &rotations[0]);
      }
    }
    Simdgroup::wait();
  }
  store<T, Simdgroup, L::kStride>(&packs[0], &diagonal[0], lane, exponent, is_finite, p, matrix,
                                  values, vectors);
  if (lane == 0) {
    infos[matrix] = is_finite ? iteration.count_unfinished(n) : 1;
  }
}

#define REGISTER_EIGH(KIND, T, SIZE, ...) \
  REGISTER_KERNEL("eigh_" #KIND "_" #SIZE "_" #T, eigh_##KIND, T, SIZE)

REGISTER_EIGH(thread, float, 4, uint);
REGISTER_EIGH(thread, float, 8, uint);
REGISTER_EIGH(thread, float2, 4, uint);
REGISTER_EIGH(thread, float2, 8, uint);
REGISTER_EIGH(simdgroup, float, 16, uint, uint);
REGISTER_EIGH(simdgroup, float, 32, uint, uint);
REGISTER_EIGH(simdgroup, float, 64, uint, uint);
REGISTER_EIGH(simdgroup, float2, 16, uint, uint);
REGISTER_EIGH(simdgroup, float2, 32, uint, uint);
REGISTER_EIGH(simdgroup, float2, 48, uint, uint);

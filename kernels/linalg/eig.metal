// xGEEV: eigenvalues and eigenvectors of general matrices, by balancing (xGEBAL), reduction to
// Hessenberg form (xGEHD2), QR iterations to Schur form (xLAHQR) and back substitution (xTREVC).
//
// A team (teams.h), one thread or one simdgroup, processes a small matrix. It holds the matrix and
// the product of all transformations in columns of packs: in registers or threadgroup memory as
// long as there is room.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/linalg/common/balance.h>
#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/reflectors.h>
#include <kernels/linalg/common/scaling.h>
#include <kernels/linalg/common/schur.h>
#include <kernels/linalg/common/schur_vectors.h>
#include <kernels/linalg/common/square_sources.h>
#include <kernels/linalg/common/squares.h>
#include <kernels/linalg/common/team_columns.h>
#include <kernels/linalg/common/team_hessenberg.h>
#include <kernels/linalg/common/teams.h>
#include <kernels/linalg/eig.h>
using namespace metal;
using namespace metalops;

// ---- reduction ----------------------------------------------------------------------------------

// Permutes rows and columns into `order`, scales each of them, and divides all elements by
// 2^exponent.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline void reorder(Columns to, Columns from, int lane, int n, int padded, Ints order,
                    Ints exponents, int exponent) {
  for (int j = lane; j < n; j += Team::kLanes) {
    const auto target = elements_of<T>(to + j * STRIDE);
    const auto source = elements_of<T>(from + order[j] * STRIDE);
    for (int i = 0; i < padded; ++i) {
      target[i] = i < n ? with_exponent(source[order[i]],
                                        exponents[order[j]] - exponents[order[i]] - exponent)
                        : from_real<T>(0.0f);
    }
  }
  Team::wait();
}

// ---- results ------------------------------------------------------------------------------------

template <typename T, int PACKS, typename Ints>
inline float2 unbalanced(thread const ComplexColumn<T, PACKS>& x, int i, Ints order, Ints exponents,
                         int exponent) {
  return with_exponent(element_of(x, i), exponents[order[i]] - exponent);
}

// Stores an eigenvector of the balanced matrix as one of the matrix itself (xGEBAK), of norm 1 and
// with its largest element real; of a complex pair, also the conjugate one behind it.
template <typename T, int PACKS, typename Ints>
inline void store_vector(thread const ComplexColumn<T, PACKS>& x, int n, Ints order, Ints exponents,
                         bool is_paired, device float2* to) {
  int exponent = -1000;
  for (int i = 0; i < n; ++i) {
    const float size = largest_part(element_of(x, i));
    exponent = max(exponent, size > 0.0f ? ilogb(size) + exponents[order[i]] : -1000);
  }
  float squares = 0.0f;
  float2 largest(0.0f);
  float largest_square = -1.0f;
  int largest_index = 0;
  for (int i = 0; i < n; ++i) {
    const float2 element = unbalanced(x, i, order, exponents, exponent);
    const float square = squared_magnitude(element);
    squares += square;
    if (square > largest_square) {
      largest_square = square;
      largest = element;
      largest_index = i;
    }
  }
  const float scale = 1.0f / precise::sqrt(squares);
  const bool is_real = largest.y == 0.0f;
  const float2 factor =
      is_real ? float2(scale, 0.0f) : conjugate(largest) * (scale / precise::sqrt(largest_square));
  for (int i = 0; i < n; ++i) {
    float2 element = multiply(unbalanced(x, i, order, exponents, exponent), factor);
    element.y = i == largest_index ? 0.0f : element.y;
    to[order[i]] = element;
    if (is_paired) {
      to[n + order[i]] = conjugate(element);
    }
  }
}

// Stores the eigenvalues and, with_vectors, the eigenvectors of a matrix, from its Schur form and
// the transformations that brought it there.
template <typename T, typename Team, int STRIDE, int PACKS, typename Columns, typename Ints>
inline void store_results(Columns packs, Columns transformations, int lane, int padded,
                          int exponent, Ints order, Ints exponents, constant SquaresParameters& p,
                          uint matrix, device float2* values, device float2* vectors) {
  const int n = p.size;
  const int64_t first = int64_t(matrix) * n;
  for (int j = lane; j < n; j += Team::kLanes) {
    const bool is_second = is_pair<T>(packs, STRIDE, n, j - 1);
    if (is_second) {
      continue;
    }
    const bool is_paired = is_pair<T>(packs, STRIDE, n, j);
    const float2 value = schur_value<T>(packs, STRIDE, n, j);
    values[first + j] = with_exponent(value, exponent);
    if (is_paired) {
      values[first + j + 1] = with_exponent(conjugate(value), exponent);
    }
    if (p.with_vectors) {
      ComplexColumn<T, PACKS> x;
      ComplexColumn<T, PACKS> y;
      back_substitute<T, STRIDE>(x, packs, n, j, value);
      clear(y);
      for (int k = 0; k <= j + (is_paired ? 1 : 0); ++k) {
        add_above(y, transformations + k * STRIDE, padded, element_of(x, k));
      }
      store_vector(y, n, order, exponents, is_paired, vectors + (first + j) * n);
    }
  }
}

// A team's scratch memory, apart from the columns of matrices.
template <typename T, int SIZE>
struct Workspace {
  int positions[SIZE];
  int order[SIZE];
  int exponents[SIZE];
  int more[SIZE];
  int shared[2];
  T taus[SIZE];
  SchurStep<T> step;
  Bulge<T> bulge;
};

// Processes one matrix by a team: balancing, reduction, QR iterations, results.
template <typename T, typename Team, int SIZE, typename Columns, typename Scratch>
inline void find_eigenvalues(Columns packs, Columns vectors, Scratch scratch, int lane, int padded,
                             device float2* values, device float2* to, device int* infos,
                             device const T* input, constant SquaresParameters& p, uint matrix) {
  constexpr int STRIDE = Layout<T, SIZE, Team>::kStride;
  constexpr int PACKS = Layout<T, SIZE, Team>::kPacks;
  const int n = p.size;
  bool is_finite;
  const int loaded = load_columns<T, Team, SIZE>(
      vectors, lane, n, GeneralSource<T>{input + matrix * p.matrix_stride, p}, is_finite);
  const int balanced =
      balance<T, Team, STRIDE>(vectors, lane, n, &scratch->positions[0], &scratch->order[0],
                               &scratch->exponents[0], &scratch->more[0], &scratch->shared[0]);
  reorder<T, Team, STRIDE>(packs, vectors, lane, n, padded, &scratch->order[0],
                           &scratch->exponents[0], balanced);
  reduce_to_hessenberg<T, Team, STRIDE>(packs, vectors, lane, n, padded, &scratch->taus[0]);
  if (p.with_vectors) {
    form_q<T, Team, SIZE, 1>(vectors, lane, n, &scratch->taus[0]);
  }
  find_schur_form<T, Team, STRIDE>(packs, vectors, lane, n, padded, p.with_vectors != 0,
                                   &scratch->step, &scratch->bulge);
  store_results<T, Team, STRIDE, PACKS>(packs, vectors, lane, padded, loaded + balanced,
                                        &scratch->order[0], &scratch->exponents[0], p, matrix,
                                        values, to);
  if (lane == 0) {
    infos[matrix] = is_finite ? scratch->step.count_unfinished() : kEigNotFinite;
  }
}

// One thread per matrix of at most 8 rows.
template <typename T, int SIZE>
kernel void eig_thread(device float2* values [[buffer(0)]], device float2* vectors [[buffer(1)]],
                       device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                       constant SquaresParameters& p [[buffer(4)]],
                       uint thread_index [[thread_position_in_grid]]) {
  const uint matrix = p.first + thread_index;
  if (matrix >= p.end) {
    return;
  }
  typedef Layout<T, SIZE, Alone> L;
  float4 packs[SIZE * L::kStride];
  float4 transformations[SIZE * L::kStride];
  Workspace<T, SIZE> scratch;
  find_eigenvalues<T, Alone, SIZE>(&packs[0], &transformations[0], &scratch, 0, SIZE, values,
                                   vectors, infos, input, p, matrix);
}

// One simdgroup per larger matrix, in threadgroup memory.
template <typename T, int SIZE>
kernel void eig_simdgroup(device float2* values [[buffer(0)]], device float2* vectors [[buffer(1)]],
                          device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                          constant SquaresParameters& p [[buffer(4)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]]) {
  typedef Layout<T, SIZE, Simdgroup> L;
  threadgroup float4 packs[SIZE * L::kStride];
  threadgroup float4 transformations[SIZE * L::kStride];
  threadgroup Workspace<T, SIZE> scratch;
  find_eigenvalues<T, Simdgroup, SIZE>(&packs[0], &transformations[0], &scratch, int(lane),
                                       with_padding<T>(int(p.size)), values, vectors, infos, input,
                                       p, p.first + group);
}

// One simdgroup per matrix whose columns do not fit into threadgroup memory. columns: device memory
// for each matrix's 2 n columns of SIZE elements and a pack.
template <typename T, int SIZE>
kernel void eig_device(device float2* values [[buffer(0)]], device float2* vectors [[buffer(1)]],
                       device int* infos [[buffer(2)]], device const T* input [[buffer(3)]],
                       device float4* columns [[buffer(4)]],
                       constant SquaresParameters& p [[buffer(5)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]]) {
  typedef Layout<T, SIZE, SimdgroupOfDevice> L;
  threadgroup Workspace<T, SIZE> scratch;
  const int64_t packs = int64_t(p.size) * L::kStride;
  device float4* const own = columns + 2 * packs * group;
  find_eigenvalues<T, SimdgroupOfDevice, SIZE>(own, own + packs, &scratch, int(lane),
                                               with_padding<T>(int(p.size)), values, vectors, infos,
                                               input, p, p.first + group);
}

#define REGISTER_EIG(KIND, T, SIZE, ...) \
  REGISTER_KERNEL("eig_" #KIND "_" #SIZE "_" #T, eig_##KIND, T, SIZE)

REGISTER_EIG(thread, float, 4, uint);
REGISTER_EIG(thread, float, 8, uint);
REGISTER_EIG(thread, float2, 4, uint);
REGISTER_EIG(thread, float2, 8, uint);
REGISTER_EIG(simdgroup, float, 16, uint, uint);
REGISTER_EIG(simdgroup, float, 32, uint, uint);
REGISTER_EIG(simdgroup, float, 56, uint, uint);
REGISTER_EIG(simdgroup, float2, 16, uint, uint);
REGISTER_EIG(simdgroup, float2, 32, uint, uint);
REGISTER_EIG(simdgroup, float2, 40, uint, uint);

#define REGISTER_EIG_DEVICE(T) REGISTER_KERNEL("eig_device_64_" #T, eig_device, T, kMostOfEigDevice)

REGISTER_EIG_DEVICE(float);
REGISTER_EIG_DEVICE(float2);

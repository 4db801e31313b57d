// xGEQRF, xORMQR and xORGQR: QR factorisation by Householder reflectors, in LAPACK's form, with R
// on and above the diagonal, the reflectors' vectors below it, and their tau in an array of their
// own:
//
//     [ r r r ]
//     [ v r r ]
//     [ v v r ]
//     [ v v v ]
//
// The smallest matrices stay in the registers of a thread each, small ones in those of a
// simdgroup's lanes, a column each. For larger ones a threadgroup factorises a panel of columns,
// and the host's GEMMs apply its block reflector H1 H2 ... = 1 - V T V^H to everything else: V is
// written out, with ones and zeros.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/linalg/common/planar_packs.h>
#include <kernels/linalg/common/reflectors.h>
#include <kernels/linalg/qr.h>
using namespace metal;
using namespace metalops;

// ---- packs of a column --------------------------------------------------------------------------

METAL_FUNC int4 indices(int first) { return first + int4(0, 1, 2, 3); }

// Returns the pack with zeros at and before row k. first: the first row of the pack.
template <typename T>
METAL_FUNC Pack<T> behind(Pack<T> x, int first, int k) {
  return choose(zero_pack<T>(), x, indices(first) > k);
}

// Returns a pack of the vector v of the reflector that lies below row k of a column.
template <typename T>
METAL_FUNC Pack<T> of_reflector(Pack<T> x, int first, int k) {
  if (first > k) {
    return x;
  }
  return choose(behind(x, first, k), all_of(from_real<T>(1.0f)), indices(first) == k);
}

// Returns a pack of the column after its reflection: v below row k, beta at it; elements above it
// stay.
template <typename T>
METAL_FUNC Pack<T> reflected(Pack<T> x, Pack<T> v, int first, int k, float beta) {
  const Pack<T> lower = choose(v, x, indices(first) < k);
  return choose(lower, all_of(from_real<T>(beta)), indices(first) == k);
}

// Returns v of a reflector, from elements of x.
template <typename T>
METAL_FUNC Pack<T> multiplied(Pack<T> x, Reflector<T> reflector, T factor) {
  if (reflector.has_factor()) {
    return multiply_add(zero_pack<T>(), x, all_of(factor));
  }
  return divided(scaled(x, reflector.scale), reflector.divisor);
}

// ---- small matrices -----------------------------------------------------------------------------

// Makes the reflector of column x below row k, applies it to x, and returns its tau. v: receives
// its vector, to be written out; in memory of a thread or of a threadgroup.
template <typename T, uint Rows, typename V>
inline T reflect(thread Pack<T> (&x)[Rows / 4], V v, int k) {
  T alpha = from_real<T>(0.0f);
  float4 squares = float4(0.0f);
  float4 largest = float4(0.0f);
  for (int b = 0; b < int(Rows / 4); ++b) {
    if (4 * b + 3 >= k) {
      const Pack<T> tail = behind(x[b], 4 * b, k);
      squares = add_squares(squares, tail);
      largest = max(largest, largest_parts(tail));
      if (4 * b <= k) {
        alpha = element(x[b], k & 3);
      }
    }
  }
  Extent extent = {max(max(largest.x, largest.y), max(largest.z, largest.w)),
                   (squares.x + squares.y) + (squares.z + squares.w), 1.0f};
  if (extent.is_rough()) {
    extent = extent.rescaled();
    squares = float4(0.0f);
    for (int b = 0; b < int(Rows / 4); ++b) {
      squares = add_squares(squares, scaled(behind(x[b], 4 * b, k), extent.scale));
    }
    extent.squares = (squares.x + squares.y) + (squares.z + squares.w);
  }
  const Reflector<T> reflector = reflector_of(alpha, extent);
  const T factor = reflector.factor();
  for (int b = 0; b < int(Rows / 4); ++b) {
    if (4 * b + 3 >= k) {
      const Pack<T> below = multiplied(x[b], reflector, factor);
      v[b] = of_reflector(below, 4 * b, k);
      x[b] = reflected(x[b], below, 4 * b, k, reflector.beta);
    }
  }
  return reflector.tau;
}

// xGEQR2, one thread per matrix, or panel of one, of at most N rows and columns.
template <typename T, uint N>
kernel void qr_thread(device T* matrices [[buffer(0)]], device T* taus [[buffer(1)]],
                      constant QrParameters& p [[buffer(2)]],
                      uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  constexpr uint kPacks = N / 4;
  const int64_t matrix = thread_index(position, grid);
  if (matrix >= p.matrices) {
    return;
  }
  const int rows = p.rows - p.first;
  device T* own = matrices + (matrix * p.columns + p.first) * p.rows + p.first;
  device T* own_taus = taus + matrix * p.taus + p.first;
  Pack<T> x[N][kPacks];
#pragma unroll
  for (uint c = 0; c < N; ++c) {
#pragma unroll
    for (uint b = 0; b < kPacks; ++b) {
      x[c][b] =
          c < p.width ? load_some(own + c * p.rows + 4 * b, rows - 4 * int(b)) : zero_pack<T>();
    }
  }
#pragma unroll
  for (uint k = 0; k < N; ++k) {
    if (int(k) < rows && k < p.width) {
      Pack<T> v[kPacks];
      const T tau = reflect<T, N>(x[k], v, k);
      own_taus[k] = tau;
      const T weight = -conjugate(tau);
#pragma unroll
      for (uint c = k + 1; c < N; ++c) {
        Pack<T> sum = zero_pack<T>();
#pragma unroll
        for (uint b = k / 4; b < kPacks; ++b) {
          sum = conjugate_multiply_add(sum, v[b], x[c][b]);
        }
        const Pack<T> weights = all_of(multiply(weight, sum_of(sum)));
#pragma unroll
        for (uint b = k / 4; b < kPacks; ++b) {
          x[c][b] = multiply_add(x[c][b], weights, v[b]);
        }
      }
    }
  }
#pragma unroll
  for (uint c = 0; c < N; ++c) {
#pragma unroll
    for (uint b = 0; b < kPacks; ++b) {
      if (c < p.width) {
        store_some(own + c * p.rows + 4 * b, x[c][b], rows - 4 * int(b));
      }
    }
  }
}

// xGEQR2, one lane per column: a simdgroup has 32 / Columns matrices, or panels of them, of at most
// so many columns and of at most Rows rows.
template <typename T, uint Columns, uint Rows>
kernel void qr_small(device T* matrices [[buffer(0)]], device T* taus [[buffer(1)]],
                     constant QrParameters& p [[buffer(2)]],
                     uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kMostSimdgroups = 8;
  constexpr uint kMatrices = 32 / Columns;
  constexpr int kPacks = Rows / 4;
  // The reflectors of this step and of the one before.
  threadgroup Pack<T> reflectors[kMostSimdgroups][2][kMatrices][kPacks];
  threadgroup T factors[kMostSimdgroups][2][kMatrices];
  const int64_t matrix = thread_index(position, grid) / Columns;
  const uint own = lane / Columns;
  const int column = lane % Columns;
  const bool is_mine = matrix < p.matrices && column < int(p.width);
  const int rows = p.rows - p.first;
  const int steps = min(rows, int(p.width));
  device T* x_in_memory = matrices + (matrix * p.columns + p.first + column) * p.rows + p.first;
  Pack<T> x[kPacks];
  for (int b = 0; b < kPacks; ++b) {
    x[b] = is_mine ? load_some(x_in_memory + 4 * b, rows - 4 * b) : zero_pack<T>();
  }
  for (int k = 0; k < steps; ++k) {
    threadgroup Pack<T>* v = reflectors[simdgroup][k & 1][own];
    threadgroup T& tau = factors[simdgroup][k & 1][own];
    if (column == k) {
      const T factor = reflect<T, Rows>(x, v, k);
      tau = factor;
      if (is_mine) {
        taus[matrix * p.taus + p.first + k] = factor;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (column > k && is_mine) {
      Pack<T> sum = zero_pack<T>();
      for (int b = 0; b < kPacks; ++b) {
        if (4 * b + 3 >= k && 4 * b < rows) {
          sum = conjugate_multiply_add(sum, v[b], x[b]);
        }
      }
      const Pack<T> weight = all_of(-multiply(conjugate(tau), sum_of(sum)));
      for (int b = 0; b < kPacks; ++b) {
        if (4 * b + 3 >= k && 4 * b < rows) {
          x[b] = multiply_add(x[b], weight, v[b]);
        }
      }
    }
  }
  if (is_mine) {
    for (int b = 0; b < kPacks; ++b) {
      store_some(x_in_memory + 4 * b, x[b], rows - 4 * b);
    }
  }
}

// Stores a vector of `size` elements, conjugated if is_conjugated.
template <typename T, uint N>
METAL_FUNC void store_vector(thread Pack<T> (&x)[N / 4], device T* vector, int64_t stride, int size,
                             bool is_conjugated) {
  for (int b = 0; b < int(N / 4); ++b) {
    Pack<T> own = x[b];
    if (is_conjugated) {
      own = conjugate(own);
    }
    for (int e = 0; e < 4; ++e) {
      if (4 * b + e < size) {
        vector[(4 * b + e) * stride] = element(own, e);
      }
    }
  }
}

// xORM2R and xORG2R: multiplies vectors of at most N elements by Q or Q^H. A thread has several
// vectors of a matrix, whose sums need not wait for each other.
template <typename T, uint N, uint Vectors>
kernel void qr_vectors(device T* vectors [[buffer(0)]], device const T* matrices [[buffer(1)]],
                       device const T* taus [[buffer(2)]],
                       constant QrVectorsParameters& p [[buffer(3)]],
                       uint2 position [[thread_position_in_grid]],
                       uint2 grid [[threads_per_grid]]) {
  constexpr int kPacks = N / 4;
  const int64_t index = thread_index(position, grid);
  const uint threads = (p.count + Vectors - 1) / Vectors;
  const int64_t matrix = index / threads;
  if (matrix >= p.matrices) {
    return;
  }
  // If vectors are rows, adjacent threads have adjacent vectors, so that loads are coalesced.
  // Otherwise a thread has adjacent vectors, as adjacent columns of the identity begin with about
  // as many zeros.
  const bool are_rows = p.element_stride != 1;
  const uint first = (index - matrix * threads) * (are_rows ? 1 : Vectors);
  const uint index_stride = are_rows ? threads : 1;
  const int size = p.size;
  Pack<T> x[Vectors][kPacks];
  for (uint n = 0; n < Vectors; ++n) {
    const uint vector_index = first + n * index_stride;
    device const T* vector = vectors + matrix * p.matrix_stride + vector_index * p.vector_stride;
    for (int b = 0; b < kPacks; ++b) {
      x[n][b] = zero_pack<T>();
      for (int e = 0; e < 4; ++e) {
        const int i = 4 * b + e;
        if (p.is_identity != 0) {
          set_element(x[n][b], e, from_real<T>(i == int(vector_index) ? 1.0f : 0.0f));
        } else if (i < size && vector_index < p.count) {
          set_element(x[n][b], e, vector[i * p.element_stride]);
        }
      }
      if (p.is_conjugated != 0) {
        x[n][b] = conjugate(x[n][b]);
      }
    }
  }
  const int last = first + (Vectors - 1) * index_stride;
  for (int step = 0; step < int(p.taus); ++step) {
    const int k = p.is_adjoint != 0 ? step : int(p.taus) - 1 - step;
    if (p.is_identity != 0 && k > last) {
      continue;  // the vectors are still zero where the reflector is not
    }
    device const T* v_in_memory = matrices + (matrix * p.columns + k) * size;
    Pack<T> v[kPacks];
    Pack<T> sums[Vectors];
    for (uint n = 0; n < Vectors; ++n) {
      sums[n] = zero_pack<T>();
    }
    for (int b = 0; b < kPacks; ++b) {
      if (4 * b + 3 >= k && 4 * b < size) {
        v[b] = of_reflector(load_some(v_in_memory + 4 * b, size - 4 * b), 4 * b, k);
        for (uint n = 0; n < Vectors; ++n) {
          sums[n] = conjugate_multiply_add(sums[n], v[b], x[n][b]);
        }
      }
    }
    const T tau = taus[matrix * p.taus + k];
    const T factor = -(p.is_adjoint != 0 ? conjugate(tau) : tau);
    for (uint n = 0; n < Vectors; ++n) {
      sums[n] = all_of(multiply(factor, sum_of(sums[n])));
    }
    for (int b = 0; b < kPacks; ++b) {
      if (4 * b + 3 >= k && 4 * b < size) {
        for (uint n = 0; n < Vectors; ++n) {
          x[n][b] = multiply_add(x[n][b], sums[n], v[b]);
        }
      }
    }
  }
  for (uint n = 0; n < Vectors; ++n) {
    const uint vector_index = first + n * index_stride;
    if (vector_index < p.count) {
      store_vector<T, N>(x[n], vectors + matrix * p.matrix_stride + vector_index * p.vector_stride,
                         p.element_stride, size, p.is_conjugated != 0);
    }
  }
}

// ---- panels -------------------------------------------------------------------------------------

constant constexpr int kTogether = 4;  // columns

inline RealPack simd_sums(RealPack a) { return {simd_sum(a.re)}; }
inline ComplexPack simd_sums(ComplexPack a) { return {simd_sum(a.re), simd_sum(a.im)}; }

// A column of `rows` elements that the lanes of a simdgroup process together. Each lane has every
// 32nd pack, the same ones in all columns. Only its first pack can have a part of a reflector's
// leading zeros, since panels are narrow, and only its last pack can be a partial one.
template <typename T>
struct PanelColumn {
  device T* x;
  int rows;
  int lane;

  // Accumulates the extent of the elements behind row k.
  Extent extent_behind(int k, Extent extent) const {
    float4 squares = float4(0.0f);
    float4 largest = float4(0.0f);
    int i = 4 * lane;
    const Pack<T> first = behind(load_some(x + i, rows - i), i, k);
    squares = add_squares(squares, scaled(first, extent.scale));
    largest = max(largest, largest_parts(first));
    for (i += 128; i + 4 <= rows; i += 128) {
      const Pack<T> next = load(x + i);
      squares = add_squares(squares, scaled(next, extent.scale));
      largest = max(largest, largest_parts(next));
    }
    if (i < rows) {
      const Pack<T> last = load_some(x + i, rows - i);
      squares = add_squares(squares, scaled(last, extent.scale));
      largest = max(largest, largest_parts(last));
    }
    extent.largest = simd_max(max(max(largest.x, largest.y), max(largest.z, largest.w)));
    extent.squares = simd_sum((squares.x + squares.y) + (squares.z + squares.w));
    return extent;
  }

  // Makes the reflector: leaves its v behind row k and beta at it. Returns its tau.
  T reflect(int k) const {
    Extent extent = extent_behind(k, Extent::none());
    if (extent.is_rough()) {
      extent = extent_behind(k, extent.rescaled());
    }
    const Reflector<T> reflector = reflector_of(x[k], extent);
    const T factor = reflector.factor();
    simdgroup_barrier(mem_flags::mem_device);  // all lanes have loaded x[k]
    int i = 4 * lane;
    const Pack<T> first = load_some(x + i, rows - i);
    store_some(x + i, reflected(first, multiplied(first, reflector, factor), i, k, reflector.beta),
               rows - i);
    for (i += 128; i + 4 <= rows; i += 128) {
      store(x + i, multiplied(load(x + i), reflector, factor));
    }
    if (i < rows) {
      store_some(x + i, multiplied(load_some(x + i, rows - i), reflector, factor), rows - i);
    }
    return reflector.tau;
  }

  // xLARF: multiplies this column, and those behind it up to `count` columns, by H^H. v: the column
  // that has the reflector behind row k.
  void multiply_by(device const T* v, int k, T tau, int64_t stride, int count) const {
    Pack<T> sums[kTogether];
    for (int n = 0; n < kTogether; ++n) {
      sums[n] = zero_pack<T>();
    }
    int i = 4 * lane;
    const Pack<T> first = of_reflector(load_some(v + i, rows - i), i, k);
    for (int n = 0; n < kTogether; ++n) {
      if (n < count) {
        sums[n] =
            conjugate_multiply_add(sums[n], first, load_some<T>(x + n * stride + i, rows - i));
      }
    }
    for (i += 128; i + 4 <= rows; i += 128) {
      const Pack<T> next = load(v + i);
      for (int n = 0; n < kTogether; ++n) {
        if (n < count) {
          sums[n] = conjugate_multiply_add(sums[n], next, load(x + n * stride + i));
        }
      }
    }
    if (i < rows) {
      const Pack<T> last = load_some(v + i, rows - i);
      for (int n = 0; n < kTogether; ++n) {
        if (n < count) {
          sums[n] =
              conjugate_multiply_add(sums[n], last, load_some<T>(x + n * stride + i, rows - i));
        }
      }
    }
    Pack<T> dots = zero_pack<T>();
    for (int n = 0; n < kTogether; ++n) {
      set_element(dots, n, sum_of(sums[n]));
    }
    dots = simd_sums(dots);
    Pack<T> weights[kTogether];
    for (int n = 0; n < kTogether; ++n) {
      weights[n] = all_of(-multiply(conjugate(tau), element(dots, n)));
    }
    i = 4 * lane;
    for (int n = 0; n < kTogether; ++n) {
      if (n < count) {
        device T* y = x + n * stride + i;
        store_some(y, multiply_add(load_some<T>(y, rows - i), weights[n], first), rows - i);
      }
    }
    for (i += 128; i + 4 <= rows; i += 128) {
      const Pack<T> next = load(v + i);
      for (int n = 0; n < kTogether; ++n) {
        if (n < count) {
          device T* y = x + n * stride + i;
          store(y, multiply_add(load(y), weights[n], next));
        }
      }
    }
    if (i < rows) {
      const Pack<T> last = load_some(v + i, rows - i);
      for (int n = 0; n < kTogether; ++n) {
        if (n < count) {
          device T* y = x + n * stride + i;
          store_some(y, multiply_add(load_some<T>(y, rows - i), weights[n], last), rows - i);
        }
      }
    }
  }
};

// xGEQR2 of a panel. One threadgroup per matrix. An iteration applies reflector k and makes the
// next one.
template <typename T>
kernel void qr_panel(device T* matrices [[buffer(0)]], device T* taus [[buffer(1)]],
                     constant QrParameters& p [[buffer(2)]],
                     uint matrix [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T factors[2];  // taus of this step and of the next one
  const int64_t stride = p.rows;
  const int rows = p.rows - p.first;
  const int width = p.width;
  device T* panel = matrices + (int64_t(matrix) * p.columns + p.first) * stride + p.first;
  device T* tau = taus + int64_t(matrix) * p.taus + p.first;
  for (int k = -1; k < width - 1; ++k) {
    for (int column = k + 1 + kTogether * int(simdgroup); column < width;
         column += kTogether * simdgroups) {
      const PanelColumn<T> x = {panel + column * stride, rows, int(lane)};
      if (k >= 0) {
        x.multiply_by(panel + k * stride, k, factors[k & 1], stride,
                      min(width - column, kTogether));
      }
      if (column == k + 1) {
        simdgroup_barrier(mem_flags::mem_device);  // x[column] is visible to all
        const T factor = x.reflect(column);
        if (lane == 0) {
          factors[column & 1] = factor;
          tau[column] = factor;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
}

// Returns the first row of a lane's pack of a column.
METAL_FUNC int first_row(int lane, int b) { return 4 * (lane + 32 * b); }

// Columns of a panel in the registers of a simdgroup's lanes: every 32nd pack of rows, and every
// so-many-th column from the simdgroup's on. The first pack alone can have rows at or before that
// of a step, since panels are narrow.
template <typename T, uint COLUMNS, uint PACKS>
struct HeldColumns {
  Pack<T> x[COLUMNS][PACKS];
  int lane;

  METAL_FUNC void load(uint c, device const T* column, int rows) thread {
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      x[c][b] = load_some(column + first_row(lane, b), rows - first_row(lane, b));
    }
  }
  METAL_FUNC void clear(uint c) thread {
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      x[c][b] = zero_pack<T>();
    }
  }
  METAL_FUNC void store(uint c, device T* column, int rows) const thread {
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      store_some(column + first_row(lane, b), x[c][b], rows - first_row(lane, b));
    }
  }

  // Stores the vector of the reflector k, which the column has.
  METAL_FUNC void store_reflector(uint c, int k, device T* column, int rows) const thread {
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      Pack<T> own = x[c][b];
      if (b == 0) {
        own = of_reflector(own, first_row(lane, 0), k);
      }
      store_some(column + first_row(lane, b), own, rows - first_row(lane, b));
    }
  }

  // Returns the extent of the elements behind row k.
  METAL_FUNC Extent extent_behind(uint c, int k, Extent extent) const thread {
    float4 squares = float4(0.0f);
    float4 largest = float4(0.0f);
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      Pack<T> tail = x[c][b];
      if (b == 0) {
        tail = behind(tail, first_row(lane, 0), k);
      }
      squares = add_squares(squares, scaled(tail, extent.scale));
      largest = max(largest, largest_parts(tail));
    }
    extent.largest = simd_max(max(max(largest.x, largest.y), max(largest.z, largest.w)));
    extent.squares = simd_sum((squares.x + squares.y) + (squares.z + squares.w));
    return extent;
  }

  // Makes the reflector of a column below row k, applies it to the column, and returns its tau. v:
  // receives its vector.
  METAL_FUNC T reflect(uint c, int k, threadgroup Pack<T>* v) thread {
    Extent extent = extent_behind(c, k, Extent::none());
    if (extent.is_rough()) {
      extent = extent_behind(c, k, extent.rescaled());
    }
    const Pack<T> own = choose(zero_pack<T>(), x[c][0], indices(first_row(lane, 0)) == k);
    const T alpha = simd_shuffle(sum_of(own), ushort(k / 4));
    const Reflector<T> reflector = reflector_of(alpha, extent);
    const T factor = reflector.factor();
    // As LAPACK does, real elements are multiplied, too: division is slow on a GPU.
    const float size = largest_part(reflector.divisor);
    const bool has_factor = reflector.scale == 1.0f && size >= 1e-30f && size <= 1e30f;
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      const Pack<T> below = has_factor ? multiply_add(zero_pack<T>(), x[c][b], all_of(factor))
                                       : multiplied(x[c][b], reflector, factor);
      if (b == 0) {
        v[lane] = of_reflector(below, first_row(lane, 0), k);
        x[c][0] = reflected(x[c][0], below, first_row(lane, 0), k, reflector.beta);
      } else {
        v[lane + 32 * int(b)] = below;
        x[c][b] = below;
      }
    }
    return reflector.tau;
  }

  // Returns the inner product of a reflector's vector and a column.
  METAL_FUNC T product(uint c, threadgroup const Pack<T>* v) const thread {
    Pack<T> sum = zero_pack<T>();
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      sum = conjugate_multiply_add(sum, v[lane + 32 * int(b)], x[c][b]);
    }
    return simd_sum(sum_of(sum));
  }

  METAL_FUNC void add(uint c, T weight, threadgroup const Pack<T>* v) thread {
#pragma unroll
    for (uint b = 0; b < PACKS; ++b) {
      x[c][b] = multiply_add(x[c][b], all_of(weight), v[lane + 32 * int(b)]);
    }
  }
};

// Makes T of a panel from V^H V, in place, as qr_larft does. One simdgroup, whose lanes have a row
// each.
template <typename T>
METAL_FUNC void make_triangle(threadgroup T (&products)[kQrPanel][kQrPanel + 1],
                              threadgroup const T* taus, uint width, uint row) {
  for (uint c = 0; c < width; ++c) {
    T sum = from_real<T>(row == c ? 1.0f : 0.0f);
    for (uint j = 0; j < c; ++j) {
      if (j >= row) {
        sum = multiply_add(sum, -products[row][j], products[j][c]);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    products[row][c] = row > c ? from_real<T>(0.0f) : multiply(taus[c], sum);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// xGEQR2 and xLARFT of a panel by a threadgroup, in registers. An iteration makes reflector k and
// applies it. v, t: its block reflector, of p.padded columns, if p.with_block.
template <typename T, uint COLUMNS, uint PACKS>
[[max_total_threads_per_threadgroup(kMostQrThreads)]] kernel void qr_panel_held(
    device T* matrices [[buffer(0)]], device T* taus [[buffer(1)]], device T* v [[buffer(2)]],
    device T* t [[buffer(3)]], constant QrParameters& p [[buffer(4)]],
    uint matrix [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Pack<T> reflectors[2][32 * PACKS];  // of this step and of the next one, in turns
  threadgroup T factors[kQrPanel];
  threadgroup T products[kQrPanel][kQrPanel + 1];
  const int64_t stride = p.rows;
  const int rows = p.rows - p.first;
  device T* const panel = matrices + (int64_t(matrix) * p.columns + p.first) * stride + p.first;
  HeldColumns<T, COLUMNS, PACKS> held;
  held.lane = lane;
#pragma unroll
  for (uint c = 0; c < COLUMNS; ++c) {
    const uint column = c * simdgroups + simdgroup;
    if (column < p.width) {
      held.load(c, panel + column * stride, rows);
    } else {
      held.clear(c);
    }
  }
#pragma unroll
  for (uint turn = 0; turn < COLUMNS; ++turn) {
    for (uint s = 0; s < simdgroups; ++s) {
      const uint k = turn * simdgroups + s;
      if (k < p.width) {
        threadgroup Pack<T>* const reflector = reflectors[k % 2];
        if (simdgroup == s) {
          const T tau = held.reflect(turn, k, reflector);
          if (lane == 0) {
            factors[k] = tau;
            taus[int64_t(matrix) * p.taus + p.first + k] = tau;
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const T weight = -conjugate(factors[k]);
#pragma unroll
        for (uint c = 0; c < COLUMNS; ++c) {
          const uint column = c * simdgroups + simdgroup;
          const T product = held.product(c, reflector);
          if (column > k) {
            held.add(c, multiply(weight, product), reflector);
          } else if (column < k && lane == 0) {
            products[column][k] = conjugate(product);
          }
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint c = 0; c < COLUMNS; ++c) {
    const uint column = c * simdgroups + simdgroup;
    if (column < p.width) {
      held.store(c, panel + column * stride, rows);
    }
    if (p.with_block != 0 && column < p.padded) {
      device T* const own = v + (int64_t(matrix) * p.padded + column) * rows;
      if (column < p.width) {
        held.store_reflector(c, column, own, rows);
      } else {
        held.store(c, own, rows);
      }
    }
  }
  if (p.with_block != 0 && simdgroup == 0) {
    make_triangle<T>(products, factors, p.width, lane);
    device T* const own = t + int64_t(matrix) * p.padded * p.padded + lane;
    for (uint c = 0; c < p.padded; ++c) {
      if (lane < p.padded) {
        const bool is_there = lane <= c && c < p.width;
        own[c * p.padded] = is_there ? products[lane][c] : from_real<T>(0.0f);
      }
    }
  }
}

// Writes out V of a panel, of p.padded columns. One thread per element.
template <typename T>
kernel void qr_reflectors(device T* v [[buffer(0)]], device const T* matrices [[buffer(1)]],
                          constant QrParameters& p [[buffer(2)]],
                          uint3 position [[thread_position_in_grid]]) {
  const uint rows = p.rows - p.first;
  const uint row = position.x;
  const uint column = position.y;
  const int64_t matrix = position.z;
  T value = from_real<T>(row == column ? 1.0f : 0.0f);
  if (column >= p.width) {
    value = from_real<T>(0.0f);
  } else if (row > column) {
    value = matrices[(matrix * p.columns + p.first + column) * p.rows + p.first + row];
  }
  v[(matrix * p.padded + column) * rows + row] = value;
}

// xLARFT: T of a panel, whose column c is tau_c (e_c - sum over j < c of T_j (V^H V)_jc), where e
// are the columns of the identity. One thread per row. gram: V^H V, column-major.
template <typename T>
kernel void qr_larft(device T* t [[buffer(0)]], device const T* gram [[buffer(1)]],
                     device const T* taus [[buffer(2)]], constant QrParameters& p [[buffer(3)]],
                     uint2 position [[thread_position_in_grid]]) {
  const uint row = position.x;
  const int64_t matrix = position.y;
  device T* column = t + matrix * p.padded * p.padded + row;
  device const T* products = gram + matrix * p.padded * p.padded;
  device const T* tau = taus + matrix * p.taus + p.first;
  Pack<T> rest[kQrPanel / 4];
  for (uint b = 0; b < kQrPanel / 4; ++b) {
    rest[b] = choose(zero_pack<T>(), all_of(from_real<T>(1.0f)), indices(4 * b) == int(row));
  }
  for (uint b = 0; b < kQrPanel / 4; ++b) {
    for (uint e = 0; e < 4; ++e) {
      const uint c = 4 * b + e;
      if (c < p.padded) {
        const T own = c < p.width ? multiply(tau[c], element(rest[b], e)) : from_real<T>(0.0f);
        *column = own;
        column += p.padded;
        for (uint other = b; other < kQrPanel / 4; ++other) {
          if (4 * other < p.padded) {
            const Pack<T> row = conjugate(load(products + c * p.padded + 4 * other));
            rest[other] = multiply_add(rest[other], all_of(-own), row);
          }
        }
      }
    }
  }
}

// ---- results ------------------------------------------------------------------------------------

// Writes out R of factored matrices, with zeros below the diagonal. One thread per element.
template <typename T>
kernel void qr_upper(device T* r [[buffer(0)]], device const T* matrices [[buffer(1)]],
                     constant QrUpperParameters& p [[buffer(2)]],
                     uint3 position [[thread_position_in_grid]]) {
  const uint row = position.x;
  const uint column = position.y;
  const int64_t matrix = position.z;
  T value = from_real<T>(0.0f);
  if (row <= column) {
    value = matrices[(matrix * p.columns + column) * p.rows + row];
  }
  r[matrix * p.matrix_stride + row * p.row_stride + column * p.column_stride] = value;
}

#define REGISTER_QR_SMALL(T, COLUMNS, ROWS) \
  REGISTER_KERNEL("qr_small_" #T "_" #COLUMNS "_" #ROWS, qr_small, T, COLUMNS, ROWS)

#define REGISTER_QR_THREAD(T, N) REGISTER_KERNEL("qr_thread_" #T "_" #N, qr_thread, T, N)

#define REGISTER_QR_VECTORS(T, N) \
  REGISTER_KERNEL("qr_vectors_" #T "_" #N, qr_vectors, T, N, kQrVectors)

#define REGISTER_QR_PANEL_HELD(T, COLUMNS, PACKS) \
  REGISTER_KERNEL("qr_panel_held_" #COLUMNS "_" #PACKS "_" #T, qr_panel_held, T, COLUMNS, PACKS)

#define REGISTER_QR(T)                                    \
  REGISTER_QR_THREAD(T, 4);                               \
  REGISTER_QR_THREAD(T, 8);                               \
  REGISTER_QR_SMALL(T, 8, 32);                            \
  REGISTER_QR_SMALL(T, 16, 16);                           \
  REGISTER_QR_SMALL(T, 16, 64);                           \
  REGISTER_QR_SMALL(T, 32, 32);                           \
  REGISTER_QR_SMALL(T, 32, 64);                           \
  REGISTER_QR_SMALL(T, 32, 128);                          \
  REGISTER_QR_VECTORS(T, 4);                              \
  REGISTER_QR_VECTORS(T, 8);                              \
  REGISTER_QR_VECTORS(T, 16);                             \
  REGISTER_QR_VECTORS(T, 32);                             \
  REGISTER_KERNEL("qr_panel_" #T, qr_panel, T);           \
  REGISTER_KERNEL("qr_reflectors_" #T, qr_reflectors, T); \
  REGISTER_KERNEL("qr_larft_" #T, qr_larft, T);           \
  REGISTER_KERNEL("qr_upper_" #T, qr_upper, T)

REGISTER_QR(float);
REGISTER_QR(float2);
REGISTER_QR_PANEL_HELD(float, 2, 1);
REGISTER_QR_PANEL_HELD(float, 2, 4);
REGISTER_QR_PANEL_HELD(float, 2, 8);
REGISTER_QR_PANEL_HELD(float, 1, 16);
REGISTER_QR_PANEL_HELD(float2, 2, 1);
REGISTER_QR_PANEL_HELD(float2, 2, 4);
REGISTER_QR_PANEL_HELD(float2, 1, 8);

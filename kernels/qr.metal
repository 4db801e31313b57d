// The QR factorisation by Householder reflectors, in LAPACK's form: R above and on the diagonal,
// reflectors below it, their factors tau beside it.
//
// Small matrices stay in the registers of a simdgroup's lanes, a column each. Of larger ones a
// threadgroup factorises a panel of columns, and products of matrices apply its reflectors
// H1 H2 ... = 1 - V T V^H to everything else: V is written out, with ones and zeros, and so is
// X = V T.
#include <metalops/strided.h>
#include <metal_stdlib>

#include "packs.h"
#include "qr.h"
#include "reflectors.h"
using namespace metal;
using namespace metalops;

// ---- of a column in packs -----------------------------------------------------------------------

inline int4 places(int first) { return first + int4(0, 1, 2, 3); }

// Elements at and before place k are zero. first: the place of the pack.
template <typename T>
inline Pack<T> behind(Pack<T> x, int first, int k) {
  return choose(zero_pack<T>(), x, places(first) > k);
}

// A pack of the reflector that lies below place k.
template <typename T>
inline Pack<T> of_reflector(Pack<T> x, int first, int k) {
  if (first > k) {
    return x;
  }
  return choose(behind(x, first, k), all_of(from_real<T>(1.0f)), places(first) == k);
}

// The same of the column itself: what is above place k stays.
template <typename T>
inline Pack<T> reflected(Pack<T> x, Pack<T> v, int first, int k, float beta) {
  const Pack<T> lower = choose(v, x, places(first) < k);
  return choose(lower, all_of(from_real<T>(beta)), places(first) == k);
}

// v of a reflector, of elements of x.
template <typename T>
inline Pack<T> multiplied(Pack<T> x, Reflector<T> reflector, T factor) {
  if (reflector.has_factor()) {
    return multiply_add(zero_pack<T>(), x, all_of(factor));
  }
  return divided(scaled(x, reflector.scale), reflector.divisor);
}

// ---- small matrices -----------------------------------------------------------------------------

// The reflector of column x below place k, and x with it; v: to be written out.
template <typename T, uint N>
inline T reflect(thread Pack<T> (&x)[N / 4], threadgroup Pack<T>* v, int k) {
  T alpha = from_real<T>(0.0f);
  float4 squares = float4(0.0f);
  float4 largest = float4(0.0f);
  for (int b = 0; b < int(N / 4); ++b) {
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
    for (int b = 0; b < int(N / 4); ++b) {
      squares = add_squares(squares, scaled(behind(x[b], 4 * b, k), extent.scale));
    }
    extent.squares = (squares.x + squares.y) + (squares.z + squares.w);
  }
  const Reflector<T> reflector = reflector_of(alpha, extent);
  const T factor = reflector.factor();
  for (int b = 0; b < int(N / 4); ++b) {
    if (4 * b + 3 >= k) {
      const Pack<T> below = multiplied(x[b], reflector, factor);
      v[b] = of_reflector(below, 4 * b, k);
      x[b] = reflected(x[b], below, 4 * b, k, reflector.beta);
    }
  }
  return reflector.tau;
}

// A simdgroup has 32 / N matrices of at most N rows and N columns.
template <typename T, uint N>
kernel void qr_small(device T* matrices [[buffer(0)]], device T* taus [[buffer(1)]],
                     constant QrParameters& p [[buffer(2)]],
                     uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kMostSimdgroups = 8;
  constexpr uint kMatrices = 32 / N;
  // Of this step and of the one before.
  threadgroup Pack<T> reflectors[kMostSimdgroups][2][kMatrices][N / 4];
  threadgroup T factors[kMostSimdgroups][2][kMatrices];
  const int64_t matrix = thread_index(position, grid) / N;
  const uint own = lane / N;
  const int column = lane % N;
  const bool is_mine = matrix < p.matrices && column < int(p.columns);
  const int rows = p.rows;
  device T* x_in_memory = matrices + (matrix * p.columns + column) * rows;
  Pack<T> x[N / 4];
  for (int b = 0; b < int(N / 4); ++b) {
    x[b] = is_mine ? load_some(x_in_memory + 4 * b, rows - 4 * b) : zero_pack<T>();
  }
  for (int k = 0; k < int(p.taus); ++k) {
    threadgroup Pack<T>* v = reflectors[simdgroup][k & 1][own];
    threadgroup T& tau = factors[simdgroup][k & 1][own];
    if (column == k) {
      tau = reflect<T, N>(x, v, k);
      if (is_mine) {
        taus[matrix * p.taus + k] = tau;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (column > k) {
      Pack<T> sum = zero_pack<T>();
      for (int b = 0; b < int(N / 4); ++b) {
        if (4 * b + 3 >= k) {
          sum = conjugate_multiply_add(sum, v[b], x[b]);
        }
      }
      const Pack<T> weight = all_of(-multiply(conjugate(tau), sum_of(sum)));
      for (int b = 0; b < int(N / 4); ++b) {
        if (4 * b + 3 >= k) {
          x[b] = multiply_add(x[b], weight, v[b]);
        }
      }
    }
  }
  if (is_mine) {
    for (int b = 0; b < int(N / 4); ++b) {
      store_some(x_in_memory + 4 * b, x[b], rows - 4 * b);
    }
  }
}

// Vectors of at most N elements times Q or Q^H: a thread each.
template <typename T, uint N>
kernel void qr_vectors(device T* vectors [[buffer(0)]], device const T* matrices [[buffer(1)]],
                       device const T* taus [[buffer(2)]],
                       constant QrVectorsParameters& p [[buffer(3)]],
                       uint2 position [[thread_position_in_grid]],
                       uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  const int64_t matrix = index / p.count;
  if (matrix >= p.matrices) {
    return;
  }
  const uint place = index - matrix * p.count;
  const int size = p.size;
  device T* vector = vectors + matrix * p.matrix_stride + place * p.vector_stride;
  Pack<T> x[N / 4];
  for (int b = 0; b < int(N / 4); ++b) {
    x[b] = zero_pack<T>();
    for (int e = 0; e < 4; ++e) {
      const int i = 4 * b + e;
      if (p.is_identity != 0) {
        set_element(x[b], e, from_real<T>(i == int(place) ? 1.0f : 0.0f));
      } else if (i < size) {
        set_element(x[b], e, vector[i * p.element_stride]);
      }
    }
    if (p.is_conjugated != 0) {
      x[b] = conjugate(x[b]);
    }
  }
  const int count = p.taus;
  for (int step = 0; step < count; ++step) {
    const int k = p.is_adjoint != 0 ? step : count - 1 - step;
    if (p.is_identity != 0 && k > int(place)) {
      continue;  // there is nothing yet where the reflector is
    }
    device const T* v_in_memory = matrices + (matrix * p.columns + k) * size;
    Pack<T> v[N / 4];
    Pack<T> sum = zero_pack<T>();
    for (int b = 0; b < int(N / 4); ++b) {
      if (4 * b + 3 >= k) {
        v[b] = of_reflector(load_some(v_in_memory + 4 * b, size - 4 * b), 4 * b, k);
        sum = conjugate_multiply_add(sum, v[b], x[b]);
      }
    }
    const T tau = taus[matrix * p.taus + k];
    const Pack<T> weight = all_of(-multiply(p.is_adjoint != 0 ? conjugate(tau) : tau, sum_of(sum)));
    for (int b = 0; b < int(N / 4); ++b) {
      if (4 * b + 3 >= k) {
        x[b] = multiply_add(x[b], weight, v[b]);
      }
    }
  }
  for (int b = 0; b < int(N / 4); ++b) {
    if (p.is_conjugated != 0) {
      x[b] = conjugate(x[b]);
    }
    for (int e = 0; e < 4; ++e) {
      if (4 * b + e < size) {
        vector[(4 * b + e) * p.element_stride] = element(x[b], e);
      }
    }
  }
}

// ---- panels -------------------------------------------------------------------------------------

// What the lanes of a simdgroup do together with a column of `rows` elements: each has every 32nd
// pack, the same ones in all columns.
template <typename T>
struct PanelColumn {
  device T* x;
  int rows;
  int lane;

  // Adds up the part behind place k.
  Extent extent_behind(int k, Extent extent) const {
    float4 squares = float4(0.0f);
    float4 largest = float4(0.0f);
    for (int i = 4 * lane; i < rows; i += 128) {
      const Pack<T> tail = behind(load_some(x + i, rows - i), i, k);
      squares = add_squares(squares, scaled(tail, extent.scale));
      largest = max(largest, largest_parts(tail));
    }
    extent.largest = simd_max(max(max(largest.x, largest.y), max(largest.z, largest.w)));
    extent.squares = simd_sum((squares.x + squares.y) + (squares.z + squares.w));
    return extent;
  }

  // Leaves the reflector behind place k and beta at it.
  T reflect(int k) const {
    Extent extent = extent_behind(k, Extent::none());
    if (extent.is_rough()) {
      extent = extent_behind(k, extent.rescaled());
    }
    const Reflector<T> reflector = reflector_of(x[k], extent);
    const T factor = reflector.factor();
    simdgroup_barrier(mem_flags::mem_device);  // all have read x[k]
    for (int i = 4 * lane; i < rows; i += 128) {
      const Pack<T> all = load_some(x + i, rows - i);
      const Pack<T> below = multiplied(all, reflector, factor);
      store_some(x + i, reflected(all, below, i, k, reflector.beta), rows - i);
    }
    return reflector.tau;
  }

  // Multiplies with H^H; v: the column that has the reflector behind place k.
  void multiply_by(device const T* v, int k, T tau) const {
    Pack<T> sum = zero_pack<T>();
    for (int i = 4 * lane; i < rows; i += 128) {
      const Pack<T> of_v = of_reflector(load_some(v + i, rows - i), i, k);
      sum = conjugate_multiply_add(sum, of_v, load_some<T>(x + i, rows - i));
    }
    const T dot = simd_sum(sum_of(sum));
    const Pack<T> weight = all_of(-multiply(conjugate(tau), dot));
    for (int i = 4 * lane; i < rows; i += 128) {
      const Pack<T> of_v = of_reflector(load_some(v + i, rows - i), i, k);
      store_some(x + i, multiply_add(load_some<T>(x + i, rows - i), weight, of_v), rows - i);
    }
  }
};

// A threadgroup has a matrix.
template <typename T>
kernel void qr_panel(device T* matrices [[buffer(0)]], device T* taus [[buffer(1)]],
                     constant QrParameters& p [[buffer(2)]],
                     uint matrix [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T factors[2];  // of this step and of the next one
  const int64_t stride = p.rows;
  const int rows = p.rows - p.first;
  const int width = p.width;
  device T* panel = matrices + (int64_t(matrix) * p.columns + p.first) * stride + p.first;
  device T* tau = taus + int64_t(matrix) * p.taus + p.first;
  for (int k = -1; k < width - 1; ++k) {
    for (int column = k + 1 + int(simdgroup); column < width; column += simdgroups) {
      const PanelColumn<T> x = {panel + column * stride, rows, int(lane)};
      if (k >= 0) {
        x.multiply_by(panel + k * stride, k, factors[k & 1]);
      }
      if (column == k + 1) {
        simdgroup_barrier(mem_flags::mem_device);  // x[column] is known to all
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

// V of a panel, of p.padded columns: a thread an element.
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

// X = V T, whose column c is tau_c (v_c - sum over j < c of X_j (V^H V)_jc): a thread a row.
template <typename T>
kernel void qr_weights(device T* x [[buffer(0)]], device const T* v [[buffer(1)]],
                       device const T* gram [[buffer(2)]], device const T* taus [[buffer(3)]],
                       constant QrParameters& p [[buffer(4)]],
                       uint2 position [[thread_position_in_grid]]) {
  const uint rows = p.rows - p.first;
  const uint row = position.x;
  const int64_t matrix = position.y;
  const int64_t begin = matrix * p.padded * rows + row;
  device const T* products = gram + matrix * p.padded * p.padded;
  device const T* tau = taus + matrix * p.taus + p.first;
  Pack<T> rest[kQrPanel / 4];
  for (uint b = 0; b < kQrPanel / 4; ++b) {
    rest[b] = zero_pack<T>();
    if (4 * b < p.padded) {
      for (uint e = 0; e < 4; ++e) {
        set_element(rest[b], e, v[begin + (4 * b + e) * int64_t(rows)]);
      }
    }
  }
  for (uint b = 0; b < kQrPanel / 4; ++b) {
    for (uint e = 0; e < 4; ++e) {
      const uint column = 4 * b + e;
      if (column < p.width) {
        const T own = multiply(tau[column], element(rest[b], e));
        x[begin + column * int64_t(rows)] = own;
        for (uint other = b; other < kQrPanel / 4; ++other) {
          if (4 * other < p.padded) {
            rest[other] = multiply_add(rest[other], all_of(-own),
                                       load(products + column * p.padded + 4 * other));
          }
        }
      } else if (column < p.padded) {
        x[begin + column * int64_t(rows)] = from_real<T>(0.0f);
      }
    }
  }
}

#define REGISTER_QR_SMALL(T, N)                                                 \
  template [[host_name("qr_small_" #T "_" #N)]] kernel void qr_small<T, N>(     \
      device T*, device T*, constant QrParameters&, uint2, uint2, uint, uint);  \
  template [[host_name("qr_vectors_" #T "_" #N)]] kernel void qr_vectors<T, N>( \
      device T*, device const T*, device const T*, constant QrVectorsParameters&, uint2, uint2)

#define REGISTER_QR(T)                                                       \
  REGISTER_QR_SMALL(T, 8);                                                   \
  REGISTER_QR_SMALL(T, 16);                                                  \
  REGISTER_QR_SMALL(T, 32);                                                  \
  template [[host_name("qr_panel_" #T)]] kernel void qr_panel<T>(            \
      device T*, device T*, constant QrParameters&, uint, uint, uint, uint); \
  template [[host_name("qr_reflectors_" #T)]] kernel void qr_reflectors<T>(  \
      device T*, device const T*, constant QrParameters&, uint3);            \
  template [[host_name("qr_weights_" #T)]] kernel void qr_weights<T>(        \
      device T*, device const T*, device const T*, device const T*, constant QrParameters&, uint2)

REGISTER_QR(float);
REGISTER_QR(float2);

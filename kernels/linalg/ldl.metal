// xSYTF2, xHETF2 and xSYTRS: factorisation of symmetric and Hermitian matrices, P A P^T = L D L^T
// or L D L^H, with diagonal blocks of one or two rows, by the pivots of J. R. Bunch and L. Kaufman
// (Mathematics of Computation 31, 1977), chosen as LAPACK does with UPLO = 'L'; and those steps of
// solving with it that are not triangular solves. The factors hold D on the diagonal (d) and L
// below it, here with a 2-by-2 block in rows 1 and 2, whose off-diagonal element lies below its
// diagonal:
//
//     [ d       ]
//     [ l d     ]
//     [ l d d   ]
//     [ l l l d ]
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/pivots.h>
#include <kernels/linalg/common/planar.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>
#include <kernels/linalg/ldl.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::Candidate;
using metalops::conjugate;
using metalops::from_real;
using metalops::kColumnsOfPack;
using metalops::kMostSimdgroups;
using metalops::LdlColumnsParameters;
using metalops::LdlParameters;
using metalops::Parts;
using metalops::pivot_magnitude;
using metalops::real_part;
using metalops::SmallMatricesMode;
using metalops::SmallMatricesParameters;

constant constexpr uint kTogether = 4;           // columns that a thread processes at once
constant constexpr float kAlpha = 0.640388203f;  // (1 + sqrt(17)) / 8

template <typename T>
inline T mirrored(T a, bool is_hermitian) {
  return is_hermitian ? conjugate(a) : a;
}

// Returns a diagonal element, which is real if the matrix is Hermitian.
template <typename T>
inline T on_diagonal(T a, bool is_hermitian) {
  return is_hermitian ? from_real<T>(real_part(a)) : a;
}

// Returns the best candidate of all threads. magnitudes, rows: where simdgroups leave theirs, if
// there are several.
inline Candidate best_of_threadgroup(Candidate own, threadgroup float* magnitudes,
                                     threadgroup uint* rows, uint lane, uint simdgroup,
                                     uint simdgroups) {
  own.combine_simdgroup();
  if (simdgroups > 1) {
    if (lane == 0) {
      magnitudes[simdgroup] = own.magnitude;
      rows[simdgroup] = own.row;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    own = Candidate();
    if (lane < simdgroups) {
      own.combine(magnitudes[lane], rows[lane]);
    }
    own.combine_simdgroup();
  }
  return own;
}

// Returns true if an element of that magnitude can be in a diagonal block.
METAL_FUNC bool is_finite(float magnitude) { return magnitude >= 0.0f && magnitude < INFINITY; }

// The state of a step, which all threads of a matrix read.
struct Step {
  float magnitude;  // magnitude of the diagonal element
  float largest;    // largest magnitude below it
  uint row;         // row of that element
  uint is_zero;     // true if the column is zero or its diagonal NaN: it is skipped
  uint is_unsure;   // true if that row has to be searched, too
  uint pivot;       // the row that is swapped
  uint is_pair;     // true if the block has two rows
};

// Returns a pivot as LAPACK counts it: from 1, and negative for both rows of a pair.
inline int lapack_pivot(uint pivot, bool is_pair) {
  const int row = static_cast<int>(pivot + 1);
  return is_pair ? -row : row;
}

// Decides on a step from its column: it is skipped, or pivots on the diagonal, or the row of the
// largest element has to be searched. magnitude: that of the diagonal element.
inline Step judge_column(uint k, float magnitude, Candidate below) {
  const float largest = max(below.magnitude, 0.0f);
  const bool is_zero = magnitude < 0.0f || max(magnitude, largest) == 0.0f;
  const bool is_unsure = !is_zero && magnitude < kAlpha * largest;
  return {magnitude, largest, below.row, is_zero, is_unsure, k, 0};
}

// Decides on the pivot, after the search of that row. magnitude: that of its diagonal element.
// largest: largest magnitude of its other elements.
inline Step judge_row(Step step, float magnitude, float largest) {
  if (step.magnitude < kAlpha * step.largest * (step.largest / largest)) {
    step.pivot = step.row;
    step.is_pair = magnitude < kAlpha * largest;
  }
  return step;
}

// A 2-by-2 diagonal block, divided by its off-diagonal element so that nothing overflows.
template <typename T>
struct Block {
  typedef Parts<T> P;
  P first;  // on the diagonal, divided
  P second;
  P off_diagonal;
  P inverse;  // reciprocal of the divided block's determinant

  // Returns the first element of the row X that solves X D = (x, y); second_of the second one.
  P first_of(P x, P y, bool is_hermitian) const {
    return inverse.times(
        second.times(x).minus(y).divided_by(off_diagonal.conjugate_if(is_hermitian)));
  }
  P second_of(P x, P y) const {
    return inverse.times(first.times(y).minus(x).divided_by(off_diagonal));
  }
};

template <typename T>
inline Block<T> block_of(Parts<T> d11, Parts<T> d21, Parts<T> d22, bool is_hermitian) {
  const Parts<T> first = d11.divided_by(d21.conjugate_if(is_hermitian));
  const Parts<T> second = d22.divided_by(d21);
  const Parts<T> one = Parts<T>::of(from_real<T>(1.0f));
  return {first, second, d21, one.divided_by(first.times(second).minus(one))};
}

// ---- column-major matrices ----------------------------------------------------------------------

// Copies the lower triangles of matrices to column-major planar storage (planar.h), with zeros
// above, to the right and below. One thread per element; adjacent threads load adjacent elements.
template <typename T>
kernel void ldl_load(device float* columns [[buffer(0)]], device const T* input [[buffer(1)]],
                     constant LdlColumnsParameters& p [[buffer(2)]],
                     uint3 position [[thread_position_in_grid]]) {
  const uint row = p.is_by_rows != 0 ? position.y : position.x;
  const uint column = p.is_by_rows != 0 ? position.x : position.y;
  T element = T(0.0f);
  if (column <= row && row < p.size) {
    element = input[position.z * p.given.matrix + row * p.given.row + column * p.given.column];
  }
  device float* const to = columns + (ulong{position.z} * p.ld + column) * p.ld * Parts<T>::kParts;
  Parts<T>::of(element).store(to + row, p.ld);
}

// Stores the factors, with zeros above the diagonal. One thread per element.
template <typename T>
kernel void ldl_store(device T* factors [[buffer(0)]], device const float* columns [[buffer(1)]],
                      constant LdlColumnsParameters& p [[buffer(2)]],
                      uint3 position [[thread_position_in_grid]]) {
  const uint row = position.x;
  const uint column = position.y;
  device const float* const from =
      columns + (ulong{position.z} * p.ld + column) * p.ld * Parts<T>::kParts;
  Parts<T> element = Parts<T>();
  if (column <= row) {
    element = Parts<T>::load(from + row, p.ld);
    element = element.real_if(p.is_hermitian != 0 && row == column);
  }
  factors[position.z * p.given.matrix + row * p.given.row + column * p.given.column] =
      element.scalar();
}

template <typename T>
inline void swap_elements(device float* a, device float* b, ulong ld) {
  const Parts<T> moved = Parts<T>::load(a, ld);
  Parts<T>::load(b, ld).store(a, ld);
  moved.store(b, ld);
}

// Swaps an element of a column with one of a row, which are mirror images.
template <typename T>
inline void swap_mirrored(device float* a, device float* b, ulong ld, bool is_hermitian) {
  const Parts<T> moved = Parts<T>::load(a, ld).conjugate_if(is_hermitian);
  Parts<T>::load(b, ld).conjugate_if(is_hermitian).store(a, ld);
  moved.store(b, ld);
}

// Makes the element of a row of L below a 1-by-1 block. x: receives it as it was.
template <typename T>
inline void divide_row(device float* row, device float* x, ulong ld, Parts<T> diagonal) {
  const Parts<T> own = Parts<T>::load(row, ld);
  own.store(x, ld);
  own.divided_by(diagonal).store(row, ld);
}

// Makes the elements of a row of L below a 2-by-2 block. x: receives them as they were.
template <typename T>
inline void divide_pair(device float* row, device float* x, ulong ld, Block<T> block,
                        bool is_hermitian) {
  const ulong width = Parts<T>::kParts * ld;
  const Parts<T> own = Parts<T>::load(row, ld);
  const Parts<T> other = Parts<T>::load(row + width, ld);
  own.store(x, ld);
  other.store(x + width, ld);
  block.first_of(own, other, is_hermitian).store(row, ld);
  block.second_of(own, other).store(row + width, ld);
}

// Updates an element of the trailing matrix behind a block. Columns of a row are updated kTogether
// at a time, without a loop, so that adjacent threads may be vectorised on a CPU. own: the row's
// element in the block's column as it was; factor: the element of L in the row whose index is that
// of the updated column.
template <typename T>
METAL_FUNC void reduce(device float* element, device const float* factor, Parts<T> own, ulong ld,
                       bool is_hermitian) {
  const Parts<T> other = Parts<T>::load(factor, ld).conjugate_if(is_hermitian);
  Parts<T>::load(element, ld).minus_product(own, other).store(element, ld);
}

// Updates kTogether elements of a row. x: the row's element in the block's column as it was.
template <typename T>
METAL_FUNC void reduce_row(device float* row, device const float* x, device const float* factors,
                           ulong ld, bool is_hermitian) {
  const ulong width = Parts<T>::kParts * ld;
  const Parts<T> own = Parts<T>::load(x, ld);
  reduce<T>(row, factors, own, ld, is_hermitian);
  reduce<T>(row + width, factors + 1, own, ld, is_hermitian);
  reduce<T>(row + 2 * width, factors + 2, own, ld, is_hermitian);
  reduce<T>(row + 3 * width, factors + 3, own, ld, is_hermitian);
}

// Updates an element of the trailing matrix behind a 2-by-2 block.
template <typename T>
METAL_FUNC void reduce_by_pair(device float* element, device const float* factor, Parts<T> own,
                               Parts<T> own_second, ulong ld, bool is_hermitian) {
  typedef Parts<T> P;
  const P first = P::load(factor, ld).conjugate_if(is_hermitian);
  const P second = P::load(factor + P::kParts * ld, ld).conjugate_if(is_hermitian);
  P::load(element, ld)
      .minus_product(own, first)
      .minus_product(own_second, second)
      .store(element, ld);
}

template <typename T>
METAL_FUNC void reduce_row_by_pair(device float* row, device const float* x,
                                   device const float* factors, ulong ld, bool is_hermitian) {
  const ulong width = Parts<T>::kParts * ld;
  const Parts<T> own = Parts<T>::load(x, ld);
  const Parts<T> second = Parts<T>::load(x + width, ld);
  reduce_by_pair<T>(row, factors, own, second, ld, is_hermitian);
  reduce_by_pair<T>(row + width, factors + 1, own, second, ld, is_hermitian);
  reduce_by_pair<T>(row + 2 * width, factors + 2, own, second, ld, is_hermitian);
  reduce_by_pair<T>(row + 3 * width, factors + 3, own, second, ld, is_hermitian);
}

// Swaps the diagonal elements of two columns that are interchanged, and mirrors the element that is
// below one and left of the other.
template <typename T>
inline void swap_diagonal(device float* of_last, device float* of_pivot, uint last, uint pivot,
                          ulong ld, bool is_hermitian) {
  swap_elements<T>(&of_last[last], &of_pivot[pivot], ld);
  Parts<T>::load(&of_last[pivot], ld).conjugate_if(is_hermitian).store(&of_last[pivot], ld);
}

// Returns true if no element of the diagonal block in rows k to last is infinite or NaN. column,
// of_last: the columns of these rows.
template <typename T>
inline bool is_finite_block(device const float* column, device const float* of_last, uint k,
                            uint last, ulong ld, bool is_hermitian) {
  typedef Parts<T> P;
  return is_finite(P::load(&column[k], ld).real_if(is_hermitian).magnitude()) &&
         is_finite(P::load(&column[last], ld).real_if(is_hermitian && last == k).magnitude()) &&
         is_finite(P::load(&of_last[last], ld).real_if(is_hermitian).magnitude());
}

// xSYTF2 or xHETF2: factorises from column progress[matrix] to column p.last, and moves `progress`.
// One threadgroup per column-major matrix, of which the lower triangle is read; elements above it
// do not matter. scratch: two columns per matrix.
template <typename T>
kernel void ldl_factor(device float* columns [[buffer(0)]], device float* scratch [[buffer(1)]],
                       device int* pivots [[buffer(2)]], device int* infos [[buffer(3)]],
                       device int* progress [[buffer(4)]],
                       constant LdlColumnsParameters& p [[buffer(5)]],
                       uint matrix [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint threads [[threads_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]]) {
  typedef Parts<T> P;
  threadgroup float magnitudes[2][kMostSimdgroups];
  threadgroup uint rows[2][kMostSimdgroups];
  threadgroup Step step;
  threadgroup uint first;  // the step's column
  const uint n = p.size;
  const bool is_hermitian = p.is_hermitian != 0;
  const ulong ld = p.ld;
  const ulong width = P::kParts * ld;
  device float* const a = columns + matrix * (width * ld);
  device float* const x = scratch + matrix * (2 * width);
  device int* const own_pivots = pivots + int64_t{n} * matrix;
  if (thread_index == 0) {
    first = static_cast<uint>(progress[matrix]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  while (first < p.last) {
    const uint k = first;
    device float* const column = a + k * width;
    Candidate best;
    for (uint i = k + 1 + thread_index; i < n; i += threads) {
      best.combine(P::load(&column[i], ld).magnitude(), i);
    }
    best = best_of_threadgroup(best, magnitudes[0], rows[0], lane, simdgroup, simdgroups);
    if (thread_index == 0) {
      step = judge_column(k, P::load(&column[k], ld).real_if(is_hermitian).magnitude(), best);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (step.is_unsure != 0) {
      const uint row = step.row;
      device float* const of_row = a + row * width;
      Candidate best_of_row;
      for (uint j = k + thread_index; j < row; j += threads) {
        best_of_row.combine(P::load(a + j * width + row, ld).magnitude(), j);
      }
      for (uint i = row + 1 + thread_index; i < n; i += threads) {
        best_of_row.combine(P::load(&of_row[i], ld).magnitude(), i);
      }
      best_of_row =
          best_of_threadgroup(best_of_row, magnitudes[1], rows[1], lane, simdgroup, simdgroups);
      if (thread_index == 0) {
        // Other threads may still read the other members.
        const Step judged =
            judge_row(step, P::load(&of_row[row], ld).real_if(is_hermitian).magnitude(),
                      best_of_row.magnitude);
        step.pivot = judged.pivot;
        step.is_pair = judged.is_pair;
      }
      threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    }
    const uint pivot = step.pivot;
    const uint last = k + step.is_pair;  // last row of the block
    const uint next = last + 1;
    device float* const of_last = a + last * width;
    if (pivot != last) {
      device float* const of_pivot = a + pivot * width;
      for (uint i = pivot + 1 + thread_index; i < n; i += threads) {
        swap_elements<T>(&of_last[i], &of_pivot[i], ld);
      }
      for (uint i = next + thread_index; i < pivot; i += threads) {
        swap_mirrored<T>(&of_last[i], a + i * width + pivot, ld, is_hermitian);
      }
      if (thread_index == 0) {
        swap_diagonal<T>(of_last, of_pivot, last, pivot, ld, is_hermitian);
        if (step.is_pair != 0) {
          swap_elements<T>(&column[last], &column[pivot], ld);
        }
      }
      threadgroup_barrier(mem_flags::mem_device);
    }
    if (thread_index == 0) {
      own_pivots[k] = lapack_pivot(pivot, step.is_pair != 0);
      own_pivots[last] = own_pivots[k];
      const bool is_whole =
          step.is_zero == 0 && is_finite_block<T>(column, of_last, k, last, ld, is_hermitian);
      if (!is_whole && infos[matrix] == 0) {
        infos[matrix] = static_cast<int>(k + 1);
      }
    }
    if (step.is_zero == 0) {
      const P d11 = P::load(&column[k], ld).real_if(is_hermitian);
      if (step.is_pair != 0) {
        const Block<T> block =
            block_of<T>(d11, P::load(&column[last], ld),
                        P::load(&of_last[last], ld).real_if(is_hermitian), is_hermitian);
        for (uint i = next + thread_index; i < n; i += threads) {
          divide_pair<T>(&column[i], &x[i], ld, block, is_hermitian);
        }
        threadgroup_barrier(mem_flags::mem_device);
        for (uint j = next; j < n; j += kTogether) {
          device float* const behind = a + j * width;
          // Iterations are independent: each writes a row that no other one reads.
#pragma clang loop vectorize(assume_safety)
          for (uint i = j + thread_index; i < n; i += threads) {
            reduce_row_by_pair<T>(&behind[i], &x[i], column + j, ld, is_hermitian);
          }
        }
      } else {
        for (uint i = next + thread_index; i < n; i += threads) {
          divide_row<T>(&column[i], &x[i], ld, d11);
        }
        threadgroup_barrier(mem_flags::mem_device);
        for (uint j = next; j < n; j += kTogether) {
          device float* const behind = a + j * width;
          // Iterations are independent: each writes a row that no other one reads.
#pragma clang loop vectorize(assume_safety)
          for (uint i = j + thread_index; i < n; i += threads) {
            reduce_row<T>(&behind[i], &x[i], column + j, ld, is_hermitian);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (thread_index == 0) {
      first = next;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (thread_index == 0) {
    progress[matrix] = static_cast<int>(first);
  }
}

// ---- one thread per matrix ----------------------------------------------------------------------

// A matrix of at most SIZE rows that a thread has in registers.
template <typename T, uint SIZE>
struct ThreadTriangle {
  typedef Parts<T> P;
  static constexpr constant uint kPacks = metalops::kPacksOfRow<T, SIZE>;
  float4 packs[SIZE * kPacks];
  float4 u_packs[kPacks];  // the columns of L that a step makes
  float4 v_packs[kPacks];
  bool is_hermitian;

  METAL_FUNC float diagonal_magnitude(uint k) thread {
    const auto a = metalops::elements_of<T>(&packs[0]);
    return pivot_magnitude(on_diagonal(a[k * SIZE + k], is_hermitian));
  }

  METAL_FUNC Step search(uint k, uint n) thread {
    const auto a = metalops::elements_of<T>(&packs[0]);
    Candidate best;
    for (uint i = k + 1; i < n; ++i) {
      best.combine(pivot_magnitude(a[i * SIZE + k]), i);
    }
    const Step step = judge_column(k, diagonal_magnitude(k), best);
    if (step.is_unsure == 0) {
      return step;
    }
    const uint row = step.row;
    Candidate of_row;
    for (uint j = k; j < row; ++j) {
      of_row.combine(pivot_magnitude(a[row * SIZE + j]), j);
    }
    for (uint i = row + 1; i < n; ++i) {
      of_row.combine(pivot_magnitude(a[i * SIZE + row]), i);
    }
    return judge_row(step, diagonal_magnitude(row), of_row.magnitude);
  }

  // xSYSWAPR: interchanges rows and columns `last` and `pivot` of the trailing matrix.
  METAL_FUNC void swap(uint k, uint last, uint pivot, uint n) thread {
    const auto a = metalops::elements_of<T>(&packs[0]);
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
    if (last != k) {
      const T other = a[last * SIZE + k];
      a[last * SIZE + k] = a[pivot * SIZE + k];
      a[pivot * SIZE + k] = other;
    }
  }

  // Makes the columns u and v of L below a block, with zeros at its rows and above. Returns true if
  // no element of the block is infinite or NaN.
  METAL_FUNC bool divide(uint k, uint last, uint n, bool is_zero) thread {
    const auto a = metalops::elements_of<T>(&packs[0]);
    const auto u = metalops::elements_of<T>(&u_packs[0]);
    const auto v = metalops::elements_of<T>(&v_packs[0]);
    const bool is_pair = last != k;
    const T d11 = on_diagonal(a[k * SIZE + k], is_hermitian);
    const T d22 = on_diagonal(a[last * SIZE + last], is_hermitian);
    a[k * SIZE + k] = d11;
    a[last * SIZE + last] = d22;
    const T d21 = is_pair ? a[last * SIZE + k] : from_real<T>(1.0f);
    const metalops::Divisor<T> divisor = metalops::divisor_of(d11);
    Block<T> block = Block<T>();
    if (is_pair) {
      block = block_of<T>(P::of(d11), P::of(d21), P::of(d22), is_hermitian);
    }
    for (uint i = 0; i < SIZE; ++i) {
      const bool is_left = i > last && i < n;
      const T own = is_left ? a[i * SIZE + k] : T(0.0f);
      const T other = is_left && is_pair ? a[i * SIZE + last] : T(0.0f);
      if (is_pair) {
        const P x = P::of(own);
        const P y = P::of(other);
        u[i] = is_left ? block.first_of(x, y, is_hermitian).scalar() : T(0.0f);
        v[i] = is_left ? block.second_of(x, y).scalar() : T(0.0f);
      } else {
        u[i] = is_left && !is_zero ? divisor.divide(own) : T(0.0f);
      }
    }
    return is_finite(pivot_magnitude(d11)) && is_finite(pivot_magnitude(d21)) &&
           is_finite(pivot_magnitude(d22));
  }

  // Updates the trailing matrix behind a block and puts u and v into their places.
  METAL_FUNC void update(uint k, uint last, uint n) thread {
    const auto a = metalops::elements_of<T>(&packs[0]);
    const auto u = metalops::elements_of<T>(&u_packs[0]);
    const auto v = metalops::elements_of<T>(&v_packs[0]);
    const bool is_pair = last != k;
    for (uint i = last + 1; i < n; ++i) {
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
    for (uint i = last + 1; i < n; ++i) {
      a[i * SIZE + k] = u[i];
      if (is_pair) {
        a[i * SIZE + last] = v[i];
      }
    }
  }

  METAL_FUNC void clear_upper(uint n) thread {
    const auto a = metalops::elements_of<T>(&packs[0]);
    for (uint row = 0; row < n; ++row) {
      for (uint column = row + 1; column < n; ++column) {
        a[row * SIZE + column] = T(0.0f);
      }
    }
  }
};

// xSYTF2 or xHETF2 of a matrix of at most SIZE rows, of which the lower triangle is read, by the
// same steps as above. One thread per matrix. mode: kHermitian or kPlain.
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
  const uint n = p.rows;
  ThreadTriangle<T, SIZE> a;
  a.is_hermitian = p.mode == SmallMatricesMode::kHermitian;
  metalops::load_matrix<T, SIZE>(&a.packs[0], input + matrix * p.input.matrix, p.input, n, n);
  device int* const own_pivots = pivots + matrix * n;
  int info = 0;
  for (uint k = 0; k < n;) {
    const Step step = a.search(k, n);
    const uint last = k + step.is_pair;
    if (step.pivot != last) {
      a.swap(k, last, step.pivot, n);
    }
    own_pivots[k] = lapack_pivot(step.pivot, last != k);
    own_pivots[last] = own_pivots[k];
    const bool is_finite_block = a.divide(k, last, n, step.is_zero != 0);
    if ((step.is_zero != 0 || !is_finite_block) && info == 0) {
      info = static_cast<int>(k + 1);
    }
    if (step.is_zero == 0) {
      a.update(k, last, n);
    }
    k = last + 1;
  }
  infos[matrix] = info;
  a.clear_upper(n);
  metalops::store_matrix<T, SIZE>(&a.packs[0], factors + matrix * p.output.matrix, p.output, n, n);
}

// ---- solving ------------------------------------------------------------------------------------

// xSYCONV: applies all row interchanges to L. In the factors, rows of a column have the order that
// they had when it was made. The diagonal is not written. One thread per column and matrix.
template <typename T>
kernel void ldl_order_rows(device T* matrices [[buffer(0)]], device const int* pivots [[buffer(1)]],
                           constant LdlParameters& p [[buffer(2)]],
                           uint2 position [[thread_position_in_grid]]) {
  device T* const a = matrices + position.y * p.matrix_stride + position.x;
  device const int* const own = pivots + int64_t{p.size} * position.y;
  for (uint k = 0; k < p.size;) {
    const bool is_pair = own[k] < 0;
    const uint last = is_pair ? k + 1 : k;
    const uint other = static_cast<uint>(abs(own[k])) - 1;
    if (k > position.x && last < p.size && other < p.size && other != last) {
      const T moved = a[last * p.row_stride];
      a[last * p.row_stride] = a[other * p.row_stride];
      a[other * p.row_stride] = moved;
    } else if (k == position.x && is_pair && last < p.size) {
      a[last * p.row_stride] = T(0.0f);  // part of D, not of L
    }
    k = last + 1;
  }
}

// xLASWP: interchanges rows by all pivots, forwards or backwards. One thread per pack of columns
// and matrix, as in the next kernel.
kernel void ldl_swap_rows(device float4* matrices [[buffer(0)]],
                          device const int* pivots [[buffer(1)]],
                          constant LdlParameters& p [[buffer(2)]],
                          device ErrorMessages* errors [[buffer(3)]],
                          uint2 position [[thread_position_in_grid]]) {
  device float4* const x = matrices + position.y * p.matrix_stride + position.x;
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
      const float4 moved = x[row * p.row_stride];
      x[row * p.row_stride] = x[other * p.row_stride];
      x[other * p.row_stride] = moved;
    }
    done += pivot < 0 ? 2 : 1;
  }
}

// Solves with D. factors: L and D, whose strides are `of_factors`.
template <typename T>
kernel void ldl_solve_blocks(device float4* matrices [[buffer(0)]],
                             device const T* factors [[buffer(1)]],
                             device const int* pivots [[buffer(2)]],
                             constant LdlParameters& p [[buffer(3)]],
                             constant LdlParameters& of_factors [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]]) {
  typedef Parts<T> P;
  device float4* const x = matrices + position.y * p.matrix_stride + position.x;
  device const T* const a = factors + position.y * of_factors.matrix_stride;
  device const int* const own = pivots + int64_t{p.size} * position.y;
  const bool is_hermitian = p.is_hermitian != 0;
  for (uint k = 0; k < p.size;) {
    const T d11 = on_diagonal(a[k * of_factors.row_stride + k], is_hermitian);
    float4 first = x[k * p.row_stride];
    if (own[k] > 0 || k + 1 >= p.size) {
      const metalops::Divisor<T> divisor = metalops::divisor_of(d11);
      x[k * p.row_stride] = divisor.divide(first);
      k += 1;
      continue;
    }
    const T d21 = a[(k + 1) * of_factors.row_stride + k];
    const T d22 = on_diagonal(a[(k + 1) * of_factors.row_stride + k + 1], is_hermitian);
    // D X = B is X^T D^T = B^T.
    const Block<T> block =
        block_of<T>(P::of(d11), P::of(mirrored(d21, is_hermitian)), P::of(d22), is_hermitian);
    float4 second = x[(k + 1) * p.row_stride];
    for (uint i = 0; i < kColumnsOfPack<T>; ++i) {
      const P b1 = P::of(metalops::column(first, i, T()));
      const P b2 = P::of(metalops::column(second, i, T()));
      metalops::set_column(first, i, block.first_of(b1, b2, is_hermitian).scalar());
      metalops::set_column(second, i, block.second_of(b1, b2).scalar());
    }
    x[k * p.row_stride] = first;
    x[(k + 1) * p.row_stride] = second;
    k += 2;
  }
}

#define REGISTER_LDL(T)                                     \
  REGISTER_KERNEL("ldl_load_" #T, ldl_load, T);             \
  REGISTER_KERNEL("ldl_store_" #T, ldl_store, T);           \
  REGISTER_KERNEL("ldl_factor_" #T, ldl_factor, T);         \
  REGISTER_KERNEL("ldl_order_rows_" #T, ldl_order_rows, T); \
  REGISTER_KERNEL("ldl_solve_blocks_" #T, ldl_solve_blocks, T)

#define REGISTER_LDL_THREAD(T, SIZE) \
  REGISTER_KERNEL("ldl_thread_" #SIZE "_" #T, ldl_thread, T, SIZE)

REGISTER_LDL(float);
REGISTER_LDL(float2);
REGISTER_LDL_THREAD(float, 4);
REGISTER_LDL_THREAD(float, 8);
REGISTER_LDL_THREAD(float2, 4);
REGISTER_LDL_THREAD(float2, 8);

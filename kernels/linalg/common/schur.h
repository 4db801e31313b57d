// xLAHQR and xLANV2: QR iterations of a team (teams.h) on a Hessenberg matrix of moderate size, to
// its Schur form, with double shifts on real matrices and single shifts on complex ones.
//
// Matrices are columns of packs, STRIDE packs apart. One lane decides and makes reflectors; then
// each lane applies them to columns, and to packs of rows, of its own.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/pivots.h>
#include <kernels/linalg/common/reflectors.h>

namespace metalops {

// The number of rows that a reflector of a sweep changes.
template <typename T>
constant constexpr int kBulge = is_complex_v<T> ? 2 : 3;

constant constexpr float kSchurEpsilon = 0x1p-23f;
constant constexpr float kSchurTiny = 0x1p-60f;  // zero in matrices that are about 1
constant constexpr int kSchurStallLimit = 10;    // sweeps before one with exceptional shifts

// ---- 2-by-2 blocks ------------------------------------------------------------------------------

// The Schur factorisation of a real 2-by-2 block (LAPACK's slanv2): [a b; c d] in standard form,
// with c zero, or with a = d and b c negative, and the rotation [cosine sine; -sine cosine] that
// brought it there from both sides.
struct StandardBlock {
  float a;
  float b;
  float c;
  float d;
  float cosine;
  float sine;

  // Returns the imaginary part of the first eigenvalue.
  float imaginary() const {
    return c == 0.0f
               ? 0.0f
               : ::metal::precise::sqrt(::metal::abs(b)) * ::metal::precise::sqrt(::metal::abs(c));
  }
};

inline float hypotenuse(float x, float y) {
  const float scale = ::metal::max(::metal::abs(x), ::metal::abs(y));
  x /= scale;
  y /= scale;
  return scale * ::metal::precise::sqrt(x * x + y * y);
}

// Brings a block to standard form.
inline StandardBlock standard_block(float a, float b, float c, float d) {
  if (c == 0.0f) {
    return {a, b, c, d, 1.0f, 0.0f};
  }
  if (b == 0.0f) {
    return {d, -c, 0.0f, a, 0.0f, 1.0f};
  }
  float difference = a - d;
  if (difference == 0.0f && (b < 0.0f) != (c < 0.0f)) {
    return {a, b, c, d, 1.0f, 0.0f};
  }
  const float half_gap = 0.5f * difference;
  const float larger = ::metal::max(::metal::abs(b), ::metal::abs(c));
  const float smaller = ::metal::copysign(::metal::min(::metal::abs(b), ::metal::abs(c)),
                                          (b < 0.0f) != (c < 0.0f) ? -1.0f : 1.0f);
  const float scale = ::metal::max(::metal::abs(half_gap), larger);
  const float share = half_gap / scale;
  const float discriminant = share * share + (larger / scale) * (smaller / scale);
  if (discriminant >= 4.0f * kSchurEpsilon) {
    const float z =
        half_gap + ::metal::copysign(scale * ::metal::precise::sqrt(discriminant), half_gap);
    const float length = hypotenuse(c, z);
    return {d + z, b - c, 0.0f, d - (larger / z) * smaller, z / length, c / length};
  }
  // The eigenvalues are complex, or almost equal.
  const float sum = b + c;
  const float length = hypotenuse(sum, difference);
  float cosine = ::metal::precise::sqrt(0.5f * (1.0f + ::metal::abs(sum) / length));
  float sine = -(half_gap / (length * cosine)) * ::metal::copysign(1.0f, sum);
  const float aa = a * cosine + b * sine;
  const float bb = b * cosine - a * sine;
  const float cc = c * cosine + d * sine;
  const float dd = d * cosine - c * sine;
  const float mean = 0.5f * ((aa * cosine + cc * sine) + (dd * cosine - bb * sine));
  b = bb * cosine + dd * sine;
  c = cc * cosine - aa * sine;
  if (c == 0.0f) {
    return {mean, b, c, mean, cosine, sine};
  }
  if (b == 0.0f) {
    return {mean, -c, 0.0f, mean, -sine, cosine};
  }
  if ((b < 0.0f) != (c < 0.0f)) {
    return {mean, b, c, mean, cosine, sine};
  }
  const float root_b = ::metal::precise::sqrt(::metal::abs(b));
  const float root_c = ::metal::precise::sqrt(::metal::abs(c));
  const float offset = ::metal::copysign(root_b * root_c, c);
  const float factor = 1.0f / ::metal::precise::sqrt(::metal::abs(b + c));
  const float more_cosine = root_b * factor;
  const float more_sine = root_c * factor;
  return {mean + offset,
          b - c,
          0.0f,
          mean - offset,
          cosine * more_cosine - sine * more_sine,
          cosine * more_sine + sine * more_cosine};
}

// ---- decisions ----------------------------------------------------------------------------------

// The team's next step.
enum class SchurDoes : int { kEnd, kRotate, kSweep };

template <typename T>
struct SchurStep {
  SchurDoes what;
  int low;  // rows `low` to `high` are the active block
  int high;
  int first;    // first row that a rotation or the sweep's first reflector changes
  int stalled;  // sweeps since an eigenvalue was found
  int sweeps;   // sweeps left before the iteration limit
  float size;   // largest magnitude in the matrix
  T v[3];       // cosine and sine, or the first column of the sweep

  // Returns 0, or if the sweeps did not suffice, how many eigenvalues may be wrong.
  int count_unfinished() const { return high + 1; }
  int count_unfinished() const threadgroup { return high + 1; }
};

// Returns true if the subdiagonal element in row k is negligible (Ahues and Tisseur's test). n:
// rows of the matrix. tiny: magnitudes up to this count as zero anywhere.
template <typename T, typename Columns, typename Stride>
inline bool is_split(Columns packs, Stride stride, int n, int k, float tiny) {
  const auto left = elements_of<T>(packs + (k - 1) * stride);
  const auto right = elements_of<T>(packs + k * stride);
  const float below = cabs1(left[k]);
  if (below <= tiny) {
    return true;
  }
  float around = cabs1(left[k - 1]) + cabs1(right[k]);
  if (around == 0.0f) {
    if (k >= 2) {
      around += cabs1(elements_of<T>(packs + (k - 2) * stride)[k - 1]);
    }
    if (k + 1 < n) {
      around += cabs1(right[k + 1]);
    }
  }
  if (below > kSchurEpsilon * around) {
    return false;
  }
  const float above = cabs1(right[k - 1]);
  const float difference = cabs1(left[k - 1] - right[k]);
  const float last = cabs1(right[k]);
  const float along = ::metal::max(last, difference);
  const float across = ::metal::max(below, above);
  const float scale = along + across;
  return ::metal::min(below, above) * (across / scale) <=
         ::metal::max(tiny, kSchurEpsilon * (::metal::min(last, difference) * (along / scale)));
}

struct RealShifts {
  float2 first;
  float2 second;
};

// Returns the eigenvalues of [a b; c d], or if they are real, twice the one closer to d.
inline RealShifts shifts_of(float a, float b, float c, float d) {
  const float scale = ::metal::abs(a) + ::metal::abs(b) + ::metal::abs(c) + ::metal::abs(d);
  if (scale == 0.0f) {
    return {float2(0.0f), float2(0.0f)};
  }
  a /= scale;
  b /= scale;
  c /= scale;
  d /= scale;
  const float mean = 0.5f * (a + d);
  const float determinant = (a - mean) * (d - mean) - b * c;
  const float root = ::metal::precise::sqrt(::metal::abs(determinant));
  if (determinant >= 0.0f) {
    return {float2(mean, root) * scale, float2(mean, -root) * scale};
  }
  const float upper = mean + root;
  const float lower = mean - root;
  const float2 near(
      ::metal::abs(upper - d) <= ::metal::abs(lower - d) ? upper * scale : lower * scale, 0.0f);
  return {near, near};
}

inline float2 square_root(float2 x) {
  const float size = magnitude(x);
  if (size == 0.0f) {
    return float2(0.0f);
  }
  const float root = ::metal::precise::sqrt(0.5f * (size + ::metal::abs(x.x)));
  const float other = 0.5f * x.y / root;
  return x.x >= 0.0f ? float2(root, other)
                     : float2(::metal::abs(other), ::metal::copysign(root, x.y));
}

// Returns a multiple of the first column of (H - first) (H - second) (LAPACK's slaqr1). a, b: the
// first two columns of H, from the first one's diagonal element on.
template <typename A, typename B>
inline float3 first_column(A a, B b, float2 first, float2 second) {
  float s = ::metal::abs(a[0] - second.x) + ::metal::abs(second.y) + ::metal::abs(a[1]);
  const float below = a[1] / s;
  const float x =
      below * b[0] + (a[0] - first.x) * ((a[0] - second.x) / s) - first.y * (second.y / s);
  const float y = below * (a[0] + b[1] - first.x - second.x);
  const float z = below * b[2];
  s = ::metal::abs(x) + ::metal::abs(y) + ::metal::abs(z);
  return float3(x, y, z) / s;
}

// Sets step->v to a multiple of the first column of (H - shifts.xy) (H - shifts.zw), or for complex
// matrices of H - shifts.xy. a, b: as for first_column().
template <typename Step, typename A, typename B>
METAL_FUNC void begin_bulge(Step step, A a, B b, float4 shifts, float) {
  const float3 v = first_column(a, b, shifts.xy, shifts.zw);
  step->v[0] = v.x;
  step->v[1] = v.y;
  step->v[2] = v.z;
}
template <typename Step, typename A, typename B>
METAL_FUNC void begin_bulge(Step step, A a, B, float4 shifts, float2) {
  const float2 x = a[0] - shifts.xy;
  const float s = cabs1(x) + cabs1(a[1]);
  step->v[0] = x / s;
  step->v[1] = a[1] / s;
}

// Begins a sweep with double shifts: finds its first row and its first column, step->first and
// step->v.
template <typename T, int STRIDE, typename Columns, typename Step>
inline void begin_sweep(Columns packs, Step step, float) {
  const int low = step->low;
  const int high = step->high;
  const auto next = elements_of<T>(packs + (high - 1) * STRIDE);
  const auto last = elements_of<T>(packs + high * STRIDE);
  RealShifts shifts;
  if (step->stalled % (2 * kSchurStallLimit) == kSchurStallLimit) {
    const auto one = elements_of<T>(packs + low * STRIDE);
    const auto two = elements_of<T>(packs + (low + 1) * STRIDE);
    const float s = ::metal::abs(one[low + 1]) + ::metal::abs(two[low + 2]);
    const float corner = 0.75f * s + one[low];
    shifts = shifts_of(corner, -0.4375f * s, s, corner);
  } else if (step->stalled > 0 && step->stalled % kSchurStallLimit == 0) {
    const float s = ::metal::abs(next[high]) +
                    ::metal::abs(elements_of<T>(packs + (high - 2) * STRIDE)[high - 1]);
    const float corner = 0.75f * s + last[high];
    shifts = shifts_of(corner, -0.4375f * s, s, corner);
  } else {
    shifts = shifts_of(next[high - 1], last[high - 1], next[high], last[high]);
  }
  int m = high - 2;
  while (true) {
    const auto a = elements_of<T>(packs + m * STRIDE);
    const auto b = elements_of<T>(packs + (m + 1) * STRIDE);
    begin_bulge(step, a + m, b + m, float4(shifts.first, shifts.second), 0.0f);
    if (m == low) {
      break;
    }
    const auto before = elements_of<T>(packs + (m - 1) * STRIDE);
    const float around = ::metal::abs(before[m - 1]) + ::metal::abs(a[m]) + ::metal::abs(b[m + 1]);
    if (::metal::abs(before[m]) * (::metal::abs(step->v[1]) + ::metal::abs(step->v[2])) <=
        kSchurEpsilon * ::metal::abs(step->v[0]) * around) {
      break;
    }
    --m;
  }
  step->first = m;
}

// Begins a sweep with a single shift, likewise.
template <typename T, int STRIDE, typename Columns, typename Step>
inline void begin_sweep(Columns packs, Step step, float2) {
  const int low = step->low;
  const int high = step->high;
  const auto next = elements_of<T>(packs + (high - 1) * STRIDE);
  const auto last = elements_of<T>(packs + high * STRIDE);
  float2 shift = last[high];
  if (step->stalled % (2 * kSchurStallLimit) == kSchurStallLimit) {
    const auto one = elements_of<T>(packs + low * STRIDE);
    shift = one[low] + float2(0.75f * cabs1(one[low + 1]), 0.0f);
  } else if (step->stalled > 0 && step->stalled % kSchurStallLimit == 0) {
    shift.x += 0.75f * cabs1(next[high]);
  } else {
    const float2 u = multiply(square_root(last[high - 1]), square_root(next[high]));
    if (cabs1(u) != 0.0f) {
      const float2 x = 0.5f * (next[high - 1] - shift);
      const float size = cabs1(x);
      const float s = ::metal::max(cabs1(u), size);
      const float2 x_share = x / s;
      const float2 u_share = u / s;
      float2 y = s * square_root(multiply(x_share, x_share) + multiply(u_share, u_share));
      if (size > 0.0f && ::metal::dot(x / size, y) < 0.0f) {
        y = -y;
      }
      shift -= multiply(u, divide(u, x + y));
    }
  }
  int m = high - 1;
  while (true) {
    const auto a = elements_of<T>(packs + m * STRIDE);
    const auto b = elements_of<T>(packs + (m + 1) * STRIDE);
    begin_bulge(step, a + m, b + m, float4(shift, shift), shift);
    if (m == low) {
      break;
    }
    const float around = cabs1(a[m]) + cabs1(b[m + 1]);
    if (cabs1(elements_of<T>(packs + (m - 1) * STRIDE)[m]) * cabs1(step->v[1]) <=
        kSchurEpsilon * (cabs1(step->v[0]) * around)) {
      break;
    }
    --m;
  }
  step->first = m;
}

// Brings the real 2-by-2 block in rows high - 1 and high to standard form. Returns true if the rest
// of the matrix has to be rotated with it.
template <typename T, int STRIDE, typename Columns, typename Step>
inline bool standardise(Columns packs, Step step, float) {
  const int high = step->high;
  const auto left = elements_of<T>(packs + (high - 1) * STRIDE);
  const auto right = elements_of<T>(packs + high * STRIDE);
  const StandardBlock block =
      standard_block(left[high - 1], right[high - 1], left[high], right[high]);
  left[high - 1] = block.a;
  right[high - 1] = block.b;
  left[high] = block.c;
  right[high] = block.d;
  step->first = high - 1;
  step->v[0] = block.cosine;
  step->v[1] = block.sine;
  return block.sine != 0.0f;
}

template <typename T, int STRIDE, typename Columns, typename Step>
inline bool standardise(Columns, Step, float2) {
  return false;
}

// Deflates converged eigenvalues and decides on the next step. One lane does it.
template <typename T, int STRIDE, typename Columns, typename Step>
inline void decide(Columns packs, int n, bool with_form, Step step) {
  while (step->high >= 0) {
    int k = step->high;
    // After a stall, rounding errors of the largest element count as zero.
    const float tiny =
        step->stalled < kSchurStallLimit ? kSchurTiny : 0.25f * kSchurEpsilon * step->size;
    while (k > step->low && !is_split<T>(packs, STRIDE, n, k, tiny)) {
      --k;
    }
    if (k > step->low) {
      elements_of<T>(packs + (k - 1) * STRIDE)[k] = from_real<T>(0.0f);
    }
    step->low = k;
    const int rows = step->high - k + 1;
    if (rows < kBulge<T>) {
      const bool rotates =
          rows == 2 && standardise<T, STRIDE>(packs, step, step->v[0]) && with_form;
      step->high -= rows;
      step->low = 0;
      step->stalled = 0;
      if (rotates) {
        step->what = SchurDoes::kRotate;
        return;
      }
      continue;
    }
    if (step->sweeps == 0) {
      break;
    }
    begin_sweep<T, STRIDE>(packs, step, step->v[0]);
    ++step->stalled;
    --step->sweeps;
    step->what = SchurDoes::kSweep;
    return;
  }
  step->what = SchurDoes::kEnd;
}

// ---- application by the team --------------------------------------------------------------------

// A reflector 1 - tau v v^H with v[0] = 1, which is not stored.
template <typename T>
struct Bulge {
  T v[2];
  T tau;
};

// Returns the reflector of rows k to k + count - 1 that zeroes column k - 1 below row k, or the
// sweep's first one. One lane does it.
template <typename T, int STRIDE, typename Columns, typename Step>
inline Bulge<T> bulge_of(Columns packs, Step step, int k, int count) {
  T x[3] = {step->v[0], step->v[1], kBulge<T> == 3 ? step->v[2] : step->v[1]};
  if (k > step->first) {
    const auto before = elements_of<T>(packs + (k - 1) * STRIDE);
    for (int i = 0; i < count; ++i) {
      x[i] = before[k + i];
    }
  }
  Extent extent = Extent::none();
  for (int i = 1; i < count; ++i) {
    extent.largest = ::metal::max(extent.largest, largest_part(x[i]));
    extent.squares += squared_magnitude(x[i]);
  }
  if (extent.is_rough()) {
    extent = extent.rescaled();
    for (int i = 1; i < count; ++i) {
      extent.squares += squared_magnitude(x[i] * extent.scale);
    }
  }
  const Reflector<T> reflector = reflector_of(x[0], extent);
  Bulge<T> bulge = {{from_real<T>(0.0f), from_real<T>(0.0f)}, reflector.tau};
  for (int i = 1; i < count; ++i) {
    bulge.v[i - 1] = reflector.element(x[i]);
  }
  if (k > step->first) {
    const auto before = elements_of<T>(packs + (k - 1) * STRIDE);
    before[k] = from_real<T>(reflector.beta);
    for (int i = 1; i < count; ++i) {
      before[k + i] = from_real<T>(0.0f);
    }
  } else if (k > step->low) {
    const auto before = elements_of<T>(packs + (k - 1) * STRIDE);
    before[k] -= multiply(conjugate(bulge.tau), before[k]);
  }
  return bulge;
}

// Applies the adjoint of a reflector to `count` rows of a column.
template <typename T, typename Elements>
inline void reflect_rows(Elements x, Bulge<T> bulge, int count) {
  T sum = x[0] + multiply(conjugate(bulge.v[0]), x[1]);
  if (count == 3) {
    sum += multiply(conjugate(bulge.v[1]), x[2]);
  }
  sum = multiply(conjugate(bulge.tau), sum);
  x[0] -= sum;
  x[1] -= multiply(bulge.v[0], sum);
  if (count == 3) {
    x[2] -= multiply(bulge.v[1], sum);
  }
}

// Applies a reflector from the right to a pack of rows of `count` columns.
template <typename T, int STRIDE, typename Packs>
inline void reflect_columns(Packs x, Bulge<T> bulge, int count) {
  float4 sum = x[0] + times(x[STRIDE], bulge.v[0]);
  if (count == 3) {
    sum += times(x[2 * STRIDE], bulge.v[1]);
  }
  sum = times(sum, bulge.tau);
  x[0] -= sum;
  x[STRIDE] -= times(sum, conjugate(bulge.v[0]));
  if (count == 3) {
    x[2 * STRIDE] -= times(sum, conjugate(bulge.v[1]));
  }
}

// Applies the adjoint of a reflector to rows k to k + count - 1 of the columns from k to
// `last_column`, which lanes share.
template <typename T, int STRIDE, typename Columns>
METAL_FUNC void reflect_rows_of_block(Columns packs, Bulge<T> bulge, int k, int count,
                                      int last_column, int lane, int lanes) {
  for (int j = k + lane; j <= last_column; j += lanes) {
    reflect_rows<T>(elements_of<T>(packs + j * STRIDE) + k, bulge, count);
  }
}

// Applies a reflector from the right to columns k to k + count - 1: to rows from pack `first_pack`
// to row `last_row`, and to `vector_packs` packs of rows of the vectors, all of which lanes share.
template <typename T, int STRIDE, typename Columns, typename Vectors>
METAL_FUNC void reflect_columns_of_block(Columns packs, Vectors vectors, Bulge<T> bulge, int k,
                                         int count, int first_pack, int last_row, int vector_packs,
                                         int lane, int lanes) {
  const int own_packs = last_row / ColumnPacks<T>::kRows + 1 - first_pack;
  for (int i = lane; i < own_packs + vector_packs; i += lanes) {
    if (i < own_packs) {
      reflect_columns<T, STRIDE>(packs + k * STRIDE + first_pack + i, bulge, count);
    } else {
      reflect_columns<T, STRIDE>(vectors + k * STRIDE + i - own_packs, bulge, count);
    }
  }
}

// Rotates the elements above and right of a 2-by-2 block that has been brought to standard form,
// and the vectors.
template <typename T, typename Team, int STRIDE, typename Columns, typename Vectors, typename Step>
inline void rotate(Columns packs, Vectors vectors, int lane, int n, Step step) {
  const int k = step->first;
  const float c = real_part(step->v[0]);
  const float s = real_part(step->v[1]);
  for (int j = k + 2 + lane; j < n; j += Team::kLanes) {
    const auto column = elements_of<T>(packs + j * STRIDE);
    const T x = column[k];
    const T y = column[k + 1];
    column[k] = x * c + y * s;
    column[k + 1] = y * c - x * s;
  }
  const auto left = elements_of<T>(packs + k * STRIDE);
  const auto right = elements_of<T>(packs + (k + 1) * STRIDE);
  for (int i = lane; i < k; i += Team::kLanes) {
    const T x = left[i];
    const T y = right[i];
    left[i] = x * c + y * s;
    right[i] = y * c - x * s;
  }
  const auto left_vector = elements_of<T>(vectors + k * STRIDE);
  const auto right_vector = elements_of<T>(vectors + (k + 1) * STRIDE);
  for (int i = lane; i < n; i += Team::kLanes) {
    const T x = left_vector[i];
    const T y = right_vector[i];
    left_vector[i] = x * c + y * s;
    right_vector[i] = y * c - x * s;
  }
}

// Makes the reflector of rows k to k + count - 1 and applies it: from the left to columns k to
// `last_column`, from the right to rows from pack `first_pack` to row `last_row` and to
// `vector_packs` packs of rows of the vectors.
template <typename T, typename Team, int STRIDE, typename Columns, typename Vectors, typename Step,
          typename SharedBulge>
inline void chase_bulge(Columns packs, Vectors vectors, int lane, int k, int count, int first_pack,
                        int last_row, int last_column, int vector_packs, Step step,
                        SharedBulge shared) {
  if (lane == 0) {
    *shared = bulge_of<T, STRIDE>(packs, step, k, count);
  }
  Team::wait();
  const Bulge<T> bulge = *shared;
  reflect_rows_of_block<T, STRIDE>(packs, bulge, k, count, last_column, lane, Team::kLanes);
  Team::wait();
  reflect_columns_of_block<T, STRIDE>(packs, vectors, bulge, k, count, first_pack, last_row,
                                      vector_packs, lane, Team::kLanes);
  Team::wait();
}

// Computes the Schur form of a Hessenberg matrix of n rows, or only its diagonal blocks (not
// with_form), and multiplies `vectors` by the transformation. step, shared: in memory that the team
// shares.
template <typename T, typename Team, int STRIDE, typename Columns, typename Vectors, typename Step,
          typename SharedBulge>
inline void find_schur_form(Columns packs, Vectors vectors, int lane, int n, int padded,
                            bool with_form, Step step, SharedBulge shared) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  float size = 0.0f;
  for (int j = lane; j < n; j += Team::kLanes) {
    for (int i = 0; i <= ::metal::min(j + 1, n - 1); ++i) {
      size = ::metal::max(size, largest_part(elements_of<T>(packs + j * STRIDE)[i]));
    }
  }
  size = Team::largest(size);
  if (lane == 0) {
    step->what = SchurDoes::kEnd;
    step->low = 0;
    step->high = n - 1;
    step->stalled = 0;
    step->sweeps = 30 * ::metal::max(10, n);
    step->size = size;
    step->v[0] = from_real<T>(0.0f);
  }
  Team::wait();
  while (true) {
    if (lane == 0) {
      decide<T, STRIDE>(packs, n, with_form, step);
    }
    Team::wait();
    const SchurDoes what = step->what;
    if (what == SchurDoes::kEnd) {
      break;
    }
    if (what == SchurDoes::kRotate) {
      rotate<T, Team, STRIDE>(packs, vectors, lane, n, step);
      Team::wait();
      continue;
    }
    const int first = step->first;
    const int low = step->low;
    const int high = step->high;
    const int last_column = with_form ? n - 1 : high;
    const int first_pack = with_form ? 0 : low / kRows;
    const int vector_packs = with_form ? padded / kRows : 0;
    for (int k = first; k < high; ++k) {
      const int count = ::metal::min(kBulge<T>, high - k + 1);
      chase_bulge<T, Team, STRIDE>(packs, vectors, lane, k, count, first_pack,
                                   ::metal::min(k + kBulge<T>, high), last_column, vector_packs,
                                   step, shared);
    }
  }
}

}  // namespace metalops

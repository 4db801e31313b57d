// xGEBAL: balances a general matrix, by a team (teams.h). Rows and columns that isolate an
// eigenvalue are permuted to the ends; the other ones are scaled by powers of two so that the
// largest elements of a row and of its column have about the same magnitude. With B in rows `first`
// to `last` - 1, the permuted matrix is
//
//     [ T1  X   Y  ]
//     [  0  B   Z  ]   T1, T2: upper triangular, their eigenvalues are isolated
//     [  0  0   T2 ]
//
// LAPACK scales row by row; here all rows are scaled at once, each by half of the exponent that it
// would need alone, until that rounds to zero.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>

namespace metalops {

// The exponent that stands for zero and for denormal numbers.
constant constexpr int kZeroExponent = -1000;

// The largest growth of rounding errors that balancing may cause, as an exponent of two.
constant constexpr int kMostGrowth = 20;

// Returns e such that `magnitude` is in [2^e, 2^(e + 1)).
inline int exponent_bits(float magnitude) {
  const int bits = int(as_type<uint>(magnitude) >> 23);
  return bits == 0 ? kZeroExponent : bits - 127;
}

// Marks a row whose position in the balanced matrix is not known yet.
constant constexpr int kUnplaced = -1;

// The results of balancing, n integers each, in memory that the team shares: the new position of
// each row; the row that comes to each position; for each original row the exponent of the power of
// two by which it is divided and its column multiplied. `more`, n integers, and `shared`, two, are
// scratch.
template <typename Ints>
struct Balancing {
  Ints positions;
  Ints order;
  Ints exponents;
  Ints more;
  Ints shared;
};

// Counts the off-diagonal nonzeros of each row (exponents) and of each column (more).
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline void count_nonzeros(Columns packs, int lane, int n, Balancing<Ints> result) {
  for (int i = lane; i < n; i += Team::kLanes) {
    const auto column = elements_of<T>(packs + i * STRIDE);
    int in_row = 0;
    int in_column = 0;
    for (int j = 0; j < n; ++j) {
      in_row += j != i && largest_part(elements_of<T>(packs + j * STRIDE)[i]) != 0.0f;
      in_column += j != i && largest_part(column[j]) != 0.0f;
    }
    result.exponents[i] = in_row;
    result.more[i] = in_column;
    result.positions[i] = kUnplaced;
  }
}

// Finds the permutation, from the numbers of nonzeros, and the rows of B: from shared[0] to
// shared[1] - 1. One lane does it.
template <typename T, int STRIDE, typename Columns, typename Ints>
inline void permute(Columns packs, int n, Balancing<Ints> result) {
  int first = 0;
  int last = n;
  bool found = true;
  while (found) {
    found = false;
    for (int i = n - 1; i >= 0; --i) {
      if (result.positions[i] == kUnplaced && result.exponents[i] == 0) {
        result.positions[i] = --last;
        found = true;
        const auto column = elements_of<T>(packs + i * STRIDE);
        for (int j = 0; j < n; ++j) {
          result.exponents[j] -= j != i && largest_part(column[j]) != 0.0f;
        }
      }
    }
  }
  found = true;
  while (found) {
    found = false;
    for (int i = 0; i < n; ++i) {
      if (result.positions[i] == kUnplaced && result.more[i] == 0) {
        result.positions[i] = first++;
        found = true;
        for (int j = 0; j < n; ++j) {
          result.more[j] -= j != i && largest_part(elements_of<T>(packs + j * STRIDE)[i]) != 0.0f;
        }
      }
    }
  }
  result.shared[0] = first;
  for (int i = 0; i < n; ++i) {
    if (result.positions[i] == kUnplaced) {
      result.positions[i] = first++;
    }
    result.order[result.positions[i]] = i;
    result.exponents[i] = 0;
  }
  result.shared[1] = last;
}

// Finds half of the exponents (more) that the rows and columns of B would need alone. Returns the
// lane's largest magnitude of them.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline float find_changes(Columns packs, int lane, int first, int last, Balancing<Ints> result) {
  constexpr int kLeastExponent = -10000;
  float most = 0.0f;
  for (int position = first + lane; position < last; position += Team::kLanes) {
    const int i = result.order[position];
    const auto column = elements_of<T>(packs + i * STRIDE);
    int of_row = kLeastExponent;
    int of_column = kLeastExponent;
    for (int other = first; other < last; ++other) {
      const int j = result.order[other];
      const float in_row = largest_part(elements_of<T>(packs + j * STRIDE)[i]);
      const int change = result.exponents[j] - result.exponents[i];
      of_row = ::metal::max(of_row, exponent_bits(in_row) + change);
      of_column = ::metal::max(of_column, exponent_bits(largest_part(column[j])) - change);
    }
    const int change = (of_row - of_column) / 4;
    result.more[i] = change;
    most = ::metal::max(most, float(::metal::abs(change)));
  }
  return most;
}

// Scales the rows and columns of B, in exponents.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline void find_scaling(Columns packs, int lane, int first, int last, Balancing<Ints> result) {
  constexpr int kIterations = 32;
  constexpr int kMostExponent = 60;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const float most =
        Team::largest(find_changes<T, Team, STRIDE>(packs, lane, first, last, result));
    if (lane == 0) {
      result.shared[0] = most > 0.0f;
    }
    Team::wait();
    const bool changes = result.shared[0] != 0;
    if (!changes) {
      break;
    }
    for (int position = first + lane; position < last; position += Team::kLanes) {
      const int i = result.order[position];
      result.exponents[i] =
          ::metal::clamp(result.exponents[i] + result.more[i], -kMostExponent, kMostExponent);
    }
    Team::wait();
  }
}

// Accepts the scaling, or drops it. Rounding errors of elements that were scaled down grow when
// results are scaled back: if they might grow by more than kMostGrowth, nothing is scaled. Returns
// the exponent of the largest element.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline int accept_scaling(Columns packs, int lane, int n, Balancing<Ints> result) {
  float highest = 0.0f;
  float lowest = 0.0f;
  float before = kZeroExponent;
  float after = kZeroExponent;
  for (int i = lane; i < n; i += Team::kLanes) {
    const auto column = elements_of<T>(packs + i * STRIDE);
    const int scale = result.exponents[i];
    highest = ::metal::max(highest, float(scale));
    lowest = ::metal::max(lowest, float(-scale));
    for (int j = 0; j < n; ++j) {
      const int exponent = exponent_bits(largest_part(column[j]));
      before = ::metal::max(before, float(exponent));
      after = ::metal::max(after, float(exponent + scale - result.exponents[j]));
    }
  }
  highest = Team::largest(highest);
  lowest = Team::largest(lowest);
  before = Team::largest(before);
  after = Team::largest(after);
  const bool is_risky = highest + lowest + after - before > kMostGrowth;
  Team::wait();
  for (int i = lane; i < n; i += Team::kLanes) {
    result.exponents[i] = is_risky ? 0 : result.exponents[i];
  }
  Team::wait();
  return before > kZeroExponent ? int(is_risky ? before : after) : 0;
}

// Finds the permutation and the scaling, and returns the exponent of the largest element of the
// balanced matrix; the matrix itself, in memory that the team shares, is not changed. The integers
// are those of Balancing.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline int balance(Columns packs, int lane, int n, Ints positions, Ints order, Ints exponents,
                   Ints more, Ints shared) {
  const Balancing<Ints> result = {positions, order, exponents, more, shared};
  count_nonzeros<T, Team, STRIDE>(packs, lane, n, result);
  Team::wait();
  if (lane == 0) {
    permute<T, STRIDE>(packs, n, result);
  }
  Team::wait();
  const int first = result.shared[0];
  const int last = result.shared[1];
  Team::wait();
  find_scaling<T, Team, STRIDE>(packs, lane, first, last, result);
  return accept_scaling<T, Team, STRIDE>(packs, lane, n, result);
}

}  // namespace metalops

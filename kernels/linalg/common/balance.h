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

// Finds the permutation and the scaling, and returns the exponent of the largest element of the
// balanced matrix; the matrix itself is not changed. Results, n elements each: `positions`, the new
// position of each row; `order`, the row that comes to each position; `exponents`, for each
// original row, that of the power of two by which it is divided and its column multiplied. Scratch:
// `more`, n elements, and `shared`, two. All of them are in memory that the team shares, as is the
// matrix.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline int balance(Columns packs, int lane, int n, Ints positions, Ints order, Ints exponents,
                   Ints more, Ints shared) {
  constexpr int kIterations = 32;
  constexpr int kMostExponent = 60;
  constexpr int kLeastExponent = -10000;
  // Counts the off-diagonal nonzeros of each row (exponents) and of each column (more).
  for (int i = lane; i < n; i += Team::kLanes) {
    const auto column = elements_of<T>(packs + i * STRIDE);
    int in_row = 0;
    int in_column = 0;
    for (int j = 0; j < n; ++j) {
      in_row += j != i && largest_part(elements_of<T>(packs + j * STRIDE)[i]) != 0.0f;
      in_column += j != i && largest_part(column[j]) != 0.0f;
    }
    exponents[i] = in_row;
    more[i] = in_column;
    positions[i] = kUnplaced;
  }
  Team::wait();
  if (lane == 0) {
    int first = 0;
    int last = n;
    bool found = true;
    while (found) {
      found = false;
      for (int i = n - 1; i >= 0; --i) {
        if (positions[i] == kUnplaced && exponents[i] == 0) {
          positions[i] = --last;
          found = true;
          const auto column = elements_of<T>(packs + i * STRIDE);
          for (int j = 0; j < n; ++j) {
            exponents[j] -= j != i && largest_part(column[j]) != 0.0f;
          }
        }
      }
    }
    found = true;
    while (found) {
      found = false;
      for (int i = 0; i < n; ++i) {
        if (positions[i] == kUnplaced && more[i] == 0) {
          positions[i] = first++;
          found = true;
          for (int j = 0; j < n; ++j) {
            more[j] -= j != i && largest_part(elements_of<T>(packs + j * STRIDE)[i]) != 0.0f;
          }
        }
      }
    }
    shared[0] = first;
    for (int i = 0; i < n; ++i) {
      if (positions[i] == kUnplaced) {
        positions[i] = first++;
      }
      order[positions[i]] = i;
      exponents[i] = 0;
    }
    shared[1] = last;
  }
  Team::wait();
  const int first = shared[0];
  const int last = shared[1];
  Team::wait();
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    float most = 0.0f;
    for (int position = first + lane; position < last; position += Team::kLanes) {
      const int i = order[position];
      const auto column = elements_of<T>(packs + i * STRIDE);
      int of_row = kLeastExponent;
      int of_column = kLeastExponent;
      for (int other = first; other < last; ++other) {
        const int j = order[other];
        const float in_row = largest_part(elements_of<T>(packs + j * STRIDE)[i]);
        const int change = exponents[j] - exponents[i];
        of_row = ::metal::max(of_row, exponent_bits(in_row) + change);
        of_column = ::metal::max(of_column, exponent_bits(largest_part(column[j])) - change);
      }
      const int change = (of_row - of_column) / 4;
      more[i] = change;
      most = ::metal::max(most, float(::metal::abs(change)));
    }
    most = Team::largest(most);
    if (lane == 0) {
      shared[0] = most > 0.0f;
    }
    Team::wait();
    const bool changes = shared[0] != 0;
    if (!changes) {
      break;
    }
    for (int position = first + lane; position < last; position += Team::kLanes) {
      const int i = order[position];
      exponents[i] = ::metal::clamp(exponents[i] + more[i], -kMostExponent, kMostExponent);
    }
    Team::wait();
  }
  // Rounding errors of elements that were scaled down grow when results are scaled back. If they
  // might grow by more than kMostGrowth, nothing is scaled.
  float highest = 0.0f;
  float lowest = 0.0f;
  float before = kZeroExponent;
  float after = kZeroExponent;
  for (int i = lane; i < n; i += Team::kLanes) {
    const auto column = elements_of<T>(packs + i * STRIDE);
    highest = ::metal::max(highest, float(exponents[i]));
    lowest = ::metal::max(lowest, float(-exponents[i]));
    for (int j = 0; j < n; ++j) {
      const int exponent = exponent_bits(largest_part(column[j]));
      before = ::metal::max(before, float(exponent));
      after = ::metal::max(after, float(exponent + exponents[i] - exponents[j]));
    }
  }
  highest = Team::largest(highest);
  lowest = Team::largest(lowest);
  before = Team::largest(before);
  after = Team::largest(after);
  const bool is_risky = highest + lowest + after - before > kMostGrowth;
  Team::wait();
  for (int i = lane; i < n; i += Team::kLanes) {
    exponents[i] = is_risky ? 0 : exponents[i];
  }
  Team::wait();
  return before > kZeroExponent ? int(is_risky ? before : after) : 0;
}

}  // namespace metalops

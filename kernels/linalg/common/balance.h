// Balancing of matrices by a team: rows and columns that isolate an eigenvalue come last or first,
// the others are scaled by powers of two so that what is in a row is about as large as what is in
// its column. (LAPACK's xGEBAL goes from row to row; here all are scaled at once, by half as much
// as each alone would have to be, until that is little.)
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>

namespace metalops {

// Of zero, and of denormal numbers.
constant constexpr int kZeroExponent = -1000;

// Powers of two by which rounding errors may grow.
constant constexpr int kMostGrowth = 20;

// e such that a magnitude is in [2^e, 2^(e + 1)).
inline int exponent_bits(float magnitude) {
  const int bits = int(as_type<uint>(magnitude) >> 23);
  return bits == 0 ? kZeroExponent : bits - 127;
}

// Which row of a balanced matrix each row is, as long as that is not known.
constant constexpr int kUnplaced = -1;

// Returns the exponent of the largest element of the balanced matrix. places: where each row comes.
// order: which row comes there. exponents: of what each row, as it was, is divided by, and its
// column multiplied with. more: n numbers. shared: two. All of them are shared by the team, as is
// the matrix, which is not changed.
template <typename T, typename Team, int STRIDE, typename Columns, typename Ints>
inline int balance(Columns packs, int lane, int n, Ints places, Ints order, Ints exponents,
                   Ints more, Ints shared) {
  constexpr int kIterations = 32;
  constexpr int kMostExponent = 60;
  constexpr int kLeastExponent = -10000;
  // How many other elements of a row, of a column, are not zero.
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
    places[i] = kUnplaced;
  }
  Team::wait();
  if (lane == 0) {
    int first = 0;
    int last = n;
    bool found = true;
    while (found) {
      found = false;
      for (int i = n - 1; i >= 0; --i) {
        if (places[i] == kUnplaced && exponents[i] == 0) {
          places[i] = --last;
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
        if (places[i] == kUnplaced && more[i] == 0) {
          places[i] = first++;
          found = true;
          for (int j = 0; j < n; ++j) {
            more[j] -= j != i && largest_part(elements_of<T>(packs + j * STRIDE)[i]) != 0.0f;
          }
        }
      }
    }
    shared[0] = first;
    for (int i = 0; i < n; ++i) {
      if (places[i] == kUnplaced) {
        places[i] = first++;
      }
      order[places[i]] = i;
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
    for (int place = first + lane; place < last; place += Team::kLanes) {
      const int i = order[place];
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
    for (int place = first + lane; place < last; place += Team::kLanes) {
      const int i = order[place];
      exponents[i] = ::metal::clamp(exponents[i] + more[i], -kMostExponent, kMostExponent);
    }
    Team::wait();
  }
  // Rounding errors of what is scaled to be small grow when it is scaled back. Where they might
  // grow by too much, all stay as they are.
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

// xGETF2 with rows in the registers of threads, some each: no memory is between a step and the next
// one but the pivot row's. Rows are not moved when they are interchanged: each one knows the place
// at which it stands.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/pivots.h>
#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

METAL_FUNC bool is_zero(float a) { return a == 0.0f; }
METAL_FUNC bool is_zero(::metal::float2 a) { return a.x == 0.0f && a.y == 0.0f; }

// Applies step `step` to a pack of a row below the pivot row. first: the pack's first column.
// Columns left of `step` are final.
template <typename T>
METAL_FUNC ::metal::float4 reduced_pack(::metal::float4 pack, T factor, ::metal::float4 pivot_row,
                                        uint first, uint step) {
  const ::metal::float4 reduced = minus_product(pack, factor, pivot_row);
  if (first > step) {
    return reduced;
  }
  const ::metal::float4 left =
      ::metal::select(all_columns(factor), pack, columns_before<T>(step - first));
  return ::metal::select(reduced, left, columns_before<T>(step - first + 1));
}

// The divisor of the multipliers of a step. Below a zero pivot there are only zeros and NaN, unless
// rows are not interchanged: they stay as they are.
template <typename T>
METAL_FUNC Divisor<T> divisor_of_step(T pivot) {
  return divisor_of(is_zero(pivot) ? from_real<T>(1.0f) : pivot);
}

// A row's claim to be the next pivot row: an integer, since all lanes compare integers at once. The
// first place decides between equal ones.
struct PivotKey {
  static constexpr constant uint kNone = 0xffffffff;

  uint key = 0;  // none
  uint place = kNone;

  // Returns the claim of an element in the column of a step. Neither zero nor NaN is preferred to
  // the row that stands in the step's place.
  template <typename T>
  static PivotKey of(T element, uint place, uint step, bool is_pivoted) {
    const float size = cabs1(element);
    PivotKey result;
    result.key = is_pivoted && size > 0.0f ? as_type<uint>(size) + 1 : uint(place == step);
    result.key = place >= step && place != kNone ? result.key : 0;
    result.place = result.key == 0 ? kNone : place;
    return result;
  }

  void combine(PivotKey other) thread {
    const bool is_better = other.key > key || (other.key == key && other.place < place);
    key = is_better ? other.key : key;
    place = is_better ? other.place : place;
  }

  void combine_simdgroup() thread {
    const uint largest = ::metal::simd_max(key);
    place = ::metal::simd_min(key == largest ? place : kNone);
    key = largest;
  }
};

// A thread's rows. COLUMNS: the most columns. Those of the current steps are in the first two packs
// of a row: after them move_on() turns the row, so that the loop over the columns is short and
// indices are compile-time constants nevertheless.
template <typename T, uint ROWS, uint COLUMNS>
struct PivotedRows {
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = kPacksOfRow<T, COLUMNS>;
  static constexpr constant uint kTogether = 2;                  // packs
  static constexpr constant uint kSteps = kTogether * kColumns;  // before a row is turned
  static constexpr constant uint kTurns = COLUMNS / kSteps;

  ::metal::float4 x[ROWS][kPacks];
  uint place[ROWS];  // PivotKey::kNone for rows that do not exist

  // Loads every `stride`-th row from `first` on. in_packs: rows are whole packs, and begin at
  // multiples of one.
  METAL_FUNC void load(device const T* matrix, MatrixStrides strides, bool in_packs, uint rows,
                       uint columns, uint first, uint stride) thread {
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      const uint row = first + r * stride;
      place[r] = row < rows ? row : PivotKey::kNone;
      device const T* const own = matrix + ::metal::min(row, rows - 1) * strides.row;
#pragma unroll
      for (uint b = 0; b < kPacks; ++b) {
        const uint before = b * kColumns;
        if (!in_packs) {
          x[r][b] = pack_of_row(own, strides.column, before, columns, row < rows);
        } else if (row < rows && before < columns) {
          x[r][b] = reinterpret_cast<device const ::metal::float4*>(own)[b];
        } else {
          x[r][b] = ::metal::float4(0.0f);
        }
      }
    }
  }

  // Stores rows at their places.
  METAL_FUNC void store(device T* matrix, MatrixStrides strides, bool in_packs,
                        uint columns) const thread {
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      if (place[r] != PivotKey::kNone) {
        device T* const own = matrix + place[r] * strides.row;
#pragma unroll
        for (uint b = 0; b < kPacks; ++b) {
          if (in_packs) {
            if (b * kColumns < columns) {
              reinterpret_cast<device::metal::float4*>(own)[b] = x[r][b];
            }
          } else {
#pragma unroll
            for (uint i = 0; i < kColumns; ++i) {
              if (b * kColumns + i < columns) {
                own[(b * kColumns + i) * strides.column] = column(x[r][b], i, T());
              }
            }
          }
        }
      }
    }
  }

  // Returns the best claim of the thread's rows in a step. at: its column in the first packs.
  METAL_FUNC PivotKey best(uint at, uint step, bool is_pivoted) const thread {
    PivotKey result;
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      const T element = column(x[r][at / kColumns], at % kColumns, T());
      result.combine(PivotKey::of(element, place[r], step, is_pivoted));
    }
    return result;
  }

  // Stores the row at a place, if the thread has it; none at PivotKey::kNone.
  METAL_FUNC void give(uint at_place, threadgroup::metal::float4* row) const thread {
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      if (place[r] == at_place && at_place != PivotKey::kNone) {
#pragma unroll
        for (uint b = 0; b < kPacks; ++b) {
          row[b] = x[r][b];
        }
      }
    }
  }

  // Interchanges the rows at the places `pivot` and `step`, and applies the step to the rows below.
  // turn: how often rows were turned.
  METAL_FUNC void reduce(threadgroup const ::metal::float4* pivot_row, uint at, uint step,
                         uint pivot, uint turn) thread {
    const Divisor<T> divisor = divisor_of_step(elements_of<T>(pivot_row)[at]);
    T factors[ROWS];
    bool is_below[ROWS];
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      const uint before = place[r];
      place[r] = before == pivot ? step : before == step ? pivot : before;
      is_below[r] = place[r] > step;
      factors[r] = divisor.divide(column(x[r][at / kColumns], at % kColumns, T()));
    }
#pragma unroll
    for (uint b = 0; b < kPacks; ++b) {
      // The last packs are those of steps that are done.
      if (b >= at / kColumns && b / kTogether < kTurns - turn) {
        const ::metal::float4 upper = pivot_row[b];
#pragma unroll
        for (uint r = 0; r < ROWS; ++r) {
          if (is_below[r]) {
            x[r][b] = reduced_pack(x[r][b], factors[r], upper, b * kColumns, at);
          }
        }
      }
    }
  }

  METAL_FUNC void move_on() thread {
#pragma unroll
    for (uint r = 0; r < ROWS; ++r) {
      const ::metal::float4 first = x[r][0];
      const ::metal::float4 second = x[r][1];
#pragma unroll
      for (uint b = 0; b + kTogether < kPacks; ++b) {
        x[r][b] = x[r][b + kTogether];
      }
      x[r][kPacks - 2] = first;
      x[r][kPacks - 1] = second;
    }
  }
};

}  // namespace metalops

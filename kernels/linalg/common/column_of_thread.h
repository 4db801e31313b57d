// A column of a triangular matrix, or of the right-hand side of a system, in a thread's registers.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

// A column of at most ROWS rows, as packs of rows. Those of the current steps are the first two:
// after them move_on() moves the others up, so that the loop over the rows is short and indices are
// compile-time constants nevertheless.
template <typename T, uint ROWS>
struct ColumnOfThread {
  static constexpr constant uint kRows = kColumnsOfPack<T>;  // of a pack
  static constexpr constant uint kPacks = kPacksOfRow<T, ROWS>;
  static constexpr constant uint kTogether = 2;               // packs
  static constexpr constant uint kSteps = kTogether * kRows;  // before packs are moved
  static constexpr constant uint kTurns = ROWS / kSteps;

  ::metal::float4 x[kPacks];

  // Loads the first `count` elements; the others are zero.
  METAL_FUNC void load(device const T* from, int64_t row_stride, uint count) thread {
#pragma unroll
    for (uint b = 0; b < kPacks; ++b) {
#pragma unroll
      for (uint i = 0; i < kRows; ++i) {
        const uint row = b * kRows + i;
        const T element = row < count ? from[row * row_stride] : T(0.0f);
        set_column(x[b], i, element);
      }
    }
  }

  // Elements of the current steps.
  METAL_FUNC T element(uint at) const thread { return column(x[at / kRows], at % kRows, T()); }
  METAL_FUNC void set_element(uint at, T value) thread {
    set_column(x[at / kRows], at % kRows, value);
  }

  // Stores the elements of the current steps as those at `column` of rows, kPacks packs each.
  METAL_FUNC void give(threadgroup::metal::float4* rows, uint column, bool is_given) const thread {
    if (is_given) {
#pragma unroll
      for (uint at = 0; at < kSteps; ++at) {
        elements_of<T>(rows + at * kPacks)[column] = element(at);
      }
    }
  }

  // Subtracts a multiple of the factors of the current steps' rows from those behind that of a
  // step.
  METAL_FUNC void reduce_near(uint at, T multiple, ::metal::float4 first,
                              ::metal::float4 second) thread {
    if (at < kRows) {
      x[0] = ::metal::select(minus_product(x[0], multiple, first), x[0], columns_before<T>(at + 1));
      x[1] = minus_product(x[1], multiple, second);
    } else {
      x[1] = ::metal::select(minus_product(x[1], multiple, second), x[1],
                             columns_before<T>(at + 1 - kRows));
    }
  }

  // Does so for all current steps, in the rows behind these. factors: of each step's, `line` packs
  // apart, from the current rows on. turn: how often packs were moved.
  METAL_FUNC void reduce_far(thread const T* multiples, threadgroup const ::metal::float4* factors,
                             uint line, bool is_conjugated, uint turn) thread {
#pragma unroll
    for (uint b = kTogether; b < kPacks; ++b) {
      if (b / kTogether < kTurns - turn) {
#pragma unroll
        for (uint at = 0; at < kSteps; ++at) {
          const ::metal::float4 own = factors[at * line + b];
          x[b] =
              minus_product(x[b], multiples[at], is_conjugated ? conjugate_columns(own, T()) : own);
        }
      }
    }
  }

  METAL_FUNC void move_on() thread {
#pragma unroll
    for (uint b = 0; b + kTogether < kPacks; ++b) {
      x[b] = x[b + kTogether];
    }
  }
};

}  // namespace metalops

// Transposes eight vectors of eight floats.
#pragma once

namespace msl::msl_impl {

typedef float EightFloats __attribute__((vector_size(32)));

// b[i][j] = a[j][i]. Overwrites a.
MSL_INLINE void transpose_eight(EightFloats (&a)[8], EightFloats (&b)[8]) {
  // Pairs of columns, then groups of four and of eight, become lines.
  for (int j = 0; j < 8; j += 2) {
    b[j] = __builtin_shufflevector(a[j], a[j + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[j + 1] = __builtin_shufflevector(a[j], a[j + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int j = 0; j < 8; j += 4) {
    for (int i = 0; i < 2; ++i) {
      a[j + i] = __builtin_shufflevector(b[j + i], b[j + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[j + i + 2] = __builtin_shufflevector(b[j + i], b[j + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace msl::msl_impl

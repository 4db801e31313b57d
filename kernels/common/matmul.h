// Tile GEMM: a threadgroup computes a tile of left right^T. Lines (rows) of left are rows of the
// result and lines of right its columns, both along the reduction dimension K ("inner"), as for the
// input and the weight of a linear layer. Sums are in float. An epilogue receives each element of
// the tile with its position, and stores the result.
//
// multiply_tile() has two implementations: with Metal 4 tensors, matmul2d of Metal Performance
// Primitives, else simdgroup matrices. The choice is transparent to kernels. Kernel files that
// include this are built for both (see <metalops/matmul_library.h>).
#pragma once
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
#if defined(__HAVE_TENSOR__)
#include <metal_tensor>

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif

#include <kernels/common/number_formats.h>

namespace metalops {
namespace matmul {

// ---- operands -----------------------------------------------------------------------------------

// An operand has: element, the type in which it is multiplied; is_transposed, true if lines are
// contiguous in memory instead of the elements of a line; and run(line, k), an indexable view of
// the elements from (line, k) on, in memory order.

// A dense operand: element k of line i is elements[i * stride + k] or, if transposed, elements[k *
// stride + i].
template <typename T>
struct Dense {
  typedef T element;
  static constant constexpr bool is_dequantized = false;

  device const T* elements;
  int64_t stride;
  bool is_transposed;

  inline device const T* run(int64_t line, int64_t k) const {
    return elements + (is_transposed ? k * stride + line : line * stride + k);
  }
};

// A quantised operand: codes of a format, with a scale for each `group` of adjacent elements of a
// line. For 4-bit codes, the first of two is the low half of a byte. T: the type in which they are
// multiplied. Scale: T or formats::e8m0. stride: of lines, in bytes; scale_stride: of the lines of
// scales, in scales.
template <typename T, typename Format, typename Scale = T>
struct Quantized {
  typedef T element;
  static constant constexpr bool is_dequantized = true;
  static constant constexpr bool is_transposed = false;

  struct Run {
    device const uchar* codes;
    device const Scale* scales;
    int64_t first;
    int group;

    inline T operator[](int i) const {
      const int64_t k = first + i;
      uint code;
      if (Format::bits == 8) {
        code = codes[k];
      } else {
        const uint pair = codes[k / 2];
        code = (k % 2 == 0 ? pair : pair >> 4) & 15u;
      }
      const Scale scale = scales[k / group];
      return static_cast<T>(Format::decode(code) * formats::scale_of(scale));
    }
  };

  device const uchar* codes;
  device const Scale* scales;
  int64_t stride;
  int64_t scale_stride;
  int group;

  inline Run run(int64_t line, int64_t k) const {
    return {codes + line * stride, scales + line * scale_stride, k, group};
  }
};

// ---- tiles --------------------------------------------------------------------------------------

// kTileK: elements of K staged in threadgroup memory at a time. kPadding: added to leading
// dimensions to avoid bank conflicts.
#if defined(__HAVE_TENSOR__)
constant constexpr int kTileK = 32;
#else
constant constexpr int kTileK = 16;
#endif
constant constexpr int kPadding = 8;

// The shape of a threadgroup's tile: ROWS x COLUMNS elements, divided into blocks of ROWS / DOWN x
// COLUMNS / ACROSS, one for each of DOWN * ACROSS simdgroups. PRODUCTS: number of sums per element;
// the lines of right of successive sums are as far apart as the result is wide. DEPTH: elements of
// K staged at a time. It may be larger than kTileK with tensors, one product, and a right operand
// that has load_run() and store_run() and is not transposed.
template <int ROWS, int COLUMNS, int DOWN, int ACROSS, int PRODUCTS = 1, int DEPTH = kTileK>
struct Tile {
  static constant constexpr int rows = ROWS;
  static constant constexpr int columns = COLUMNS;
  static constant constexpr int down = DOWN;
  static constant constexpr int across = ACROSS;
  static constant constexpr int products = PRODUCTS;
  static constant constexpr int depth = DEPTH;
  static constant constexpr int threads = DOWN * ACROSS * 32;
};

// Returns the threadgroup memory of LINES staged lines, in elements, whether transposed or not.
template <int LINES, int DEPTH = kTileK>
constexpr int elements_of() {
  return LINES * DEPTH + (LINES > DEPTH ? LINES : DEPTH) * kPadding;
}

// Returns the elements of threadgroup memory that multiply_tile() needs.
template <typename Tile, typename Right>
constexpr int workspace() {
#if defined(__HAVE_TENSOR__)
  return Right::is_dequantized ? Tile::products * elements_of<Tile::columns, Tile::depth>() : 1;
#else
  return elements_of<Tile::rows>() + Tile::products * elements_of<Tile::columns>();
#endif
}

// The sums of one element of the result.
template <int PRODUCTS>
struct Sums {
  float of[PRODUCTS];
};

// The position of a thread in its threadgroup.
struct Place {
  uint index;  // thread_index_in_threadgroup
  uint simdgroup;
  uint lane;
};

// Returns the column and the row of a threadgroup's tile, if tiles cover a result of `columns`
// columns row by row.
template <typename Tile>
inline uint2 tile_of(uint group, int columns) {
  const uint across = (static_cast<uint>(columns) + Tile::columns - 1) / Tile::columns;
  return uint2(group % across, group / across);
}

// The position of the first of the two elements that a lane has of an 8 x 8 simdgroup matrix, in
// Apple's layout: they are adjacent elements of a row.
struct LaneElements {
  int row;
  int column;
};
inline LaneElements elements_of_lane(uint lane) {
  const int quad = static_cast<int>(lane) / 4;
  return {(quad & 4) + static_cast<int>(lane) / 2 % 4,
          (quad & 2) * 2 + static_cast<int>(lane) % 2 * 2};
}

// An epilogue: stores a sum plus a bias, if there is one, and rounds once.
template <typename T>
struct StoreWithBias {
  device T* result;
  device const T* bias;
  int columns;
  bool has_bias;

  inline void operator()(int row, int column, Sums<1> sums) const {
    const float offset = has_bias ? static_cast<float>(bias[column]) : 0.0f;
    result[static_cast<int64_t>(row) * columns + column] = static_cast<T>(sums.of[0] + offset);
  }
};

// The problem size M, N, K; right has `products` times as many lines as `columns`.
struct Sizes {
  int rows, columns, inner;
};

// Stages COUNT elements of an operand that dequantises eight at a time, in memory order:
// from.eight(line, k, first) are those from the first'th on. Elements after the first `left`, a
// multiple of eight, are zero.
template <int COUNT, typename E, typename Matrix>
inline void stage_eights(threadgroup E* to, Matrix from, int64_t line, int64_t k, int left) {
  for (int first = 0; first < COUNT; first += 8) {
    if (first < left) {
      const auto values = from.eight(line, k, first);
      for (int e = 0; e < 8; ++e) {
        to[first + e] = static_cast<E>(values.of[e]);
      }
    } else {
      for (int e = 0; e < 8; ++e) {
        to[first + e] = E(0);
      }
    }
  }
}

// Loads COUNT elements from k of a line on, in memory order; elements after the first `left` are
// zero. Operands that dequantise several elements at once overload it.
template <int COUNT, typename T, typename Matrix>
inline void stage_run(threadgroup T* to, Matrix from, int64_t line, int64_t k, int left) {
  const auto run = from.run(line, k);
  if (left >= COUNT) {
    for (int e = 0; e < COUNT; ++e) {
      to[e] = run[e];
    }
  } else {
    for (int e = 0; e < COUNT; ++e) {
      to[e] = e < left ? run[e] : T(0);
    }
  }
}

// The elements that a thread stages, of elements [k, k + DEPTH) of LINES lines: they are adjacent
// in memory order, from (line, k) on, and go to `offset`; elements after the first `left` are zero.
struct StagedRun {
  int offset, line, k, left;
};
template <int LINES, int THREADS, int DEPTH>
inline StagedRun staged_run(bool is_transposed, int first, int lines, int k, int inner,
                            uint index) {
  constexpr int count = LINES * DEPTH / THREADS;
  const int across = is_transposed ? LINES : DEPTH;
  const int i = static_cast<int>(index) * count / across;
  const int j = static_cast<int>(index) * count % across;
  const int line = first + (is_transposed ? j : i);
  const int at = k + (is_transposed ? i : j);
  const int lines_left = lines - line;
  const int inner_left = inner - at;
  const int left =
      is_transposed ? (inner_left > 0 ? lines_left : 0) : (lines_left > 0 ? inner_left : 0);
  return {i * (across + kPadding) + j, line, at, left};
}

// Stages elements [k, k + kTileK) of LINES lines in threadgroup memory, in memory order; elements
// beyond `lines` and `inner` are zero.
template <int LINES, int THREADS, typename Matrix>
inline void stage(threadgroup typename Matrix::element* to, Matrix from, int first, int lines,
                  int k, int inner, uint index) {
  const StagedRun run =
      staged_run<LINES, THREADS, kTileK>(from.is_transposed, first, lines, k, inner, index);
  stage_run<LINES * kTileK / THREADS>(to + run.offset, from, run.line, run.k, run.left);
}

#if defined(__HAVE_TENSOR__)

typedef ::metal::dextents<int, 2> Extents;

// Returns a tensor of the elements from `k` on of `lines` lines from `line` on.
template <bool IS_TRANSPOSED, typename T>
inline auto tensor_of(Dense<T> of, int64_t line, int lines, int k, int inner) {
  // Tensor operations only take pointers to non-const elements.
  device T* const first = const_cast<device T*>(of.elements) +
                          (IS_TRANSPOSED ? k * of.stride + line : line * of.stride + k);
  return ::metal::tensor<device T, Extents, ::metal::tensor_inline>(
      first, IS_TRANSPOSED ? Extents(lines, inner) : Extents(inner, lines),
      ::metal::array<int, 2>{1, static_cast<int>(of.stride)});
}

// Returns a tensor of what stage() stored.
template <int LINES, bool IS_TRANSPOSED, int DEPTH, typename T>
inline auto tensor_of_brought(threadgroup T* from, int inner) {
  return ::metal::tensor<threadgroup T, Extents, ::metal::tensor_inline>(
      from, IS_TRANSPOSED ? Extents(LINES, inner) : Extents(inner, LINES),
      ::metal::array<int, 2>{1, (IS_TRANSPOSED ? LINES : DEPTH) + kPadding});
}

template <typename Sum>
inline void clear(thread Sum& sums) {
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    if (sums.is_valid_element(i)) {
      sums[i] = 0.0f;
    }
  }
}

// Passes each valid sum inside of the result to the epilogue. IS_INSIDE: true if all are.
template <typename Tile, bool IS_INSIDE, typename Sum, typename Epilogue>
inline void finish_tile(Sum sums, Sum others, Sizes sizes, Epilogue epilogue, int row, int column) {
#pragma unroll
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    if (!sums.is_valid_element(i)) {
      continue;
    }
    const auto at = sums.get_multidimensional_index(i);
    if (!IS_INSIDE && (row + at[1] >= sizes.rows || column + at[0] >= sizes.columns)) {
      continue;
    }
    Sums<Tile::products> all;
    all.of[0] = sums[i];
    if constexpr (Tile::products == 2) {
      all.of[1] = others[i];
    }
    epilogue(row + at[1], column + at[0], all);
  }
}

// Passes each valid sum to the epilogue. others: the sums of the second product, if there are two.
template <typename Tile, typename Sum, typename Epilogue>
inline void finish(thread Sum& sums, thread Sum& others, Sizes sizes, Epilogue epilogue, int row,
                   int column) {
  if (row + Tile::rows <= sizes.rows && column + Tile::columns <= sizes.columns) {
    finish_tile<Tile, true>(sums, others, sizes, epilogue, row, column);
  } else {
    finish_tile<Tile, false>(sums, others, sizes, epilogue, row, column);
  }
}

template <typename Tile, bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, typename T, typename U,
          typename Epilogue>
inline void multiply_tensors(Dense<T> left, Dense<U> right, Sizes sizes, Epilogue epilogue,
                             threadgroup U*, uint2 tile, Place) {
  using namespace ::mpp::tensor_ops;
  constexpr auto descriptor = matmul2d_descriptor(
      Tile::rows, Tile::columns, static_cast<int>(::metal::dynamic_extent), LEFT_TRANSPOSED,
      !RIGHT_TRANSPOSED, false, matmul2d_descriptor::mode::multiply);
  constexpr int simdgroups = Tile::down * Tile::across;
  typedef ::metal::execution_simdgroups<simdgroups> Scope;
  matmul2d<descriptor, Scope> operation;
  const int row = static_cast<int>(tile.y) * Tile::rows;
  const int column = static_cast<int>(tile.x) * Tile::columns;
  auto a = tensor_of<LEFT_TRANSPOSED>(left, row, sizes.rows - row, 0, sizes.inner);
  auto b = tensor_of<RIGHT_TRANSPOSED>(right, column, sizes.columns - column, 0, sizes.inner);
  auto sums =
      operation.template get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
  auto others =
      operation.template get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
  clear(sums);
  if constexpr (Tile::products == 2) {
    clear(others);
  }
  if (sizes.inner > 0) {
    operation.run(a, b, sums);
    if constexpr (Tile::products == 2) {
      auto c = tensor_of<RIGHT_TRANSPOSED>(right, sizes.columns + column, sizes.columns - column, 0,
                                           sizes.inner);
      operation.run(a, c, others);
    }
  }
  finish<Tile>(sums, others, sizes, epilogue, row, column);
}

// Computes a tile whose right operand is dequantised into threadgroup memory first.
template <typename Tile, bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, typename T, typename Right,
          typename Epilogue>
inline void multiply_tensors(Dense<T> left, Right right, Sizes sizes, Epilogue epilogue,
                             threadgroup typename Right::element* workspace, uint2 tile,
                             Place place) {
  using namespace ::mpp::tensor_ops;
  constexpr auto descriptor = matmul2d_descriptor(
      Tile::rows, Tile::columns, static_cast<int>(::metal::dynamic_extent), LEFT_TRANSPOSED,
      !RIGHT_TRANSPOSED, false, matmul2d_descriptor::mode::multiply_accumulate);
  constexpr int simdgroups = Tile::down * Tile::across;
  typedef ::metal::execution_simdgroups<simdgroups> Scope;
  matmul2d<descriptor, Scope> operation;
  constexpr int depth = Tile::depth;
  constexpr int elements = elements_of<Tile::columns, depth>();
  const int row = static_cast<int>(tile.y) * Tile::rows;
  const int column = static_cast<int>(tile.x) * Tile::columns;
  typedef decltype(tensor_of<LEFT_TRANSPOSED>(left, 0, 0, 0, 0)) A;
  typedef decltype(tensor_of_brought<Tile::columns, RIGHT_TRANSPOSED, depth>(workspace, 0)) B;
  auto sums = operation.template get_destination_cooperative_tensor<A, B, float>();
  auto others = operation.template get_destination_cooperative_tensor<A, B, float>();
  clear(sums);
  if constexpr (Tile::products == 2) {
    clear(others);
  }
  for (int k = 0; k < sizes.inner; k += depth) {
    if constexpr (depth == kTileK) {
      ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
      for (int p = 0; p < Tile::products; ++p) {
        stage<Tile::columns, Tile::threads>(workspace + p * elements, right,
                                            p * sizes.columns + column, (p + 1) * sizes.columns, k,
                                            sizes.inner, place.index);
      }
    } else {
      // All loads come before the barrier, so that they are in flight together on a CPU, too.
      constexpr int count = Tile::columns * depth / Tile::threads;
      const StagedRun run = staged_run<Tile::columns, Tile::threads, depth>(
          false, column, sizes.columns, k, sizes.inner, place.index);
      const auto loaded = load_run<count>(right, run);
      ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
      store_run<count>(workspace + run.offset, right, run, loaded);
    }
    ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
    const int inner = ::metal::min(depth, sizes.inner - k);
    auto a = tensor_of<LEFT_TRANSPOSED>(left, row, sizes.rows - row, k, inner);
    auto b = tensor_of_brought<Tile::columns, RIGHT_TRANSPOSED, depth>(workspace, inner);
    operation.run(a, b, sums);
    if constexpr (Tile::products == 2) {
      auto c =
          tensor_of_brought<Tile::columns, RIGHT_TRANSPOSED, depth>(workspace + elements, inner);
      operation.run(a, c, others);
    }
  }
  finish<Tile>(sums, others, sizes, epilogue, row, column);
}

// Computes a tile with Metal 4 tensors; `tile`: its column and row. All threads of the threadgroup
// call it together. workspace: workspace<Tile, Right>() elements.
template <typename Tile, typename Left, typename Right, typename Epilogue>
inline void multiply_tile(Left left, Right right, Sizes sizes, Epilogue epilogue,
                          threadgroup typename Right::element* workspace, uint2 tile, Place place) {
  if (!left.is_transposed && !right.is_transposed) {
    multiply_tensors<Tile, false, false>(left, right, sizes, epilogue, workspace, tile, place);
  } else if (!left.is_transposed) {
    multiply_tensors<Tile, false, true>(left, right, sizes, epilogue, workspace, tile, place);
  } else if (right.is_transposed) {
    multiply_tensors<Tile, true, true>(left, right, sizes, epilogue, workspace, tile, place);
  } else {
    multiply_tensors<Tile, true, false>(left, right, sizes, epilogue, workspace, tile, place);
  }
}

#else

// Loads elements [line, line + 8) x [k, k + 8) of what stage() stored. by_line: true if lines
// become the rows of the matrix.
template <int LINES, typename T>
inline void load(thread::metal::simdgroup_matrix<T, 8, 8>& matrix, threadgroup const T* from,
                 int line, int k, bool is_transposed, bool by_line) {
  const int stride = (is_transposed ? LINES : kTileK) + kPadding;
  const int at = is_transposed ? k * stride + line : line * stride + k;
  ::metal::simdgroup_load(matrix, from + at, stride, ulong2(0), is_transposed == by_line);
}

// Computes a tile with simdgroup matrices. All threads of the threadgroup call it together.
// workspace: workspace<Tile, Right>() elements.
template <typename Tile, typename Left, typename Right, typename Epilogue>
inline void multiply_tile(Left left, Right right, Sizes sizes, Epilogue epilogue,
                          threadgroup typename Right::element* workspace, uint2 tile, Place place) {
  typedef typename Right::element T;
  constexpr int down = Tile::rows / Tile::down / 8;
  constexpr int across = Tile::columns / Tile::across / 8;
  const int row = static_cast<int>(tile.y) * Tile::rows;
  const int column = static_cast<int>(tile.x) * Tile::columns;
  const int part_row = static_cast<int>(place.simdgroup) / Tile::across * (down * 8);
  const int part_column = static_cast<int>(place.simdgroup) % Tile::across * (across * 8);
  ::metal::simdgroup_float8x8 sums[Tile::products][down][across];
  for (int p = 0; p < Tile::products; ++p) {
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) {
        sums[p][i][j] = ::metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
    }
  }
  constexpr int elements = elements_of<Tile::columns>();
  threadgroup T* const rights = workspace + elements_of<Tile::rows>();
  for (int k = 0; k < sizes.inner; k += kTileK) {
    ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
    stage<Tile::rows, Tile::threads>(workspace, left, row, sizes.rows, k, sizes.inner, place.index);
    for (int p = 0; p < Tile::products; ++p) {
      stage<Tile::columns, Tile::threads>(rights + p * elements, right, p * sizes.columns + column,
                                          (p + 1) * sizes.columns, k, sizes.inner, place.index);
    }
    ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
    for (int at = 0; at < kTileK; at += 8) {
      ::metal::simdgroup_matrix<T, 8, 8> a[down], b[across];
      for (int i = 0; i < down; ++i) {
        load<Tile::rows>(a[i], workspace, part_row + i * 8, at, left.is_transposed, true);
      }
      for (int p = 0; p < Tile::products; ++p) {
        for (int j = 0; j < across; ++j) {
          load<Tile::columns>(b[j], rights + p * elements, part_column + j * 8, at,
                              right.is_transposed, false);
        }
        for (int i = 0; i < down; ++i) {
          for (int j = 0; j < across; ++j) {
            ::metal::simdgroup_multiply_accumulate(sums[p][i][j], a[i], b[j], sums[p][i][j]);
          }
        }
      }
    }
  }
  const LaneElements of_lane = elements_of_lane(place.lane);
  const int first_row = row + part_row + of_lane.row;
  const int first_column = column + part_column + of_lane.column;
  for (int i = 0; i < down; ++i) {
    for (int j = 0; j < across; ++j) {
      for (int e = 0; e < 2; ++e) {
        if (first_row + i * 8 < sizes.rows && first_column + j * 8 + e < sizes.columns) {
          Sums<Tile::products> all;
          for (int p = 0; p < Tile::products; ++p) {
            all.of[p] = sums[p][i][j].thread_elements()[e];
          }
          epilogue(first_row + i * 8, first_column + j * 8 + e, all);
        }
      }
    }
  }
}

#endif

// ---- tile GEMM with sums in registers -----------------------------------------------------------

// Operands of TileProduct: lines in device memory (Lines), and lines in threadgroup memory with
// leading dimension STRIDE (Stored). IS_TRANSPOSED is Dense's is_transposed.
template <typename T, bool IS_TRANSPOSED>
struct Lines {
  typedef T element;
  static constant constexpr bool is_transposed = IS_TRANSPOSED;
  static constant constexpr bool is_stored = false;
#if defined(__HAVE_TENSOR__)
  typedef ::metal::tensor<device T, Extents, ::metal::tensor_inline> tensor;
#endif

  device const T* elements;
  int64_t stride;

  inline device const T* run(int64_t line, int64_t k) const {
    return elements + (IS_TRANSPOSED ? k * stride + line : line * stride + k);
  }
};
template <typename T, int STRIDE, bool IS_TRANSPOSED>
struct Stored {
  typedef T element;
  static constant constexpr bool is_transposed = IS_TRANSPOSED;
  static constant constexpr bool is_stored = true;
#if defined(__HAVE_TENSOR__)
  typedef ::metal::tensor<threadgroup T, Extents, ::metal::tensor_inline> tensor;
#endif

  threadgroup T* elements;
};

#if defined(__HAVE_TENSOR__)

template <typename T, bool IS_TRANSPOSED>
inline auto tensor_of_lines(Lines<T, IS_TRANSPOSED> from, int lines, int inner) {
  return typename Lines<T, IS_TRANSPOSED>::tensor(
      const_cast<device T*>(from.elements),
      IS_TRANSPOSED ? Extents(lines, inner) : Extents(inner, lines),
      ::metal::array<int, 2>{1, static_cast<int>(from.stride)});
}
template <typename T, int STRIDE, bool IS_TRANSPOSED>
inline auto tensor_of_lines(Stored<T, STRIDE, IS_TRANSPOSED> from, int lines, int inner) {
  return typename Stored<T, STRIDE, IS_TRANSPOSED>::tensor(
      from.elements, IS_TRANSPOSED ? Extents(lines, inner) : Extents(inner, lines),
      ::metal::array<int, 2>{1, STRIDE});
}

// A tile GEMM whose ROWS x COLUMNS sums of left right^T stay in registers, distributed over the
// SIMDGROUPS simdgroups of a threadgroup. All of its threads call each function together, and
// synchronise what they store in threadgroup memory.
template <int ROWS, int COLUMNS, int SIMDGROUPS, typename Left, typename Right>
struct TileProduct {
  typedef ::metal::execution_simdgroups<SIMDGROUPS> Scope;
  typedef ::mpp::tensor_ops::matmul2d_descriptor Descriptor;
  static constant constexpr Descriptor adding =
      Descriptor(ROWS, COLUMNS, static_cast<int>(::metal::dynamic_extent), Left::is_transposed,
                 !Right::is_transposed, false, Descriptor::mode::multiply_accumulate);
  static constant constexpr Descriptor alone =
      Descriptor(ROWS, COLUMNS, static_cast<int>(::metal::dynamic_extent), Left::is_transposed,
                 !Right::is_transposed, false, Descriptor::mode::multiply);
  typedef ::mpp::tensor_ops::matmul2d<adding, Scope> Adding;
  typedef ::mpp::tensor_ops::matmul2d<alone, Scope> Alone;
  // Elements of threadgroup memory needed.
  static constant constexpr int workspace = 1;

  static inline auto sums() {
    Adding operation;
    return operation.template get_destination_cooperative_tensor<typename Left::tensor,
                                                                 typename Right::tensor, float>();
  }

  template <typename Sums>
  static inline void clear(thread Sums& sums, Place) {
    matmul::clear(sums);
  }

  // Calls f(row, column, sum) for each sum of this thread.
  template <typename Sums, typename F>
  static inline void for_each(thread Sums& sums, F f, Place) {
#pragma unroll
    for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
      if (sums.is_valid_element(i)) {
        const auto at = sums.get_multidimensional_index(i);
        f(at[1], at[0], sums[i]);
      }
    }
  }

  // Adds left right^T to the sums, for the first left_lines and right_lines lines (the others count
  // as zero) and the first `inner` elements of each, at least one.
  template <typename Sums>
  static inline void add(thread Sums& sums, Left left, int left_lines, Right right, int right_lines,
                         int inner, threadgroup typename Right::element*, Place) {
    Adding operation;
    auto a = tensor_of_lines(left, left_lines, inner);
    auto b = tensor_of_lines(right, right_lines, inner);
    operation.run(a, b, sums);
  }

  // Computes one product and stores it with leading dimension STRIDE.
  template <int STRIDE>
  static inline void store(threadgroup float* to, Left left, int left_lines, Right right,
                           int right_lines, int inner, threadgroup typename Right::element*,
                           Place) {
    Alone operation;
    auto a = tensor_of_lines(left, left_lines, inner);
    auto b = tensor_of_lines(right, right_lines, inner);
    auto c = typename Stored<float, STRIDE, false>::tensor(to, Extents(COLUMNS, ROWS),
                                                           ::metal::array<int, 2>{1, STRIDE});
    operation.run(a, b, c);
  }
};

#else

template <int DOWN, int ACROSS>
struct MatrixSums {
  ::metal::simdgroup_float8x8 of[DOWN][ACROSS];
};

// Loads elements [line, line + 8) x [k, k + 8) of what stage() stored, or of an operand in
// threadgroup memory. at: the offset of k in the whole of K.
template <int LINES, typename T, bool IS_TRANSPOSED>
inline void load_lines(thread::metal::simdgroup_matrix<T, 8, 8>& matrix, Lines<T, IS_TRANSPOSED>,
                       threadgroup const T* staged, int line, int k, int, bool by_line) {
  load<LINES>(matrix, staged, line, k, IS_TRANSPOSED, by_line);
}
template <int LINES, typename T, int STRIDE, bool IS_TRANSPOSED>
inline void load_lines(thread::metal::simdgroup_matrix<T, 8, 8>& matrix,
                       Stored<T, STRIDE, IS_TRANSPOSED> from, threadgroup const T*, int line, int,
                       int at, bool by_line) {
  ::metal::simdgroup_load(matrix,
                          from.elements + (IS_TRANSPOSED ? at * STRIDE + line : line * STRIDE + at),
                          STRIDE, ulong2(0), IS_TRANSPOSED == by_line);
}
template <int LINES, int THREADS, typename T, bool IS_TRANSPOSED>
inline void stage_lines(threadgroup T* to, Lines<T, IS_TRANSPOSED> from, int lines, int k,
                        int inner, uint index) {
  stage<LINES, THREADS>(to, from, 0, lines, k, inner, index);
}
template <int LINES, int THREADS, typename T, int STRIDE, bool IS_TRANSPOSED>
inline void stage_lines(threadgroup T*, Stored<T, STRIDE, IS_TRANSPOSED>, int, int, int, uint) {}

template <int LINES, typename Operand>
constexpr int elements_brought() {
  return Operand::is_stored       ? 0
         : Operand::is_transposed ? kTileK * (LINES + kPadding)
                                  : LINES * (kTileK + kPadding);
}

// TileProduct with simdgroup matrices. Stored operands are zero-padded along K to a multiple of
// kTileK.
template <int ROWS, int COLUMNS, int SIMDGROUPS, typename Left, typename Right>
struct TileProduct {
  typedef typename Right::element T;
  static constant constexpr int rows_together = ROWS / 8 < SIMDGROUPS ? ROWS / 8 : SIMDGROUPS;
  static constant constexpr int columns_together = SIMDGROUPS / rows_together;
  static constant constexpr int down = ROWS / 8 / rows_together;
  static constant constexpr int across = COLUMNS / 8 / columns_together;
  static constant constexpr int threads = SIMDGROUPS * 32;
  static constant constexpr int left_elements = elements_brought<ROWS, Left>();
  static constant constexpr int workspace = left_elements + elements_brought<COLUMNS, Right>();
  typedef MatrixSums<down, across> Sums;

  static inline int first_row(Place place) {
    return static_cast<int>(place.simdgroup) / columns_together * (down * 8);
  }
  static inline int first_column(Place place) {
    return static_cast<int>(place.simdgroup) % columns_together * (across * 8);
  }

  static inline Sums sums() { return Sums(); }

  static inline void clear(thread Sums& sums, Place) {
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) {
        sums.of[i][j] = ::metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
    }
  }

  template <typename F>
  static inline void for_each(thread Sums& sums, F f, Place place) {
    const LaneElements of_lane = elements_of_lane(place.lane);
    const int row = first_row(place) + of_lane.row;
    const int column = first_column(place) + of_lane.column;
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) {
        thread auto& elements = sums.of[i][j].thread_elements();
        for (int e = 0; e < 2; ++e) {
          float sum = elements[e];  // no reference can bind to a vector's element
          f(row + i * 8, column + j * 8 + e, sum);
          elements[e] = sum;
        }
      }
    }
  }

  static inline void add(thread Sums& sums, Left left, int left_lines, Right right, int right_lines,
                         int inner, threadgroup T* staged, Place place) {
    threadgroup T* const rights = staged + left_elements;
    for (int k = 0; k < inner; k += kTileK) {
      if (!Left::is_stored || !Right::is_stored) {
        ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
        stage_lines<ROWS, threads>(staged, left, left_lines, k, inner, place.index);
        stage_lines<COLUMNS, threads>(rights, right, right_lines, k, inner, place.index);
        ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
      }
      for (int at = 0; at < kTileK; at += 8) {
        ::metal::simdgroup_matrix<T, 8, 8> a[down], b;
        for (int i = 0; i < down; ++i) {
          load_lines<ROWS>(a[i], left, staged, first_row(place) + i * 8, at, k + at, true);
        }
        for (int j = 0; j < across; ++j) {
          load_lines<COLUMNS>(b, right, rights, first_column(place) + j * 8, at, k + at, false);
          for (int i = 0; i < down; ++i) {
            ::metal::simdgroup_multiply_accumulate(sums.of[i][j], a[i], b, sums.of[i][j]);
          }
        }
      }
    }
  }

  template <int STRIDE>
  static inline void store(threadgroup float* to, Left left, int left_lines, Right right,
                           int right_lines, int inner, threadgroup T* staged, Place place) {
    Sums sums;
    clear(sums, place);
    add(sums, left, left_lines, right, right_lines, inner, staged, place);
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) {
        ::metal::simdgroup_store(
            sums.of[i][j], to + (first_row(place) + i * 8) * STRIDE + first_column(place) + j * 8,
            STRIDE);
      }
    }
  }
};

#endif

// ---- skinny GEMM --------------------------------------------------------------------------------

// Returns four elements of a line from `k` on as float; elements beyond `inner` are zero.
template <typename Matrix>
inline float4 four(Matrix matrix, int64_t line, int k, int inner) {
  const auto from = matrix.run(line, k);
  if (k + 4 <= inner) {
    return float4(static_cast<float>(from[0]), static_cast<float>(from[1]),
                  static_cast<float>(from[2]), static_cast<float>(from[3]));
  }
  return float4(static_cast<float>(from[0]), k + 1 < inner ? static_cast<float>(from[1]) : 0.0f,
                k + 2 < inner ? static_cast<float>(from[2]) : 0.0f, 0.0f);
}

// The first row and column of a threadgroup that has four simdgroups side by side, with a block of
// ROWS x COLUMNS elements each. Threadgroups cover a result of `columns` columns row by row.
struct SkinnyBlock {
  int row;
  int column;
};
template <int ROWS, int COLUMNS>
inline SkinnyBlock skinny_block_of(uint group, int columns) {
  const uint across = (static_cast<uint>(columns) + 4 * COLUMNS - 1) / (4 * COLUMNS);
  return {static_cast<int>(group / across) * ROWS,
          static_cast<int>(group % across) * (4 * COLUMNS)};
}

// Skinny GEMM: one simdgroup computes ROWS x COLUMNS elements from (row, column) on, and its lanes
// split K. It suits products that are bound by loading right. Neither operand is transposed.
template <int ROWS, int COLUMNS, int PRODUCTS, typename Left, typename Right, typename Epilogue>
inline void multiply_skinny(Left left, Right right, Sizes sizes, Epilogue epilogue, int row,
                            int column, uint lane) {
  float sums[PRODUCTS][ROWS][COLUMNS];
  for (int p = 0; p < PRODUCTS; ++p) {
    for (int r = 0; r < ROWS; ++r) {
      for (int c = 0; c < COLUMNS; ++c) {
        sums[p][r][c] = 0.0f;
      }
    }
  }
  for (int k = static_cast<int>(lane) * 4; k < sizes.inner; k += 128) {
    float4 a[ROWS];
    for (int r = 0; r < ROWS; ++r) {
      a[r] = four(left, ::metal::min(row + r, sizes.rows - 1), k, sizes.inner);
    }
    for (int p = 0; p < PRODUCTS; ++p) {
      for (int c = 0; c < COLUMNS; ++c) {
        const int line = p * sizes.columns + ::metal::min(column + c, sizes.columns - 1);
        const float4 b = four(right, line, k, sizes.inner);
        for (int r = 0; r < ROWS; ++r) {
          sums[p][r][c] += ::metal::dot(a[r], b);
        }
      }
    }
  }
  // Each lane stores one element.
  Sums<PRODUCTS> mine;
  for (int p = 0; p < PRODUCTS; ++p) {
    mine.of[p] = 0.0f;
    for (int r = 0; r < ROWS; ++r) {
      for (int c = 0; c < COLUMNS; ++c) {
        const float total = ::metal::simd_sum(sums[p][r][c]);
        mine.of[p] = static_cast<int>(lane) == r * COLUMNS + c ? total : mine.of[p];
      }
    }
  }
  const int r = static_cast<int>(lane) / COLUMNS;
  const int c = static_cast<int>(lane) % COLUMNS;
  if (r < ROWS && row + r < sizes.rows && column + c < sizes.columns) {
    epilogue(row + r, column + c, mine);
  }
}

}  // namespace matmul
}  // namespace metalops

// Convolutions of images whose channels are packs of 16 bytes, as implicit GEMM: a pixel and an
// element of the filter (a tap) name an address, and a word of bits says which taps of a pixel lie
// in the padding. Operands are staged in whole packs; NVIDIA's GPUs copy them to where tensor cores
// read them while earlier ones are multiplied. Sums are in float, and each result is rounded once.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/spatial/convolution_packed.h>
using namespace metal;
using metalops::ConvolutionImages;
using metalops::ConvolutionPacking;
using metalops::ConvolutionPacks;
using metalops::ConvolutionUnpacking;
namespace matmul = metalops::matmul;

// ---- places -------------------------------------------------------------------------------------

// Where a line or an element of K is: the sum of the offsets of both is that of their element,
// which is zero if both are outside for the same reason. Bits of reasons: the taps along each
// dimension, and below.
struct Where {
  int offset;
  uint outside;
};
constant constexpr uint kNoElement = 1u << 30;  // which all lines have
constant constexpr uint kNoLine = 1u << 31;     // which all elements have

struct Digits {
  int of[4];
};

inline Digits digits_of(int index, constant int* sizes) {
  Digits digits;
  uint rest = static_cast<uint>(index);
  for (int d = 3; d > 0; --d) {
    const uint size = static_cast<uint>(sizes[d]);
    digits.of[d] = 0;
    if (size > 1) {  // many are not, and divisions are long
      digits.of[d] = static_cast<int>(rest % size);
      rest /= size;
    }
  }
  digits.of[0] = static_cast<int>(rest);
  return digits;
}

inline int64_t offset_of(Digits digits, constant int64_t* strides) {
  return digits.of[0] * strides[0] + digits.of[1] * strides[1] + digits.of[2] * strides[2] +
         digits.of[3] * strides[3];
}

// Returns where a pixel of the images is, and which of its taps are outside.
inline Where pixel_at(int pixel, constant ConvolutionImages& p) {
  const Digits digits = digits_of(pixel, p.pixel_sizes);
  Where where{p.begin + digits.of[0] * p.pixel_strides[0], 0};
  int bit = 0;
  for (int d = 0; d < 3; ++d) {
    where.offset += digits.of[1 + d] * p.pixel_strides[1 + d];
    const int position = p.first[d] + digits.of[1 + d] * p.step[d];
    for (int tap = 0; tap < p.tap_sizes[d]; ++tap, ++bit) {
      // A negative position is a large unsigned one.
      const bool is_inside =
          static_cast<uint>(position + tap * p.move[d]) < static_cast<uint>(p.limits[d]);
      where.outside |= is_inside ? 0u : 1u << bit;
    }
  }
  return where;
}

inline Where tap_at(int tap, constant ConvolutionImages& p) {
  const int across = tap % p.tap_sizes[2];
  const int down = tap / p.tap_sizes[2] % p.tap_sizes[1];
  const int deep = tap / p.tap_sizes[2] / p.tap_sizes[1];
  return {deep * p.tap_strides[0] + down * p.tap_strides[1] + across * p.tap_strides[2],
          1u << deep | 1u << (p.tap_sizes[0] + down) |
              1u << (p.tap_sizes[0] + p.tap_sizes[1] + across)};
}

// ---- operands -----------------------------------------------------------------------------------

// Operands have lines from `first` on and elements of K from `begin` to `end`. find() computes
// where a line is, and find_lines() keeps it for line(). prepare() is called for [k, k + count),
// counted from `begin`, before inner() of these, and a barrier follows. in_map() says it all to
// GPUs that copy boxes of lines by themselves.
#if defined(__METALOPS_GATHERED_LINES__)
constant constexpr int kImagesAt = metalops::kConvolutionImagesAt;
constant constexpr int kOtherAt = metalops::kConvolutionOtherAt;
typedef ::mpp::tensor_ops::gathered_pixels<1, 4, kImagesAt> PixelsInMap;
typedef ::mpp::tensor_ops::gathered_taps<1, 4, kImagesAt> TapsInMap;
typedef ::mpp::tensor_ops::gathered_rows<2, 4, kOtherAt> RowsInMap;
typedef ::mpp::tensor_ops::gathered_columns<2, 4, kOtherAt> ColumnsInMap;
#endif

template <typename Operand>
inline void find_all(Operand of, threadgroup Where* lines, int count, int index, int threads) {
  for (int i = index; i < count; i += threads) {
    lines[i] = of.find(i);
  }
}

// The images by pixels: K are taps and channels.
template <typename T>
struct PixelLines {
  typedef T element;
  device const T* elements;
  threadgroup Where* lines;
  threadgroup Where* taps;
  constant ConvolutionPacks& p;
  int first, begin, end, group;

#if defined(__METALOPS_GATHERED_LINES__)
  inline PixelsInMap in_map() const { return PixelsInMap(p.images, first, begin, group); }
#endif
  inline Where line(int i) const { return lines[i]; }
  inline void find_lines(int count, int index, int threads) const {
    find_all(*this, lines, count, index, threads);
    const int all = p.images.tap_sizes[0] * p.images.tap_sizes[1] * p.images.tap_sizes[2];
    for (int tap = index; tap < all; tap += threads) {
      taps[tap] = tap_at(tap, p.images);
    }
  }
  inline Where find(int i) const {
    if (first + i >= p.rows) {
      return {0, ~0u};
    }
    const Where where = pixel_at(first + i, p.images);
    return {where.offset, where.outside | kNoElement};
  }
  inline Where inner(int k) const {
    const uint at = static_cast<uint>(begin + k);
    if (begin + k >= end) {
      return {0, kNoElement | kNoLine};
    }
    const uint tap = at / static_cast<uint>(p.images.channels);
    const Where where = taps[tap];
    return {where.offset + static_cast<int>(at - tap * static_cast<uint>(p.images.channels)),
            where.outside | kNoLine};
  }
  inline void prepare(int, int) const {}
};

// The weight by channels of the result.
template <typename T>
struct WeightLines {
  typedef T element;
  device const T* elements;
  threadgroup Where* lines;
  constant ConvolutionPacks& p;
  int first, begin, end, group;

#if defined(__METALOPS_GATHERED_LINES__)
  inline RowsInMap in_map() const { return RowsInMap{group * p.columns + first, begin}; }
#endif
  inline Where line(int i) const { return lines[i]; }
  inline void find_lines(int count, int index, int threads) const {
    find_all(*this, lines, count, index, threads);
  }
  inline Where find(int i) const {
    const bool exists = first + i < p.columns;
    return {exists ? (first + i) * p.other.stride : 0, exists ? kNoElement : ~0u};
  }
  inline Where inner(int k) const {
    const bool exists = begin + k < end;
    return {exists ? begin + k : 0, exists ? kNoLine : kNoElement | kNoLine};
  }
  inline void prepare(int, int) const {}
};

// Likewise, from a weight by channels of the images: its lines are elements of K.
template <typename T>
struct WeightColumns {
  typedef T element;
  device const T* elements;
  threadgroup Where* lines;
  constant ConvolutionPacks& p;
  int first, begin, end, group;

  inline int columns_of_tap() const { return p.other.stride / (p.inner / p.images.channels); }
#if defined(__METALOPS_GATHERED_LINES__)
  inline ColumnsInMap in_map() const {
    const int channels = p.images.channels;
    return ColumnsInMap{first, begin, group * channels, channels, columns_of_tap()};
  }
#endif
  inline Where line(int i) const { return lines[i]; }
  inline void find_lines(int count, int index, int threads) const {
    find_all(*this, lines, count, index, threads);
  }
  inline Where find(int i) const {
    const bool exists = first + i < columns_of_tap();
    return {exists ? first + i : 0, exists ? kNoElement : ~0u};
  }
  inline Where inner(int k) const {
    if (begin + k >= end) {
      return {0, kNoElement | kNoLine};
    }
    const int tap = (begin + k) / p.images.channels;
    return {(begin + k - tap * p.images.channels) * p.other.stride + tap * columns_of_tap(),
            kNoLine};
  }
  inline void prepare(int, int) const {}
};

// Pixels as elements of K, in the images and in the outputs.
struct Pixel {
  int in_images;
  int in_outputs;
  uint outside;
};
constant constexpr int kKept = 4 * 64;  // 64 are prepared at a time, at most

struct PixelRing {
  threadgroup Pixel* pixels;
  constant ConvolutionPacks& p;
  int begin, end;
  uint index;  // of the thread

  inline void prepare(int k, int count) const {
    if (index < static_cast<uint>(count)) {
      const int at = begin + k + static_cast<int>(index);
      Pixel pixel{0, 0, ~0u};
      if (at < end) {
        const Where where = pixel_at(at, p.images);
        pixel = {where.offset, at * p.other.stride, where.outside | kNoLine};
      }
      pixels[(k + static_cast<int>(index)) % kKept] = pixel;
    }
  }
  inline Pixel pixel(int k) const { return pixels[k % kKept]; }
};

// The outputs by channels.
template <typename T>
struct OutputLines {
  typedef T element;
  device const T* elements;
  threadgroup Where* lines;
  PixelRing ring;
  constant ConvolutionPacks& p;
  int first, group;

#if defined(__METALOPS_GATHERED_LINES__)
  inline ColumnsInMap in_map() const {
    return ColumnsInMap{group * p.rows + first, ring.begin, 0, p.other.lines, 0};
  }
#endif
  inline Where line(int i) const { return lines[i]; }
  inline void find_lines(int count, int index, int threads) const {
    find_all(*this, lines, count, index, threads);
  }
  inline Where find(int i) const {
    const bool exists = first + i < p.rows;
    return {exists ? first + i : 0, exists ? kNoElement : ~0u};
  }
  inline Where inner(int k) const {
    const Pixel pixel = ring.pixel(k);
    return {pixel.in_outputs, pixel.outside == ~0u ? ~0u : kNoLine};
  }
  inline void prepare(int k, int count) const { ring.prepare(k, count); }
};

// The images by taps and channels.
template <typename T>
struct TapLines {
  typedef T element;
  device const T* elements;
  threadgroup Where* lines;
  PixelRing ring;
  constant ConvolutionPacks& p;
  int first, group;

#if defined(__METALOPS_GATHERED_LINES__)
  inline TapsInMap in_map() const { return TapsInMap(p.images, first, ring.begin, group); }
#endif
  inline Where line(int i) const { return lines[i]; }
  inline void find_lines(int count, int index, int threads) const {
    find_all(*this, lines, count, index, threads);
  }
  inline Where find(int i) const {
    if (first + i >= p.columns) {
      return {0, ~0u};
    }
    const int tap = (first + i) / p.images.channels;
    const Where where = tap_at(tap, p.images);
    return {where.offset + first + i - tap * p.images.channels, where.outside | kNoElement};
  }
  inline Where inner(int k) const {
    const Pixel pixel = ring.pixel(k);
    return {pixel.in_images, pixel.outside};
  }
  inline void prepare(int, int) const {}  // by the outputs
};

// ---- products -----------------------------------------------------------------------------------

template <typename T>
constexpr int elements_of_pack() {
  return metalops::kConvolutionPack / static_cast<int>(sizeof(T));
}

// A pack of elements.
template <typename T>
struct alignas(metalops::kConvolutionPack) Pack {
  T of[elements_of_pack<T>()];
};

#if defined(__METALOPS_GATHERED_LINES__) && defined(__HAVE_TENSOR__)
constant constexpr bool is_gathered = true;
#else
constant constexpr bool is_gathered = false;
#endif

// A product of ROWS x COLUMNS sums, of operands that are contiguous along K (deep) or along their
// lines.
template <typename T, int ROWS, int COLUMNS, int SIMDGROUPS, bool LEFT_DEEP, bool RIGHT_DEEP>
struct PackedProduct {
  // Elements of K that are staged at a time. Floats are multiplied as tensors, for which any number
  // will do.
  static constant constexpr int step = sizeof(T) == 4 ? 16 : matmul::kTileK;
  static constant constexpr int left_stride = (LEFT_DEEP ? step : ROWS) + 8;
  static constant constexpr int right_stride = (RIGHT_DEEP ? step : COLUMNS) + 8;
  typedef matmul::Stored<T, left_stride, !LEFT_DEEP> Left;
  typedef matmul::Stored<T, right_stride, !RIGHT_DEEP> Right;
  typedef matmul::TileProduct<ROWS, COLUMNS, SIMDGROUPS, Left, Right> Product;
  static constant constexpr int threads = SIMDGROUPS * 32;
  static constant constexpr bool is_left_deep = LEFT_DEEP;
  static constant constexpr bool is_right_deep = RIGHT_DEEP;
  // Packs and elements of threadgroup memory.
  static constant constexpr int pack = elements_of_pack<T>();
  static constant constexpr int left_packs =
      is_gathered ? 1 : (LEFT_DEEP ? ROWS : step) * left_stride / pack;
  static constant constexpr int right_packs =
      is_gathered ? 1 : (RIGHT_DEEP ? COLUMNS : step) * right_stride / pack;
  static constant constexpr int workspace = Product::workspace > 0 ? Product::workspace : 1;
};

// Stages elements [k, k + STEP) of LINES lines.
template <typename T, int LINES, int STEP, int STRIDE, int THREADS, bool IS_DEEP, typename Operand>
inline void stage_packs(threadgroup Pack<T>* to, Operand from, int k, int index) {
  constexpr int pack = elements_of_pack<T>();
  constexpr int across = (IS_DEEP ? STEP : LINES) / pack;
  for (int i = index; i < LINES * STEP / pack; i += THREADS) {
    const int outer = i / across, inner = i % across * pack;
    const Where line = from.line(IS_DEEP ? outer : inner);
    const Where at = from.inner(k + (IS_DEEP ? inner : outer));
    Pack<T> pack_of{};
    if ((line.outside & at.outside) == 0) {
      pack_of = *reinterpret_cast<device const Pack<T>*>(from.elements + line.offset + at.offset);
    }
    to[(outer * STRIDE + inner) / pack] = pack_of;
  }
}

// Adds the product of the first `inner` elements of K to the sums.
// meanwhile() is done once, by each thread.
template <typename Tile, typename T, int ROWS, int COLUMNS, typename Left, typename Right,
          typename Sums, typename Meanwhile>
inline void add_packed(thread Sums& sums, Left left, Right right, int inner, Meanwhile meanwhile,
                       matmul::Place place, threadgroup Pack<T>* lefts, threadgroup Pack<T>* rights,
                       threadgroup T* workspace) {
#if defined(__METALOPS_GATHERED_LINES__) && defined(__HAVE_TENSOR__)
  typename Tile::Product::Adding operation;
  ::mpp::tensor_ops::run_gathered(operation, left, right, inner, sums, meanwhile);
#else
  const int index = static_cast<int>(place.index);
  left.find_lines(ROWS, index, Tile::threads);
  right.find_lines(COLUMNS, index, Tile::threads);
  meanwhile();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int k = 0; k < inner; k += Tile::step) {
    left.prepare(k, Tile::step);
    right.prepare(k, Tile::step);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_packs<T, ROWS, Tile::step, Tile::left_stride, Tile::threads, Tile::is_left_deep>(
        lefts, left, k, index);
    stage_packs<T, COLUMNS, Tile::step, Tile::right_stride, Tile::threads, Tile::is_right_deep>(
        rights, right, k, index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Tile::Product::add(sums, typename Tile::Left{reinterpret_cast<threadgroup T*>(lefts)}, ROWS,
                       typename Tile::Right{reinterpret_cast<threadgroup T*>(rights)}, COLUMNS,
                       Tile::step, workspace, place);
  }
#endif
}

// ---- results ------------------------------------------------------------------------------------

// The part of the product that a threadgroup computes.
struct Share {
  int row, column;
  int group;
  int split;
  int begin, end;  // of K
};

template <int ROWS, int COLUMNS>
inline Share share_of(uint threadgroup_index, constant ConvolutionPacks& p) {
  const int across = (p.columns + COLUMNS - 1) / COLUMNS;
  const int down = (p.rows + ROWS - 1) / ROWS;
  const int tile = static_cast<int>(threadgroup_index % static_cast<uint>(across * down));
  const int other = static_cast<int>(threadgroup_index / static_cast<uint>(across * down));
  const int split = other / p.images.groups;
  const int begin = split * p.inner_of_split;
  return {tile / across * ROWS,
          tile % across * COLUMNS,
          other % p.images.groups,
          split,
          begin,
          min(begin + p.inner_of_split, p.inner)};
}

constant constexpr int kNowhere = -1;

// Return the offset of a row of the result in its group, and of a column, or kNowhere.
inline int row_offset(int row, constant ConvolutionPacks& p) {
  return row < p.rows ? static_cast<int>(offset_of(digits_of(row, p.row_sizes), p.row_strides))
                      : kNowhere;
}
inline int column_offset(int column, constant ConvolutionPacks& p) {
  const Digits digits = digits_of(column, p.column_sizes);
  return column < p.columns && digits.of[3] < p.stored_channels
             ? static_cast<int>(offset_of(digits, p.column_strides))
             : kNowhere;
}
inline int64_t group_offset(int group, constant ConvolutionPacks& p) {
  return p.result_begin + group * p.result_group_stride;
}

template <typename T>
inline float bias_at(device const T* bias, int group, int column, constant ConvolutionPacks& p) {
  return p.has_bias ? static_cast<float>(bias[group * static_cast<int64_t>(p.columns) + column])
                    : 0.0f;
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T of[2];
};

// Stores sums at the offsets of their rows and columns. Sums of a split have no bias yet.
template <typename R, int ROWS, bool IS_SPLIT>
struct StoreSums {
  device R* result;
  threadgroup const int* offsets;
  threadgroup const float* added;

  inline void operator()(int r, int c, float sum) const {
    const int in_row = offsets[r], in_column = offsets[ROWS + c];
    if ((in_row | in_column) >= 0) {
      result[in_row + in_column] = static_cast<R>(IS_SPLIT ? sum : sum + added[c]);
    }
  }
  // Stores the sums of an even column and the next one, where the result has pairs.
  inline void store_pair(int r, int c, float first, float second) const {
    const int in_row = offsets[r], in_column = offsets[ROWS + c];
    if ((in_row | in_column) >= 0) {
      Pair<R> pair;
      pair.of[0] = static_cast<R>(IS_SPLIT ? first : first + added[c]);
      pair.of[1] = static_cast<R>(IS_SPLIT ? second : second + added[c + 1]);
      *reinterpret_cast<device Pair<R>*>(result + in_row + in_column) = pair;
    }
  }
};

// Elements of 16 bits, and eight of them that are adjacent in a row.
template <typename T>
struct RoundedSum {
  threadgroup const float* added;
  inline T operator()(int, int c, float sum) const { return static_cast<T>(sum + added[c]); }
};
template <typename T, int ROWS>
struct StoreInRow {
  device T* result;
  threadgroup const int* offsets;

  template <typename Eight>
  inline void operator()(int r, int c, Eight eight) const {
    const int in_row = offsets[r], in_column = offsets[ROWS + c];
    if ((in_row | in_column) >= 0) {
      *reinterpret_cast<device Eight*>(result + in_row + in_column) = eight;
    }
  }
};
// Likewise in a column. Rows that are adjacent in an image may also be in the next one.
template <typename T, int ROWS>
struct StoreInColumn {
  device T* result;
  threadgroup const int* offsets;

  template <typename Eight>
  inline void operator()(int r, int c, Eight eight) const {
    const int in_row = offsets[r], in_column = offsets[ROWS + c];
    if ((in_row | in_column) < 0) {
      return;
    }
    device T* const to = result + in_row + in_column;
    if (offsets[r + 7] == in_row + 7 && reinterpret_cast<uint64_t>(to) % 16 == 0) {
      *reinterpret_cast<device Eight*>(to) = eight;
      return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (offsets[r + e] >= 0) {
        result[offsets[r + e] + in_column] = eight.of[e];
      }
    }
  }
};

// Finds the offsets of the rows and columns of a tile in the result, and what is added to columns.
template <typename T, int ROWS, int COLUMNS, int THREADS, bool IS_SPLIT>
struct FindOffsets {
  threadgroup int* offsets;
  threadgroup float* added;
  device const T* bias;
  Share share;
  int index;  // of the thread
  constant ConvolutionPacks& p;

  inline void operator()() const {
    for (int i = index; i < ROWS + COLUMNS; i += THREADS) {
      const int row = share.row + i, column = share.column + i - ROWS;
      if (IS_SPLIT) {
        offsets[i] = i < ROWS ? (row < p.rows ? row * p.columns : kNowhere)
                              : (column < p.columns ? column : kNowhere);
      } else {
        offsets[i] = i < ROWS ? row_offset(row, p) : column_offset(column, p);
        if (i >= ROWS) {
          added[i - ROWS] = column < p.columns ? bias_at(bias, share.group, column, p) : 0.0f;
        }
      }
    }
  }
};

// Stores the sums at what FindOffsets has found.
template <typename Tile, typename T, typename R, int ROWS, int COLUMNS, bool IS_SPLIT,
          typename Sums>
inline void store_packed(thread Sums& sums, device R* result, threadgroup const int* offsets,
                         threadgroup const float* added, Share share, matmul::Place place,
                         constant ConvolutionPacks& p) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int64_t first =
      IS_SPLIT
          ? (share.split * static_cast<int64_t>(p.images.groups) + share.group) * p.rows * p.columns
          : group_offset(share.group, p);
  const StoreSums<R, ROWS, IS_SPLIT> store{result + first, offsets, added};
#if defined(__METALOPS_GATHERED_LINES__) && defined(__HAVE_TENSOR__)
  if constexpr (sizeof(T) == 2 && !IS_SPLIT) {
    typename Tile::Product::Adding operation;
    if (p.adjacent == 8) {
      ::mpp::tensor_ops::store_in_eights<false>(operation, sums, RoundedSum<T>{added},
                                                StoreInRow<T, ROWS>{result + first, offsets});
      return;
    }
    if (p.adjacent == metalops::kConvolutionRows) {
      ::mpp::tensor_ops::store_in_eights<true>(operation, sums, RoundedSum<T>{added},
                                               StoreInColumn<T, ROWS>{result + first, offsets});
      return;
    }
  }
  if (sizeof(T) == 2 && p.adjacent == 2) {  // as a lane of these GPUs has
#pragma unroll
    for (uint16_t i = 0; i < sums.get_capacity(); i += 2) {
      const auto at = sums.get_multidimensional_index(i);
      store.store_pair(at[1], at[0], sums[i], sums[i + 1]);
    }
    return;
  }
#endif
  Tile::Product::for_each(sums, store, place);
}

// ---- kernels ------------------------------------------------------------------------------------

// Convolves: a tile of pixels and channels for each threadgroup. R: T, or float for a split of K.
// BY_COLUMNS: the weight is by channels of the images.
template <typename T, typename R, int ROWS, int COLUMNS, int SIMDGROUPS, bool IS_SPLIT,
          bool BY_COLUMNS>
[[max_total_threads_per_threadgroup(SIMDGROUPS * 32)]]
kernel void convolution_packed(device R* result [[buffer(0)]], device const T* images [[buffer(1)]],
                               device const T* weight [[buffer(2)]],
                               device const T* bias [[buffer(3)]],
                               constant ConvolutionPacks& p [[buffer(4)]],
                               uint threadgroup_index [[threadgroup_position_in_grid]],
                               uint thread_index [[thread_index_in_threadgroup]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  typedef PackedProduct<T, ROWS, COLUMNS, SIMDGROUPS, true, !BY_COLUMNS> Tile;
  typedef conditional_t<BY_COLUMNS, WeightColumns<T>, WeightLines<T>> Weight;
  threadgroup Pack<T> lefts[Tile::left_packs];
  threadgroup Pack<T> rights[Tile::right_packs];
  threadgroup T workspace[Tile::workspace];
  threadgroup Where lines[ROWS + COLUMNS];
  threadgroup Where taps[metalops::kConvolutionTaps];
  threadgroup int offsets[ROWS + COLUMNS];
  threadgroup float added[COLUMNS];
  const Share share = share_of<ROWS, COLUMNS>(threadgroup_index, p);
  const matmul::Place place{thread_index, simdgroup, lane};
  const PixelLines<T> left{images + share.group * p.images.channels,
                           lines,
                           taps,
                           p,
                           share.row,
                           share.begin,
                           share.end,
                           share.group};
  const Weight right{weight + share.group * static_cast<int64_t>(p.other_group_stride),
                     lines + ROWS,
                     p,
                     share.column,
                     share.begin,
                     share.end,
                     share.group};
  auto sums = Tile::Product::sums();
  Tile::Product::clear(sums, place);
  const FindOffsets<T, ROWS, COLUMNS, Tile::threads, IS_SPLIT> find{
      offsets, added, bias, share, static_cast<int>(thread_index), p};
  add_packed<Tile, T, ROWS, COLUMNS>(sums, left, right, share.end - share.begin, find, place, lefts,
                                     rights, workspace);
  store_packed<Tile, T, R, ROWS, COLUMNS, IS_SPLIT>(sums, result, offsets, added, share, place, p);
}

// The gradient of the weight: a tile of channels of the outputs, and of taps and channels of the
// images, for each threadgroup.
template <typename T, typename R, int ROWS, int COLUMNS, int SIMDGROUPS, bool IS_SPLIT>
[[max_total_threads_per_threadgroup(SIMDGROUPS * 32)]]
kernel void convolution_packed_weight(device R* result [[buffer(0)]],
                                      device const T* images [[buffer(1)]],
                                      device const T* outputs [[buffer(2)]],
                                      device const T* bias [[buffer(3)]],
                                      constant ConvolutionPacks& p [[buffer(4)]],
                                      uint threadgroup_index [[threadgroup_position_in_grid]],
                                      uint thread_index [[thread_index_in_threadgroup]],
                                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                                      uint lane [[thread_index_in_simdgroup]]) {
  typedef PackedProduct<T, ROWS, COLUMNS, SIMDGROUPS, false, false> Tile;
  threadgroup Pack<T> lefts[Tile::left_packs];
  threadgroup Pack<T> rights[Tile::right_packs];
  threadgroup T workspace[Tile::workspace];
  threadgroup Where lines[ROWS + COLUMNS];
  threadgroup Pixel pixels[kKept];
  threadgroup int offsets[ROWS + COLUMNS];
  threadgroup float added[COLUMNS];
  const Share share = share_of<ROWS, COLUMNS>(threadgroup_index, p);
  const matmul::Place place{thread_index, simdgroup, lane};
  const PixelRing ring{pixels, p, share.begin, share.end, thread_index};
  const OutputLines<T> left{outputs + share.group * static_cast<int64_t>(p.other_group_stride),
                            lines,
                            ring,
                            p,
                            share.row,
                            share.group};
  const TapLines<T> right{
      images + share.group * p.images.channels, lines + ROWS, ring, p, share.column, share.group};
  auto sums = Tile::Product::sums();
  Tile::Product::clear(sums, place);
  const FindOffsets<T, ROWS, COLUMNS, Tile::threads, IS_SPLIT> find{
      offsets, added, bias, share, static_cast<int>(thread_index), p};
  add_packed<Tile, T, ROWS, COLUMNS>(sums, left, right, share.end - share.begin, find, place, lefts,
                                     rights, workspace);
  store_packed<Tile, T, R, ROWS, COLUMNS, IS_SPLIT>(sums, result, offsets, added, share, place, p);
}

template <typename T>
struct alignas(metalops::kConvolutionTogether * sizeof(T)) Adjacent {
  T of[metalops::kConvolutionTogether];
};

// Stores adjacent columns of the result.
template <typename T>
inline void store_combined(device T* result, float4 sum, device const T* bias, int group, int row,
                           int column, int left, constant ConvolutionPacks& p) {
  constexpr int count = metalops::kConvolutionTogether;
  device T* const to = result + group_offset(group, p) + row_offset(row, p);
  if (p.column_sizes[3] % count != 0) {
    for (int e = 0; e < left; ++e) {
      const int in_column = column_offset(column + e, p);
      if (in_column != kNowhere) {
        to[in_column] = static_cast<T>(sum[e] + bias_at(bias, group, column + e, p));
      }
    }
    return;
  }
  const Digits digits = digits_of(column, p.column_sizes);
  device T* const first = to + offset_of(digits, p.column_strides);
  Adjacent<T> values;
  for (int e = 0; e < count; ++e) {
    values.of[e] = static_cast<T>(e < left ? sum[e] + bias_at(bias, group, column + e, p) : 0.0f);
  }
  left = min(left, p.stored_channels - digits.of[3]);
  if (left == count && p.column_strides[3] == 1 &&
      reinterpret_cast<uint64_t>(first) % sizeof(Adjacent<T>) == 0) {
    *reinterpret_cast<device Adjacent<T>*>(first) = values;
    return;
  }
  for (int e = 0; e < left; ++e) {
    first[e * p.column_strides[3]] = values.of[e];
  }
}

// Adds the sums of the splits, of kConvolutionTogether adjacent columns for each thread. If there
// are many, `parts` simdgroups have every parts'th split each, and their sums are added in order.
template <typename T>
kernel void convolution_packed_combine(device T* result [[buffer(0)]],
                                       device const float* sums [[buffer(1)]],
                                       device const T* bias [[buffer(2)]],
                                       constant ConvolutionPacks& p [[buffer(3)]],
                                       constant int& parts [[buffer(4)]],
                                       uint threadgroup_index [[threadgroup_position_in_grid]],
                                       uint thread_index [[thread_index_in_threadgroup]]) {
  constexpr int count = metalops::kConvolutionTogether;
  constexpr uint threads = metalops::kConvolutionCombining;
  threadgroup float4 of_parts[threads];
  const uint columns = static_cast<uint>(p.columns), across = (columns + count - 1) / count;
  const uint in_group = across * static_cast<uint>(p.rows);
  const uint together = threads / static_cast<uint>(parts);  // threads of a part
  const uint part = thread_index / together;
  const uint tiles = (in_group + together - 1) / together;
  const uint group = threadgroup_index / tiles;
  const uint index =
      (threadgroup_index - group * tiles) * together + thread_index - part * together;
  const uint row = index / across;
  const int column = static_cast<int>(index - row * across) * count;
  const int left = index < in_group ? min(p.columns - column, count) : 0;
  const int64_t elements = static_cast<int64_t>(p.rows) * p.columns;
  const int64_t between = elements * p.images.groups;
  device const float* from = sums + group * elements + row * static_cast<int64_t>(columns) + column;
  float4 sum(0.0f);
  if (left == count && columns % count == 0) {
    // The sums of several splits are loaded together; those that do not exist are another's.
    constexpr int loaded = 8;
    for (int split = static_cast<int>(part); split < p.splits; split += loaded * parts) {
      float4 values[loaded];
#pragma unroll
      for (int e = 0; e < loaded; ++e) {
        const int64_t other = min(split + e * parts, p.splits - 1);
        values[e] = *reinterpret_cast<device const float4*>(from + other * between);
      }
#pragma unroll
      for (int e = 0; e < loaded; ++e) {
        sum += split + e * parts < p.splits ? values[e] : float4(0.0f);
      }
    }
  } else {
    for (int split = static_cast<int>(part); split < p.splits; split += parts) {
      for (int e = 0; e < left; ++e) {
        sum[e] += from[split * between + e];
      }
    }
  }
  if (parts > 1) {
    of_parts[thread_index] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int other = 1; other < parts && part == 0; ++other) {
      sum += of_parts[thread_index + other * together];
    }
  }
  if (part == 0 && left > 0) {
    store_combined(result, sum, bias, static_cast<int>(group), static_cast<int>(row), column, left,
                   p);
  }
}

// ---- packs --------------------------------------------------------------------------------------

struct alignas(metalops::kConvolutionPack) PackOfWords {
  uint of[4];
};

// Where a threadgroup's tile of a tensor is.
struct PackedTile {
  int pixel, pixels, channel, channels;  // the first, and how many
  int pitch;                             // of channels in threadgroup memory
};

inline int64_t offset_of_pixel(int pixel, constant ConvolutionPacking& p) {
  if (p.sizes[2] == p.pixels) {
    return pixel * p.strides[2];
  }
  const uint width = static_cast<uint>(p.sizes[2]), height = static_cast<uint>(p.sizes[1]);
  const uint line = static_cast<uint>(pixel) / width, x = static_cast<uint>(pixel) - line * width;
  const uint z = line / height, y = line - z * height;
  return z * p.strides[0] + y * p.strides[1] + x * p.strides[2];
}

// Threadgroup memory has elements of a channel, or words of two channels. The loads of several are
// in flight together.
template <typename T>
inline void load_elements(threadgroup T* tile, device const T* from, PackedTile t, int index,
                          constant ConvolutionPacking& p) {
  constexpr int threads = metalops::kConvolutionPackingThreads;
  // A thread has one pixel, or several that are whole turns apart.
  const int turn = max(threads >> p.tile_pixels, 1);
  for (int q = index & ((1 << p.tile_pixels) - 1); q < t.pixels; q += threads) {
    const int64_t offset = offset_of_pixel(t.pixel + q, p);
    for (int c = index >> p.tile_pixels; c < t.channels; c += turn) {
      const bool exists = t.channel + c < p.channels;
      tile[c * t.pitch + q] = exists ? from[offset + c * p.channel_stride] : T(0);
    }
  }
}

inline uint joined(uint low, uint high) { return (low & 0xffffu) | high << 16; }

// Two pixels of two channels at a time, whose pixels are adjacent at multiples of two elements.
template <typename T>
inline void load_pairs(threadgroup uint* tile, device const T* from, PackedTile t, int index,
                       constant ConvolutionPacking& p) {
  constexpr int threads = metalops::kConvolutionPackingThreads;
  constexpr int together = 4;
  const int digits = p.tile_pixels - 1, turn = max(threads >> digits, 1);
  for (int q = (index & ((1 << digits) - 1)) * 2; q < t.pixels; q += threads * 2) {
    device const T* const first = from + offset_of_pixel(t.pixel + q, p);
    for (int c = index >> digits << 1; c < t.channels; c += turn * 2 * together) {
      uint words[together][2];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int channel = c + i * turn * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool exists = channel < t.channels && t.channel + channel + e < p.channels;
          words[i][e] =
              exists
                  ? *reinterpret_cast<device const uint*>(first + (channel + e) * p.channel_stride)
                  : 0u;
        }
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const int channel = c + i * turn * 2;
        if (channel < t.channels) {
          threadgroup uint* const to = tile + channel / 2 * t.pitch + q;
          to[0] = joined(words[i][0], words[i][1]);
          to[1] = joined(words[i][0] >> 16, words[i][1] >> 16);
        }
      }
    }
  }
}

// All pixels of two channels, which follow each other, as those of a weight do.
template <typename T>
inline void load_runs(threadgroup uint* tile, device const T* from, PackedTile t, int index,
                      constant ConvolutionPacking& p) {
  constexpr int threads = metalops::kConvolutionPackingThreads;
  const uint pixels = static_cast<uint>(t.pixels);
  const int turn = static_cast<int>(threads / pixels), rest = threads - turn * t.pixels;
  int c = static_cast<int>(static_cast<uint>(index) / pixels), q = index - c * t.pixels;
#pragma unroll 4
  while (c * 2 < t.channels) {
    ushort pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int channel = c * 2 + e;
      pair[e] = t.channel + channel < p.channels
                    ? reinterpret_cast<device const ushort*>(from)[channel * t.pixels + q]
                    : ushort(0);
    }
    tile[c * t.pitch + q] = joined(pair[0], pair[1]);
    q += rest;
    c += turn;
    if (q >= t.pixels) {
      q -= t.pixels;
      ++c;
    }
  }
}

// Copies a tile for each threadgroup: read along pixels, which are often adjacent in memory, and
// written along channels.
template <typename T>
kernel void convolution_packed_copy(device T* packed [[buffer(0)]],
                                    device const T* tensor [[buffer(1)]],
                                    constant ConvolutionPacking& p [[buffer(2)]],
                                    uint threadgroup_index [[threadgroup_position_in_grid]],
                                    uint thread_index [[thread_index_in_threadgroup]]) {
  constexpr int pack = elements_of_pack<T>();
  constexpr int threads = metalops::kConvolutionPackingThreads;
  constexpr int words = sizeof(T) == 2 ? 2 : 1;  // channels of one
  constexpr int size = metalops::kConvolutionPackingTile + metalops::kConvolutionPackingChannels;
  threadgroup uint memory[size / words];
  threadgroup T* const tile = reinterpret_cast<threadgroup T*>(memory);
  const uint across = static_cast<uint>(p.across), down = static_cast<uint>(p.down);
  const uint groups = static_cast<uint>(p.groups);
  const int index = static_cast<int>(thread_index);
  const uint line = threadgroup_index / across, other = line / down;
  const int pixel = static_cast<int>(threadgroup_index - line * across) << p.tile_pixels;
  const int channel = static_cast<int>(line - other * down) << p.tile_channels;
  const int64_t image = groups == 1 ? other : other / groups, group = other - image * groups;
  const PackedTile t{pixel, min(1 << p.tile_pixels, p.pixels - pixel), channel,
                     min(1 << p.tile_channels, p.padded - channel), (1 << p.tile_pixels) + 1};
  device const T* const from =
      tensor + image * p.image_stride + group * p.group_stride + channel * p.channel_stride;
  device T* const to = packed + image * p.packed_image + group * p.packed_group + channel;
  const bool are_words = words == 2 && p.order != metalops::kConvolutionAnyOrder;
  if (!are_words) {
    load_elements(tile, from, t, index, p);
  } else if (p.order == metalops::kConvolutionPairs) {
    load_pairs(memory, from, t, index, p);
  } else {
    load_runs(memory, from, t, index, p);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  constexpr int digits_of_pack = pack == 8 ? 3 : 2;
  const int digits = p.tile_channels - digits_of_pack;  // of the packs of a whole tile
  for (int i = index; i < t.pixels << digits; i += threads) {
    const int q = i >> digits, c = (i & ((1 << digits) - 1)) * pack;
    if (c >= t.channels) {
      continue;
    }
    device T* const at = to + (pixel + q) * p.packed_pixel + c;
    if (are_words) {
      PackOfWords values;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        values.of[e] = memory[(c / 2 + e) * t.pitch + q];
      }
      *reinterpret_cast<device PackOfWords*>(at) = values;
    } else {
      Pack<T> values;
#pragma unroll
      for (int e = 0; e < pack; ++e) {
        values.of[e] = tile[(c + e) * t.pitch + q];
      }
      *reinterpret_cast<device Pack<T>*>(at) = values;
    }
  }
}

// Copies lines of packed pixels, as of the gradient of a weight, to where the pixels of a channel
// are adjacent, as are channels: a line and some of its channels for each threadgroup.
template <typename T>
kernel void convolution_packed_unpack(device T* result [[buffer(0)]],
                                      device const T* packed [[buffer(1)]],
                                      constant ConvolutionUnpacking& p [[buffer(2)]],
                                      uint threadgroup_index [[threadgroup_position_in_grid]],
                                      uint thread_index [[thread_index_in_threadgroup]]) {
  constexpr int pack = elements_of_pack<T>();
  constexpr int threads = metalops::kConvolutionPackingThreads;
  threadgroup T tile[metalops::kConvolutionPackingTile];
  const uint down = static_cast<uint>((p.channels + p.together - 1) / p.together);
  const uint line = threadgroup_index / down;
  const int channel = static_cast<int>(threadgroup_index - line * down) * p.together;
  const int channels = min(p.channels - channel, p.together);
  device const T* const from = packed + line * static_cast<int64_t>(p.pixels) * p.padded + channel;
  const uint across = static_cast<uint>((channels + pack - 1) / pack);
  for (uint i = thread_index; i < across * static_cast<uint>(p.pixels); i += threads) {
    const uint q = i / across, c = (i - q * across) * pack;
    const Pack<T> values = *reinterpret_cast<device const Pack<T>*>(from + q * p.padded + c);
#pragma unroll
    for (int e = 0; e < pack; ++e) {
      tile[(c + e) * p.pixels + q] = values.of[e];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device T* const to = result + (line * static_cast<int64_t>(p.channels) + channel) * p.pixels;
  for (int i = static_cast<int>(thread_index); i < channels * p.pixels; i += threads) {
    to[i] = tile[i];
  }
}

#define REGISTER_TILE(T, ROWS, COLUMNS, SIMDGROUPS)                                                \
  REGISTER_KERNEL("convolution_packed_" #ROWS "x" #COLUMNS "_" #T, convolution_packed, T, T, ROWS, \
                  COLUMNS, SIMDGROUPS, false, false);                                              \
  REGISTER_KERNEL("convolution_packed_split_" #ROWS "x" #COLUMNS "_" #T, convolution_packed, T,    \
                  float, ROWS, COLUMNS, SIMDGROUPS, true, false)
#define REGISTER_COLUMNS(T, ROWS, COLUMNS, SIMDGROUPS)                                            \
  REGISTER_KERNEL("convolution_packed_columns_" #ROWS "x" #COLUMNS "_" #T, convolution_packed, T, \
                  T, ROWS, COLUMNS, SIMDGROUPS, false, true);                                     \
  REGISTER_KERNEL("convolution_packed_columns_split_" #ROWS "x" #COLUMNS "_" #T,                  \
                  convolution_packed, T, float, ROWS, COLUMNS, SIMDGROUPS, true, true)
#define REGISTER_WEIGHT(T, ROWS, COLUMNS, SIMDGROUPS)                                 \
  REGISTER_KERNEL("convolution_packed_weight_" #ROWS "x" #COLUMNS "_" #T,             \
                  convolution_packed_weight, T, T, ROWS, COLUMNS, SIMDGROUPS, false); \
  REGISTER_KERNEL("convolution_packed_weight_split_" #ROWS "x" #COLUMNS "_" #T,       \
                  convolution_packed_weight, T, float, ROWS, COLUMNS, SIMDGROUPS, true)
#define REGISTER_PACKED(T)                                                          \
  REGISTER_KERNEL("convolution_packed_combine_" #T, convolution_packed_combine, T); \
  REGISTER_KERNEL("convolution_packed_copy_" #T, convolution_packed_copy, T);       \
  REGISTER_TILE(T, 128, 16, 4)
#define REGISTER_HALF(T)            \
  REGISTER_PACKED(T);               \
  REGISTER_TILE(T, 128, 64, 8);     \
  REGISTER_TILE(T, 128, 128, 8);    \
  REGISTER_COLUMNS(T, 128, 64, 8);  \
  REGISTER_COLUMNS(T, 128, 128, 8); \
  REGISTER_WEIGHT(T, 64, 128, 4);   \
  REGISTER_WEIGHT(T, 128, 128, 8);  \
  REGISTER_KERNEL("convolution_packed_unpack_" #T, convolution_packed_unpack, T)

// As simdgroup matrices, tiles of floats do not fit threadgroup memory.
#if defined(__HAVE_TENSOR__)
REGISTER_PACKED(float);
REGISTER_TILE(float, 128, 64, 4);
REGISTER_WEIGHT(float, 64, 128, 4);
REGISTER_WEIGHT(float, 128, 64, 4);
REGISTER_HALF(half);
REGISTER_HALF(bfloat);
#endif

// Convolutions of images whose channels are packs of 16 bytes, as implicit GEMM: a pixel and an
// element of the filter (a tap) name an address, and a word of bits says which taps of a pixel lie
// in the padding. Operands are staged in whole packs; NVIDIA's GPUs copy them to where tensor cores
// read them while earlier ones are multiplied. Sums are in float, and each result is rounded once.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/spatial/convolution_packed.h>
using namespace metal;
using metalops::ConvolutionPacking;
using metalops::ConvolutionPacks;
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
inline Where pixel_at(int pixel, constant ConvolutionPacks& p) {
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

inline Where tap_at(int tap, constant ConvolutionPacks& p) {
  const int across = tap % p.tap_sizes[2];
  const int down = tap / p.tap_sizes[2] % p.tap_sizes[1];
  const int deep = tap / p.tap_sizes[2] / p.tap_sizes[1];
  return {deep * p.tap_strides[0] + down * p.tap_strides[1] + across * p.tap_strides[2],
          1u << deep | 1u << (p.tap_sizes[0] + down) |
              1u << (p.tap_sizes[0] + p.tap_sizes[1] + across)};
}

// ---- operands -----------------------------------------------------------------------------------

// Operands have lines from `first` on and elements of K from `begin` to `end`. find() computes
// where a line is, and `lines` keeps it for line(). prepare() is called for [k, k + count), counted
// from `begin`, before inner() of these, and a barrier follows.

// The images by pixels: K are taps and channels.
template <typename T>
struct PixelLines {
  typedef T element;
  device const T* elements;
  threadgroup const Where* lines;
  threadgroup const Where* taps;
  constant ConvolutionPacks& p;
  int first, begin, end;

  inline Where line(int i) const { return lines[i]; }
  inline Where find(int i) const {
    if (first + i >= p.rows) {
      return {0, ~0u};
    }
    const Where where = pixel_at(first + i, p);
    return {where.offset, where.outside | kNoElement};
  }
  inline Where inner(int k) const {
    const uint at = static_cast<uint>(begin + k);
    if (begin + k >= end) {
      return {0, kNoElement | kNoLine};
    }
    const uint tap = at / static_cast<uint>(p.channels);
    const Where where = taps[tap];
    return {where.offset + static_cast<int>(at - tap * static_cast<uint>(p.channels)),
            where.outside | kNoLine};
  }
  inline void prepare(int, int) const {}
};

// The weight by channels of the result.
template <typename T>
struct WeightLines {
  typedef T element;
  device const T* elements;
  threadgroup const Where* lines;
  constant ConvolutionPacks& p;
  int first, begin, end;

  inline Where line(int i) const { return lines[i]; }
  inline Where find(int i) const {
    const bool exists = first + i < p.columns;
    return {exists ? (first + i) * p.other_stride : 0, exists ? kNoElement : ~0u};
  }
  inline Where inner(int k) const {
    const bool exists = begin + k < end;
    return {exists ? begin + k : 0, exists ? kNoLine : kNoElement | kNoLine};
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
        const Where where = pixel_at(at, p);
        pixel = {where.offset, at * p.other_stride, where.outside | kNoLine};
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
  threadgroup const Where* lines;
  PixelRing ring;
  constant ConvolutionPacks& p;
  int first;

  inline Where line(int i) const { return lines[i]; }
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
  threadgroup const Where* lines;
  PixelRing ring;
  constant ConvolutionPacks& p;
  int first;

  inline Where line(int i) const { return lines[i]; }
  inline Where find(int i) const {
    if (first + i >= p.columns) {
      return {0, ~0u};
    }
    const int tap = (first + i) / p.channels;
    const Where where = tap_at(tap, p);
    return {where.offset + first + i - tap * p.channels, where.outside | kNoElement};
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

// A product of ROWS x COLUMNS sums, of operands that are contiguous along K (IS_DEEP) or along
// their lines.
template <typename T, int ROWS, int COLUMNS, int SIMDGROUPS, bool IS_DEEP>
struct PackedProduct {
  // Elements of K that are staged at a time. Floats are multiplied as tensors, for which any number
  // will do.
  static constant constexpr int step = sizeof(T) == 4 ? 16 : matmul::kTileK;
  static constant constexpr int left_stride = (IS_DEEP ? step : ROWS) + 8;
  static constant constexpr int right_stride = (IS_DEEP ? step : COLUMNS) + 8;
  typedef matmul::Stored<T, left_stride, !IS_DEEP> Left;
  typedef matmul::Stored<T, right_stride, !IS_DEEP> Right;
  typedef matmul::TileProduct<ROWS, COLUMNS, SIMDGROUPS, Left, Right> Product;
  static constant constexpr int threads = SIMDGROUPS * 32;
  // Packs and elements of threadgroup memory.
  static constant constexpr int pack = elements_of_pack<T>();
  static constant constexpr int left_packs =
      is_gathered ? 1 : (IS_DEEP ? ROWS : step) * left_stride / pack;
  static constant constexpr int right_packs =
      is_gathered ? 1 : (IS_DEEP ? COLUMNS : step) * right_stride / pack;
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

// Finds the lines of both operands.
template <int ROWS, int COLUMNS, int THREADS, typename Left, typename Right>
inline void find_lines(threadgroup Where* lines, Left left, Right right, uint index) {
  for (int i = static_cast<int>(index); i < ROWS + COLUMNS; i += THREADS) {
    lines[i] = i < ROWS ? left.find(i) : right.find(i - ROWS);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Adds the product of the first `inner` elements of K to the sums.
template <typename Tile, typename T, int ROWS, int COLUMNS, bool IS_DEEP, typename Left,
          typename Right, typename Sums>
inline void add_packed(thread Sums& sums, Left left, Right right, int inner, matmul::Place place,
                       threadgroup Pack<T>* lefts, threadgroup Pack<T>* rights,
                       threadgroup T* workspace) {
#if defined(__METALOPS_GATHERED_LINES__) && defined(__HAVE_TENSOR__)
  typename Tile::Product::Adding operation;
  ::mpp::tensor_ops::run_gathered(operation, left, right, inner, sums);
#else
  const int index = static_cast<int>(place.index);
  for (int k = 0; k < inner; k += Tile::step) {
    left.prepare(k, Tile::step);
    right.prepare(k, Tile::step);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_packs<T, ROWS, Tile::step, Tile::left_stride, Tile::threads, IS_DEEP>(lefts, left, k,
                                                                                index);
    stage_packs<T, COLUMNS, Tile::step, Tile::right_stride, Tile::threads, IS_DEEP>(rights, right,
                                                                                    k, index);
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
  const int split = other / p.groups;
  const int begin = split * p.inner_of_split;
  return {tile / across * ROWS,
          tile % across * COLUMNS,
          other % p.groups,
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

template <typename Tile, typename T, typename R, int ROWS, int COLUMNS, bool IS_SPLIT,
          typename Sums>
inline void store_packed(thread Sums& sums, device R* result, device const T* bias,
                         threadgroup int* offsets, threadgroup float* added, Share share,
                         matmul::Place place, constant ConvolutionPacks& p) {
  for (int i = static_cast<int>(place.index); i < ROWS + COLUMNS; i += Tile::threads) {
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
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int64_t first =
      IS_SPLIT ? (share.split * static_cast<int64_t>(p.groups) + share.group) * p.rows * p.columns
               : group_offset(share.group, p);
  const StoreSums<R, ROWS, IS_SPLIT> store{result + first, offsets, added};
#if defined(__METALOPS_GATHERED_LINES__) && defined(__HAVE_TENSOR__)
  if (sizeof(T) == 2 && p.has_pairs) {  // as a lane of these GPUs has
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
template <typename T, typename R, int ROWS, int COLUMNS, int SIMDGROUPS, bool IS_SPLIT>
kernel void convolution_packed(device R* result [[buffer(0)]], device const T* images [[buffer(1)]],
                               device const T* weight [[buffer(2)]],
                               device const T* bias [[buffer(3)]],
                               constant ConvolutionPacks& p [[buffer(4)]],
                               uint threadgroup_index [[threadgroup_position_in_grid]],
                               uint thread_index [[thread_index_in_threadgroup]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  typedef PackedProduct<T, ROWS, COLUMNS, SIMDGROUPS, true> Tile;
  threadgroup Pack<T> lefts[Tile::left_packs];
  threadgroup Pack<T> rights[Tile::right_packs];
  threadgroup T workspace[Tile::workspace];
  threadgroup Where lines[ROWS + COLUMNS];
  threadgroup Where taps[metalops::kConvolutionTaps];
  threadgroup int offsets[ROWS + COLUMNS];
  threadgroup float added[COLUMNS];
  const int count = p.tap_sizes[0] * p.tap_sizes[1] * p.tap_sizes[2];
  for (int tap = static_cast<int>(thread_index); tap < count; tap += Tile::threads) {
    taps[tap] = tap_at(tap, p);
  }
  const Share share = share_of<ROWS, COLUMNS>(threadgroup_index, p);
  const matmul::Place place{thread_index, simdgroup, lane};
  const PixelLines<T> left{images + share.group * p.images_group_stride,
                           lines,
                           taps,
                           p,
                           share.row,
                           share.begin,
                           share.end};
  const WeightLines<T> right{weight + share.group * static_cast<int64_t>(p.other_group_stride),
                             lines + ROWS,
                             p,
                             share.column,
                             share.begin,
                             share.end};
  find_lines<ROWS, COLUMNS, Tile::threads>(lines, left, right, thread_index);
  auto sums = Tile::Product::sums();
  Tile::Product::clear(sums, place);
  add_packed<Tile, T, ROWS, COLUMNS, true>(sums, left, right, share.end - share.begin, place, lefts,
                                           rights, workspace);
  store_packed<Tile, T, R, ROWS, COLUMNS, IS_SPLIT>(sums, result, bias, offsets, added, share,
                                                    place, p);
}

// The gradient of the weight: a tile of channels of the outputs, and of taps and channels of the
// images, for each threadgroup.
template <typename T, typename R, int ROWS, int COLUMNS, int SIMDGROUPS, bool IS_SPLIT>
kernel void convolution_packed_weight(device R* result [[buffer(0)]],
                                      device const T* images [[buffer(1)]],
                                      device const T* outputs [[buffer(2)]],
                                      device const T* bias [[buffer(3)]],
                                      constant ConvolutionPacks& p [[buffer(4)]],
                                      uint threadgroup_index [[threadgroup_position_in_grid]],
                                      uint thread_index [[thread_index_in_threadgroup]],
                                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                                      uint lane [[thread_index_in_simdgroup]]) {
  typedef PackedProduct<T, ROWS, COLUMNS, SIMDGROUPS, false> Tile;
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
                            lines, ring, p, share.row};
  const TapLines<T> right{images + share.group * p.images_group_stride, lines + ROWS, ring, p,
                          share.column};
  find_lines<ROWS, COLUMNS, Tile::threads>(lines, left, right, thread_index);
  auto sums = Tile::Product::sums();
  Tile::Product::clear(sums, place);
  add_packed<Tile, T, ROWS, COLUMNS, false>(sums, left, right, share.end - share.begin, place,
                                            lefts, rights, workspace);
  store_packed<Tile, T, R, ROWS, COLUMNS, IS_SPLIT>(sums, result, bias, offsets, added, share,
                                                    place, p);
}

// Adds the sums of the splits, in their order.
template <typename T>
kernel void convolution_packed_combine(device T* result [[buffer(0)]],
                                       device const float* sums [[buffer(1)]],
                                       device const T* bias [[buffer(2)]],
                                       constant ConvolutionPacks& p [[buffer(3)]],
                                       uint2 thread_index [[thread_position_in_grid]]) {
  const int64_t elements = static_cast<int64_t>(p.rows) * p.columns;
  if (thread_index.x >= static_cast<uint64_t>(elements)) {
    return;
  }
  const int row = static_cast<int>(thread_index.x / static_cast<uint>(p.columns));
  const int column = static_cast<int>(thread_index.x % static_cast<uint>(p.columns));
  const int group = static_cast<int>(thread_index.y);
  const int in_column = column_offset(column, p);
  if (in_column == kNowhere) {
    return;
  }
  float sum = 0.0f;
  for (int split = 0; split < p.splits; ++split) {
    sum += sums[(split * static_cast<int64_t>(p.groups) + group) * elements + thread_index.x];
  }
  result[group_offset(group, p) + row_offset(row, p) + in_column] =
      static_cast<T>(sum + bias_at(bias, group, column, p));
}

// ---- packs --------------------------------------------------------------------------------------

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
  threadgroup T tile[metalops::kConvolutionPackingTile + metalops::kConvolutionPackingChannels];
  const uint across = static_cast<uint>(p.across), down = static_cast<uint>(p.down);
  const int index = static_cast<int>(thread_index);
  const int pixel = static_cast<int>(threadgroup_index % across) << p.tile_pixels;
  const int channel = static_cast<int>(threadgroup_index / across % down) << p.tile_channels;
  const int64_t other = threadgroup_index / across / down;
  const int64_t image = other / p.groups, group = other % p.groups;
  const int pixels = min(1 << p.tile_pixels, p.pixels - pixel);
  const int channels = min(1 << p.tile_channels, p.padded - channel);
  const int pitch = (1 << p.tile_pixels) + 1;
  device const T* const from =
      tensor + image * p.image_stride + group * p.group_stride + channel * p.channel_stride;
  device T* const to = packed + image * p.packed_image + group * p.packed_group + channel;
  // A thread has one pixel, or several that are whole turns apart.
  const int turn = max(threads >> p.tile_pixels, 1);
  for (int q = index & ((1 << p.tile_pixels) - 1); q < pixels; q += threads) {
    const int x = (pixel + q) % p.sizes[2], rest = (pixel + q) / p.sizes[2];
    const int y = rest % p.sizes[1], z = rest / p.sizes[1];
    const int64_t offset = z * p.strides[0] + y * p.strides[1] + x * p.strides[2];
    for (int c = index >> p.tile_pixels; c < channels; c += turn) {
      tile[c * pitch + q] = channel + c < p.channels ? from[offset + c * p.channel_stride] : T(0);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int packs = channels / pack;
  for (int i = index; i < packs * pixels; i += threads) {
    const int q = i / packs, c = i % packs * pack;
    Pack<T> values;
    for (int e = 0; e < pack; ++e) {
      values.of[e] = tile[(c + e) * pitch + q];
    }
    *reinterpret_cast<device Pack<T>*>(to + (pixel + q) * p.packed_pixel + c) = values;
  }
}

#define REGISTER_TILE(T, ROWS, COLUMNS, SIMDGROUPS)                                                \
  REGISTER_KERNEL("convolution_packed_" #ROWS "x" #COLUMNS "_" #T, convolution_packed, T, T, ROWS, \
                  COLUMNS, SIMDGROUPS, false);                                                     \
  REGISTER_KERNEL("convolution_packed_split_" #ROWS "x" #COLUMNS "_" #T, convolution_packed, T,    \
                  float, ROWS, COLUMNS, SIMDGROUPS, true)
#define REGISTER_WEIGHT(T, ROWS, COLUMNS, SIMDGROUPS)                                 \
  REGISTER_KERNEL("convolution_packed_weight_" #ROWS "x" #COLUMNS "_" #T,             \
                  convolution_packed_weight, T, T, ROWS, COLUMNS, SIMDGROUPS, false); \
  REGISTER_KERNEL("convolution_packed_weight_split_" #ROWS "x" #COLUMNS "_" #T,       \
                  convolution_packed_weight, T, float, ROWS, COLUMNS, SIMDGROUPS, true)
#define REGISTER_PACKED(T)                                                          \
  REGISTER_KERNEL("convolution_packed_combine_" #T, convolution_packed_combine, T); \
  REGISTER_KERNEL("convolution_packed_copy_" #T, convolution_packed_copy, T);       \
  REGISTER_TILE(T, 128, 16, 4);                                                     \
  REGISTER_TILE(T, 128, 64, 4);                                                     \
  REGISTER_WEIGHT(T, 64, 128, 4)
#define REGISTER_LARGE(T)        \
  REGISTER_TILE(T, 128, 128, 4); \
  REGISTER_WEIGHT(T, 128, 128, 4)

// As simdgroup matrices, tiles of floats do not fit threadgroup memory.
#if defined(__HAVE_TENSOR__)
REGISTER_PACKED(float);
REGISTER_PACKED(half);
REGISTER_PACKED(bfloat);
REGISTER_WEIGHT(float, 128, 64, 4);
REGISTER_LARGE(half);
REGISTER_LARGE(bfloat);
#endif

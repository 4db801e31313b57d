// See convolution_packed.h.
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/spatial/convolution_packed.h>
#include <kernels/spatial/convolution_packed.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

namespace metalops::convolution {

using at::Tensor;

Dims strides_of(const Tensor& tensor, const Dims& steps) {
  Dims strides;
  for (int d = 0; d < kConvolutionDims; ++d) {
    strides[d] = tensor.stride(2 + d) * steps[d];
  }
  return strides;
}

int64_t offset_at(const Tensor& tensor, const Dims& position) {
  const auto strides = strides_of(tensor, position);
  return std::accumulate(strides.begin(), strides.end(), int64_t(0));
}

namespace {

// The CUDA launch reads the operands' places from there (copy_maps.py).
static_assert(offsetof(ConvolutionPacks, images) == kConvolutionImagesAt);
static_assert(offsetof(ConvolutionPacks, other) == kConvolutionOtherAt);

Library& packed_library() { return matmul_library("convolution_packed"); }

int64_t pack_of(const Tensor& tensor) { return kConvolutionPack / tensor.element_size(); }
int64_t in_packs(int64_t channels, const Tensor& tensor) {
  return plans::round_up(channels, pack_of(tensor));
}

Dims sizes_of(const Tensor& tensor) { return {tensor.size(2), tensor.size(3), tensor.size(4)}; }

template <size_t Count>
void set(int32_t (&to)[Count], const Dims& values) {
  for (int d = 0; d < kConvolutionDims; ++d) {
    to[Count - kConvolutionDims + d] = static_cast<int32_t>(values[d]);
  }
}

// Returns true if a tensor has the channels of each pixel in whole packs, and pixels in their
// order.
bool is_packed(const Tensor& tensor, int64_t groups) {
  return tensor.size(1) / groups % pack_of(tensor) == 0 &&
         tensor.permute({0, 2, 3, 4, 1}).is_contiguous() &&
         tensor.storage_offset() % pack_of(tensor) == 0;
}

// Returns the least d with 2^d >= value.
int32_t binary_digits(int64_t value) {
  int32_t digits = 0;
  while ((int64_t(1) << digits) < value) {
    ++digits;
  }
  return digits;
}

// A tensor of images of channels, and where a copy has them.
struct Copied {
  int64_t images, channels, groups;  // channels of a group
  int64_t group_stride;
  int64_t packed_image, packed_pixel, packed_group;
};

// Returns ConvolutionPacking::order.
int32_t order_of(const ConvolutionPacking& p, const Tensor& from) {
  const auto is_even = [](int64_t x) { return x % 2 == 0; };
  const bool are_adjacent = p.strides[2] == 1 && (p.sizes[1] == 1 || p.strides[1] == p.sizes[2]) &&
                            (p.sizes[0] == 1 || p.strides[0] == p.sizes[1] * p.strides[1]);
  if (from.element_size() != 2) {
    return kConvolutionAnyOrder;
  }
  if (are_adjacent && p.across == 1 && p.channel_stride == p.pixels) {
    return kConvolutionRuns;
  }
  const bool are_even = are_adjacent ? is_even(p.pixels)
                                     : p.strides[2] == 1 && is_even(p.sizes[2]) &&
                                           is_even(p.strides[0]) && is_even(p.strides[1]);
  return are_even && is_even(p.channel_stride) && is_even(p.group_stride) &&
                 is_even(p.image_stride) && is_even(from.storage_offset())
             ? kConvolutionPairs
             : kConvolutionAnyOrder;
}

// Copies images of channels to a tensor with whole packs of them.
void pack(const Tensor& to, const Tensor& from, const Copied& copied, int64_t image_stride,
          int64_t channel_stride) {
  const auto sizes = sizes_of(from);
  const auto pixels = product(sizes), padded = in_packs(copied.channels, from);
  constexpr int64_t kElements = kConvolutionPackingTile;
  ConvolutionPacking p{};
  p.image_stride = image_stride;
  p.channel_stride = channel_stride;
  p.group_stride = copied.group_stride;
  for (int d = 0; d < kConvolutionDims; ++d) {
    p.strides[d] = from.stride(2 + d);
  }
  p.packed_image = copied.packed_image;
  p.packed_pixel = copied.packed_pixel;
  p.packed_group = copied.packed_group;
  set(p.sizes, sizes);
  p.pixels = static_cast<int32_t>(pixels);
  p.channels = static_cast<int32_t>(copied.channels);
  p.padded = static_cast<int32_t>(padded);
  p.groups = static_cast<int32_t>(copied.groups);
  // Both sides are long, so that what is adjacent is read and written together.
  constexpr int64_t kLong = 64;
  p.tile_channels = binary_digits(std::min(padded, kLong));
  p.tile_pixels = binary_digits(std::min(pixels, kElements >> p.tile_channels));
  p.tile_channels = std::min(binary_digits(std::min<int64_t>(padded, kConvolutionPackingChannels)),
                             binary_digits(kElements >> p.tile_pixels));
  p.across = static_cast<int32_t>(ceil_div(pixels, int64_t(1) << p.tile_pixels));
  p.down = static_cast<int32_t>(ceil_div(padded, int64_t(1) << p.tile_channels));
  p.order = order_of(p, from);
  launch_threadgroups(packed_library(), typed_kernel("convolution_packed_copy_", from),
                      int64_t(p.across) * p.down * copied.images * copied.groups,
                      kConvolutionPackingThreads, to, from, p);
}

// Returns the weight of each group and channel of its results with taps and packs of channels
// adjacent.
Tensor packed_weight(const Weight& weight, const Taps& taps, int64_t groups) {
  auto w = weight.tensor;
  for (int d = 0; d < kConvolutionDims; ++d) {
    w = w.slice(2 + d, taps.filter_first[d], std::nullopt, taps.filter_step[d]);
  }
  if (weight.out == 0 && is_packed(w, 1)) {
    return w;
  }
  const auto padded = in_packs(weight.in_channels, w);
  const auto line = product(taps.filters) * padded;
  const auto copy = at::empty({groups, weight.out_channels, line}, w.options());
  pack(copy, w,
       {weight.out_channels, weight.in_channels, groups, w.size(0) / groups * w.stride(0), line,
        padded, weight.out_channels * line},
       w.stride(weight.out), w.stride(weight.in));
  return copy;
}

// ---- products -----------------------------------------------------------------------------------

// Offsets in the kernels have 32 bits.
bool fits(const Tensor& tensor, int64_t groups) {
  const auto images = tensor.numel() / std::max<int64_t>(tensor.size(1), 1);
  return images * in_packs(tensor.size(1) / groups, tensor) * groups <
         std::numeric_limits<int32_t>::max();
}

// The tiles are for tensors: as simdgroup matrices, those of floats do not fit threadgroup memory.
bool has_tensors() { return &packed_library() != &library("convolution_packed"); }

// Returns true if channels and taps are as many as a product by packs needs. On a CPU the kernels
// of convolution.metal are as fast, without copies.
bool pays(const Tensor& images, const Tensor& weight, int64_t in, int64_t out, int64_t groups) {
  const auto filters = sizes_of(weight);
  return !a_thread_for_each_element() && images.numel() > 0 && weight.numel() > 0 &&
         product(filters) <= kConvolutionTaps &&
         filters[0] + filters[1] + filters[2] <= kConvolutionSides &&
         in_packs(in, images) <= 3 * in && in * product(filters) >= 16 && out >= 2 &&
         std::max(in, out) >= 16 && fits(images, groups) && has_tensors() &&
         weight.numel() * 3 < std::numeric_limits<int32_t>::max();
}

// The images as a product sees them, and their channels.
ConvolutionImages images_of(const Tensor& images, const Taps& taps, int64_t groups) {
  ConvolutionImages p{};
  p.pixel_sizes[0] = static_cast<int32_t>(images.size(0));
  p.pixel_strides[0] = static_cast<int32_t>(images.stride(0));
  set(p.pixel_sizes, taps.count);
  set(p.pixel_strides, strides_of(images, taps.step));
  set(p.tap_sizes, taps.filters);
  set(p.tap_strides, strides_of(images, taps.move));
  p.begin = static_cast<int32_t>(offset_at(images, taps.first));
  set(p.first, taps.first);
  set(p.step, taps.step);
  set(p.move, taps.move);
  set(p.limits, sizes_of(images));
  p.channels = static_cast<int32_t>(images.size(1) / groups);
  p.groups = static_cast<int32_t>(groups);
  return p;
}

void set_digits(int32_t (&sizes)[4], int64_t (&strides)[4], const std::array<int64_t, 4>& all,
                const std::array<int64_t, 4>& apart) {
  for (int d = 0; d < 4; ++d) {
    sizes[d] = static_cast<int32_t>(all[d]);
    strides[d] = apart[d];
  }
}

// A threadgroup's tile.
struct Tile {
  const char* name;
  int64_t rows, columns, simdgroups;
};

// Forward: pixels by channels. Floats are multiplied faster in tiles with few columns.
Tile forward_tile(bool is_float, int64_t columns) {
  return columns <= 16   ? Tile{"128x16_", 128, 16, 4}
         : is_float      ? Tile{"128x64_", 128, 64, 4}
         : columns <= 64 ? Tile{"128x64_", 128, 64, 8}
                         : Tile{"128x128_", 128, 128, 8};
}
// The gradient of the weight: channels by taps and channels.
Tile weight_tile(bool is_float, int64_t rows) {
  return rows <= 64 ? Tile{"64x128_", 64, 128, 4}
         : is_float ? Tile{"128x64_", 128, 64, 4}
                    : Tile{"128x128_", 128, 128, 8};
}

// Threadgroups that keep a GPU busy, of which more have a multiprocessor together if they need less
// threadgroup memory; K of a split is at least kLeastInner, and whole blocks of it.
constexpr int64_t kBusy = 264;
constexpr int64_t kBusyWithFloats = 396;
constexpr int64_t kLeastInner = 512;
constexpr int64_t kBlock = 64;

// Divides K, and returns the number of threadgroups.
int64_t divide(ConvolutionPacks& p, const Tile& tile, bool is_float) {
  const auto tiles =
      ceil_div(p.rows, tile.rows) * ceil_div(p.columns, tile.columns) * p.images.groups;
  const auto busy = is_float ? kBusyWithFloats : kBusy;
  const auto splits = std::max<int64_t>(std::min(busy / tiles, p.inner / kLeastInner), 1);
  const auto inner = plans::round_up(ceil_div(p.inner, splits), kBlock);
  p.splits = static_cast<int32_t>(inner == 0 ? 1 : ceil_div(p.inner, inner));
  p.inner_of_split = static_cast<int32_t>(inner);
  return tiles * p.splits;
}

bool is_float(const Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }

// Returns ConvolutionPacks::adjacent.
int32_t adjacent(const ConvolutionPacks& p, const Tensor& result) {
  if (p.splits > 1) {
    return p.columns % 2 == 0 ? 2 : 1;
  }
  const auto are_adjacent = [&](int32_t count) {
    const auto is_multiple = [&](int64_t x) { return x % count == 0; };
    return p.column_strides[3] == 1 && is_multiple(p.columns) && is_multiple(p.column_sizes[3]) &&
           is_multiple(p.stored_channels) && is_multiple(p.result_begin) &&
           is_multiple(p.result_group_stride) && is_multiple(result.storage_offset()) &&
           std::all_of(p.row_strides, p.row_strides + 4, is_multiple) &&
           std::all_of(p.column_strides, p.column_strides + 3, is_multiple);
  };
  const bool are_rows = p.row_strides[3] == 1 && p.row_sizes[3] > 1;
  return is_float(result)  ? 1
         : are_adjacent(8) ? 8
         : are_rows        ? kConvolutionRows
         : are_adjacent(2) ? 2
                           : 1;
}

// Launches the product, and what adds the sums of its splits.
void multiply(const char* kernel, const Tile& tile, ConvolutionPacks& p, const Tensor& result,
              const Tensor& images, const Tensor& other, const Tensor& bias) {
  const auto threadgroups = divide(p, tile, is_float(result));
  p.adjacent = adjacent(p, result);
  const bool is_split = p.splits > 1;
  const auto sums = is_split ? at::empty({p.splits, p.images.groups, p.rows, p.columns},
                                         result.options().dtype(at::kFloat))
                             : result;
  launch_threadgroups(packed_library(),
                      KernelName(kernel) + (is_split ? "split_" : "") + tile.name +
                          metal_type(result.scalar_type()),
                      threadgroups, tile.simdgroups * 32, sums, images, other, bias, p);
  if (is_split) {
    const int32_t parts = p.splits < kConvolutionManySplits ? 1 : kConvolutionParts;
    const auto all = p.rows * ceil_div(p.columns, kConvolutionTogether);
    launch_threadgroups(packed_library(), typed_kernel("convolution_packed_combine_", result),
                        ceil_div(all, kConvolutionCombining / parts) * p.images.groups,
                        kConvolutionCombining, result, sums, bias, p, parts);
  }
}

// Copies the gradient of a weight with packs of channels to a contiguous one.
void unpack(const Tensor& result, const Tensor& packed, int64_t filters) {
  const auto most = kConvolutionPackingTile / filters / pack_of(packed) * pack_of(packed);
  const auto channels = std::min(most, packed.size(1));
  const ConvolutionUnpacking p{static_cast<int32_t>(channels), static_cast<int32_t>(filters),
                               static_cast<int32_t>(result.size(1)),
                               static_cast<int32_t>(packed.size(1))};
  launch_threadgroups(packed_library(), typed_kernel("convolution_packed_unpack_", result),
                      result.size(0) * ceil_div(result.size(1), channels),
                      kConvolutionPackingThreads, result, packed, p);
}

}  // namespace

Tensor packed(const Tensor& tensor, int64_t groups) {
  if (is_packed(tensor, groups)) {
    return tensor;
  }
  const auto channels = tensor.size(1) / groups, padded = in_packs(channels, tensor);
  const auto pixels = product(sizes_of(tensor)), all = padded * groups;
  const auto copy = at::empty({tensor.size(0), tensor.size(2), tensor.size(3), tensor.size(4), all},
                              tensor.options());
  pack(copy, tensor,
       {tensor.size(0), channels, groups, channels * tensor.stride(1), pixels * all, all, padded},
       tensor.stride(0), tensor.stride(1));
  return copy.permute({0, 4, 1, 2, 3});
}

Images packed_if_it_pays(const Tensor& images, const Weight& weight, const Tensor& result,
                         int64_t groups) {
  if (result.numel() >= std::numeric_limits<int32_t>::max() ||
      !pays(images, weight.tensor, weight.in_channels, weight.out_channels, groups)) {
    return {images, false};
  }
  return {packed(images, groups), true};
}

void convolve_packed(const Tensor& result, const Tensor& images, const Weight& weight,
                     const Taps& taps, int64_t groups, const MaybeTensor& bias) {
  ConvolutionPacks p{};
  p.images = images_of(images, taps, groups);
  p.rows = static_cast<int32_t>(images.size(0) * product(taps.count));
  p.columns = p.stored_channels = static_cast<int32_t>(weight.out_channels);
  const auto strides = strides_of(result, taps.result_step);
  set_digits(p.row_sizes, p.row_strides,
             {images.size(0), taps.count[0], taps.count[1], taps.count[2]},
             {result.stride(0), strides[0], strides[1], strides[2]});
  set_digits(p.column_sizes, p.column_strides, {1, 1, 1, weight.out_channels},
             {0, 0, 0, result.stride(1)});
  p.result_begin = offset_at(result, taps.result_first);
  p.result_group_stride = weight.out_channels * result.stride(1);
  p.inner = static_cast<int32_t>(product(taps.filters) * p.images.channels);
  p.has_bias = is_given(bias);
  const auto tile = forward_tile(is_float(result), p.columns);
  // A weight that lies by channels of the images is multiplied as it is, and not transposed.
  const bool by_columns = weight.out == 1 && !is_float(result) && tile.columns > 16 &&
                          p.images.channels == weight.in_channels && p.inner > 0;
  const Weight lines =
      by_columns ? Weight{weight.tensor, 0, 1, weight.in_channels, weight.out_channels} : weight;
  p.other.stride =
      static_cast<int32_t>(product(taps.filters) * in_packs(lines.in_channels, weight.tensor));
  p.other.lines = static_cast<int32_t>(lines.out_channels * groups);
  p.other_group_stride = static_cast<int32_t>(lines.out_channels * p.other.stride);
  // Some positions of a transposed convolution have no taps: they are the bias.
  const auto other = p.inner == 0 ? images : packed_weight(lines, taps, groups);
  // A buffer that is written is no other argument: CUDA's compiler may then assume so.
  const auto added = p.has_bias ? bias->contiguous() : other;
  multiply(by_columns ? "convolution_packed_columns_" : "convolution_packed_", tile, p, result,
           images, other, added);
}

bool convolve_weight_packed(const Tensor& result, const Tensor& input, const Tensor& outputs,
                            const Taps& taps, int64_t groups) {
  const auto in = result.size(1), out = result.size(0) / groups;
  if (!pays(input, result, in, out, groups) || out < 8 || !fits(outputs, groups) ||
      outputs.numel() == 0) {
    return false;
  }
  const auto images = packed(input, groups), of_outputs = packed(outputs, groups);
  // Columns of a product are stored together where they are adjacent; others are brought there.
  const auto padded = images.size(1) / groups, filters = product(taps.filters);
  const bool is_turned = !is_float(result) && filters > 1 && result.is_contiguous();
  const auto to =
      is_turned
          ? at::empty({result.size(0), taps.filters[0], taps.filters[1], taps.filters[2], padded},
                      result.options())
                .permute({0, 4, 1, 2, 3})
          : result;
  ConvolutionPacks p{};
  p.images = images_of(images, taps, groups);
  p.rows = static_cast<int32_t>(out);
  p.columns = static_cast<int32_t>(product(taps.filters) * p.images.channels);
  p.stored_channels = static_cast<int32_t>(to.size(1));
  set_digits(p.row_sizes, p.row_strides, {1, 1, 1, out}, {0, 0, 0, to.stride(0)});
  const auto strides = strides_of(to, kOnes);
  set_digits(p.column_sizes, p.column_strides,
             {taps.filters[0], taps.filters[1], taps.filters[2], p.images.channels},
             {strides[0], strides[1], strides[2], to.stride(1)});
  p.result_group_stride = out * to.stride(0);
  p.inner = static_cast<int32_t>(images.size(0) * product(taps.count));
  p.other.stride = static_cast<int32_t>(of_outputs.size(1));
  p.other.lines = p.inner;
  p.other_group_stride = static_cast<int32_t>(of_outputs.size(1) / groups);
  multiply("convolution_packed_weight_", weight_tile(is_float(result), p.rows), p, to, images,
           of_outputs, of_outputs);
  if (is_turned) {
    unpack(result, to, filters);
  }
  return true;
}

}  // namespace metalops::convolution

// Parameters of the kernels of convolution_packed.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Bytes of a pack: channels are adjacent in memory and padded with zeros to whole packs.
C10_METAL_CONSTEXPR int kConvolutionPack = 16;
// Elements of filters, and the sum of their sides.
C10_METAL_CONSTEXPR int kConvolutionTaps = 256;
C10_METAL_CONSTEXPR int kConvolutionSides = 30;

// Images with packs of channels as operands. Pixels are numbered by image, depth, height and width,
// taps by depth, height and width, and positions are along the latter three. All offsets and
// strides are in elements. It is a msl::abi::GatheredImages of msl/cuda/gathered_maps.h.
struct ConvolutionImages {
  int32_t pixel_sizes[4];
  int32_t pixel_strides[4];
  int32_t tap_sizes[3];
  int32_t tap_strides[3];
  int32_t begin;  // of pixel 0 and tap 0, which may lie in the padding
  // The position of that, from one pixel and tap to the next, and those that pixels have: others
  // are zero.
  int32_t first[3];
  int32_t step[3];
  int32_t move[3];
  int32_t limits[3];
  int32_t channels;  // of a tap: those of a group, whole packs
  int32_t groups;
};

// A matrix, which is a msl::abi::GatheredMatrix.
struct ConvolutionMatrix {
  int32_t stride;
  int32_t lines;
};

// A convolution as a product of each group.
//
// Forward: rows of the result are pixels, columns are channels of the result, K are taps and the
// channels of each; `other` is the weight, whose lines are the channels of the result with K
// adjacent, or by columns, the channels of the images with taps and the channels of the result
// adjacent. Gradient of the weight: rows are channels of the outputs, columns are taps and
// channels, K are pixels; `other` are the outputs, with a line for each pixel.
struct ConvolutionPacks {
  // The result: rows and columns have four digits each.
  int64_t result_begin;
  int64_t result_group_stride;
  int64_t row_strides[4];
  int64_t column_strides[4];
  int32_t row_sizes[4];
  int32_t column_sizes[4];
  ConvolutionImages images;
  ConvolutionMatrix other;
  int32_t other_group_stride;
  int32_t rows;
  int32_t columns;
  int32_t stored_channels;  // those of the last digit of columns that the result has
  int32_t inner;
  int32_t splits;
  int32_t inner_of_split;
  int32_t has_bias;
  // Columns of the result, from a multiple of so many on, that are adjacent at a multiple of so
  // many elements: 1, 2 or 8; or kConvolutionRows if rows are adjacent.
  int32_t adjacent;
};
C10_METAL_CONSTEXPR int kConvolutionRows = 9;
// Columns that a thread of convolution_packed_combine has, threads of a threadgroup, and the parts
// of so many splits.
C10_METAL_CONSTEXPR int kConvolutionTogether = 4;
C10_METAL_CONSTEXPR int kConvolutionCombining = 256;
C10_METAL_CONSTEXPR int kConvolutionManySplits = 16;
C10_METAL_CONSTEXPR int kConvolutionParts = 8;
// Where the operands are in it, in bytes.
C10_METAL_CONSTEXPR int kConvolutionImagesAt = 112;
C10_METAL_CONSTEXPR int kConvolutionOtherAt = 228;

// Copies images, pixels and channels of each group to where the channels are packs.
struct ConvolutionPacking {
  int64_t image_stride;
  int64_t group_stride;
  int64_t channel_stride;
  int64_t strides[3];  // depth, height, width
  int64_t packed_image;
  int64_t packed_group;
  int64_t packed_pixel;
  int32_t sizes[3];
  int32_t pixels;
  int32_t channels;  // of a group
  int32_t padded;    // likewise, in whole packs
  int32_t groups;
  // A threadgroup copies 2^tile_channels channels of 2^tile_pixels pixels, of which there are
  // `down` and `across`.
  int32_t tile_channels;
  int32_t tile_pixels;
  int32_t down;
  int32_t across;
  int32_t order;  // one of those below
};
// How pixels lie: in any way; even ones and the next adjacent at a multiple of two elements; or all
// adjacent, as are those of a channel and the next, and in one tile. Of 16-bit elements.
C10_METAL_CONSTEXPR int kConvolutionAnyOrder = 0;
C10_METAL_CONSTEXPR int kConvolutionPairs = 1;
C10_METAL_CONSTEXPR int kConvolutionRuns = 2;

// Copies lines of packed pixels to lines of channels, whose pixels are adjacent.
struct ConvolutionUnpacking {
  int32_t together;  // channels of a threadgroup
  int32_t pixels;
  int32_t channels;
  int32_t padded;
};
C10_METAL_CONSTEXPR int kConvolutionPackingThreads = 256;
// Elements of a tile, and those of threadgroup memory: channels are at odd distances.
C10_METAL_CONSTEXPR int kConvolutionPackingTile = 4096;
C10_METAL_CONSTEXPR int kConvolutionPackingChannels = 512;

}  // namespace metalops

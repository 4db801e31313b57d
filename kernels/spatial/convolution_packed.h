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

// A convolution of images with packs of channels as a product of each group. Pixels are numbered by
// image, depth, height and width, taps by depth, height and width. All offsets are in elements.
//
// Forward: rows of the result are pixels, columns are channels of the result, K are taps and the
// channels of each; `other` is the weight, with K adjacent. Gradient of the weight: rows are
// channels of the outputs, columns are taps and channels, K are pixels; `other` are the outputs.
struct ConvolutionPacks {
  // The result: rows and columns have four digits each.
  int64_t result_begin;
  int64_t result_group_stride;
  int64_t row_strides[4];
  int64_t column_strides[4];
  int32_t row_sizes[4];
  int32_t column_sizes[4];
  // The images: strides of pixels and taps, and positions along depth, height and width. Pixels
  // whose position is outside of [0, limits) are zero.
  int32_t pixel_sizes[4];
  int32_t pixel_strides[4];
  int32_t tap_sizes[3];
  int32_t tap_strides[3];
  int32_t begin;  // of pixel 0 and tap 0, which may lie in the padding
  int32_t first[3];
  int32_t step[3];
  int32_t move[3];
  int32_t limits[3];
  int32_t images_group_stride;
  // The other operand: strides of its lines (weight) or pixels (outputs).
  int32_t other_stride;
  int32_t other_group_stride;
  int32_t rows;
  int32_t columns;
  int32_t stored_channels;  // those of the last digit of columns that the result has
  int32_t inner;
  int32_t channels;  // of a tap, whole packs
  int32_t groups;
  int32_t splits;
  int32_t inner_of_split;
  int32_t has_bias;
  // 1 if the result has each even column and the next one adjacent, at a multiple of two elements.
  int32_t has_pairs;
};

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
  int32_t unused;
};
C10_METAL_CONSTEXPR int kConvolutionPackingThreads = 256;
// Elements of a tile, and those of threadgroup memory: channels are at odd distances.
C10_METAL_CONSTEXPR int kConvolutionPackingTile = 4096;
C10_METAL_CONSTEXPR int kConvolutionPackingChannels = 512;

}  // namespace metalops

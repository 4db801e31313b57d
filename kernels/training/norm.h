// Parameters of the kernels of norm.metal. Tensors are contiguous.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Lines of a channel that a thread normalises, for GPUs: adjacent ones of the outer indices.
C10_METAL_CONSTEXPR int64_t kNormLines = 4;

// Rows of `length` elements that are normalised by their own mean and standard deviation, or root
// mean square: those of layer_norm, of a sample's group in group_norm, of rms_norm. Element i of
// row r has weight and bias (r % groups) * channels + i / inner.
struct NormRowsParameters {
  int64_t rows;
  uint32_t length;
  uint32_t inner;
  uint32_t channels;
  uint32_t groups;
  float eps;
  int32_t is_centred;  // by the mean; 0 for rms_norm
  int32_t has_weight;
  int32_t has_bias;
  int32_t packs;  // whether four adjacent elements, and their parameters, can be loaded at once
};

// A tensor [outer][channels][inner]. The elements of a channel in outer index o have the statistics
// o * stats_of_outer + channel / channels_of_stats.
struct NormChannelsParameters {
  int64_t outer;
  int64_t channels;
  int64_t inner;
  int64_t stats_of_outer;
  int64_t channels_of_stats;
  float eps;
  int32_t is_centred;
  int32_t has_weight;
  int32_t has_bias;
  int32_t packs;
};

// How a channel's elements are divided among threadgroups, which reduce a part each: `elements` of
// them (outer times inner), the last part the rest. across: adjacent threads of adjacent channels,
// where channels are adjacent in memory.
struct NormParts {
  uint32_t parts;
  uint32_t elements;
  uint32_t across;
};

}  // namespace metalops

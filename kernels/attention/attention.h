// Parameters of the kernels of attention.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// What is added to scores, or hides them (bool): kSame has the dtype of the queries.
enum class AttentionMask : int32_t { kNone, kBool, kFloat, kSame };

// Queries (rows) and keys (columns) of a threadgroup's tile: where products are of simdgroup
// matrices, and where they are of tensors. Forward, with values of more features, a tile of tensors
// has kRows. Backward, tiles have kRows, and those of the mask kColumns.
enum class AttentionTile : int32_t {
  kRows = 32,
  kColumns = 32,
  kRowsOfTensors = 64,
  kColumnsOfTensors = 64,
  kMostFeatures = 128
};

// Between samples, heads and tokens. Features have no gaps.
struct AttentionStrides {
  int64_t batch;
  int64_t head;
  int64_t row;
};

struct AttentionParameters {
  AttentionStrides query;
  AttentionStrides key;
  AttentionStrides value;
  AttentionStrides out;
  AttentionStrides grad_out;
  AttentionStrides grad_query;
  AttentionStrides grad_key;
  AttentionStrides grad_value;
  int64_t mask[4];
  int64_t grad_mask[4];  // of a mask without gaps
  int64_t lse_batch;     // between samples of the log-sum-exp, whose rows have no gaps
  int64_t lse_head;      // between heads
  int64_t slopes_batch;  // 0 where all samples have the same slopes
  int32_t batch;
  int32_t heads;
  int32_t heads_of_a_key;  // query heads that share one of keys and values
  int32_t queries;         // of the longest sequence
  int32_t keys;
  int32_t all_queries;  // of all sequences where they are packed
  int32_t all_keys;
  int32_t head_size;
  int32_t value_size;
  int32_t window_left;    // how far before the diagonal keys are seen; negative: all
  int32_t window_right;   // how far behind it
  int32_t mask_sizes[4];  // 1 where the mask is the same for all
  AttentionMask mask_kind;
  float scale;                 // of the products, times that of the keys where it is a tensor
  float softcap;               // 0: none
  float keep_scale;            // by which kept elements are multiplied
  uint32_t dropout_threshold;  // elements whose random bits are below it are dropped
  bool drops;
  bool drops_all;
  bool bottom_right;  // whether the diagonal ends in the last key, not begins in the first
  bool is_packed;
  bool has_lengths;  // of the keys of each sequence
  bool has_sinks;
  bool has_slopes;
  bool has_key_scale;  // in the forward pass only
  bool has_grad_lse;
  bool is_aligned;  // whether rows of keys and values are whole packs of 16 bytes
};

}  // namespace metalops

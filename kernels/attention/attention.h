// Parameters of the kernels of attention.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The mask's kind: it hides scores (bool) or is added to them. kSame has the dtype of the queries.
enum class AttentionMask : int32_t { kNone, kBool, kFloat, kSame };

// Tile sizes in queries (rows) and keys (columns) per threadgroup: kRows x kColumns with simdgroup
// matrices, kRowsOfTensors x kColumnsOfTensors with Metal 4 tensors. Forward, tensor tiles have
// kRows if values have more than kMostFeatures features, and half precision kRowsOfWarpgroups where
// simdgroups multiply together (has_warpgroups of plans::Device), unless there are few. Backward,
// tiles have kRows, and those of the mask's gradient kColumns. Where simdgroups multiply together,
// tiles of queries or keys of half precision have kRowsOfWarpgroups, or kRowsOfTensors if there are
// few or if features are at most so many.
enum class AttentionTile : int32_t {
  kRows = 32,
  kColumns = 32,
  kRowsOfTensors = 64,
  kRowsOfWarpgroups = 128,
  kColumnsOfTensors = 64,
  kMostFeatures = 128
};

// Strides in elements between samples, heads and tokens. Features are contiguous.
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
  int64_t grad_mask[4];  // strides of the mask's gradient, which is contiguous
  int64_t lse_batch;     // stride of the lse between samples; its rows are contiguous
  int64_t lse_head;      // stride of the lse between heads
  int64_t slopes_batch;  // 0 if all samples have the same slopes
  int32_t batch;
  int32_t heads;
  int32_t heads_of_a_key;  // query heads per KV head (GQA)
  int32_t queries;         // of the longest sequence
  int32_t keys;
  int32_t all_queries;  // of all sequences if they are packed
  int32_t all_keys;
  int32_t head_size;
  int32_t value_size;
  int32_t window_left;    // keys seen before the diagonal; negative: all
  int32_t window_right;   // keys seen after the diagonal; negative: all
  int32_t mask_sizes[4];  // 1 where the mask is broadcast
  AttentionMask mask_kind;
  float scale;                 // multiplies QK^T, as does the keys' scale if that is a tensor
  float softcap;               // 0: none
  float keep_scale;            // kept elements are multiplied by it (dropout)
  uint32_t dropout_threshold;  // elements whose random bits are below it are dropped
  bool drops;
  bool drops_all;
  bool bottom_right;  // the diagonal ends at the last key (else begins at the first)
  bool is_packed;
  bool has_lengths;  // number of keys of each sequence
  bool has_sinks;
  bool has_slopes;
  bool has_key_scale;  // in the forward pass only
  bool has_grad_lse;
  bool is_aligned;  // rows of keys and values are whole 16-byte vectors
  uint8_t padding[6];
};

}  // namespace metalops

// Parameters of the kernels of attention_decode.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// What is added to scores, or hides them (bool): kSame has the dtype of the queries.
enum class AttentionDecodeMask : int32_t { kNone, kBool, kFloat, kSame };

// Between samples (of a cache: pages), tokens and heads, in elements. Features have no gaps.
struct AttentionDecodeStrides {
  int64_t batch;
  int64_t token;
  int64_t head;
};

struct AttentionDecodeParameters {
  AttentionDecodeStrides query;
  AttentionDecodeStrides key;
  AttentionDecodeStrides value;
  AttentionDecodeStrides out;
  AttentionDecodeStrides lse;
  int64_t mask[4];       // of samples, heads, queries, keys
  int64_t table_stride;  // between the samples of the block table
  int64_t slopes_batch;  // 0 where all samples have the same slopes
  int32_t batch;
  int32_t heads;  // of keys and values
  int32_t group;  // query heads that share one of them
  int32_t queries;
  int32_t keys;  // there is room for so many
  int32_t head_size;
  int32_t value_size;
  int32_t splits;      // parts of the keys, each of which has its own threadgroups
  int32_t row_blocks;  // of the group's queries: they are shared out by the kernel's ROWS
  int32_t page_size;   // 0: keys are not in pages
  int32_t page_shift;  // page_size is 2^page_shift; negative: it is no power of two
  int32_t pages;
  int32_t window_left;   // how far before the diagonal keys are seen; negative: all
  int32_t window_right;  // how far behind it
  AttentionDecodeMask mask_kind;
  float scale;        // of the products, with that of the keys' codes where it is a number
  float value_scale;  // of the values' codes
  float softcap;      // 0: none
  bool bottom_right;  // whether the diagonal ends in the last key, not begins in the first
  bool has_lengths;
  bool has_starts;
  bool has_sinks;
  bool has_slopes;
  bool has_key_scale;  // as a tensor, by which the other is multiplied
  bool has_value_scale;
  bool is_aligned;  // whether keys and values are whole packs
};

}  // namespace metalops

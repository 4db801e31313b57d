// Parameters of the kernels of attention_decode.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The mask's kind: it hides scores (bool) or is added to them. kSame has the dtype of the queries.
enum class AttentionDecodeMask : int32_t { kNone, kBool, kFloat, kSame };

// Strides in elements between samples (pages in a paged cache), tokens and heads. Features are
// contiguous.
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
  int64_t mask[4];       // strides over samples, heads, queries, keys
  int64_t table_stride;  // between rows (samples) of the block table
  int64_t slopes_batch;  // 0 if all samples have the same slopes
  int32_t batch;
  int32_t heads;  // KV heads
  int32_t group;  // query heads per KV head (GQA)
  int32_t queries;
  int32_t keys;  // capacity; lengths may be shorter
  int32_t head_size;
  int32_t value_size;
  int32_t splits;      // split-KV: ranges of keys, each with its own threadgroups
  int32_t row_blocks;  // blocks of ROWS (query, head) rows per KV head
  int32_t page_size;   // 0: the cache is not paged
  int32_t page_shift;  // page_size is 2^page_shift; negative: no power of two
  int32_t pages;
  int32_t window_left;   // keys seen before the diagonal; negative: all
  int32_t window_right;  // keys seen after the diagonal; negative: all
  AttentionDecodeMask mask_kind;
  float scale;        // multiplies QK^T; includes the keys' dequantisation scale if it is a number
  float value_scale;  // the values' dequantisation scale if it is a number, else 1
  float softcap;      // 0: none
  bool bottom_right;  // the diagonal ends at the last key (else begins at the first)
  bool has_lengths;
  bool has_starts;
  bool has_sinks;
  bool has_slopes;
  bool has_key_scale;  // a tensor, multiplied by `scale`
  bool has_value_scale;
  bool is_aligned;  // keys and values can be loaded as whole vectors
};

}  // namespace metalops

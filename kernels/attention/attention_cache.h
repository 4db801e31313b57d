// Parameters of the kernels of attention_cache.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Where a token is stored: in the slot given for it, after the tokens that its sequence already
// has, or at its own position in a tensor shaped like `tokens`.
enum class CachePlaces : int32_t { kSlots, kBehind, kOwn };

// Strides in elements between samples (pages in a cache), tokens, heads and features.
struct CacheStrides {
  int64_t batch;
  int64_t token;
  int64_t head;
  int64_t feature;
};

struct CacheParameters {
  CacheStrides tokens;
  CacheStrides cache;
  int64_t table_stride;  // between rows (samples) of the block table
  int64_t slots;         // in the cache, or in all pages of a sequence
  int32_t batch;
  int32_t length;  // tokens per sample
  int32_t heads;
  int32_t features;
  int32_t page_size;
  int32_t pages;
  CachePlaces places;
  int32_t rotated;      // number of features that are rotated (RoPE)
  int32_t angles;       // positions in the table of cosines and sines
  float scale;          // elements are divided by it when they are stored
  bool has_scale;       // a tensor, multiplied by `scale`
  bool has_wide_slots;  // slots are 64-bit, not 32-bit
  bool has_table;       // else sample b has page b
  bool interleaved;     // RoPE rotates adjacent pairs, not pairs of the two halves
  bool advances;        // a sample's tokens have consecutive positions
  uint8_t padding[3];
};

}  // namespace metalops

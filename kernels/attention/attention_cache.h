// Parameters of the kernels of attention_cache.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Where a token goes: to the slot that is given for it, behind those of its sequence that are
// there already, or to its own place in a tensor like the tokens'.
enum class CachePlaces : int32_t { kSlots, kBehind, kOwn };

// Between samples (of a cache: pages), tokens, heads and features, in elements.
struct CacheStrides {
  int64_t batch;
  int64_t token;
  int64_t head;
  int64_t feature;
};

struct CacheParameters {
  CacheStrides tokens;
  CacheStrides cache;
  int64_t table_stride;  // between the samples of the block table
  int64_t slots;         // of the cache, or of the pages of a sequence
  int32_t batch;
  int32_t length;  // tokens of a sample
  int32_t heads;
  int32_t features;
  int32_t page_size;
  int32_t pages;
  CachePlaces places;
  int32_t rotated;      // features that are
  int32_t angles;       // of the table: places that may be rotated
  float scale;          // what elements are divided by when they are stored
  bool has_scale;       // as a tensor, by which the other is multiplied
  bool has_wide_slots;  // of 64 bits, not 32
  bool has_table;       // else sample b has page b
  bool interleaved;     // whether neighbours are rotated together, or the halves
  bool advances;        // whether a sample's tokens have places one behind the other
};

}  // namespace metalops

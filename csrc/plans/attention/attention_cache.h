// Launch plans of kernels/attention/attention_cache.metal: KV caches.
//
// A cache has sizes (pages, page size, H, E), or (samples, tokens, H, E) where there is no block
// table. Its dtype is that of the tokens, or int8, float8_e4m3fn or float8_e5m2.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// Stores tokens, divided by both scales, in the slots given for them.
struct AttentionCacheStoreAtSlots {
  View cache;
  View tokens;  // (T, H, E)
  View slots;   // (T,), int32 or int64
  View scale;   // absent, or one float32
  double number = 1;
};

void attention_cache_store_at_slots(Plan& plan, const AttentionCacheStoreAtSlots& call,
                                    const Device& device);

// Appends tokens to the tokens that their sequences have.
struct AttentionCacheStoreBehind {
  View cache;
  View tokens;   // (B, L, H, E)
  View lengths;  // (B,)
  View table;    // absent, or (B, pages), int32
  View cosines;  // absent, or (positions, half of the features that are rotated)
  View sines;
  bool interleaved = false;
};

void attention_cache_store_behind(Plan& plan, const AttentionCacheStoreBehind& call,
                                  const Device& device);

// Applies rotary embeddings to tokens at the positions from `lengths` on, or unless `advances` all
// at this position.
struct AttentionCacheRotate {
  View result;  // the sizes of tokens
  View tokens;  // (B, L, H, E)
  View lengths;
  View cosines;
  View sines;
  bool interleaved = false;
  bool advances = true;
};

void attention_cache_rotate(Plan& plan, const AttentionCacheRotate& call, const Device& device);

// Gathers the tokens of each sequence, padded with zeros and multiplied by both scales.
struct AttentionCacheGather {
  View tokens;  // (B, tokens of the longest sequence, H, E)
  View cache;
  View lengths;
  View table;  // as above
  View scale;
  double number = 1;
};

void attention_cache_gather(Plan& plan, const AttentionCacheGather& call, const Device& device);

}  // namespace metalops::plans

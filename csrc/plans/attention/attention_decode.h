// Launch plan of kernels/attention/attention_decode.metal: attention of few queries over contiguous
// or paged keys, with split-KV (flash decoding).
#pragma once
#include <csrc/plans/plan.h>

#include <cstdint>

namespace metalops::plans {

// The largest number of rows (queries times the query heads that share a key head) for which
// attention_decode() is used.
inline constexpr int64_t kMostDecodeRows = 32;

struct AttentionDecode {
  View out;    // (B, Hq, L, Ev), with contiguous features
  View lse;    // (B, Hq, L), float32
  View query;  // (B, Hq, L, E)
  // (B, Hkv, S, E) and (B, Hkv, S, Ev), or with a table (pages, Hkv, page size, E or Ev). They have
  // the query's dtype, or int8, float8_e4m3fn or float8_e5m2.
  View key;
  View value;
  // Absent, or:
  View mask;         // 4 dimensions, those of the scores or 1
  View sinks;        // (Hq,)
  View slopes;       // (Hq,) or (B, Hq)
  View lengths;      // (B,): keys before this count
  View starts;       // (B,): keys from this on count
  View table;        // (B, pages), int32: keys and values are in pages
  View key_scale;    // one float32 each
  View value_scale;  // one float32 each
  double scale = 1;
  double value_factor = 1;
  double softcap = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool bottom_right = true;
};

void attention_decode(Plan& plan, const AttentionDecode& call, const Device& device);

// Combines two partial results by their lse. All contiguous.
struct AttentionDecodeMerge {
  View out;  // (..., Ev)
  View lse;  // (...)
  View out_a;
  View lse_a;
  View out_b;
  View lse_b;
};

void attention_decode_merge(Plan& plan, const AttentionDecodeMerge& call, const Device& device);

// Computes the gradients of attention_decode_merge(). All contiguous.
struct AttentionDecodeMergeBackward {
  View grad_out_a;
  View grad_lse_a;
  View grad_out_b;
  View grad_lse_b;
  View grad_out;
  View grad_lse;
  View out_a;
  View lse_a;
  View out_b;
  View lse_b;
};

void attention_decode_merge_backward(Plan& plan, const AttentionDecodeMergeBackward& call,
                                     const Device& device);

// Returns a softcap for kernels: none is 0, and one so small that all scores become negligible is
// one that kernels do not flush to zero.
inline float softcap_for_kernel(double softcap) {
  constexpr double kLeast = 1e-30;
  return static_cast<float>(softcap > 0 ? std::max(softcap, kLeast) : 0);
}

// Returns true if all rows of a tensor are whole, aligned vectors of `bytes`.
bool is_in_packs(const View& view, int64_t bytes);

// Returns the view, or a copy of it, with contiguous features.
View with_features_together(Plan& plan, const View& view);

}  // namespace metalops::plans

// Launch plans of kernels/attention/attention.metal: FlashAttention, forward and backward, of any
// kind. Calls of few queries are those of attention_decode().
#pragma once
#include <csrc/plans/plan.h>

#include <cstdint>

namespace metalops::plans {

// The arguments of metalops::attention_forward, which are valid (see attention_arguments.h);
// python/metalops/ops/attention.py documents them.
struct AttentionInputs {
  View query;  // (B, Hq, L, E), or packed (tokens, Hq, E)
  View key;
  View value;
  // Absent, or:
  View attn_mask;     // 4 dimensions, those of the scores or 1
  View sinks;         // (Hq,)
  View alibi_slopes;  // (Hq,) or (B, Hq)
  View cu_seqlens_q;  // (sequences + 1,): tokens are packed
  View cu_seqlens_k;
  View seqused_k;  // (B,): keys before this count
  View rng;        // seed and offset of the dropout
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  double scale = 1;
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool bottom_right = false;
  double softcap = 0;
  double dropout_p = 0;
};

struct AttentionForward {
  View out;      // the sizes of query, but for the features, which are contiguous
  View lse;      // (B, Hq, L), or packed (Hq, tokens), float32, contiguous
  View k_scale;  // absent, or one float32, by which keys are multiplied
  AttentionInputs inputs;
};

// Returns true if queries are so few that loading keys and values is nearly all of the work: a
// forward call is one of attention_decode(), whose kernels have no matrix products.
bool is_for_few_queries(const AttentionInputs& inputs);

void attention_forward(Plan& plan, const AttentionForward& call, const Device& device);

// The gradients are absent where they are not wanted. Features of those of tokens are contiguous,
// the other gradients are contiguous.
struct AttentionBackward {
  View grad_query;
  View grad_key;
  View grad_value;
  View grad_mask;
  View grad_sinks;
  View grad_slopes;
  View grad_out;
  View grad_lse;  // or absent
  View out;
  View lse;
  AttentionInputs inputs;
};

void attention_backward(Plan& plan, const AttentionBackward& call, const Device& device);

}  // namespace metalops::plans

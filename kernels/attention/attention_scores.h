// Scores of attention from the products QK^T: scale, softcap, ALiBi slopes, window, mask and
// dropout. Shared by kernels/attention/attention.metal and kernels/attention/attention_gradients.h.
#pragma once
#include <metal_stdlib>

#include <kernels/attention/attention.h>
#include <kernels/attention/attention_softmax.h>
#include <kernels/common/matmul.h>

namespace metalops {
namespace attention {

// A threadgroup has four simdgroups.
constant constexpr int kSimdgroups = 4;
constant constexpr int kThreads = kSimdgroups * 32;

constexpr int most(int a, int b) { return a > b ? a : b; }
static_assert(most(1, 2) == 2 && most(2, 1) == 2, "less is memory that tiles write beyond");

// One head of one sequence.
struct Sequence {
  int batch;
  int head;             // query head
  int64_t first_query;  // rows before this sequence if sequences are packed
  int64_t first_key;
  int queries;
  int keys;
  int diagonal;  // query i has the position of key i + diagonal
};

inline int clamped(int value, int least, int most) {
  return ::metal::min(::metal::max(value, least), most);
}

// cu_queries, cu_keys: offsets of packed sequences. lengths: number of keys of each sequence.
inline Sequence sequence_of(int batch, int head, constant AttentionParameters& p,
                            device const int* cu_queries, device const int* cu_keys,
                            device const int* lengths) {
  Sequence s{batch, head, 0, 0, p.queries, p.keys, 0};
  if (p.is_packed) {
    const int first_query = clamped(cu_queries[batch], 0, p.all_queries);
    const int first_key = clamped(cu_keys[batch], 0, p.all_keys);
    s.first_query = first_query;
    s.first_key = first_key;
    s.queries = clamped(cu_queries[batch + 1], first_query, p.all_queries) - first_query;
    s.keys = clamped(cu_keys[batch + 1], first_key, p.all_keys) - first_key;
  }
  if (p.has_lengths) {
    s.keys = clamped(lengths[batch], 0, s.keys);
  }
  s.diagonal = p.bottom_right ? s.keys - s.queries : 0;
  return s;
}

inline int64_t offset_of(AttentionStrides strides, int batch, int head, int64_t row) {
  return batch * strides.batch + head * strides.head + row * strides.row;
}

// Returns the offset of a sequence's first row in the lse and the other statistics of rows.
inline int64_t rows_of(Sequence s, constant AttentionParameters& p) {
  return s.batch * p.lse_batch + s.head * p.lse_head + s.first_query;
}

// Returns the softmax denominator of a row of a head, with the head's sink if there is one.
inline Total total_of(float running_max, float sum, Sequence s, constant AttentionParameters& p,
                      device const float* sinks) {
  return p.has_sinks ? with_sink(running_max, sum, sinks[s.head]) : Total{running_max, sum, 1.0f};
}

// A threadgroup's tile of queries: those from `first` on, of one head of one sequence.
struct QueryTile {
  Sequence sequence;
  int first;
};
// Finds a threadgroup's tile of `rows` queries. The last tiles of a sequence are scheduled first:
// they see the most keys in causal attention.
inline QueryTile query_tile_of(uint group, int rows, constant AttentionParameters& p,
                               device const int* cu_queries, device const int* cu_keys,
                               device const int* lengths) {
  const uint tiles = (static_cast<uint>(p.queries) + rows - 1) / rows;
  const uint head_of_batch = group / tiles;
  return {sequence_of(static_cast<int>(head_of_batch / p.heads),
                      static_cast<int>(head_of_batch % p.heads), p, cu_queries, cu_keys, lengths),
          static_cast<int>(tiles - 1 - group % tiles) * rows};
}

// Returns the group whose tile of `rows` of `length` tokens query_tile_of() or key_tile_of() finds,
// in an order for attention. In causal attention the longest tiles of several heads come first, so
// that none is left in the end; otherwise heads are scheduled one after the other, since caches
// hold their tokens. heads: of each sequence.
inline uint balanced_group(uint group, int length, int rows, int heads,
                           constant AttentionParameters& p) {
  if (p.window_right < 0) {
    return group;
  }
  constexpr uint most = 16;
  const uint tiles = (static_cast<uint>(length) + rows - 1) / rows;
  const uint first_head = group / (tiles * most) * most;
  const uint in_heads = group - first_head * tiles;
  const uint together = ::metal::min(most, static_cast<uint>(p.batch * heads) - first_head);
  return (first_head + in_heads % together) * tiles + in_heads / together;
}

// The operands of one head of one sequence.
template <typename T>
struct Operands {
  device const T* queries;
  device const T* keys;
  device const T* values;
};
template <typename T>
inline Operands<T> operands_of(Sequence s, constant AttentionParameters& p, device const T* query,
                               device const T* key, device const T* value) {
  const int key_head = s.head / p.heads_of_a_key;
  return {query + offset_of(p.query, s.batch, s.head, s.first_query),
          key + offset_of(p.key, s.batch, key_head, s.first_key),
          value + offset_of(p.value, s.batch, key_head, s.first_key)};
}

// Returns a range that contains all keys that any of the queries [row, row + rows) sees; it may be
// larger.
struct Range {
  int begin;
  int end;
};
inline Range keys_seen(Sequence s, constant AttentionParameters& p, int row, int rows) {
  const int last = row + rows - 1;
  Range range{0, s.keys};
  if (p.window_right >= 0) {
    range.end = ::metal::min(range.end, last + s.diagonal + p.window_right + 1);
  }
  if (p.window_left >= 0) {
    range.begin = ::metal::max(0, row + s.diagonal - p.window_left);
  }
  return range;
}
// Returns a range that contains all queries that see any of the keys [column, column + columns); it
// may be larger.
inline Range queries_seeing(Sequence s, constant AttentionParameters& p, int column, int columns) {
  const int last = column + columns - 1;
  Range range{0, s.queries};
  if (p.window_right >= 0) {
    range.begin = ::metal::max(0, column - s.diagonal - p.window_right);
  }
  if (p.window_left >= 0) {
    range.end = ::metal::min(range.end, last - s.diagonal + p.window_left + 1);
  }
  return range;
}

// Computes scores of one head. T is the dtype of the queries (and of a kSame mask).
template <typename T>
struct Scores {
  device const uchar* mask;
  int64_t mask_row;
  int64_t mask_column;
  AttentionMask mask_kind;
  float scale;
  float softcap;
  float slope;
  bool has_slopes;
  int queries, keys, diagonal, left, right;

  // Returns the keys that a query sees, apart from the mask.
  inline Range seen_by(int row) const {
    if (row >= queries) {
      return {0, 0};
    }
    return {left < 0 ? 0 : row + diagonal - left,
            right < 0 ? keys : ::metal::min(keys, row + diagonal + right + 1)};
  }

  // Returns the part of the score that does not depend on the position: scale and softcap.
  inline float capped(float product) const {
    const float score = product * scale;
    return softcap > 0.0f ? attention::capped(score, softcap) : score;
  }

  // Adds the part that depends on the position: slope, window and mask. Returns -INFINITY if the
  // key is hidden.
  inline float masked(float score, int row, int column) const {
    const Range seen = seen_by(row);
    if (column < seen.begin || column >= seen.end) {
      return -INFINITY;
    }
    score -= slope * ::metal::abs(static_cast<float>(row + diagonal - column));
    if (mask_kind == AttentionMask::kNone) {
      return score;
    }
    const int64_t at = row * mask_row + column * mask_column;
    switch (mask_kind) {
      case AttentionMask::kBool:
        return mask[at] != 0 ? score : -INFINITY;
      case AttentionMask::kFloat:
        return score + reinterpret_cast<device const float*>(mask)[at];
      default:
        return score + static_cast<float>(reinterpret_cast<device const T*>(mask)[at]);
    }
  }
};

// Returns true if the score of a visible key is product * scale: no mask, softcap or slopes.
template <typename T>
inline bool is_bare(Scores<T> scores) {
  return scores.mask_kind == AttentionMask::kNone && scores.softcap == 0.0f && !scores.has_slopes;
}

// Returns the score of a product.
template <typename T>
inline float score_of(Scores<T> scores, float product, int row, int column) {
  return scores.masked(scores.capped(product), row, column);
}

template <typename T>
inline Scores<T> scores_of(Sequence s, constant AttentionParameters& p, device const uchar* mask,
                           device const float* slopes, device const float* key_scale = nullptr) {
  const int bytes = p.mask_kind == AttentionMask::kBool    ? 1
                    : p.mask_kind == AttentionMask::kFloat ? 4
                                                           : static_cast<int>(sizeof(T));
  return {mask + (s.batch * p.mask[0] + s.head * p.mask[1]) * bytes,
          p.mask[2],
          p.mask[3],
          p.mask_kind,
          p.has_key_scale ? p.scale * key_scale[0] : p.scale,
          p.softcap,
          p.has_slopes ? slopes[s.batch * p.slopes_batch + s.head] : 0.0f,
          p.has_slopes,
          s.queries,
          s.keys,
          s.diagonal,
          p.window_left,
          p.window_right};
}

// Dropout of the attention weights: decides by the element's position alone (Philox4x32-10), so
// that forward and backward agree whatever their tiles.
struct Dropout {
  uint2 seed;
  uint2 offset;
  uint head;
  uint threshold;
  bool drops;
  bool drops_all;

  inline bool keeps(int row, int column) const {
    if (!drops) {
      return true;
    }
    if (drops_all) {
      return false;
    }
    uint4 counter(static_cast<uint>(column), static_cast<uint>(row), head, offset.x);
    uint2 key(seed.x ^ offset.y, seed.y);
    for (int round = 0; round < 10; ++round) {
      const uint low = counter.x * 0xD2511F53u;
      const uint high = ::metal::mulhi(counter.x, 0xD2511F53u);
      const uint other_low = counter.z * 0xCD9E8D57u;
      const uint other_high = ::metal::mulhi(counter.z, 0xCD9E8D57u);
      counter = uint4(other_high ^ counter.y ^ key.x, other_low, high ^ counter.w ^ key.y, low);
      key += uint2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter.x >= threshold;
  }
};
inline Dropout dropout_of(Sequence s, constant AttentionParameters& p, device const uint2* random) {
  if (!p.drops) {
    return {uint2(0), uint2(0), 0, 0, false, false};
  }
  return {random[0],           random[1], static_cast<uint>(s.batch * p.heads + s.head),
          p.dropout_threshold, true,      p.drops_all};
}

}  // namespace attention
}  // namespace metalops

// FlashAttention forward: one threadgroup per tile of queries of one head loops over tiles of keys
// with online softmax (running max and sum). See Milakov and Gimelshein, "Online normalizer
// calculation for softmax", and Dao, "FlashAttention-2".
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/attention/attention.h>
#include <kernels/attention/attention_gradients.h>
#include <kernels/attention/attention_scores.h>
#include <kernels/common/matmul.h>
using namespace metal;
using metalops::AttentionParameters;
using metalops::AttentionTile;
namespace attention = metalops::attention;
namespace matmul = metalops::matmul;

// Tile size in queries (rows) and keys (columns).
template <int VALUES>
struct ForwardTile {
#if defined(__HAVE_TENSOR__)
  static constant constexpr int rows = static_cast<int>(
      VALUES <= static_cast<int>(AttentionTile::kMostFeatures) ? AttentionTile::kRowsOfTensors
                                                               : AttentionTile::kRows);
  static constant constexpr int columns = static_cast<int>(AttentionTile::kColumnsOfTensors);
#else
  static constant constexpr int rows = static_cast<int>(AttentionTile::kRows);
  static constant constexpr int columns = static_cast<int>(AttentionTile::kColumns);
#endif
};

// Sums are rescaled only if a score exceeds the max they are relative to by more than this;
// half-precision weights have the range for it.
constant constexpr float kSlack = 8.0f;

struct scale_rows {
  threadgroup const float* factors;

  inline void operator()(int row, int, thread float& sum) const { sum *= factors[row]; }
};

template <typename T>
struct store_rows {
  device T* to;
  int64_t stride;
  int rows;
  int columns;
  threadgroup const float* factors;

  inline void operator()(int row, int column, thread float& sum) const {
    if (row < rows && column < columns) {
      const float factor = factors[row];
      to[row * stride + column] = static_cast<T>(factor == 0.0f ? 0.0f : sum * factor);
    }
  }
};

// FlashAttention forward for any dtype. VALUES: at least the features of a value. One threadgroup
// per tile of queries, head and sequence.
template <typename T, int VALUES>
kernel void attention_forward(
    device T* out [[buffer(0)]], device float* lse [[buffer(1)]],
    device const T* query [[buffer(2)]], device const T* key [[buffer(3)]],
    device const T* value [[buffer(4)]], device const uchar* mask [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device const float* slopes [[buffer(7)]],
    device const int* cu_queries [[buffer(8)]], device const int* cu_keys [[buffer(9)]],
    device const int* lengths [[buffer(10)]], device const uint2* random [[buffer(11)]],
    device const float* key_scale [[buffer(12)]], constant AttentionParameters& p [[buffer(13)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr int rows = ForwardTile<VALUES>::rows;
  constexpr int columns = ForwardTile<VALUES>::columns;
  constexpr int stride = columns + 4;
  constexpr bool is_float = sizeof(T) == 4;
  constexpr int weight_stride = is_float ? stride : columns + 8;
  threadgroup float scores[rows * stride];
  threadgroup T narrow[is_float ? 1 : rows * weight_stride];
  threadgroup float factors[rows];
  threadgroup uint changes[attention::kSimdgroups];
  // Float weights overwrite the scores; narrower ones have their own memory.
  threadgroup T* const weights = is_float ? reinterpret_cast<threadgroup T*>(scores) : narrow;

  typedef matmul::Lines<T, false> Rows;
  typedef matmul::Lines<T, true> Columns;
  typedef matmul::Stored<T, weight_stride, false> Weights;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
  typedef matmul::TileProduct<rows, VALUES, attention::kSimdgroups, Weights, Columns> ValueProduct;
  threadgroup T workspace[attention::most(ScoreProduct::workspace, ValueProduct::workspace)];

  // The last tiles are scheduled first: they see the most keys in causal attention.
  const uint tiles = (static_cast<uint>(p.queries) + rows - 1) / rows;
  const uint head_of_batch = group / tiles;
  const int first = static_cast<int>(tiles - 1 - group % tiles) * rows;
  const attention::Sequence s = attention::sequence_of(static_cast<int>(head_of_batch / p.heads),
                                                       static_cast<int>(head_of_batch % p.heads), p,
                                                       cu_queries, cu_keys, lengths);
  if (first >= s.queries) {
    return;
  }
  const matmul::Place place{uint2(0), index, simdgroup, lane};
  const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes, key_scale);
  const attention::Dropout dropout = attention::dropout_of(s, p, random);
  const int key_head = s.head / p.heads_of_a_key;
  const Rows queries{query + attention::offset_of(p.query, s.batch, s.head, s.first_query + first),
                     p.query.row};
  device const T* const keys = key + attention::offset_of(p.key, s.batch, key_head, s.first_key);
  device const T* const values =
      value + attention::offset_of(p.value, s.batch, key_head, s.first_key);
  const int queries_left = s.queries - first;

  // A row of the tile belongs to `lanes` adjacent lanes, each of which has `share` of its columns.
  constexpr int lanes = attention::kThreads / rows;
  constexpr int share = columns / lanes;
  const int row = static_cast<int>(index) / lanes;
  const int column = static_cast<int>(index) % lanes * share;
  threadgroup float* const my_scores = scores + row * stride + column;
  threadgroup T* const my_weights = weights + row * weight_stride + column;
  const bool is_bare = make.is_bare();
  const attention::Range seen_by_row = make.seen_by(first + row);
  float running_max = -INFINITY;  // the max that weights are relative to
  float sum = 0.0f;               // over this lane's weights

  auto sums = ValueProduct::sums();
  ValueProduct::clear(sums, place);
  const attention::Range seen = attention::keys_seen(s, p, first, rows);
  for (int at = seen.begin / columns * columns; at < seen.end; at += columns) {
    const int keys_left = min(columns, s.keys - at);
    ScoreProduct::template store<stride>(scores, queries, queries_left,
                                         Rows{keys + at * p.key.row, p.key.row}, keys_left,
                                         p.head_size, workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float mine[share];
    if (is_bare) {
      for (int c = 0; c < share; ++c) {
        const int of_column = at + column + c;
        mine[c] = of_column >= seen_by_row.begin && of_column < seen_by_row.end
                      ? my_scores[c] * make.scale
                      : -INFINITY;
      }
    } else {
      // Adjacent lanes take adjacent elements of the mask, for coalesced loads.
      for (int e = static_cast<int>(index); e < rows * columns; e += attention::kThreads) {
        threadgroup float& score = scores[e / columns * stride + e % columns];
        score = make.masked(make.capped(score), first + e / columns, at + e % columns);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int c = 0; c < share; ++c) {
        mine[c] = my_scores[c];
      }
    }
    float4 several(-INFINITY);
    for (int c = 0; c < share; c += 4) {
      several = max(several, float4(mine[c], mine[c + 1], mine[c + 2], mine[c + 3]));
    }
    float block_max = max(max(several.x, several.y), max(several.z, several.w));
    for (int distance = 1; distance < lanes; distance *= 2) {
      block_max = max(block_max, simd_shuffle_xor(block_max, static_cast<ushort>(distance)));
    }
    const bool is_new = block_max > running_max + kSlack;
    float factor = 1.0f;
    if (is_new) {
      factor = running_max == -INFINITY ? 0.0f : exp(running_max - block_max);
      running_max = block_max;
      sum *= factor;
    }
    const float shift = running_max == -INFINITY ? 0.0f : running_max;
    for (int c = 0; c < share; ++c) {
      mine[c] = exp(mine[c] - shift);
    }
    float4 sums_of_four(0.0f);
    for (int c = 0; c < share; c += 4) {
      sums_of_four += float4(mine[c], mine[c + 1], mine[c + 2], mine[c + 3]);
    }
    sum += sums_of_four.x + sums_of_four.y + (sums_of_four.z + sums_of_four.w);
    if (p.drops) {
      for (int c = 0; c < share; ++c) {
        mine[c] = dropout.keeps(first + row, at + column + c) ? mine[c] : 0.0f;
      }
    }
    for (int c = 0; c < share; ++c) {
      my_weights[c] = static_cast<T>(mine[c]);
    }
    if (column == 0) {
      factors[row] = factor;
    }
    const bool is_changed = simd_any(is_new);
    if (lane == 0) {
      changes[simdgroup] = is_changed ? 1 : 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if ((changes[0] | changes[1] | changes[2] | changes[3]) != 0) {
      ValueProduct::for_each(sums, scale_rows{factors}, place);
    }
    ValueProduct::add(sums, Weights{weights}, rows, Columns{values + at * p.value.row, p.value.row},
                      p.value_size, keys_left, workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  for (int distance = 1; distance < lanes; distance *= 2) {
    sum += simd_shuffle_xor(sum, static_cast<ushort>(distance));
  }
  attention::Total total{running_max, sum, 1.0f};
  if (p.has_sinks) {
    total = attention::with_sink(running_max, sum, sinks[s.head]);
  }
  if (column == 0) {
    factors[row] = total.factor(p.keep_scale);
    if (row < queries_left) {
      lse[s.batch * p.lse_batch + s.head * p.lse_head + s.first_query + first + row] = total.lse();
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ValueProduct::for_each(
      sums,
      store_rows<T>{out + attention::offset_of(p.out, s.batch, s.head, s.first_query + first),
                    p.out.row, queries_left, p.value_size, factors},
      place);
}

#define REGISTER_FORWARD(T, VALUES) \
  REGISTER_KERNEL("attention_forward_" #VALUES "_" #T, attention_forward, T, VALUES)

#define REGISTER_FORWARDS(VALUES)  \
  REGISTER_FORWARD(float, VALUES); \
  REGISTER_FORWARD(half, VALUES);  \
  REGISTER_FORWARD(bfloat, VALUES)

REGISTER_FORWARDS(32);
REGISTER_FORWARDS(64);
REGISTER_FORWARDS(96);
REGISTER_FORWARDS(128);
REGISTER_FORWARDS(256);

#if defined(__HAVE_TENSOR__)

// ---- half precision, with Metal 4 cooperative tensors -------------------------------------------

// Stages a tile of LINES keys or values in registers on its way to threadgroup memory, where the
// leading dimension is FEATURES + 8. Lines and features out of range are zero.
template <typename T, int LINES, int FEATURES>
struct Lines {
  static constant constexpr int stride = FEATURES + 8;
  static constant constexpr int size = LINES * stride;
  static constant constexpr int packs = LINES * FEATURES / 8 / attention::kThreads;
  uint4 of[packs];

  static inline int line(uint index, int i) {
    return (static_cast<int>(index) + i * attention::kThreads) / (FEATURES / 8);
  }
  static inline int feature(uint index, int i) {
    return (static_cast<int>(index) + i * attention::kThreads) % (FEATURES / 8) * 8;
  }

  inline void load(device const T* from, int64_t ld, int lines, int features, bool is_aligned,
                   uint index) {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      device const T* const at = from + line(index, i) * ld + feature(index, i);
      const int count = line(index, i) < lines ? features - feature(index, i) : 0;
      of[i] = uint4(0);
      if (count > 0 && is_aligned) {
        of[i] = *reinterpret_cast<device const uint4*>(at);
      } else if (count > 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const T first = 2 * j < count ? at[2 * j] : T(0);
          const T second = 2 * j + 1 < count ? at[2 * j + 1] : T(0);
          of[i][j] = as_type<uint>(vec<T, 2>(first, second));
        }
      }
    }
  }
  inline void put(threadgroup T* to, uint index) const {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      *reinterpret_cast<threadgroup uint4*>(to + line(index, i) * stride + feature(index, i)) =
          of[i];
    }
  }
};

// FlashAttention forward in half precision: each simdgroup has 16 queries and keeps their scores in
// a cooperative tensor; tiles of keys and values are shared in threadgroup memory. Exponentials are
// in base 2.
template <typename T, int FEATURES>
kernel void attention_forward_by_simdgroups(
    device T* out [[buffer(0)]], device float* lse [[buffer(1)]],
    device const T* query [[buffer(2)]], device const T* key [[buffer(3)]],
    device const T* value [[buffer(4)]], device const uchar* mask [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device const float* slopes [[buffer(7)]],
    device const int* cu_queries [[buffer(8)]], device const int* cu_keys [[buffer(9)]],
    device const int* lengths [[buffer(10)]], device const uint2* random [[buffer(11)]],
    device const float* key_scale [[buffer(12)]], constant AttentionParameters& p [[buffer(13)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  typedef ::mpp::tensor_ops::matmul2d_descriptor Descriptor;
  constexpr float log2_e = 1.44269504f;
  constexpr int rows = 16;
  constexpr int columns = FEATURES <= 64 ? 64 : 32;
  constexpr Descriptor multiplying =
      Descriptor(rows, columns, FEATURES, false, true, false, Descriptor::mode::multiply);
  constexpr Descriptor adding = Descriptor(rows, FEATURES, columns, false, false, false,
                                           Descriptor::mode::multiply_accumulate);
  ::mpp::tensor_ops::matmul2d<multiplying, execution_simdgroup> multiply;
  ::mpp::tensor_ops::matmul2d<adding, execution_simdgroup> add;
  typedef Lines<T, columns, FEATURES> Tile;
  typedef tensor<threadgroup T, extents<int, FEATURES, columns>, tensor_inline> Tokens;
  typedef tensor<threadgroup T, extents<int, columns, rows>, tensor_inline> Stored;
  threadgroup uint4 key_packs[Tile::size / 8];
  threadgroup uint4 value_packs[Tile::size / 8];
  threadgroup T* const key_tile = reinterpret_cast<threadgroup T*>(key_packs);
  threadgroup T* const value_tile = reinterpret_cast<threadgroup T*>(value_packs);
  threadgroup T stored_weights[attention::kSimdgroups * rows * columns];

  const uint tile_rows = attention::kSimdgroups * rows;
  const uint tiles = (static_cast<uint>(p.queries) + tile_rows - 1) / tile_rows;
  const uint head_of_batch = group / tiles;
  const int first = static_cast<int>((tiles - 1 - group % tiles) * tile_rows);
  const attention::Sequence s = attention::sequence_of(static_cast<int>(head_of_batch / p.heads),
                                                       static_cast<int>(head_of_batch % p.heads), p,
                                                       cu_queries, cu_keys, lengths);
  if (first >= s.queries) {
    return;
  }
  const int mine = first + static_cast<int>(simdgroup) * rows;
  const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes, key_scale);
  const attention::Dropout dropout = attention::dropout_of(s, p, random);
  const bool is_bare = make.is_bare();
  const int key_head = s.head / p.heads_of_a_key;
  device const T* const queries =
      query + attention::offset_of(p.query, s.batch, s.head, s.first_query);
  device const T* const keys = key + attention::offset_of(p.key, s.batch, key_head, s.first_key);
  device const T* const values =
      value + attention::offset_of(p.value, s.batch, key_head, s.first_key);

  auto q = multiply.template get_left_input_cooperative_tensor<T, T, float>();
#pragma unroll
  for (uint16_t i = 0; i < q.get_capacity(); ++i) {
    const auto at = q.get_multidimensional_index(i);
    const bool is_there = q.is_valid_element(i) && mine + at[1] < s.queries && at[0] < p.head_size;
    q[i] = is_there ? queries[(mine + at[1]) * p.query.row + at[0]] : T(0);
  }
  auto scores = multiply.template get_destination_cooperative_tensor<decltype(q), Tokens, float>();
  auto weights = multiply.template get_destination_cooperative_tensor<decltype(q), Tokens, T>();
  auto running_max =
      multiply
          .template get_row_reduction_destination_cooperative_tensor<decltype(q), Tokens, float>();
  auto row_values =
      multiply
          .template get_row_reduction_destination_cooperative_tensor<decltype(q), Tokens, float>();
  auto total =
      multiply
          .template get_row_reduction_destination_cooperative_tensor<decltype(q), Tokens, float>();
  auto factor =
      multiply
          .template get_row_reduction_destination_cooperative_tensor<decltype(q), Tokens, float>();
  auto left = add.template get_left_input_cooperative_tensor<T, T, float>();
  auto sums = add.template get_destination_cooperative_tensor<decltype(left), Tokens, float>();
#pragma unroll
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    sums[i] = 0.0f;
  }
#pragma unroll
  for (uint16_t i = 0; i < running_max.get_capacity(); ++i) {
    running_max[i] = -INFINITY;
    total[i] = 0.0f;
  }
  // True if the running max of some row is so large that the conversion to base 2 would round off
  // digits of the score differences, or overflow. The max is then subtracted before the conversion.
  bool is_far = false;

  const attention::Range seen = attention::keys_seen(s, p, first, static_cast<int>(tile_rows));
  const int begin = seen.begin / columns * columns;
  Tile next_keys, next_values;
  next_keys.load(keys + begin * p.key.row, p.key.row, s.keys - begin, p.head_size, p.is_aligned,
                 index);
  next_values.load(values + begin * p.value.row, p.value.row, s.keys - begin, p.value_size,
                   p.is_aligned, index);
  for (int at = begin; at < seen.end; at += columns) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    next_keys.put(key_tile, index);
    next_values.put(value_tile, index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int next = at + columns;
    if (next < seen.end) {
      next_keys.load(keys + next * p.key.row, p.key.row, s.keys - next, p.head_size, p.is_aligned,
                     index);
      next_values.load(values + next * p.value.row, p.value.row, s.keys - next, p.value_size,
                       p.is_aligned, index);
    }
    Tokens key_tokens(key_tile, extents<int, FEATURES, columns>(), array<int, 2>{1, Tile::stride});
    multiply.run(q, key_tokens, scores);

    // True if all of the simdgroup's queries see all of these keys.
    const int query_position = mine + s.diagonal;
    const bool is_whole = is_bare && make.scale > 0.0f && next <= s.keys &&
                          (p.window_right < 0 || next - 1 <= query_position + p.window_right) &&
                          (p.window_left < 0 || at >= query_position + rows - 1 - p.window_left);
    // The scale that is still to be applied. For fully visible tiles it is fused with the
    // conversion to base 2.
    const float by = is_whole ? make.scale : 1.0f;
    if (!is_whole) {
#pragma unroll
      for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
        if (scores.is_valid_element(i)) {
          const auto in_tile = scores.get_multidimensional_index(i);
          const float score = make.capped(scores[i]);
          scores[i] = make.masked(score, mine + in_tile[1], at + in_tile[0]);
        }
      }
    }
    ::mpp::tensor_ops::reduce_rows(scores, row_values, ::mpp::tensor_ops::reduction_operation::max,
                                   -INFINITY);
    bool is_new = false;
#pragma unroll
    for (uint16_t i = 0; i < row_values.get_capacity(); ++i) {
      if (!row_values.is_valid_element(i)) {
        continue;
      }
      const float block_max = row_values[i] * by;
      const bool exceeds = block_max > running_max[i] + kSlack;
      factor[i] = 1.0f;
      if (exceeds) {
        factor[i] =
            running_max[i] == -INFINITY ? 0.0f : exp2((running_max[i] - block_max) * log2_e);
        running_max[i] = block_max;
      }
      is_new = is_new || exceeds;
      row_values[i] = running_max[i] == -INFINITY ? 0.0f : running_max[i];
    }
    const bool is_any_new = simd_any(is_new);
    if (is_any_new) {
      bool is_mine = false;
#pragma unroll
      for (uint16_t i = 0; i < row_values.get_capacity(); ++i) {
        is_mine =
            is_mine || (row_values.is_valid_element(i) && abs(row_values[i]) > attention::kRoomy);
      }
      is_far = simd_any(is_mine);
    }
    if (is_far) {
#pragma unroll
      for (auto it = scores.begin(); it != scores.end(); ++it) {
        if (it.is_valid_element()) {
          *it = fma(*it, by, -*row_values.map_iterator(it));
        }
      }
    }
    const float by_for_base_2 = is_far ? log2_e : by * log2_e;
#pragma unroll
    for (uint16_t i = 0; i < row_values.get_capacity(); ++i) {
      row_values[i] = is_far ? 0.0f : row_values[i] * log2_e;
    }
#pragma unroll
    for (auto it = scores.begin(); it != scores.end(); ++it) {
      if (it.is_valid_element()) {
        *it = fast::exp2(fma(*it, by_for_base_2, -*row_values.map_iterator(it)));
      }
    }
    ::mpp::tensor_ops::reduce_rows(scores, row_values, ::mpp::tensor_ops::reduction_operation::sum,
                                   0.0f);
#pragma unroll
    for (uint16_t i = 0; i < total.get_capacity(); ++i) {
      if (total.is_valid_element(i)) {
        total[i] = total[i] * factor[i] + row_values[i];
      }
    }
    if (p.drops) {
#pragma unroll
      for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
        if (scores.is_valid_element(i)) {
          const auto in_tile = scores.get_multidimensional_index(i);
          const bool keeps = dropout.keeps(mine + in_tile[1], at + in_tile[0]);
          scores[i] = keeps ? scores[i] : 0.0f;
        }
      }
    }
    if (is_any_new) {
#pragma unroll
      for (auto it = sums.begin(); it != sums.end(); ++it) {
        if (it.is_valid_element()) {
          *it *= *factor.map_iterator(it);
        }
      }
    }
#pragma unroll
    for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
      if (weights.is_valid_element(i)) {
        weights[i] = static_cast<T>(scores[i]);
      }
    }
    Tokens value_tokens(value_tile, extents<int, FEATURES, columns>(),
                        array<int, 2>{1, Tile::stride});
    if (add.template is_compatible_as_left_input<T, T, float>(weights)) {
      auto given = add.template get_left_input_cooperative_tensor<T, T, float>(weights);
      add.run(given, value_tokens, sums);
    } else {
      Stored stored(stored_weights + simdgroup * (rows * columns), extents<int, columns, rows>());
      // The previous loads from `stored` are ordered before this store by a threadgroup barrier.
      weights.store(stored);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      left.load(stored);
      add.run(left, value_tokens, sums);
    }
  }

#pragma unroll
  for (uint16_t i = 0; i < total.get_capacity(); ++i) {
    if (!total.is_valid_element(i)) {
      continue;
    }
    attention::Total of_row{running_max[i], total[i], 1.0f};
    if (p.has_sinks) {
      of_row = attention::with_sink(running_max[i], total[i], sinks[s.head]);
    }
    factor[i] = of_row.factor(p.keep_scale);
    row_values[i] = of_row.lse();
  }
  device T* const results = out + attention::offset_of(p.out, s.batch, s.head, s.first_query);
  device float* const row_lse = lse + s.batch * p.lse_batch + s.head * p.lse_head + s.first_query;
#pragma unroll
  for (auto it = sums.begin(); it != sums.end(); ++it) {
    const auto in_tile = it.get_multidimensional_index();
    const int row = mine + in_tile[1];
    if (!it.is_valid_element() || row >= s.queries) {
      continue;
    }
    const float by = *factor.map_iterator(it);
    if (in_tile[0] < p.value_size) {
      results[row * p.out.row + in_tile[0]] = static_cast<T>(by == 0.0f ? 0.0f : *it * by);
    }
    if (in_tile[0] == 0) {
      row_lse[row] = *row_values.map_iterator(it);
    }
  }
}

#define REGISTER_FORWARD_BY_SIMDGROUPS(T, FEATURES)                    \
  REGISTER_KERNEL("attention_forward_by_simdgroups_" #FEATURES "_" #T, \
                  attention_forward_by_simdgroups, T, FEATURES);

REGISTER_FORWARD_BY_SIMDGROUPS(half, 32)
REGISTER_FORWARD_BY_SIMDGROUPS(half, 64)
REGISTER_FORWARD_BY_SIMDGROUPS(half, 96)
REGISTER_FORWARD_BY_SIMDGROUPS(half, 128)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 32)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 64)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 96)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 128)

#endif

#define REGISTER_GRADIENTS_OF_FEATURES(T, FEATURES)                                             \
  REGISTER_KERNEL("attention_grad_query_" #FEATURES "_" #T, attention_grad_query, T, FEATURES); \
  REGISTER_KERNEL("attention_grad_key_value_" #FEATURES "_" #T, attention_grad_key_value, T,    \
                  FEATURES)

#define REGISTER_GRADIENTS(T)                                           \
  REGISTER_GRADIENTS_OF_FEATURES(T, 32);                                \
  REGISTER_GRADIENTS_OF_FEATURES(T, 64);                                \
  REGISTER_GRADIENTS_OF_FEATURES(T, 128);                               \
  REGISTER_GRADIENTS_OF_FEATURES(T, 256);                               \
  REGISTER_KERNEL("attention_statistics_" #T, attention_statistics, T); \
  REGISTER_KERNEL("attention_grad_mask_" #T, attention_grad_mask, T)

REGISTER_GRADIENTS(float);
REGISTER_GRADIENTS(half);
REGISTER_GRADIENTS(bfloat);

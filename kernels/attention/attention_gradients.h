// FlashAttention-2 backward (Dao, "FlashAttention-2", algorithm 2), with scores recomputed from the
// lse. dK and dV take one threadgroup per tile of keys, dQ one per tile of queries, so that each
// element is summed by one threadgroup in a fixed order (no atomics).
#pragma once

#include <metal_stdlib>

#include <kernels/attention/attention.h>
#include <kernels/attention/attention_scores.h>
#include <kernels/common/matmul.h>
using namespace metal;
using metalops::AttentionParameters;
namespace attention = metalops::attention;
namespace matmul = metalops::matmul;

// Layout of a tile of scores in threadgroup memory. A thread has groups of four adjacent columns of
// one row; consecutive groups are 4 * lanes columns apart.
template <typename T>
struct GradientTile {
  static constant constexpr int rows = static_cast<int>(metalops::AttentionTile::kRows);
#if defined(__HAVE_TENSOR__)
  static constant constexpr int columns =
      static_cast<int>(metalops::AttentionTile::kColumnsOfTensors);
  static constant constexpr int stride = columns + 16;
#else
  // Without tensors, operands of tile GEMMs are in threadgroup memory too, so tiles are smaller.
  static constant constexpr int columns = static_cast<int>(metalops::AttentionTile::kColumns);
  static constant constexpr int stride = columns + 4;
#endif
  static constant constexpr bool is_float = sizeof(T) == 4;
  static constant constexpr int narrow_stride = is_float ? stride : columns + 8;
  static constant constexpr int wide_size = rows * stride;
  static constant constexpr int narrow_size = is_float ? 1 : rows * narrow_stride;

  static constant constexpr int lanes = attention::kThreads / rows;
  static constant constexpr int share = columns / lanes;

  static inline int row_of(uint index) { return static_cast<int>(index) / lanes; }
  static inline int column_of(uint index, int i) {
    return (static_cast<int>(index) % lanes + i / 4 * lanes) * 4 + i % 4;
  }
};

// Each row has two statistics besides the lse. The first, delta, is the sum of out * grad_out minus
// grad_lse. The second is a factor that weights are multiplied by. It is 1, except where the lse is
// so large that log(sum) was rounded off when the max was added, for example for keys hidden by a
// mask of large negative numbers.

// The gradients of one element of the attention matrix.
struct Element {
  float weight;  // multiplies grad_out in dV; includes dropout
  float masked;  // gradient with respect to the score
  float score;   // gradient with respect to the product q k, without the scale
};

// product: q k; other: grad_out v.
template <typename T>
inline Element gradients_of(attention::Scores<T> make, attention::Dropout dropout, float keep_scale,
                            float product, float other, float lse, float delta, int row,
                            int column) {
  const float capped = make.capped(product);
  const float score = make.masked(capped, row, column);
  const float weight = score == -INFINITY ? 0.0f : exp(score - lse);
  const float kept = dropout.keeps(row, column) ? keep_scale : 0.0f;
  Element result;
  result.weight = weight * kept;
  result.masked = score == -INFINITY ? 0.0f : weight * (other * kept - delta);
  result.score = result.masked;
  if (make.softcap > 0.0f) {
    const float tanh_of = capped / make.softcap;
    result.score *= 1.0f - tanh_of * tanh_of;
  }
  return result;
}

// Computes `weights` and `gradients` for this thread's share of the tile that begins at (row,
// column). Returns the share's contribution to the gradient of the slope.
template <typename Tile, typename T>
inline float gradients_of_share(attention::Scores<T> make, attention::Dropout dropout,
                                float keep_scale, threadgroup const float* products,
                                threadgroup const float* others, device const float* lse,
                                device const float2* statistics, int row, int column, uint index,
                                thread float* weights, thread float* gradients) {
  const int in_tile = Tile::row_of(index);
  const int of_row = min(row + in_tile, make.queries - 1);
  // Rows that see nothing have lse -INFINITY; any finite number gives their hidden scores weight
  // zero.
  const float relative_to = lse[of_row] == -INFINITY ? 0.0f : lse[of_row];
  const float2 of_both = statistics[of_row];
  const float less = of_both.x;
  for (int i = 0; i < Tile::share; ++i) {
    const int at = in_tile * Tile::stride + Tile::column_of(index, i);
    weights[i] = products[at];
    gradients[i] = others[at];
  }
  float slope_sum = 0.0f;
  if (!dropout.drops && make.is_bare()) {
    const attention::Range seen = make.seen_by(row + in_tile);
    for (int i = 0; i < Tile::share; ++i) {
      const int of_column = column + Tile::column_of(index, i);
      const bool is_seen = of_column >= seen.begin && of_column < seen.end;
      const float weight = exp(weights[i] * make.scale - relative_to);
      weights[i] = is_seen ? weight : 0.0f;
      gradients[i] = is_seen ? weight * (gradients[i] - less) : 0.0f;
    }
  } else {
    for (int i = 0; i < Tile::share; ++i) {
      const int of_column = column + Tile::column_of(index, i);
      const Element element = gradients_of(make, dropout, keep_scale, weights[i], gradients[i],
                                           relative_to, less, row + in_tile, of_column);
      weights[i] = element.weight;
      gradients[i] = element.score;
      slope_sum -=
          element.masked * abs(static_cast<float>(row + in_tile + make.diagonal - of_column));
    }
  }
  const float by = of_both.y;
  if (by != 1.0f) {
    for (int i = 0; i < Tile::share; ++i) {
      weights[i] *= by;
      gradients[i] *= by;
    }
    slope_sum *= by;
  }
  return slope_sum;
}

template <typename T>
struct store_scaled {
  device T* to;
  int64_t stride;
  int rows;
  int columns;
  float scale;

  inline void operator()(int row, int column, thread float& sum) const {
    if (row < rows && column < columns) {
      to[row * stride + column] = static_cast<T>(sum * scale);
    }
  }
};

// ---- statistics ---------------------------------------------------------------------------------

// Returns the weight of an attention sink. An infinite sink has all the weight.
inline float weight_of_sink(float sink, float lse) { return sink == lse ? 1.0f : exp(sink - lse); }

// Computes the statistics of each row: delta, and the factor that corrects the lse. One simdgroup
// per row and head.
template <typename T>
kernel void attention_statistics(
    device float2* statistics [[buffer(0)]], device const T* out [[buffer(1)]],
    device const T* grad_out [[buffer(2)]], device const float* grad_lse [[buffer(3)]],
    device const T* query [[buffer(4)]], device const T* key [[buffer(5)]],
    device const float* lse [[buffer(6)]], device const uchar* mask [[buffer(7)]],
    device const float* sinks [[buffer(8)]], device const float* slopes [[buffer(9)]],
    device const int* cu_queries [[buffer(10)]], device const int* cu_keys [[buffer(11)]],
    device const int* lengths [[buffer(12)]], constant AttentionParameters& p [[buffer(13)]],
    uint2 thread_position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const ulong thread_index = thread_position.y * static_cast<ulong>(grid.x) + thread_position.x;
  const int64_t number = static_cast<int64_t>(thread_index / 32);
  const int lane = static_cast<int>(thread_index % 32);
  const int64_t rows = p.is_packed ? p.all_queries : p.queries;
  const int64_t samples = p.is_packed ? 1 : p.batch;
  if (number >= samples * p.heads * rows) {
    return;
  }
  const int64_t row = number % rows;
  const int64_t head = number / rows % p.heads;
  const int64_t batch = number / rows / p.heads;
  device const T* const a = out + batch * p.out.batch + head * p.out.head + row * p.out.row;
  device const T* const b =
      grad_out + batch * p.grad_out.batch + head * p.grad_out.head + row * p.grad_out.row;
  float sum = 0.0f;
  for (int i = lane; i < p.value_size; i += 32) {
    sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  }
  sum = simd_sum(sum);
  const float of_row = lse[number];
  float by = 1.0f;
  if (abs(of_row) > attention::kRoomy && abs(of_row) != INFINITY) {
    int sequence = static_cast<int>(batch);
    while (p.is_packed && sequence + 1 < p.batch && cu_queries[sequence + 1] <= row) {
      ++sequence;
    }
    const attention::Sequence s =
        attention::sequence_of(sequence, static_cast<int>(head), p, cu_queries, cu_keys, lengths);
    const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
    const int row_in_sequence = static_cast<int>(row - s.first_query);
    device const T* const q = query + attention::offset_of(p.query, s.batch, s.head, row);
    device const T* const keys =
        key + attention::offset_of(p.key, s.batch, s.head / p.heads_of_a_key, s.first_key);
    const attention::Range seen = attention::keys_seen(s, p, row_in_sequence, 1);
    float total = 0.0f;
    for (int column = seen.begin + lane; column < seen.end; column += 32) {
      float product = 0.0f;
      for (int i = 0; i < p.head_size; ++i) {
        product += static_cast<float>(q[i]) * static_cast<float>(keys[column * p.key.row + i]);
      }
      const float score = make.masked(make.capped(product), row_in_sequence, column);
      total += score == -INFINITY ? 0.0f : exp(score - of_row);
    }
    total = simd_sum(total) + (p.has_sinks ? weight_of_sink(sinks[s.head], of_row) : 0.0f);
    by = total > 0.0f ? 1.0f / total : 1.0f;
  }
  if (lane == 0) {
    statistics[number] = float2(sum - (p.has_grad_lse ? grad_lse[number] : 0.0f), by);
  }
}

// ---- gradient of queries ------------------------------------------------------------------------

// Returns the sum of `mine` over a threadgroup of four simdgroups.
inline float sum_of_group(float mine, threadgroup float* sums, uint simdgroup, uint lane) {
  const float sum = simd_sum(mine);
  if (lane == 0) {
    sums[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

// FlashAttention backward, dQ. FEATURES: at least those of a query. One threadgroup per tile of
// queries, head and sequence. slope_sums: receives each threadgroup's part of the slope's gradient.
template <typename T, int FEATURES>
kernel void attention_grad_query(
    device T* grad_query [[buffer(0)]], device float* slope_sums [[buffer(1)]],
    device const T* query [[buffer(2)]], device const T* key [[buffer(3)]],
    device const T* value [[buffer(4)]], device const T* grad_out [[buffer(5)]],
    device const float* lse [[buffer(6)]], device const float2* statistics [[buffer(7)]],
    device const uchar* mask [[buffer(8)]], device const float* slopes [[buffer(9)]],
    device const int* cu_queries [[buffer(10)]], device const int* cu_keys [[buffer(11)]],
    device const int* lengths [[buffer(12)]], device const uint2* random [[buffer(13)]],
    constant AttentionParameters& p [[buffer(14)]], uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef GradientTile<T> Tile;
  constexpr int rows = Tile::rows;
  constexpr int columns = Tile::columns;
  constexpr int stride = Tile::stride;
  threadgroup float products[Tile::wide_size];
  threadgroup float others[Tile::wide_size];
  threadgroup T narrow[Tile::narrow_size];
  threadgroup float sums_of_simdgroups[attention::kSimdgroups];
  threadgroup T* const gradients =
      Tile::is_float ? reinterpret_cast<threadgroup T*>(products) : narrow;

  typedef matmul::Lines<T, false> Rows;
  typedef matmul::Lines<T, true> Columns;
  typedef matmul::Stored<T, Tile::narrow_stride, false> Gradients;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
  typedef matmul::TileProduct<rows, FEATURES, attention::kSimdgroups, Gradients, Columns>
      QueryProduct;
  threadgroup T workspace[attention::most(ScoreProduct::workspace, QueryProduct::workspace)];

  const uint tiles = (static_cast<uint>(p.queries) + rows - 1) / rows;
  const uint head_of_batch = group / tiles;
  const int first = static_cast<int>(tiles - 1 - group % tiles) * rows;
  const attention::Sequence s = attention::sequence_of(static_cast<int>(head_of_batch / p.heads),
                                                       static_cast<int>(head_of_batch % p.heads), p,
                                                       cu_queries, cu_keys, lengths);
  if (first >= s.queries) {
    if (p.has_slopes && index == 0) {
      slope_sums[group] = 0.0f;
    }
    return;
  }
  const matmul::Place place{uint2(0), index, simdgroup, lane};
  const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
  const attention::Dropout dropout = attention::dropout_of(s, p, random);
  const int key_head = s.head / p.heads_of_a_key;
  const int64_t row_of_all = s.first_query + first;
  const Rows queries{query + attention::offset_of(p.query, s.batch, s.head, row_of_all),
                     p.query.row};
  const Rows grads{grad_out + attention::offset_of(p.grad_out, s.batch, s.head, row_of_all),
                   p.grad_out.row};
  device const T* const keys = key + attention::offset_of(p.key, s.batch, key_head, s.first_key);
  device const T* const values =
      value + attention::offset_of(p.value, s.batch, key_head, s.first_key);
  const int64_t of_rows = s.batch * p.lse_batch + s.head * p.lse_head + s.first_query;
  const int queries_left = s.queries - first;

  float slope_sum = 0.0f;
  auto sums = QueryProduct::sums();
  QueryProduct::clear(sums, place);
  const attention::Range seen = attention::keys_seen(s, p, first, rows);
  for (int at = seen.begin / columns * columns; at < seen.end; at += columns) {
    const int keys_left = min(columns, s.keys - at);
    ScoreProduct::template store<stride>(products, queries, queries_left,
                                         Rows{keys + at * p.key.row, p.key.row}, keys_left,
                                         p.head_size, workspace, place);
    ScoreProduct::template store<stride>(others, grads, queries_left,
                                         Rows{values + at * p.value.row, p.value.row}, keys_left,
                                         p.value_size, workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float weights[Tile::share];
    float mine[Tile::share];
    slope_sum +=
        gradients_of_share<Tile>(make, dropout, p.keep_scale, products, others, lse + of_rows,
                                 statistics + of_rows, first, at, index, weights, mine);
    for (int i = 0; i < Tile::share; ++i) {
      gradients[Tile::row_of(index) * Tile::narrow_stride + Tile::column_of(index, i)] =
          static_cast<T>(mine[i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    QueryProduct::add(sums, Gradients{gradients}, rows, Columns{keys + at * p.key.row, p.key.row},
                      p.head_size, keys_left, workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  QueryProduct::for_each(
      sums,
      store_scaled<T>{grad_query + attention::offset_of(p.grad_query, s.batch, s.head, row_of_all),
                      p.grad_query.row, queries_left, p.head_size, p.scale},
      place);
  if (p.has_slopes) {
    const float sum = sum_of_group(slope_sum, sums_of_simdgroups, simdgroup, lane);
    if (index == 0) {
      slope_sums[group] = sum;
    }
  }
}

// ---- gradients of keys and values ---------------------------------------------------------------

// FlashAttention backward, dK and dV. FEATURES: at least those of a key and of a value. One
// threadgroup per tile of keys, KV head and sequence.
template <typename T, int FEATURES>
kernel void attention_grad_key_value(
    device T* grad_key [[buffer(0)]], device T* grad_value [[buffer(1)]],
    device const T* query [[buffer(2)]], device const T* key [[buffer(3)]],
    device const T* value [[buffer(4)]], device const T* grad_out [[buffer(5)]],
    device const float* lse [[buffer(6)]], device const float2* statistics [[buffer(7)]],
    device const uchar* mask [[buffer(8)]], device const float* slopes [[buffer(9)]],
    device const int* cu_queries [[buffer(10)]], device const int* cu_keys [[buffer(11)]],
    device const int* lengths [[buffer(12)]], device const uint2* random [[buffer(13)]],
    constant AttentionParameters& p [[buffer(14)]], uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef GradientTile<T> Tile;
  constexpr int rows = Tile::rows;
  constexpr int columns = Tile::columns;
  constexpr int stride = Tile::stride;
  threadgroup float products[Tile::wide_size];
  threadgroup float others[Tile::wide_size];
  threadgroup T narrow_weights[Tile::narrow_size];
  threadgroup T narrow_gradients[Tile::narrow_size];
  threadgroup T* const weights =
      Tile::is_float ? reinterpret_cast<threadgroup T*>(others) : narrow_weights;
  threadgroup T* const gradients =
      Tile::is_float ? reinterpret_cast<threadgroup T*>(products) : narrow_gradients;

  typedef matmul::Lines<T, false> Rows;
  typedef matmul::Lines<T, true> Columns;
  typedef matmul::Stored<T, Tile::narrow_stride, true> Transposed;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
  typedef matmul::TileProduct<columns, FEATURES, attention::kSimdgroups, Transposed, Columns>
      KeyProduct;
  threadgroup T workspace[attention::most(ScoreProduct::workspace, KeyProduct::workspace)];

  const uint tiles = (static_cast<uint>(p.keys) + columns - 1) / columns;
  const int key_heads = p.heads / p.heads_of_a_key;
  const uint head_of_batch = group / tiles;
  const int key_head = static_cast<int>(head_of_batch % key_heads);
  const int first = static_cast<int>(group % tiles) * columns;
  attention::Sequence s =
      attention::sequence_of(static_cast<int>(head_of_batch / key_heads),
                             key_head * p.heads_of_a_key, p, cu_queries, cu_keys, lengths);
  if (first >= s.keys) {
    return;
  }
  const matmul::Place place{uint2(0), index, simdgroup, lane};
  const int keys_left = s.keys - first;
  const int64_t key_of_all = s.first_key + first;
  const Rows keys{key + attention::offset_of(p.key, s.batch, key_head, key_of_all), p.key.row};
  const Rows values{value + attention::offset_of(p.value, s.batch, key_head, key_of_all),
                    p.value.row};
  auto key_sums = KeyProduct::sums();
  auto value_sums = KeyProduct::sums();
  KeyProduct::clear(key_sums, place);
  KeyProduct::clear(value_sums, place);
  const attention::Range seeing = attention::queries_seeing(s, p, first, columns);
  for (int head = 0; head < p.heads_of_a_key; ++head, ++s.head) {
    const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
    const attention::Dropout dropout = attention::dropout_of(s, p, random);
    device const T* const queries =
        query + attention::offset_of(p.query, s.batch, s.head, s.first_query);
    device const T* const grads =
        grad_out + attention::offset_of(p.grad_out, s.batch, s.head, s.first_query);
    const int64_t of_rows = s.batch * p.lse_batch + s.head * p.lse_head + s.first_query;
    for (int at = seeing.begin / rows * rows; at < seeing.end; at += rows) {
      const int queries_left = min(rows, s.queries - at);
      ScoreProduct::template store<stride>(products, Rows{queries + at * p.query.row, p.query.row},
                                           queries_left, keys, keys_left, p.head_size, workspace,
                                           place);
      ScoreProduct::template store<stride>(
          others, Rows{grads + at * p.grad_out.row, p.grad_out.row}, queries_left, values,
          keys_left, p.value_size, workspace, place);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      float my_weights[Tile::share];
      float my_gradients[Tile::share];
      gradients_of_share<Tile>(make, dropout, p.keep_scale, products, others, lse + of_rows,
                               statistics + of_rows, at, first, index, my_weights, my_gradients);
      for (int i = 0; i < Tile::share; ++i) {
        const int to = Tile::row_of(index) * Tile::narrow_stride + Tile::column_of(index, i);
        weights[to] = static_cast<T>(my_weights[i]);
        gradients[to] = static_cast<T>(my_gradients[i]);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      KeyProduct::add(value_sums, Transposed{weights}, columns,
                      Columns{grads + at * p.grad_out.row, p.grad_out.row}, p.value_size,
                      queries_left, workspace, place);
      KeyProduct::add(key_sums, Transposed{gradients}, columns,
                      Columns{queries + at * p.query.row, p.query.row}, p.head_size, queries_left,
                      workspace, place);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  KeyProduct::for_each(
      key_sums,
      store_scaled<T>{grad_key + attention::offset_of(p.grad_key, s.batch, key_head, key_of_all),
                      p.grad_key.row, keys_left, p.head_size, p.scale},
      place);
  KeyProduct::for_each(value_sums,
                       store_scaled<T>{grad_value + attention::offset_of(p.grad_value, s.batch,
                                                                         key_head, key_of_all),
                                       p.grad_value.row, keys_left, p.value_size, 1.0f},
                       place);
}

// ---- gradient of the mask -----------------------------------------------------------------------

// Computes the gradient of an additive mask. One threadgroup per tile of the mask, which loops over
// everything the tile is broadcast to: in dimensions of size 1, all samples, heads, queries or
// keys.
template <typename T>
kernel void attention_grad_mask(
    device T* grad_mask [[buffer(0)]], device const T* query [[buffer(1)]],
    device const T* key [[buffer(2)]], device const T* value [[buffer(3)]],
    device const T* grad_out [[buffer(4)]], device const float* lse [[buffer(5)]],
    device const float2* statistics [[buffer(6)]], device const uchar* mask [[buffer(7)]],
    device const float* slopes [[buffer(8)]], device const int* lengths [[buffer(9)]],
    device const uint2* random [[buffer(10)]], device float* wide_grad_mask [[buffer(11)]],
    constant AttentionParameters& p [[buffer(12)]], uint group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int rows = static_cast<int>(metalops::AttentionTile::kRows);
  constexpr int columns = static_cast<int>(metalops::AttentionTile::kColumns);
  constexpr int stride = columns + 4;
  constexpr int share = rows * columns / attention::kThreads;
  threadgroup float products[rows * stride];
  threadgroup float others[rows * stride];
  typedef matmul::Lines<T, false> Rows;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
  threadgroup T workspace[ScoreProduct::workspace];

  const bool all_queries = p.mask_sizes[2] == 1;
  const bool all_keys = p.mask_sizes[3] == 1;
  const int down = all_queries ? 1 : (p.queries + rows - 1) / rows;
  const int across = all_keys ? 1 : (p.keys + columns - 1) / columns;
  int number = static_cast<int>(group);
  const int mask_column = number % across * columns;
  number /= across;
  const int mask_row = number % down * rows;
  number /= down;
  const int mask_head = number % p.mask_sizes[1];
  const int mask_batch = number / p.mask_sizes[1];
  const matmul::Place place{uint2(0), index, simdgroup, lane};

  float sums[share];
  for (int i = 0; i < share; ++i) {
    sums[i] = 0.0f;
  }
  const int last_batch = p.mask_sizes[0] == 1 ? p.batch : mask_batch + 1;
  const int last_head = p.mask_sizes[1] == 1 ? p.heads : mask_head + 1;
  for (int batch = mask_batch; batch < last_batch; ++batch) {
    for (int head = mask_head; head < last_head; ++head) {
      const attention::Sequence s =
          attention::sequence_of(batch, head, p, lengths, lengths, lengths);
      const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
      const attention::Dropout dropout = attention::dropout_of(s, p, random);
      const int key_head = head / p.heads_of_a_key;
      const int last_row = all_queries ? s.queries : mask_row + rows;
      for (int row_at = mask_row; row_at < last_row; row_at += rows) {
        const int queries_left = s.queries - row_at;
        const attention::Range seen = attention::keys_seen(s, p, row_at, rows);
        const int64_t of_rows = batch * p.lse_batch + head * p.lse_head + row_at;
        const int begin = all_keys ? seen.begin / columns * columns : mask_column;
        const int end = all_keys ? seen.end : min(mask_column + columns, seen.end);
        for (int at = begin; at < end; at += columns) {
          const int keys_left = s.keys - at;
          ScoreProduct::template store<stride>(
              products,
              Rows{query + attention::offset_of(p.query, batch, head, row_at), p.query.row},
              queries_left, Rows{key + attention::offset_of(p.key, batch, key_head, at), p.key.row},
              keys_left, p.head_size, workspace, place);
          ScoreProduct::template store<stride>(
              others,
              Rows{grad_out + attention::offset_of(p.grad_out, batch, head, row_at),
                   p.grad_out.row},
              queries_left,
              Rows{value + attention::offset_of(p.value, batch, key_head, at), p.value.row},
              keys_left, p.value_size, workspace, place);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          for (int i = 0; i < share; ++i) {
            const int e = i * attention::kThreads + static_cast<int>(index);
            const int row = e / columns;
            const int column = e % columns;
            const int64_t of_row = of_rows + min(row, queries_left - 1);
            const float2 of_both = statistics[of_row];
            sums[i] += of_both.y * gradients_of(make, dropout, p.keep_scale,
                                                products[row * stride + column],
                                                others[row * stride + column], lse[of_row],
                                                of_both.x, row_at + row, at + column)
                                       .masked;
          }
          threadgroup_barrier(mem_flags::mem_threadgroup);
        }
      }
    }
  }
  for (int i = 0; i < share; ++i) {
    const int e = i * attention::kThreads + static_cast<int>(index);
    products[e / columns * stride + e % columns] = sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int e = static_cast<int>(index); e < rows * columns; e += attention::kThreads) {
    const int row = e / columns;
    const int column = e % columns;
    if (mask_row + row >= p.mask_sizes[2] || mask_column + column >= p.mask_sizes[3]) {
      continue;
    }
    float sum = 0.0f;
    for (int i = row; i < (all_queries ? rows : row + 1); ++i) {
      for (int j = column; j < (all_keys ? columns : column + 1); ++j) {
        sum += products[i * stride + j];
      }
    }
    const int64_t at = mask_batch * p.grad_mask[0] + mask_head * p.grad_mask[1] +
                       (mask_row + row) * p.grad_mask[2] + (mask_column + column) * p.grad_mask[3];
    if (p.mask_kind == metalops::AttentionMask::kFloat) {
      wide_grad_mask[at] = sum;
    } else {
      grad_mask[at] = static_cast<T>(sum);
    }
  }
}

// ---- gradients of sinks and slopes --------------------------------------------------------------

// Computes the gradient of each head's sink. One threadgroup per head.
kernel void attention_grad_sinks(
    device float* grad_sinks [[buffer(0)]], device const float* sinks [[buffer(1)]],
    device const float* lse [[buffer(2)]], device const float2* statistics [[buffer(3)]],
    constant AttentionParameters& p [[buffer(4)]], uint head [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float sums[attention::kSimdgroups];
  const int64_t rows = p.is_packed ? p.all_queries : p.queries;
  const int64_t samples = p.is_packed ? 1 : p.batch;
  float mine = 0.0f;
  for (int64_t batch = 0; batch < samples; ++batch) {
    for (int64_t row = index; row < rows; row += attention::kThreads) {
      const int64_t at = batch * p.lse_batch + head * p.lse_head + row;
      // Tokens that belong to no sequence have seen nothing, not even the sink.
      const float weight = lse[at] == -INFINITY ? 0.0f : weight_of_sink(sinks[head], lse[at]);
      mine -= weight == 0.0f ? 0.0f : weight * statistics[at].y * statistics[at].x;
    }
  }
  const float sum = sum_of_group(mine, sums, simdgroup, lane);
  if (index == 0) {
    grad_sinks[head] = sum;
  }
}

// Computes the gradient of each slope by summing slope_sums over the tiles of its heads.
kernel void attention_grad_slopes(
    device float* grad_slopes [[buffer(0)]], device const float* slope_sums [[buffer(1)]],
    constant AttentionParameters& p [[buffer(2)]], constant int& tiles [[buffer(3)]],
    uint slope [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float sums[attention::kSimdgroups];
  const int samples = p.slopes_batch == 0 ? p.batch : 1;
  float mine = 0.0f;
  for (int64_t batch = 0; batch < samples; ++batch) {
    for (int64_t tile = index; tile < tiles; tile += attention::kThreads) {
      mine += slope_sums[(batch * p.heads + slope) * tiles + tile];
    }
  }
  const float sum = sum_of_group(mine, sums, simdgroup, lane);
  if (index == 0) {
    grad_slopes[slope] = sum;
  }
}

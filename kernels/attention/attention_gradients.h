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

  typedef matmul::Lines<T, false> Rows;
  typedef matmul::Lines<T, true> Columns;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
  // Returns where an element of a share is in an operand of a GEMM.
  static inline int operand_of(uint index, int i) {
    return row_of(index) * narrow_stride + column_of(index, i);
  }
};

// Two operands with as many lines: queries and grad_out, or keys and values.
template <typename T>
struct Pair {
  matmul::Lines<T, false> first;
  matmul::Lines<T, false> second;
};
template <typename T>
inline Pair<T> pair_from(Pair<T> pair, int64_t line) {
  return {{pair.first.elements + line * pair.first.stride, pair.first.stride},
          {pair.second.elements + line * pair.second.stride, pair.second.stride}};
}

// The queries and grad_out, and the keys and values of one head of one sequence.
template <typename T>
inline Pair<T> queries_of(attention::Sequence s, constant AttentionParameters& p,
                          device const T* query, device const T* grad_out) {
  return {{query + attention::offset_of(p.query, s.batch, s.head, s.first_query), p.query.row},
          {grad_out + attention::offset_of(p.grad_out, s.batch, s.head, s.first_query),
           p.grad_out.row}};
}
template <typename T>
inline Pair<T> keys_of(attention::Sequence s, constant AttentionParameters& p, device const T* key,
                       device const T* value) {
  const int head = s.head / p.heads_of_a_key;
  return {{key + attention::offset_of(p.key, s.batch, head, s.first_key), p.key.row},
          {value + attention::offset_of(p.value, s.batch, head, s.first_key), p.value.row}};
}

// Computes a tile of products q k, and of the others, grad_out v.
template <typename Tile, typename T>
inline void multiply_pairs(threadgroup float* products, threadgroup float* others, Pair<T> queries,
                           int queries_left, Pair<T> keys, int keys_left,
                           constant AttentionParameters& p, threadgroup T* workspace,
                           matmul::Place place) {
  typedef typename Tile::ScoreProduct ScoreProduct;
  ScoreProduct::template store<Tile::stride>(products, queries.first, queries_left, keys.first,
                                             keys_left, p.head_size, workspace, place);
  ScoreProduct::template store<Tile::stride>(others, queries.second, queries_left, keys.second,
                                             keys_left, p.value_size, workspace, place);
}

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
  if (!dropout.drops && attention::is_bare(make)) {
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

// Divides: GPUs take a fraction of the time where numbers have 32 bits.
inline int64_t quotient_of(int64_t dividend, int64_t divisor) {
  if (dividend <= 0xffffffff) {
    return static_cast<uint>(dividend) / static_cast<uint>(divisor);
  }
  return dividend / divisor;
}

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
  const int64_t of_head = quotient_of(number, rows);
  const int64_t row = number - of_head * rows;
  const int64_t batch = quotient_of(of_head, p.heads);
  const int64_t head = of_head - batch * p.heads;
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
  typedef typename Tile::Columns Columns;
  typedef typename Tile::ScoreProduct ScoreProduct;
  typedef matmul::Stored<T, Tile::narrow_stride, false> Gradients;
  typedef matmul::TileProduct<Tile::rows, FEATURES, attention::kSimdgroups, Gradients, Columns>
      QueryProduct;
  threadgroup float products[Tile::wide_size];
  threadgroup float others[Tile::wide_size];
  threadgroup T narrow[Tile::narrow_size];
  threadgroup float sums_of_simdgroups[attention::kSimdgroups];
  threadgroup T workspace[attention::most(ScoreProduct::workspace, QueryProduct::workspace)];
  threadgroup T* const gradients =
      Tile::is_float ? reinterpret_cast<threadgroup T*>(products) : narrow;

  const attention::QueryTile tile =
      attention::query_tile_of(group, Tile::rows, p, cu_queries, cu_keys, lengths);
  const attention::Sequence s = tile.sequence;
  const int first = tile.first;
  if (first >= s.queries) {
    if (p.has_slopes && index == 0) {
      slope_sums[group] = 0.0f;
    }
    return;
  }
  const matmul::Place place{index, simdgroup, lane};
  const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
  const attention::Dropout dropout = attention::dropout_of(s, p, random);
  const Pair<T> queries = pair_from(queries_of(s, p, query, grad_out), first);
  const Pair<T> all_keys = keys_of(s, p, key, value);
  const int64_t of_rows = attention::rows_of(s, p);
  const int queries_left = s.queries - first;

  float slope_sum = 0.0f;
  auto sums = QueryProduct::sums();
  QueryProduct::clear(sums, place);
  const attention::Range seen = attention::keys_seen(s, p, first, Tile::rows);
  for (int at = seen.begin / Tile::columns * Tile::columns; at < seen.end; at += Tile::columns) {
    const int keys_left = min(Tile::columns, s.keys - at);
    const Pair<T> keys = pair_from(all_keys, at);
    multiply_pairs<Tile>(products, others, queries, queries_left, keys, keys_left, p, workspace,
                         place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float weights[Tile::share];
    float mine[Tile::share];
    slope_sum +=
        gradients_of_share<Tile>(make, dropout, p.keep_scale, products, others, lse + of_rows,
                                 statistics + of_rows, first, at, index, weights, mine);
    for (int i = 0; i < Tile::share; ++i) {
      gradients[Tile::operand_of(index, i)] = static_cast<T>(mine[i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    QueryProduct::add(sums, Gradients{gradients}, Tile::rows,
                      Columns{keys.first.elements, keys.first.stride}, p.head_size, keys_left,
                      workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const int64_t to = attention::offset_of(p.grad_query, s.batch, s.head, s.first_query + first);
  QueryProduct::for_each(
      sums, store_scaled<T>{grad_query + to, p.grad_query.row, queries_left, p.head_size, p.scale},
      place);
  if (p.has_slopes) {
    const float sum = sum_of_group(slope_sum, sums_of_simdgroups, simdgroup, lane);
    if (index == 0) {
      slope_sums[group] = sum;
    }
  }
}

// ---- gradients of keys and values ---------------------------------------------------------------

// A threadgroup's tile of keys: those from `first` on, of one KV head of one sequence, which begins
// with the first query head that shares them.
struct KeyTile {
  attention::Sequence sequence;
  int head;
  int first;
};
inline KeyTile key_tile_of(uint group, int columns, constant AttentionParameters& p,
                           device const int* cu_queries, device const int* cu_keys,
                           device const int* lengths) {
  const uint tiles = (static_cast<uint>(p.keys) + columns - 1) / columns;
  const int heads = p.heads / p.heads_of_a_key;
  const uint head_of_batch = group / tiles;
  const int head = static_cast<int>(head_of_batch % heads);
  return {attention::sequence_of(static_cast<int>(head_of_batch / heads), head * p.heads_of_a_key,
                                 p, cu_queries, cu_keys, lengths),
          head, static_cast<int>(group % tiles) * columns};
}

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
  typedef typename Tile::Columns Columns;
  typedef matmul::Stored<T, Tile::narrow_stride, true> Transposed;
  typedef matmul::TileProduct<Tile::columns, FEATURES, attention::kSimdgroups, Transposed, Columns>
      KeyProduct;
  threadgroup float products[Tile::wide_size];
  threadgroup float others[Tile::wide_size];
  threadgroup T narrow_weights[Tile::narrow_size];
  threadgroup T narrow_gradients[Tile::narrow_size];
  threadgroup T workspace[attention::most(Tile::ScoreProduct::workspace, KeyProduct::workspace)];
  threadgroup T* const weights =
      Tile::is_float ? reinterpret_cast<threadgroup T*>(others) : narrow_weights;
  threadgroup T* const gradients =
      Tile::is_float ? reinterpret_cast<threadgroup T*>(products) : narrow_gradients;
  const KeyTile tile = key_tile_of(group, Tile::columns, p, cu_queries, cu_keys, lengths);
  attention::Sequence s = tile.sequence;
  const int first = tile.first;
  if (first >= s.keys) {
    return;
  }
  const matmul::Place place{index, simdgroup, lane};
  const int keys_left = s.keys - first;
  const Pair<T> keys = pair_from(keys_of(s, p, key, value), first);
  auto key_sums = KeyProduct::sums();
  auto value_sums = KeyProduct::sums();
  KeyProduct::clear(key_sums, place);
  KeyProduct::clear(value_sums, place);
  const attention::Range seeing = attention::queries_seeing(s, p, first, Tile::columns);
  for (int head = 0; head < p.heads_of_a_key; ++head, ++s.head) {
    const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
    const attention::Dropout dropout = attention::dropout_of(s, p, random);
    const Pair<T> all_queries = queries_of(s, p, query, grad_out);
    const int64_t of_rows = attention::rows_of(s, p);
    for (int at = seeing.begin / Tile::rows * Tile::rows; at < seeing.end; at += Tile::rows) {
      const int queries_left = min(Tile::rows, s.queries - at);
      const Pair<T> queries = pair_from(all_queries, at);
      multiply_pairs<Tile>(products, others, queries, queries_left, keys, keys_left, p, workspace,
                           place);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      float my_weights[Tile::share];
      float my_gradients[Tile::share];
      gradients_of_share<Tile>(make, dropout, p.keep_scale, products, others, lse + of_rows,
                               statistics + of_rows, at, first, index, my_weights, my_gradients);
      for (int i = 0; i < Tile::share; ++i) {
        weights[Tile::operand_of(index, i)] = static_cast<T>(my_weights[i]);
        gradients[Tile::operand_of(index, i)] = static_cast<T>(my_gradients[i]);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      KeyProduct::add(value_sums, Transposed{weights}, Tile::columns,
                      Columns{queries.second.elements, queries.second.stride}, p.value_size,
                      queries_left, workspace, place);
      KeyProduct::add(key_sums, Transposed{gradients}, Tile::columns,
                      Columns{queries.first.elements, queries.first.stride}, p.head_size,
                      queries_left, workspace, place);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  const int64_t to_key = attention::offset_of(p.grad_key, s.batch, tile.head, s.first_key + first);
  KeyProduct::for_each(
      key_sums, store_scaled<T>{grad_key + to_key, p.grad_key.row, keys_left, p.head_size, p.scale},
      place);
  const int64_t to_value =
      attention::offset_of(p.grad_value, s.batch, tile.head, s.first_key + first);
  KeyProduct::for_each(
      value_sums,
      store_scaled<T>{grad_value + to_value, p.grad_value.row, keys_left, p.value_size, 1.0f},
      place);
}

// ---- gradient of the mask -----------------------------------------------------------------------

// Layout of a tile of the mask's gradient in threadgroup memory. A thread has every 128th element.
template <typename T>
struct MaskGradientTile {
  static constant constexpr int rows = static_cast<int>(metalops::AttentionTile::kRows);
  static constant constexpr int columns = static_cast<int>(metalops::AttentionTile::kColumns);
  static constant constexpr int stride = columns + 4;
  static constant constexpr int share = rows * columns / attention::kThreads;
  typedef matmul::Lines<T, false> Rows;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
};

// A threadgroup's tile of the mask, and the samples, heads, queries and keys that it is broadcast
// to, if any: all of those of a dimension.
struct MaskTile {
  int batch;
  int head;
  int row;
  int column;
  int end_batch;
  int end_head;
  bool all_queries;
  bool all_keys;
};
inline MaskTile mask_tile_of(uint group, int rows, int columns, constant AttentionParameters& p) {
  const bool all_queries = p.mask_sizes[2] == 1;
  const bool all_keys = p.mask_sizes[3] == 1;
  const int down = all_queries ? 1 : (p.queries + rows - 1) / rows;
  const int across = all_keys ? 1 : (p.keys + columns - 1) / columns;
  const int number = static_cast<int>(group);
  const int head_of_batch = number / across / down;
  const int head = head_of_batch % p.mask_sizes[1];
  const int batch = head_of_batch / p.mask_sizes[1];
  return {batch,
          head,
          number / across % down * rows,
          number % across * columns,
          p.mask_sizes[0] == 1 ? p.batch : batch + 1,
          p.mask_sizes[1] == 1 ? p.heads : head + 1,
          all_queries,
          all_keys};
}

// Stores a tile of the mask's gradient: `sums` has those of the tiles it is broadcast to, which are
// added where it is broadcast to all queries or keys.
template <typename Tile, typename T>
inline void store_mask_gradient(device T* grad_mask, device float* wide_grad_mask,
                                threadgroup const float* sums, MaskTile tile,
                                constant AttentionParameters& p, uint index) {
  for (int e = static_cast<int>(index); e < Tile::rows * Tile::columns; e += attention::kThreads) {
    const int row = e / Tile::columns;
    const int column = e % Tile::columns;
    if (tile.row + row >= p.mask_sizes[2] || tile.column + column >= p.mask_sizes[3]) {
      continue;
    }
    float sum = 0.0f;
    for (int i = row; i < (tile.all_queries ? Tile::rows : row + 1); ++i) {
      for (int j = column; j < (tile.all_keys ? Tile::columns : column + 1); ++j) {
        sum += sums[i * Tile::stride + j];
      }
    }
    const int64_t at = tile.batch * p.grad_mask[0] + tile.head * p.grad_mask[1] +
                       (tile.row + row) * p.grad_mask[2] + (tile.column + column) * p.grad_mask[3];
    if (p.mask_kind == metalops::AttentionMask::kFloat) {
      wide_grad_mask[at] = sum;
    } else {
      grad_mask[at] = static_cast<T>(sum);
    }
  }
}

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
  typedef MaskGradientTile<T> Tile;
  threadgroup float products[Tile::rows * Tile::stride];
  threadgroup float others[Tile::rows * Tile::stride];
  threadgroup T workspace[Tile::ScoreProduct::workspace];
  const MaskTile tile = mask_tile_of(group, Tile::rows, Tile::columns, p);
  const matmul::Place place{index, simdgroup, lane};
  float sums[Tile::share];
  for (int i = 0; i < Tile::share; ++i) {
    sums[i] = 0.0f;
  }
  for (int batch = tile.batch; batch < tile.end_batch; ++batch) {
    for (int head = tile.head; head < tile.end_head; ++head) {
      const attention::Sequence s =
          attention::sequence_of(batch, head, p, lengths, lengths, lengths);
      const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes);
      const attention::Dropout dropout = attention::dropout_of(s, p, random);
      const int end_row = tile.all_queries ? s.queries : tile.row + Tile::rows;
      for (int row = tile.row; row < end_row; row += Tile::rows) {
        const attention::Range seen = attention::keys_seen(s, p, row, Tile::rows);
        const int64_t of_rows = attention::rows_of(s, p) + row;
        const int queries_left = s.queries - row;
        const int begin = tile.all_keys ? seen.begin / Tile::columns * Tile::columns : tile.column;
        const int end = tile.all_keys ? seen.end : min(tile.column + Tile::columns, seen.end);
        for (int at = begin; at < end; at += Tile::columns) {
          const Pair<T> queries = pair_from(queries_of(s, p, query, grad_out), row);
          const Pair<T> keys = pair_from(keys_of(s, p, key, value), at);
          multiply_pairs<Tile>(products, others, queries, queries_left, keys, s.keys - at, p,
                               workspace, place);
          threadgroup_barrier(mem_flags::mem_threadgroup);
          for (int i = 0; i < Tile::share; ++i) {
            const int e = i * attention::kThreads + static_cast<int>(index);
            const int r = e / Tile::columns;
            const int c = e % Tile::columns;
            const int64_t of_row = of_rows + min(r, queries_left - 1);
            const float2 of_both = statistics[of_row];
            sums[i] += of_both.y * gradients_of(make, dropout, p.keep_scale,
                                                products[r * Tile::stride + c],
                                                others[r * Tile::stride + c], lse[of_row],
                                                of_both.x, row + r, at + c)
                                       .masked;
          }
          threadgroup_barrier(mem_flags::mem_threadgroup);
        }
      }
    }
  }
  for (int i = 0; i < Tile::share; ++i) {
    const int e = i * attention::kThreads + static_cast<int>(index);
    products[e / Tile::columns * Tile::stride + e % Tile::columns] = sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store_mask_gradient<Tile>(grad_mask, wide_grad_mask, products, tile, p, index);
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

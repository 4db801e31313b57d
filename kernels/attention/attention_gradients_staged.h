// FlashAttention backward in half precision for GPUs whose simdgroups multiply together by lines
// that are staged in threadgroup memory (matmul2d of the target; attention.metal,
// has_staged_lines). Scores and their gradients stay in cooperative tensors: those of a tile of
// queries and keys are operands of the next products as they are, since dQ has threadgroups that
// loop over keys, and dK and dV have threadgroups that loop over queries and compute the transposed
// scores.
//
// Only for calls whose weights depend on positions by the window alone.
#pragma once

#include <metal_stdlib>

#include <kernels/attention/attention.h>
#include <kernels/attention/attention_gradients.h>
#include <kernels/attention/attention_scores.h>
using namespace metal;

#if defined(__METALOPS_STAGED_LINES__) && defined(__HAVE_TENSOR__)

// The tile of a simdgroup: 16 lines by COLUMNS, and its GEMMs with the lines that its threadgroup
// shares.
template <typename T, int FEATURES, int SIMDGROUPS, int COLUMNS, bool KEEPS_FIRST>
struct StagedGradientTile {
  typedef ::mpp::tensor_ops::matmul2d_descriptor Descriptor;
  static constant constexpr int rows = 16;
  static constant constexpr int columns = COLUMNS;
  static constant constexpr int rows_of_group = SIMDGROUPS * rows;
  static constant constexpr Descriptor multiplying =
      Descriptor(rows, columns, FEATURES, false, true, false, Descriptor::mode::multiply);
  static constant constexpr Descriptor adding_scores = Descriptor(
      rows, columns, FEATURES, false, true, false, Descriptor::mode::multiply_accumulate);
  static constant constexpr Descriptor adding = Descriptor(
      rows, FEATURES, columns, false, false, false, Descriptor::mode::multiply_accumulate);
  typedef ::mpp::tensor_ops::matmul2d<multiplying, execution_simdgroup> Multiply;
  typedef ::mpp::tensor_ops::matmul2d<adding_scores, execution_simdgroup> AddScores;
  typedef ::mpp::tensor_ops::matmul2d<adding, execution_simdgroup> Add;
  typedef ::mpp::tensor_ops::line_ring<T, columns, FEATURES, SIMDGROUPS, 2, KEEPS_FIRST> Ring;
  typedef typename Ring::rows Rows;
  typedef typename Ring::lines Lines;

  static inline auto scores() {
    Multiply multiply;
    return multiply.template get_destination_cooperative_tensor<Rows, Lines, float>();
  }
  // Returns a tensor of one value per row.
  static inline auto for_rows() {
    Multiply multiply;
    return multiply.template get_row_reduction_destination_cooperative_tensor<Rows, Lines, float>();
  }
  // Returns a tensor of sums, or of results, of FEATURES of each row.
  template <typename E>
  static inline auto sums() {
    Add add;
    auto left = add.template get_left_input_cooperative_tensor<T, T, float>();
    return add.template get_destination_cooperative_tensor<decltype(left), Lines, E>();
  }
};

constant constexpr float kLog2OfE = 1.44269504f;

template <typename Tensor>
inline void fill_with(thread Tensor& elements, float value) {
#pragma unroll
  for (uint16_t i = 0; i < elements.get_capacity(); ++i) {
    elements[i] = value;
  }
}

// Adds elements, as a left operand, times staged lines to the sums.
template <typename Tile, typename T, typename Elements, typename Lines, typename Sums>
inline void add_product(thread Elements& elements, Lines lines, thread Sums& sums) {
  typename Tile::Multiply multiply;
  typename Tile::Add add;
  auto narrow = multiply.template get_destination_cooperative_tensor<typename Tile::Rows,
                                                                     typename Tile::Lines, T>();
#pragma unroll
  for (uint16_t i = 0; i < narrow.get_capacity(); ++i) {
    narrow[i] = static_cast<T>(elements[i]);
  }
  auto left = add.template get_left_input_cooperative_tensor<T, T, float>(narrow);
  add.run(left, lines, sums);
}

// Stores a simdgroup's rows of sums times `by`. rows: as many exist.
template <typename Tile, typename T, typename Sums>
inline void store_gradients(device T* to, int64_t stride, int rows, int features, thread Sums& sums,
                            float by) {
  typedef dextents<int, 2> Extents;
  auto narrow = Tile::template sums<T>();
#pragma unroll
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    narrow[i] = static_cast<T>(sums[i] * by);
  }
  if (rows > 0) {
    tensor<device T, Extents, tensor_inline> memory(to, Extents(features, rows),
                                                    array<int, 2>{1, static_cast<int>(stride)});
    narrow.store(memory);
  }
}

// ---- gradient of queries ------------------------------------------------------------------------

// Statistics of a simdgroup's queries: weights are powers of two of products times `factor` plus
// `offset`, relative to the lse.
template <typename Row>
struct QueryStatistics {
  Row lse;
  Row offset;
  Row delta;
  Row by;
  float factor;
  // The conversion of scores to base 2 would round off digits: the lse is subtracted before.
  bool is_far;

  inline void load(device const float* all_lse, device const float2* statistics, int first,
                   int queries, float scale) {
    is_far = false;
#pragma unroll
    for (uint16_t i = 0; i < lse.get_capacity(); ++i) {
      if (!lse.is_valid_element(i)) {
        continue;
      }
      const int row =
          min(first + static_cast<int>(lse.get_multidimensional_index(i)[0]), queries - 1);
      // Rows that see nothing have lse -INFINITY; see gradients_of_share().
      const float of_row = all_lse[row];
      const float2 of_both = statistics[row];
      lse[i] = of_row == -INFINITY ? 0.0f : of_row;
      delta[i] = of_both.x;
      by[i] = of_both.y;
      is_far = is_far || abs(lse[i]) > attention::kRoomy;
    }
    factor = is_far ? kLog2OfE : scale * kLog2OfE;
#pragma unroll
    for (uint16_t i = 0; i < lse.get_capacity(); ++i) {
      offset[i] = is_far ? 0.0f : -kLog2OfE * lse[i];
    }
  }
};

// Turns products into the gradients of scores, in `others`. IS_WHOLE: all queries see all keys of
// the tile. first, at: the first query of the simdgroup, and the first key.
template <bool IS_WHOLE, typename Scores, typename Row, typename T>
inline void make_query_gradients(thread Scores& scores, thread Scores& others,
                                 thread QueryStatistics<Row>& of, attention::Scores<T> make,
                                 int first, int at) {
  if (of.is_far) {
#pragma unroll
    for (auto it = scores.begin(); it != scores.end(); ++it) {
      *it = fma(*it, make.scale, -*of.lse.map_iterator(it));
    }
  }
  uint16_t i = 0;
#pragma unroll
  for (auto it = scores.begin(); it != scores.end(); ++it, ++i) {
    const float weight = fast::exp2(fma(*it, of.factor, *of.offset.map_iterator(it)));
    float gradient = weight * (others[i] - *of.delta.map_iterator(it));
    if (!IS_WHOLE) {
      const auto in_tile = it.get_multidimensional_index();
      const attention::Range seen = make.seen_by(first + in_tile[1]);
      const int key = at + in_tile[0];
      gradient = key >= seen.begin && key < seen.end ? gradient : 0.0f;
    }
    others[i] = gradient;
  }
}

template <typename Tile, bool IS_WHOLE, typename T, typename Sums, typename Row>
inline void add_query_gradients(thread typename Tile::Ring& ring, typename Tile::Rows queries,
                                typename Tile::Rows grads, thread Sums& sums,
                                thread QueryStatistics<Row>& of, attention::Scores<T> make,
                                int first, int at, int end) {
  typename Tile::Multiply multiply;
  auto scores = Tile::scores();
  auto others = Tile::scores();
  ring.enter_second(at, end);
  typename Tile::Lines values = ring.first();
  typename Tile::Lines keys = ring.second();
  ::mpp::tensor_ops::run_together(multiply, grads, values, others, queries, keys, scores);
  ring.leave_first();
  make_query_gradients<IS_WHOLE>(scores, others, of, make, first, at);
  add_product<Tile, T>(others, keys, sums);
}

// FlashAttention backward, dQ. FEATURES: at least those of a query and of a value. One threadgroup
// per SIMDGROUPS * 16 queries, head and sequence. MOST_THREADS bounds registers.
template <typename T, int FEATURES, int SIMDGROUPS, int COLUMNS, int MOST_THREADS>
[[max_total_threads_per_threadgroup(MOST_THREADS)]] kernel void attention_grad_query_by_simdgroups(
    device T* grad_query [[buffer(0)]], device const T* query [[buffer(1)]],
    device const T* key [[buffer(2)]], device const T* value [[buffer(3)]],
    device const T* grad_out [[buffer(4)]], device const float* lse [[buffer(5)]],
    device const float2* statistics [[buffer(6)]], device const int* cu_queries [[buffer(7)]],
    device const int* cu_keys [[buffer(8)]], device const int* lengths [[buffer(9)]],
    constant AttentionParameters& p [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  typedef StagedGradientTile<T, FEATURES, SIMDGROUPS, COLUMNS, false> Tile;
  typedef decltype(Tile::for_rows()) Row;
  const attention::QueryTile tile = attention::query_tile_of(
      attention::balanced_group(group, p.queries, Tile::rows_of_group, p.heads, p),
      Tile::rows_of_group, p, cu_queries, cu_keys, lengths);
  const attention::Sequence s = tile.sequence;
  if (tile.first >= s.queries) {
    return;
  }
  const int first = tile.first + static_cast<int>(simdgroup) * Tile::rows;
  const attention::Scores<T> make = attention::scores_of<T>(s, p, nullptr, nullptr);
  const Pair<T> queries = pair_from(queries_of(s, p, query, grad_out), tile.first);
  const Pair<T> keys = keys_of(s, p, key, value);
  typename Tile::Ring ring(keys.second.elements, keys.second.stride, p.value_size,
                           keys.first.elements, keys.first.stride, p.head_size, s.keys);
  const int queries_left = s.queries - tile.first;
  const auto of_queries = ring.template bring_rows<0>(queries.first.elements, queries.first.stride,
                                                      p.head_size, queries_left);
  const auto of_grads = ring.template bring_rows<1>(queries.second.elements, queries.second.stride,
                                                    p.value_size, queries_left);
  const attention::Range seen = attention::keys_seen(s, p, tile.first, Tile::rows_of_group);
  int at = seen.begin / Tile::columns * Tile::columns;
  ring.begin(at, seen.end);
  QueryStatistics<Row> of;
  const int64_t of_rows = attention::rows_of(s, p);
  of.load(lse + of_rows, statistics + of_rows, first, s.queries, p.scale);
  auto sums = Tile::template sums<float>();
  fill_with(sums, 0.0f);
  // Keys of these tiles are seen by all queries of the threadgroup.
  const int position = tile.first + s.diagonal;
  const int end_of_seen = p.window_right < 0 ? s.keys : position + p.window_right + 1;
  const attention::Range whole{
      p.window_left < 0 ? 0 : position + Tile::rows_of_group - 1 - p.window_left,
      min(ring.end_of_boxes(seen.end), min(s.keys, end_of_seen) - Tile::columns + 1)};
  while (at < seen.end) {
    if (at < whole.begin || at >= whole.end) {
      ring.take(at, seen.end);
      add_query_gradients<Tile, false>(ring, of_queries, of_grads, sums, of, make, first, at,
                                       seen.end);
      at += Tile::columns;
    } else {
      for (; at < whole.end; at += Tile::columns) {
        ring.take_boxes(at, seen.end);
        add_query_gradients<Tile, true>(ring, of_queries, of_grads, sums, of, make, first, at,
                                        seen.end);
      }
    }
  }
#pragma unroll
  for (auto it = sums.begin(); it != sums.end(); ++it) {
    *it *= *of.by.map_iterator(it);
  }
  const int64_t to = attention::offset_of(p.grad_query, s.batch, s.head, s.first_query + first);
  store_gradients<Tile>(grad_query + to, p.grad_query.row, s.queries - first, p.head_size, sums,
                        p.scale);
}

// ---- gradients of keys and values ---------------------------------------------------------------

// Sums of scores begin with minus the lse where it is at most this: adding it to larger ones would
// round off digits of products.
constant constexpr float kMostOfSums = 256.0f;

// Begins the sums of transposed scores with what is subtracted from them: the lse, and delta.
// Returns true if an lse is too large: then scores begin with zero. lse, statistics: those of the
// first of so many queries.
template <bool IS_WHOLE, typename Scores>
inline bool begin_with_statistics(thread Scores& scores, thread Scores& others,
                                  device const float* lse, device const float2* statistics,
                                  int queries, float scale) {
  const float by = -1.0f / scale;
  bool is_far = false;
#pragma unroll
  for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
    const int query = static_cast<int>(scores.get_multidimensional_index(i)[0]);
    const int row = IS_WHOLE ? query : min(query, queries - 1);
    const float of_row = lse[row];
    is_far = is_far || abs(of_row) > kMostOfSums;
    scores[i] = of_row * by;
    others[i] = -statistics[row].x;
  }
  if (is_far) {
    fill_with(scores, 0.0f);
  }
  return is_far;
}

// Subtracts the lse from scores whose sums began with zero.
template <typename Scores>
inline void subtract_lse(thread Scores& scores, device const float* lse,
                         device const float2* statistics, int queries, float scale) {
  const float by = 1.0f / scale;
#pragma unroll
  for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
    const int row = min(static_cast<int>(scores.get_multidimensional_index(i)[0]), queries - 1);
    const float of_row = lse[row] == -INFINITY ? 0.0f : lse[row];
    scores[i] = (fma(scores[i], scale, -of_row) + fast::log(statistics[row].y)) * by;
  }
}

// Turns sums into weights, in `scores`, and gradients of scores, in `others`. first, at: the first
// key of the simdgroup, and the first query.
template <bool IS_WHOLE, typename Scores, typename T>
inline void make_key_gradients(thread Scores& scores, thread Scores& others,
                               attention::Scores<T> make, int first, int at) {
  const float factor = make.scale * kLog2OfE;
#pragma unroll
  for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
    scores[i] = fast::exp2(scores[i] * factor);
    float gradient = scores[i] * others[i];
    if (!IS_WHOLE) {
      const auto in_tile = scores.get_multidimensional_index(i);
      const attention::Range seen = make.seen_by(at + in_tile[0]);
      const int key = first + in_tile[1];
      const bool is_seen = key >= seen.begin && key < seen.end;
      scores[i] = is_seen ? scores[i] : 0.0f;
      gradient = is_seen ? gradient : 0.0f;
    }
    others[i] = gradient;
  }
}

// lse, statistics: those of the sequence's first query.
template <typename Tile, bool IS_WHOLE, typename T, typename Sums>
inline void add_key_gradients(thread typename Tile::Ring& ring, typename Tile::Rows keys,
                              typename Tile::Rows values, thread Sums& key_sums,
                              thread Sums& value_sums, device const float* lse,
                              device const float2* statistics, attention::Scores<T> make, int first,
                              int at, int end) {
  typename Tile::AddScores multiply;
  auto scores = Tile::scores();
  auto others = Tile::scores();
  const int queries_left = make.queries - at;
  const bool is_far = begin_with_statistics<IS_WHOLE>(scores, others, lse + at, statistics + at,
                                                      queries_left, make.scale);
  if (IS_WHOLE) {
    ring.take_boxes(at, end);
  } else {
    ring.take(at, end);
  }
  ring.enter_second(at, end);
  typename Tile::Lines queries = ring.first();
  typename Tile::Lines grads = ring.second();
  ::mpp::tensor_ops::run_together(multiply, keys, queries, scores, values, grads, others);
  if (is_far) {
    subtract_lse(scores, lse + at, statistics + at, queries_left, make.scale);
  }
  make_key_gradients<IS_WHOLE>(scores, others, make, first, at);
  add_product<Tile, T>(scores, grads, value_sums);
  add_product<Tile, T>(others, queries, key_sums);
}

// FlashAttention backward, dK and dV. FEATURES: at least those of a key and of a value. One
// threadgroup per SIMDGROUPS * 16 keys, KV head and sequence. MOST_THREADS bounds registers.
template <typename T, int FEATURES, int SIMDGROUPS, int COLUMNS, int MOST_THREADS>
[[max_total_threads_per_threadgroup(MOST_THREADS)]] kernel void
attention_grad_key_value_by_simdgroups(
    device T* grad_key [[buffer(0)]], device T* grad_value [[buffer(1)]],
    device const T* query [[buffer(2)]], device const T* key [[buffer(3)]],
    device const T* value [[buffer(4)]], device const T* grad_out [[buffer(5)]],
    device const float* lse [[buffer(6)]], device const float2* statistics [[buffer(7)]],
    device const int* cu_queries [[buffer(8)]], device const int* cu_keys [[buffer(9)]],
    device const int* lengths [[buffer(10)]], constant AttentionParameters& p [[buffer(11)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  typedef StagedGradientTile<T, FEATURES, SIMDGROUPS, COLUMNS, true> Tile;
  const KeyTile tile = key_tile_of(
      attention::balanced_group(group, p.keys, Tile::rows_of_group, p.heads / p.heads_of_a_key, p),
      Tile::rows_of_group, p, cu_queries, cu_keys, lengths);
  attention::Sequence s = tile.sequence;
  if (tile.first >= s.keys) {
    return;
  }
  const int first = tile.first + static_cast<int>(simdgroup) * Tile::rows;
  const Pair<T> keys = pair_from(keys_of(s, p, key, value), tile.first);
  Pair<T> queries = queries_of(s, p, query, grad_out);
  typename Tile::Ring ring(queries.first.elements, queries.first.stride, p.head_size,
                           queries.second.elements, queries.second.stride, p.value_size, s.queries);
  const int keys_left = s.keys - tile.first;
  const auto of_keys =
      ring.template bring_rows<0>(keys.first.elements, keys.first.stride, p.head_size, keys_left);
  const auto of_values = ring.template bring_rows<1>(keys.second.elements, keys.second.stride,
                                                     p.value_size, keys_left);
  auto key_sums = Tile::template sums<float>();
  auto value_sums = Tile::template sums<float>();
  fill_with(key_sums, 0.0f);
  fill_with(value_sums, 0.0f);
  const attention::Range seeing = attention::queries_seeing(s, p, tile.first, Tile::rows_of_group);
  const int begin = seeing.begin / Tile::columns * Tile::columns;
  // Queries of these tiles see all keys of the threadgroup.
  const int after = tile.first - s.diagonal;
  const int begin_of_whole =
      p.window_right < 0 ? 0 : after + Tile::rows_of_group - 1 - p.window_right;
  const int end_of_whole = p.window_left < 0 ? s.queries : after + p.window_left + 1;
  for (int head = 0; head < p.heads_of_a_key; ++head, ++s.head) {
    if (head > 0) {
      queries = queries_of(s, p, query, grad_out);
      ring.go_on_with(queries.first.elements, queries.second.elements);
    }
    const attention::Scores<T> make = attention::scores_of<T>(s, p, nullptr, nullptr);
    const int64_t of_rows = attention::rows_of(s, p);
    int at = begin;
    ring.begin(at, seeing.end);
    const attention::Range whole{
        begin_of_whole,
        min(ring.end_of_boxes(seeing.end), min(s.queries, end_of_whole) - Tile::columns + 1)};
    while (at < seeing.end) {
      if (at < whole.begin || at >= whole.end) {
        add_key_gradients<Tile, false>(ring, of_keys, of_values, key_sums, value_sums,
                                       lse + of_rows, statistics + of_rows, make, first, at,
                                       seeing.end);
        at += Tile::columns;
      } else {
        for (; at < whole.end; at += Tile::columns) {
          add_key_gradients<Tile, true>(ring, of_keys, of_values, key_sums, value_sums,
                                        lse + of_rows, statistics + of_rows, make, first, at,
                                        seeing.end);
        }
      }
    }
  }
  const int64_t to_key = attention::offset_of(p.grad_key, s.batch, tile.head, s.first_key + first);
  store_gradients<Tile>(grad_key + to_key, p.grad_key.row, s.keys - first, p.head_size, key_sums,
                        p.scale);
  const int64_t to_value =
      attention::offset_of(p.grad_value, s.batch, tile.head, s.first_key + first);
  store_gradients<Tile>(grad_value + to_value, p.grad_value.row, s.keys - first, p.value_size,
                        value_sums, 1.0f);
}

#endif

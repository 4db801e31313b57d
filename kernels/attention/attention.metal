// FlashAttention forward: one threadgroup per tile of queries of one head loops over tiles of keys
// with online softmax (running max and sum). See Milakov and Gimelshein, "Online normalizer
// calculation for softmax", and Dao, "FlashAttention-2".
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/attention/attention.h>
#include <kernels/attention/attention_gradients.h>
#include <kernels/attention/attention_gradients_staged.h>
#include <kernels/attention/attention_scores.h>
#include <kernels/common/matmul.h>
using namespace metal;
using metalops::AttentionParameters;
using metalops::AttentionTile;
namespace attention = metalops::attention;
namespace matmul = metalops::matmul;

// The tile of a threadgroup: its size in queries (rows) and keys (columns), its layout in
// threadgroup memory, and its GEMMs. A row belongs to `lanes` adjacent lanes, each of which has
// `share` of its columns.
template <typename T, int VALUES>
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
  static constant constexpr int stride = columns + 4;
  static constant constexpr bool is_float = sizeof(T) == 4;
  static constant constexpr int weight_stride = is_float ? stride : columns + 8;
  static constant constexpr int lanes = attention::kThreads / rows;
  static constant constexpr int share = columns / lanes;
  static inline int row_of(uint index) { return static_cast<int>(index) / lanes; }
  static inline int column_of(uint index) { return static_cast<int>(index) % lanes * share; }

  typedef matmul::Lines<T, false> Rows;
  typedef matmul::Lines<T, true> Columns;
  typedef matmul::Stored<T, weight_stride, false> Weights;
  typedef matmul::TileProduct<rows, columns, attention::kSimdgroups, Rows, Rows> ScoreProduct;
  typedef matmul::TileProduct<rows, VALUES, attention::kSimdgroups, Weights, Columns> ValueProduct;
  static constant constexpr int workspace =
      attention::most(ScoreProduct::workspace, ValueProduct::workspace);
};

// Sums are rescaled only if a score exceeds the max they are relative to by more than this;
// half-precision weights have the range for it.
constant constexpr float kSlack = 8.0f;

// Loads a lane's share of a row of products, and turns them into scores: those of query `row` and
// of the keys from `column` on.
template <typename T, int SHARE>
inline void load_bare_scores(thread float (&mine)[SHARE], threadgroup const float* products,
                             attention::Scores<T> make, int row, int column) {
  const attention::Range seen = make.seen_by(row);
  for (int c = 0; c < SHARE; ++c) {
    const int of_column = column + c;
    mine[c] =
        of_column >= seen.begin && of_column < seen.end ? products[c] * make.scale : -INFINITY;
  }
}

template <int SHARE>
inline float max_of_share(thread const float (&mine)[SHARE]) {
  float4 several(-INFINITY);
  for (int c = 0; c < SHARE; c += 4) {
    several = max(several, float4(mine[c], mine[c + 1], mine[c + 2], mine[c + 3]));
  }
  return max(max(several.x, several.y), max(several.z, several.w));
}

// The online softmax of a row.
struct RowSoftmax {
  float running_max;  // the max that weights are relative to
  float sum;          // over this lane's weights
  float factor;       // rescales earlier sums
  bool is_new;        // the running max has changed

  // Turns a lane's scores into weights. block_max: the max of the row's scores.
  template <int SHARE>
  inline void weigh(thread float (&mine)[SHARE], float block_max) {
    is_new = block_max > running_max + kSlack;
    factor = 1.0f;
    if (is_new) {
      factor = running_max == -INFINITY ? 0.0f : exp(running_max - block_max);
      running_max = block_max;
      sum *= factor;
    }
    const float shift = running_max == -INFINITY ? 0.0f : running_max;
    for (int c = 0; c < SHARE; ++c) {
      mine[c] = exp(mine[c] - shift);
    }
    float4 sums_of_four(0.0f);
    for (int c = 0; c < SHARE; c += 4) {
      sums_of_four += float4(mine[c], mine[c + 1], mine[c + 2], mine[c + 3]);
    }
    sum += sums_of_four.x + sums_of_four.y + (sums_of_four.z + sums_of_four.w);
  }
};

// Stores a lane's weights from (row, column) on, after dropout.
template <typename T, int SHARE>
inline void store_weights(threadgroup T* weights, thread float (&mine)[SHARE],
                          attention::Dropout dropout, int row, int column) {
  if (dropout.drops) {
    for (int c = 0; c < SHARE; ++c) {
      mine[c] = dropout.keeps(row, column + c) ? mine[c] : 0.0f;
    }
  }
  for (int c = 0; c < SHARE; ++c) {
    weights[c] = static_cast<T>(mine[c]);
  }
}

// Turns a tile of products, of queries from `first` and keys from `at` on, into weights. `factors`
// receives what each row's sums are to be multiplied by, and `changes` whether a simdgroup has any
// factor but 1.
template <typename Tile, typename T>
inline void weigh_tile(threadgroup float* scores, threadgroup T* weights,
                       threadgroup float* factors, threadgroup uint* changes,
                       attention::Scores<T> make, attention::Dropout dropout,
                       thread RowSoftmax& softmax, int first, int at, uint index, uint simdgroup,
                       uint lane) {
  const int row = Tile::row_of(index);
  const int column = Tile::column_of(index);
  threadgroup float* const my_scores = scores + row * Tile::stride + column;
  float mine[Tile::share];
  if (attention::is_bare(make)) {
    load_bare_scores(mine, my_scores, make, first + row, at + column);
  } else {
    // Adjacent lanes take adjacent elements of the mask, for coalesced loads.
    for (int e = static_cast<int>(index); e < Tile::rows * Tile::columns;
         e += attention::kThreads) {
      threadgroup float& score = scores[e / Tile::columns * Tile::stride + e % Tile::columns];
      score = attention::score_of(make, score, first + e / Tile::columns, at + e % Tile::columns);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int c = 0; c < Tile::share; ++c) {
      mine[c] = my_scores[c];
    }
  }
  float block_max = max_of_share(mine);
  for (int distance = 1; distance < Tile::lanes; distance *= 2) {
    block_max = max(block_max, simd_shuffle_xor(block_max, static_cast<ushort>(distance)));
  }
  softmax.weigh(mine, block_max);
  store_weights(weights + row * Tile::weight_stride + column, mine, dropout, first + row,
                at + column);
  if (column == 0) {
    factors[row] = softmax.factor;
  }
  const bool is_changed = simd_any(softmax.is_new);
  if (lane == 0) {
    changes[simdgroup] = is_changed ? 1 : 0;
  }
}

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

// Stores each row's lse, and into `factors` what normalises its sums.
template <typename Tile>
inline void finish_tile(threadgroup float* factors, device float* lse, RowSoftmax softmax,
                        device const float* sinks, attention::QueryTile tile,
                        constant AttentionParameters& p, uint index) {
  const attention::Sequence s = tile.sequence;
  const int row = Tile::row_of(index);
  float sum = softmax.sum;
  for (int distance = 1; distance < Tile::lanes; distance *= 2) {
    sum += simd_shuffle_xor(sum, static_cast<ushort>(distance));
  }
  const attention::Total total = attention::total_of(softmax.running_max, sum, s, p, sinks);
  if (Tile::column_of(index) == 0) {
    factors[row] = total.factor(p.keep_scale);
    if (tile.first + row < s.queries) {
      lse[attention::rows_of(s, p) + tile.first + row] = total.lse();
    }
  }
}

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
  typedef ForwardTile<T, VALUES> Tile;
  typedef typename Tile::Rows Rows;
  typedef typename Tile::Columns Columns;
  typedef typename Tile::Weights Weights;
  typedef typename Tile::ScoreProduct ScoreProduct;
  typedef typename Tile::ValueProduct ValueProduct;
  threadgroup float scores[Tile::rows * Tile::stride];
  threadgroup T narrow[Tile::is_float ? 1 : Tile::rows * Tile::weight_stride];
  threadgroup float factors[Tile::rows];
  threadgroup uint changes[attention::kSimdgroups];
  threadgroup T workspace[Tile::workspace];
  // Float weights overwrite the scores; narrower ones have their own memory.
  threadgroup T* const weights = Tile::is_float ? reinterpret_cast<threadgroup T*>(scores) : narrow;

  const attention::QueryTile tile =
      attention::query_tile_of(attention::balanced_group(group, p.queries, Tile::rows, p.heads, p),
                               Tile::rows, p, cu_queries, cu_keys, lengths);
  const attention::Sequence s = tile.sequence;
  if (tile.first >= s.queries) {
    return;
  }
  const int first = tile.first;
  const int queries_left = s.queries - first;
  const attention::Operands<T> of = attention::operands_of(s, p, query, key, value);
  const Rows queries{of.queries + first * p.query.row, p.query.row};
  const attention::Scores<T> make = attention::scores_of<T>(s, p, mask, slopes, key_scale);
  const attention::Dropout dropout = attention::dropout_of(s, p, random);
  const matmul::Place place{index, simdgroup, lane};

  RowSoftmax softmax{-INFINITY, 0.0f, 1.0f, false};
  auto sums = ValueProduct::sums();
  ValueProduct::clear(sums, place);
  const attention::Range seen = attention::keys_seen(s, p, first, Tile::rows);
  for (int at = seen.begin / Tile::columns * Tile::columns; at < seen.end; at += Tile::columns) {
    const int keys_left = min(Tile::columns, s.keys - at);
    const Rows keys{of.keys + at * p.key.row, p.key.row};
    const Columns values{of.values + at * p.value.row, p.value.row};
    ScoreProduct::template store<Tile::stride>(scores, queries, queries_left, keys, keys_left,
                                               p.head_size, workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    weigh_tile<Tile>(scores, weights, factors, changes, make, dropout, softmax, first, at, index,
                     simdgroup, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if ((changes[0] | changes[1] | changes[2] | changes[3]) != 0) {
      ValueProduct::for_each(sums, scale_rows{factors}, place);
    }
    ValueProduct::add(sums, Weights{weights}, Tile::rows, values, p.value_size, keys_left,
                      workspace, place);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  finish_tile<Tile>(factors, lse, softmax, sinks, tile, p, index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device T* const rows = out + attention::offset_of(p.out, s.batch, s.head, s.first_query + first);
  ValueProduct::for_each(sums, store_rows<T>{rows, p.out.row, queries_left, p.value_size, factors},
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

// True where four simdgroups multiply together by lines that the GPU copies to threadgroup memory,
// in a layout of its own, while earlier ones are used. Tiles then are twice as large.
#if defined(__METALOPS_STAGED_LINES__)
constant constexpr bool has_staged_lines = ::mpp::tensor_ops::has_staged_lines;
#else
constant constexpr bool has_staged_lines = false;
#endif

constant constexpr int kSimdgroupsOfTile =
    has_staged_lines ? static_cast<int>(AttentionTile::kRowsOfWarpgroups) / 16
                     : attention::kSimdgroups;

// The tile of a simdgroup, its GEMMs, and the tiles of keys and values that its threadgroup shares.
template <typename T, int FEATURES, int SIMDGROUPS>
struct SimdgroupTile {
  typedef ::mpp::tensor_ops::matmul2d_descriptor Descriptor;
  static constant constexpr int rows = 16;
  static constant constexpr int features = FEATURES;
  static constant constexpr int columns = (FEATURES <= 64 ? 64 : 32) * (has_staged_lines ? 2 : 1);
  static constant constexpr int simdgroups = SIMDGROUPS;
  static constant constexpr int rows_of_group = simdgroups * rows;
  static constant constexpr Descriptor multiplying =
      Descriptor(rows, columns, FEATURES, false, true, false, Descriptor::mode::multiply);
  static constant constexpr Descriptor adding = Descriptor(
      rows, FEATURES, columns, false, false, false, Descriptor::mode::multiply_accumulate);
  typedef ::mpp::tensor_ops::matmul2d<multiplying, execution_simdgroup> Multiply;
  typedef ::mpp::tensor_ops::matmul2d<adding, execution_simdgroup> Add;
  typedef Lines<T, columns, FEATURES> Staged;
  typedef tensor<threadgroup T, extents<int, columns, rows>, tensor_inline> Stored;

  // Returns a tensor of one value per row.
  template <typename Query, typename Tokens>
  static inline auto for_rows() {
    Multiply multiply;
    return multiply
        .template get_row_reduction_destination_cooperative_tensor<Query, Tokens, float>();
  }
};

constant constexpr float kLog2E = 1.44269504f;
constant constexpr float kLn2 = 0.693147181f;

// The queries of a simdgroup, from `first` on, of one head of one sequence.
template <typename T>
struct SimdgroupQueries {
  attention::Sequence sequence;
  int first;
  attention::Scores<T> make;
  attention::Dropout dropout;
};

template <typename Tensor>
inline void fill(thread Tensor& elements, float value) {
#pragma unroll
  for (uint16_t i = 0; i < elements.get_capacity(); ++i) {
    elements[i] = value;
  }
}

// Tiles of keys and values, staged in threadgroup memory: the next ones are loaded into registers
// while these are used.
template <typename T, typename Tile>
struct StagedTokens {
  typedef typename Tile::Staged Staged;
  typedef tensor<threadgroup T, extents<int, Tile::features, Tile::columns>, tensor_inline> Tokens;
  // The left operand, of which Query is the cooperative tensor.
  template <typename Query>
  using Queries = Query;
  static constant constexpr int packs = 2 * Staged::size / 8;  // of threadgroup memory
  attention::Operands<T> of;
  int all_keys;
  constant AttentionParameters& p;
  uint index;
  threadgroup T* tiles;
  Staged next_keys;
  Staged next_values;

  inline StagedTokens(attention::Operands<T> operands, int keys_in_all,
                      constant AttentionParameters& parameters, threadgroup uint4* memory,
                      uint my_index)
      : of(operands),
        all_keys(keys_in_all),
        p(parameters),
        index(my_index),
        tiles(reinterpret_cast<threadgroup T*>(memory)) {}
  // Loads the queries of a simdgroup, from `mine` on, into q. first: of the threadgroup.
  template <typename Query>
  inline thread Query& load_queries(thread Query& q, attention::Sequence s, int, int mine) const {
#pragma unroll
    for (uint16_t i = 0; i < q.get_capacity(); ++i) {
      const auto at = q.get_multidimensional_index(i);
      const bool is_there =
          q.is_valid_element(i) && mine + at[1] < s.queries && at[0] < p.head_size;
      q[i] = is_there ? of.queries[(mine + at[1]) * p.query.row + at[0]] : T(0);
    }
    return q;
  }
  // Begins with the tiles at `at`.
  inline void begin(int at, int) { load(at); }
  // Takes the tiles at `at`. end: of the keys that are seen.
  inline void take(int at, int end) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    next_keys.put(tiles, index);
    next_values.put(tiles + Staged::size, index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (at + Tile::columns < end) {
      load(at + Tile::columns);
    }
  }
  // take(), for tiles that begin before end_of_whole_tiles(end).
  inline void take_whole(int at, int end) { take(at, end); }
  static inline int end_of_whole_tiles(int end) { return end; }
  inline Tokens keys() const { return tokens(tiles); }
  inline Tokens values() const { return tokens(tiles + Staged::size); }
  // Called after products with the keys, and before those with the values.
  inline void leave_keys() const {}
  inline void enter_values(int, int) const {}

 private:
  inline void load(int at) {
    const int left = all_keys - at;
    next_keys.load(of.keys + at * p.key.row, p.key.row, left, p.head_size, p.is_aligned, index);
    next_values.load(of.values + at * p.value.row, p.value.row, left, p.value_size, p.is_aligned,
                     index);
  }
  static inline Tokens tokens(threadgroup T* staged) {
    return Tokens(staged, extents<int, Tile::features, Tile::columns>(),
                  array<int, 2>{1, Staged::stride});
  }
};

#if defined(__METALOPS_STAGED_LINES__)
// The interface of StagedTokens for tiles that the GPU copies.
template <typename T, typename Tile>
struct CopiedTokens {
  typedef ::mpp::tensor_ops::line_ring<T, Tile::columns, Tile::features, Tile::simdgroups> Ring;
  typedef typename Ring::lines Tokens;
  template <typename>
  using Queries = typename Ring::rows;
  static constant constexpr int packs = 1;
  attention::Operands<T> of;
  constant AttentionParameters& p;
  Ring ring;
  typename Ring::rows rows;

  inline CopiedTokens(attention::Operands<T> operands, int all_keys,
                      constant AttentionParameters& parameters, threadgroup uint4*, uint)
      : of(operands),
        p(parameters),
        ring(operands.keys, parameters.key.row, parameters.head_size, operands.values,
             parameters.value.row, parameters.value_size, all_keys) {}
  template <typename Query>
  inline thread typename Ring::rows& load_queries(thread Query&, attention::Sequence s, int first,
                                                  int) {
    rows = ring.bring_rows(of.queries + first * p.query.row, p.query.row, p.head_size,
                           s.queries - first);
    return rows;
  }
  inline void begin(int at, int end) { ring.begin(at, end); }
  inline void take(int at, int end) { ring.take(at, end); }
  inline void take_whole(int at, int end) { ring.take_boxes(at, end); }
  inline int end_of_whole_tiles(int end) const { return ring.end_of_boxes(end); }
  inline Tokens keys() const { return ring.first(); }
  inline Tokens values() const { return ring.second(); }
  inline void leave_keys() const { ring.leave_first(); }
  inline void enter_values(int at, int end) const { ring.enter_second(at, end); }
};
template <typename T, typename Tile>
using TokensOf = conditional_t<has_staged_lines, CopiedTokens<T, Tile>, StagedTokens<T, Tile>>;
#else
template <typename T, typename Tile>
using TokensOf = StagedTokens<T, Tile>;
#endif

// Returns true if weights depend on positions by the window alone, and their exponents of base 2
// are products times a factor: those of bfloat can be so large that a larger factor makes them
// infinite.
template <typename T>
inline bool are_bare(SimdgroupQueries<T> mine) {
  const float most = is_same<T, half>::value ? 1e20f : 0.5f;
  return attention::is_bare(mine.make) && mine.make.scale > 0.0f && mine.make.scale <= most &&
         !mine.dropout.drops;
}

// Returns where tiles begin whose keys all queries of a group see, apart from the mask. first: the
// first query; end: of tiles that are staged as a whole.
template <typename Tile>
inline attention::Range tiles_seen_by_all(attention::Sequence s, int first, int end,
                                          constant AttentionParameters& p) {
  const int position = first + s.diagonal;
  const int seen = p.window_right < 0 ? s.keys : min(s.keys, position + p.window_right + 1);
  return {p.window_left < 0 ? 0 : position + Tile::rows_of_group - 1 - p.window_left,
          min(end, seen - Tile::columns + 1)};
}

// Hides the keys that queries do not see, apart from the mask.
template <typename Tensor, typename T>
inline void hide(thread Tensor& scores, SimdgroupQueries<T> mine, int at) {
#pragma unroll
  for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
    if (scores.is_valid_element(i)) {
      const auto in_tile = scores.get_multidimensional_index(i);
      const attention::Range seen = mine.make.seen_by(mine.first + in_tile[1]);
      const int key = at + in_tile[0];
      scores[i] = key >= seen.begin && key < seen.end ? scores[i] : -INFINITY;
    }
  }
}

// Turns products into scores.
template <typename Tensor, typename T>
inline void make_scores(thread Tensor& products, SimdgroupQueries<T> mine, int at) {
#pragma unroll
  for (uint16_t i = 0; i < products.get_capacity(); ++i) {
    if (products.is_valid_element(i)) {
      const auto in_tile = products.get_multidimensional_index(i);
      const float score = mine.make.capped(products[i]);
      products[i] = mine.make.masked(score, mine.first + in_tile[1], at + in_tile[0]);
    }
  }
}

// Raises the running max of rows to the max of a block times `by`, from row_values, which receive
// the new one. `factor` receives what earlier sums are to be multiplied by. Returns true if one of
// this thread's is not one. to_base_2: makes exponents of base 2.
template <typename Row>
inline bool raise_max(thread Row& running_max, thread Row& factor, thread Row& row_values, float by,
                      float to_base_2) {
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
          running_max[i] == -INFINITY ? 0.0f : exp2((running_max[i] - block_max) * to_base_2);
      running_max[i] = block_max;
    }
    is_new = is_new || exceeds;
    row_values[i] = running_max[i] == -INFINITY ? 0.0f : running_max[i];
  }
  return is_new;
}

// Returns true if the max of a row of this thread is so large that the conversion to base 2 would
// round off digits of the score differences, or overflow.
template <typename Row>
inline bool is_any_far(thread Row& row_max) {
  bool is_mine = false;
#pragma unroll
  for (uint16_t i = 0; i < row_max.get_capacity(); ++i) {
    is_mine = is_mine || (row_max.is_valid_element(i) && abs(row_max[i]) > attention::kRoomy);
  }
  return is_mine;
}

// Turns scores into weights, powers of two of `by` times the score minus the row's value of
// row_values, and adds them to `total`.
template <typename Tensor, typename Row>
inline void weigh(thread Tensor& scores, thread Row& row_values, thread Row& total, float by) {
#pragma unroll
  for (auto it = scores.begin(); it != scores.end(); ++it) {
    if (it.is_valid_element()) {
      const float weight = fast::exp2(fma(*it, by, -*row_values.map_iterator(it)));
      *it = weight;
      *total.map_iterator(it) += weight;
    }
  }
}

// Turns scores into weights relative to the max of their row, and adds them to `total`. is_far: the
// max is subtracted before the conversion to base 2.
template <typename Tensor, typename Row>
inline void weigh_by_max(thread Tensor& scores, thread Row& row_max, thread Row& total,
                         bool is_far) {
  if (is_far) {
#pragma unroll
    for (auto it = scores.begin(); it != scores.end(); ++it) {
      if (it.is_valid_element()) {
        *it -= *row_max.map_iterator(it);
      }
    }
    fill(row_max, 0.0f);
  }
#pragma unroll
  for (uint16_t i = 0; i < row_max.get_capacity(); ++i) {
    row_max[i] *= kLog2E;
  }
  weigh(scores, row_max, total, kLog2E);
}

template <typename Tensor, typename Row>
inline void rescale(thread Tensor& sums, thread Row& factor) {
#pragma unroll
  for (auto it = sums.begin(); it != sums.end(); ++it) {
    if (it.is_valid_element()) {
      *it *= *factor.map_iterator(it);
    }
  }
}

template <typename Row>
inline void scale_rows(thread Row& rows, float factor) {
#pragma unroll
  for (uint16_t i = 0; i < rows.get_capacity(); ++i) {
    rows[i] *= factor;
  }
}

template <typename Row>
inline void rescale_rows(thread Row& total, thread Row& factor) {
#pragma unroll
  for (uint16_t i = 0; i < total.get_capacity(); ++i) {
    total[i] *= factor[i];
  }
}

// Begins an online softmax.
template <typename Sums, typename Row>
inline void begin_softmax(thread Sums& sums, thread Row& running_max, thread Row& total) {
  fill(sums, 0.0f);
  fill(running_max, -INFINITY);
  fill(total, 0.0f);
}

// Online softmax of a block of scores. Returns true if earlier sums are to be multiplied by
// `factor`. row_values: memory for one value per row. total: sums of this thread's weights of each
// row (see add_threads).
template <typename Tensor, typename Row>
inline bool weigh_block(thread Tensor& scores, thread Row& row_values, thread Row& running_max,
                        thread Row& factor, thread Row& total, thread bool& is_far) {
  ::mpp::tensor_ops::reduce_rows(scores, row_values, ::mpp::tensor_ops::reduction_operation::max,
                                 -INFINITY);
  const bool is_new = raise_max(running_max, factor, row_values, 1.0f, kLog2E);
  if (is_new) {
    is_far = is_any_far(row_values);
    rescale_rows(total, factor);
  }
  weigh_by_max(scores, row_values, total, is_far);
  return is_new;
}

// weigh_block() for products that become exponents of base 2 if they are multiplied by `by`, which
// also rescales `sums`; the running max is one of exponents. They need no is_far: differences are
// rounded once, and weights are relative to the exponent that the max is rounded to.
template <typename Tensor, typename Sums, typename Row>
inline void weigh_bare_block(thread Tensor& products, thread Sums& sums, thread Row& row_values,
                             thread Row& running_max, thread Row& factor, thread Row& total,
                             float by) {
  ::mpp::tensor_ops::reduce_rows(products, row_values, ::mpp::tensor_ops::reduction_operation::max,
                                 -INFINITY);
  if (raise_max(running_max, factor, row_values, by, 1.0f)) {
    rescale_rows(total, factor);
    rescale(sums, factor);
  }
  weigh(products, row_values, total, by);
}

// Replaces sums over each thread's weights by those of rows. scores: memory.
template <typename Tensor, typename Row>
inline void add_threads(thread Row& total, thread Tensor& scores) {
#pragma unroll
  for (auto it = scores.begin(); it != scores.end(); ++it) {
    if (it.is_valid_element()) {
      thread float& mine = *total.map_iterator(it);
      *it = mine;
      mine = 0.0f;
    }
  }
  ::mpp::tensor_ops::reduce_rows(scores, total, ::mpp::tensor_ops::reduction_operation::sum, 0.0f);
}

template <typename Tensor, typename T>
inline void drop_weights(thread Tensor& weights, SimdgroupQueries<T> mine, int at) {
#pragma unroll
  for (uint16_t i = 0; i < weights.get_capacity(); ++i) {
    if (weights.is_valid_element(i)) {
      const auto in_tile = weights.get_multidimensional_index(i);
      const bool keeps = mine.dropout.keeps(mine.first + in_tile[1], at + in_tile[0]);
      weights[i] = keeps ? weights[i] : 0.0f;
    }
  }
}

// Adds weights times a tile of values to the sums. Where weights are no left operand as they are,
// they go through `stored`, the simdgroup's own memory.
template <typename Tile, typename T, typename Staging, typename Scores, typename Weights,
          typename Left, typename Sums>
inline void add_values(thread Staging& staged, thread Scores& scores, thread Weights& weights,
                       thread Left& left, thread Sums& sums, int at, int end,
                       threadgroup T* stored) {
  typename Tile::Add add;
#pragma unroll
  for (uint16_t i = 0; i < scores.get_capacity(); ++i) {
    if (weights.is_valid_element(i)) {
      weights[i] = static_cast<T>(scores[i]);
    }
  }
  staged.enter_values(at, end);
  typename Staging::Tokens values = staged.values();
#if defined(__METALOPS_STAGED_LINES__)
  auto given = add.template get_left_input_cooperative_tensor<T, T, float>(weights);
  add.run(given, values, sums);
#else
  if (add.template is_compatible_as_left_input<T, T, float>(weights)) {
    auto given = add.template get_left_input_cooperative_tensor<T, T, float>(weights);
    add.run(given, values, sums);
  } else {
    typename Tile::Stored memory(stored, extents<int, Tile::columns, Tile::rows>());
    // The previous loads from `stored` are ordered before this store by a threadgroup barrier.
    weights.store(memory);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    left.load(memory);
    add.run(left, values, sums);
  }
#endif
}

// Attends to a tile of keys and values. end: of the keys that are seen.
template <typename Tile, typename T, typename Staging, typename Query, typename Scores,
          typename Weights, typename Left, typename Sums, typename Row>
inline void attend(thread Staging& staged, thread Query& q, thread Scores& scores,
                   thread Weights& weights, thread Left& left, thread Sums& sums,
                   thread Row& row_values, thread Row& running_max, thread Row& factor,
                   thread Row& total, thread bool& is_far, SimdgroupQueries<T> mine, int at,
                   int end, threadgroup T* stored) {
  typename Tile::Multiply multiply;
  typename Staging::Tokens keys = staged.keys();
  multiply.run(q, keys, scores);
  staged.leave_keys();
  make_scores(scores, mine, at);
  const bool is_new = weigh_block(scores, row_values, running_max, factor, total, is_far);
  if (mine.dropout.drops) {
    drop_weights(scores, mine, at);
  }
  if (is_new) {
    rescale(sums, factor);
  }
  add_values<Tile>(staged, scores, weights, left, sums, at, end, stored);
}

// attend() if weights are_bare(). IS_WHOLE: all queries see all keys of the tile.
template <typename Tile, bool IS_WHOLE, typename T, typename Staging, typename Query,
          typename Scores, typename Weights, typename Left, typename Sums, typename Row>
inline void attend_bare(thread Staging& staged, thread Query& q, thread Scores& scores,
                        thread Weights& weights, thread Left& left, thread Sums& sums,
                        thread Row& row_values, thread Row& running_max, thread Row& factor,
                        thread Row& total, SimdgroupQueries<T> mine, int at, int end,
                        threadgroup T* stored) {
  typename Tile::Multiply multiply;
  typename Staging::Tokens keys = staged.keys();
  multiply.run(q, keys, scores);
  staged.leave_keys();
  if (!IS_WHOLE) {
    hide(scores, mine, at);
  }
  weigh_bare_block(scores, sums, row_values, running_max, factor, total, mine.make.scale * kLog2E);
  add_values<Tile>(staged, scores, weights, left, sums, at, end, stored);
}

// Computes each row's lse, into row_lse, and what normalises its sums, into `factor`.
template <typename Row>
inline void finish_rows(thread Row& row_lse, thread Row& factor, thread Row& running_max,
                        thread Row& sum, attention::Sequence s, constant AttentionParameters& p,
                        device const float* sinks) {
#pragma unroll
  for (uint16_t i = 0; i < sum.get_capacity(); ++i) {
    if (!sum.is_valid_element(i)) {
      continue;
    }
    const attention::Total total = attention::total_of(running_max[i], sum[i], s, p, sinks);
    factor[i] = total.factor(p.keep_scale);
    row_lse[i] = total.lse();
  }
}

// Stores normalised sums, by way of `narrow`, and the lse. out, lse: those of the sequence's first
// query.
template <typename T, typename Tensor, typename Narrow, typename Row>
inline void store_rows_of_simdgroup(device T* out, device float* lse, thread Tensor& sums,
                                    thread Narrow& narrow, thread Row& factor, thread Row& row_lse,
                                    int first, int queries, constant AttentionParameters& p) {
  uint16_t i = 0;
#pragma unroll
  for (auto it = sums.begin(); it != sums.end(); ++it, ++i) {
    if (it.is_valid_element()) {
      const float by = *factor.map_iterator(it);
      narrow[i] = static_cast<T>(by == 0.0f ? 0.0f : *it * by);
      const auto in_tile = it.get_multidimensional_index();
      if (in_tile[0] == 0 && first + in_tile[1] < queries) {
        lse[first + in_tile[1]] = *row_lse.map_iterator(it);
      }
    }
  }
  if (first < queries) {
    typedef dextents<int, 2> Extents;
    tensor<device T, Extents, tensor_inline> rows(out + first * p.out.row,
                                                  Extents(p.value_size, queries - first),
                                                  array<int, 2>{1, static_cast<int>(p.out.row)});
    narrow.store(rows);
  }
}

// FlashAttention forward in half precision: each simdgroup has 16 queries and keeps their scores in
// a cooperative tensor; tiles of keys and values are shared in threadgroup memory. Exponentials are
// in base 2. Where lines are staged by the GPU, the bound on threads is one on registers, so that
// two threadgroups share a multiprocessor.
template <typename T, int FEATURES, int SIMDGROUPS>
[[max_total_threads_per_threadgroup(has_staged_lines ? 512 : attention::kThreads)]] kernel void
attention_forward_by_simdgroups(
    device T* out [[buffer(0)]], device float* lse [[buffer(1)]],
    device const T* query [[buffer(2)]], device const T* key [[buffer(3)]],
    device const T* value [[buffer(4)]], device const uchar* mask [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device const float* slopes [[buffer(7)]],
    device const int* cu_queries [[buffer(8)]], device const int* cu_keys [[buffer(9)]],
    device const int* lengths [[buffer(10)]], device const uint2* random [[buffer(11)]],
    device const float* key_scale [[buffer(12)]], constant AttentionParameters& p [[buffer(13)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  typedef SimdgroupTile<T, FEATURES, SIMDGROUPS> Tile;
  typedef TokensOf<T, Tile> Staging;
  typedef typename Staging::Tokens Tokens;
  typename Tile::Multiply multiply;
  typename Tile::Add add;
  threadgroup uint4 packs[Staging::packs];
  threadgroup T stored_weights[Tile::rows_of_group * Tile::columns];

  const attention::QueryTile tile = attention::query_tile_of(
      attention::balanced_group(group, p.queries, Tile::rows_of_group, p.heads, p),
      Tile::rows_of_group, p, cu_queries, cu_keys, lengths);
  const attention::Sequence s = tile.sequence;
  if (tile.first >= s.queries) {
    return;
  }
  const SimdgroupQueries<T> mine{s, tile.first + static_cast<int>(simdgroup) * Tile::rows,
                                 attention::scores_of<T>(s, p, mask, slopes, key_scale),
                                 attention::dropout_of(s, p, random)};
  Staging staged(attention::operands_of(s, p, query, key, value), s.keys, p, packs, index);
  auto loaded = multiply.template get_left_input_cooperative_tensor<T, T, float>();
  typedef typename Staging::template Queries<decltype(loaded)> Query;
  thread Query& q = staged.load_queries(loaded, s, tile.first, mine.first);
  auto scores = multiply.template get_destination_cooperative_tensor<Query, Tokens, float>();
  auto weights = multiply.template get_destination_cooperative_tensor<Query, Tokens, T>();
  auto running_max = Tile::template for_rows<Query, Tokens>();
  auto row_values = Tile::template for_rows<Query, Tokens>();
  auto total = Tile::template for_rows<Query, Tokens>();
  auto factor = Tile::template for_rows<Query, Tokens>();
  auto left = add.template get_left_input_cooperative_tensor<T, T, float>();
  auto sums = add.template get_destination_cooperative_tensor<decltype(left), Tokens, float>();
  begin_softmax(sums, running_max, total);
  threadgroup T* const stored = stored_weights + simdgroup * (Tile::rows * Tile::columns);
  const attention::Range seen = attention::keys_seen(s, p, tile.first, Tile::rows_of_group);
  int at = seen.begin / Tile::columns * Tile::columns;
  staged.begin(at, seen.end);
  const attention::Range whole =
      tiles_seen_by_all<Tile>(s, tile.first, staged.end_of_whole_tiles(seen.end), p);
  if (are_bare(mine)) {
    while (at < seen.end) {
      if (at < whole.begin || at >= whole.end) {
        staged.take(at, seen.end);
        attend_bare<Tile, false>(staged, q, scores, weights, left, sums, row_values, running_max,
                                 factor, total, mine, at, seen.end, stored);
        at += Tile::columns;
      } else {
        for (; at < whole.end; at += Tile::columns) {
          staged.take_whole(at, seen.end);
          attend_bare<Tile, true>(staged, q, scores, weights, left, sums, row_values, running_max,
                                  factor, total, mine, at, seen.end, stored);
        }
      }
    }
    scale_rows(running_max, kLn2);
  } else {
    bool is_far = false;  // see is_any_far
    for (; at < seen.end; at += Tile::columns) {
      staged.take(at, seen.end);
      attend<Tile>(staged, q, scores, weights, left, sums, row_values, running_max, factor, total,
                   is_far, mine, at, seen.end, stored);
    }
  }
  add_threads(total, scores);
  finish_rows(row_values, factor, running_max, total, s, p, sinks);
  auto narrow_sums = add.template get_destination_cooperative_tensor<decltype(left), Tokens, T>();
  store_rows_of_simdgroup(out + attention::offset_of(p.out, s.batch, s.head, s.first_query),
                          lse + attention::rows_of(s, p), sums, narrow_sums, factor, row_values,
                          mine.first, s.queries, p);
}

#define REGISTER_FORWARD_BY_SIMDGROUPS(T, FEATURES)                    \
  REGISTER_KERNEL("attention_forward_by_simdgroups_" #FEATURES "_" #T, \
                  attention_forward_by_simdgroups, T, FEATURES, kSimdgroupsOfTile);

REGISTER_FORWARD_BY_SIMDGROUPS(half, 32)
REGISTER_FORWARD_BY_SIMDGROUPS(half, 64)
REGISTER_FORWARD_BY_SIMDGROUPS(half, 96)
REGISTER_FORWARD_BY_SIMDGROUPS(half, 128)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 32)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 64)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 96)
REGISTER_FORWARD_BY_SIMDGROUPS(bfloat, 128)

#if defined(__METALOPS_STAGED_LINES__)
// Threadgroups of half as many queries, for calls of so few that GPU cores would be idle.
#define REGISTER_FORWARD_BY_WARPGROUP(T, FEATURES)                    \
  REGISTER_KERNEL("attention_forward_by_warpgroup_" #FEATURES "_" #T, \
                  attention_forward_by_simdgroups, T, FEATURES, attention::kSimdgroups);

REGISTER_FORWARD_BY_WARPGROUP(half, 32)
REGISTER_FORWARD_BY_WARPGROUP(half, 64)
REGISTER_FORWARD_BY_WARPGROUP(half, 96)
REGISTER_FORWARD_BY_WARPGROUP(half, 128)
REGISTER_FORWARD_BY_WARPGROUP(bfloat, 32)
REGISTER_FORWARD_BY_WARPGROUP(bfloat, 64)
REGISTER_FORWARD_BY_WARPGROUP(bfloat, 96)
REGISTER_FORWARD_BY_WARPGROUP(bfloat, 128)
#endif

#endif

#if defined(__METALOPS_STAGED_LINES__) && defined(__HAVE_TENSOR__)
// Simdgroups, columns of a tile, and threads that bound registers.
#define REGISTER_STAGED_GRADIENTS(NAME, T, FEATURES, ...)        \
  REGISTER_KERNEL("attention_grad_query_" NAME #FEATURES "_" #T, \
                  attention_grad_query_by_simdgroups, T, FEATURES, __VA_ARGS__)
#define REGISTER_STAGED_KEY_GRADIENTS(NAME, T, FEATURES, ...)        \
  REGISTER_KERNEL("attention_grad_key_value_" NAME #FEATURES "_" #T, \
                  attention_grad_key_value_by_simdgroups, T, FEATURES, __VA_ARGS__)
#define REGISTER_GRADIENTS_BY_SIMDGROUPS(T)                           \
  REGISTER_STAGED_GRADIENTS("by_warpgroup_", T, 64, 4, 64, 512);      \
  REGISTER_STAGED_GRADIENTS("by_warpgroup_", T, 128, 4, 64, 256);     \
  REGISTER_STAGED_GRADIENTS("by_simdgroups_", T, 128, 8, 128, 256);   \
  REGISTER_STAGED_KEY_GRADIENTS("by_warpgroup_", T, 64, 4, 64, 384);  \
  REGISTER_STAGED_KEY_GRADIENTS("by_warpgroup_", T, 128, 4, 64, 256); \
  REGISTER_STAGED_KEY_GRADIENTS("by_simdgroups_", T, 128, 8, 64, 256)

REGISTER_GRADIENTS_BY_SIMDGROUPS(half);
REGISTER_GRADIENTS_BY_SIMDGROUPS(bfloat);
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

// Flash decoding: attention of few queries over many keys, with a contiguous or paged KV cache. It
// is bound by loading keys and values, so they are loaded once for all query heads that share them
// (GQA). A team of lanes processes one key at a time, with each lane holding some vectors of its
// features. Teams keep their own online softmax (Milakov and Gimelshein, "Online normalizer
// calculation for softmax"), and their states are combined at the end. With split-KV, a second
// kernel combines the splits (Dao et al., "Flash-Decoding").
//
// A row is one query of one query head. Rows of the heads that share a KV head are ordered by
// query, then head.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/attention/attention_decode.h>
#include <kernels/attention/attention_softmax.h>
#include <kernels/common/number_formats.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::AttentionDecodeMask;
using metalops::AttentionDecodeParameters;
namespace attention = metalops::attention;

// ---- elements -----------------------------------------------------------------------------------

struct e4m3 {
  uchar code;
};
struct e5m2 {
  uchar code;
};

template <typename T>
inline float value_of(T element) {
  return static_cast<float>(element);
}
inline float value_of(e4m3 element) { return metalops::formats::e4m3::decode(element.code); }
inline float value_of(e5m2 element) { return metalops::formats::e5m2::decode(element.code); }

// Loads vectors of 16 bytes of elements, or of 8 bytes where elements are bytes, and dequantises
// them. gather() loads the first `count` elements and pads with zeros.
template <typename T>
struct Words {
  typedef uint4 Pack;
  static inline Pack load(device const T* from) {
    return *reinterpret_cast<device const uint4*>(from);
  }
  static inline Pack gather(device const T* from, int count) {
    Pack pack(0);
    for (int i = 0; i < 4; ++i) {
      const T first = 2 * i < count ? from[2 * i] : T(0);
      const T second = 2 * i + 1 < count ? from[2 * i + 1] : T(0);
      pack[i] = as_type<uint>(vec<T, 2>(first, second));
    }
    return pack;
  }
  static inline void decode(Pack pack, thread float* to) {
    for (int i = 0; i < 4; ++i) {
      const vec<T, 2> pair = as_type<vec<T, 2>>(pack[i]);
      to[2 * i] = static_cast<float>(pair.x);
      to[2 * i + 1] = static_cast<float>(pair.y);
    }
  }
};
template <>
struct Words<float> {
  typedef float4 Pack;
  static inline Pack load(device const float* from) {
    return *reinterpret_cast<device const float4*>(from);
  }
  static inline Pack gather(device const float* from, int count) {
    Pack pack(0.0f);
    for (int i = 0; i < 4; ++i) {
      pack[i] = i < count ? from[i] : 0.0f;
    }
    return pack;
  }
  static inline void decode(Pack pack, thread float* to) {
    for (int i = 0; i < 4; ++i) {
      to[i] = pack[i];
    }
  }
};
struct Bytes {
  typedef uint2 Pack;
  static inline Pack load(device const void* from) {
    return *static_cast<device const uint2*>(from);
  }
  static inline Pack gather(device const void* from, int count) {
    Pack pack(0);
    for (int i = 0; i < 8; ++i) {
      const uint code = i < count ? static_cast<device const uchar*>(from)[i] : uchar(0);
      pack[i / 4] |= code << (i % 4 * 8);
    }
    return pack;
  }
};
template <>
struct Words<char> : Bytes {
  static inline void decode(Pack pack, thread float* to) {
    for (int i = 0; i < 8; ++i) {
      to[i] = static_cast<float>(static_cast<char>(pack[i / 4] >> (i % 4 * 8)));
    }
  }
};
template <>
struct Words<e4m3> : Bytes {
  static inline void decode(Pack pack, thread float* to) {
    for (int i = 0; i < 8; ++i) {
      to[i] = metalops::formats::e4m3::decode(pack[i / 4] >> (i % 4 * 8) & 0xffu);
    }
  }
};
template <>
struct Words<e5m2> : Bytes {
  static inline void decode(Pack pack, thread float* to) {
    for (int i = 0; i < 8; ++i) {
      to[i] = metalops::formats::e5m2::decode(pack[i / 4] >> (i % 4 * 8) & 0xffu);
    }
  }
};

// Work distribution on a GPU. C: the dtype of the cache. pack: elements per vector; unrolled:
// unroll factor of loops over a thread's registers.
template <typename C>
struct OfGpu {
  static constant constexpr int pack = sizeof(C) == 4 ? 4 : 8;
  static constant constexpr int keys = 4;  // per team and iteration
  static constant constexpr int unrolled = 64;
};
// Work distribution on a CPU, where a `pack` becomes a vector register and a team is one thread.
template <typename C>
struct OfCpu {
  static constant constexpr int pack = 16;
  static constant constexpr int keys = 16;
  static constant constexpr int unrolled = 1;
};

// ---- addresses in the cache ---------------------------------------------------------------------

// The cached keys and values of one KV head of a sequence.
template <typename C>
struct Cache {
  device const C* key;
  device const C* value;
  device const int* table;  // the sequence's row of the block table
  int start;                // position of key 0
  device ErrorMessages* errors;

  // Finds key `at` and its value. Returns how many keys from there on are contiguous, p.key.token
  // apart; returns 0, with negative offsets, if the block table holds an invalid page.
  inline int find(int at, constant AttentionDecodeParameters& p, thread int64_t& key_at,
                  thread int64_t& value_at) const {
    const uint position = static_cast<uint>(start + at);
    if (p.page_size == 0) {
      key_at = position * p.key.token;
      value_at = position * p.value.token;
      return p.keys - static_cast<int>(position);
    }
    const uint column = p.page_shift >= 0 ? position >> static_cast<uint>(p.page_shift)
                                          : position / static_cast<uint>(p.page_size);
    const int64_t slot = position - column * static_cast<uint>(p.page_size);
    const int page = table[column];
    if (page < 0 || page >= p.pages) {
      TORCH_REPORT_ERROR(errors, "paged_attention: block_table has page ", page, ", but there are ",
                         p.pages, " pages");
      key_at = -1;
      value_at = -1;
      return 0;
    }
    key_at = page * p.key.batch + slot * p.key.token;
    value_at = page * p.value.batch + slot * p.value.token;
    return p.page_size - static_cast<int>(slot);
  }
};

// The work of one threadgroup: ROWS rows and one split of the keys.
struct Task {
  int batch;
  int head;
  int split;
  int first_row;
  int rows;
  int start;     // the first key, from which keys are counted
  int diagonal;  // query i has the position of key i + diagonal
  int begin;     // keys [begin, end) of the split
  int end;
};

inline Task task_of(uint number, int rows, constant AttentionDecodeParameters& p,
                    device const int* starts, device const int* lengths) {
  Task task;
  const int all_rows = p.queries * p.group;
  task.first_row = static_cast<int>(number % static_cast<uint>(p.row_blocks)) * rows;
  task.rows = min(rows, all_rows - task.first_row);
  number /= static_cast<uint>(p.row_blocks);
  task.head = static_cast<int>(number % static_cast<uint>(p.heads));  // fastest: may be adjacent
  number /= static_cast<uint>(p.heads);
  task.split = static_cast<int>(number % static_cast<uint>(p.splits));
  task.batch = static_cast<int>(number / static_cast<uint>(p.splits));
  int keys = p.has_lengths ? clamp(lengths[task.batch], 0, p.keys) : p.keys;
  task.start = p.has_starts ? clamp(starts[task.batch], 0, keys) : 0;
  keys -= task.start;
  task.diagonal = p.bottom_right ? keys - p.queries : 0;
  const int first = task.first_row / p.group + task.diagonal;
  const int last = (task.first_row + task.rows - 1) / p.group + task.diagonal;
  const int seen_begin = p.window_left >= 0 ? max(0, first - p.window_left) : 0;
  const int seen_end = p.window_right >= 0 ? min(keys, last + p.window_right + 1) : keys;
  const int seen = seen_end - seen_begin;  // 0 or less: nothing is seen, and every split is empty
  const int each = (seen + p.splits - 1) / p.splits;
  task.begin = seen_begin + task.split * each;
  task.end = seen_begin + min(seen, (task.split + 1) * each);
  return task;
}

// ---- online softmax of a team -------------------------------------------------------------------

// Returns the max that exponentials are relative to: 0 if nothing was seen yet.
inline float shift_of(float running_max) { return running_max == -INFINITY ? 0.0f : running_max; }

// Applies softcap, slope, mask and window to the score of a row and a key. slope, position: those
// of the row.
template <typename T>
inline float masked(float score, float slope, int position, int r, int key, Task task,
                    constant AttentionDecodeParameters& p, device const uchar* mask) {
  if (p.softcap > 0.0f) {
    score = attention::capped(score, p.softcap);
  }
  score -= slope * abs(static_cast<float>(position - key));
  if (p.mask_kind != AttentionDecodeMask::kNone) {
    const int row = min(task.first_row + r, p.queries * p.group - 1);
    const int64_t at = task.batch * p.mask[0] + (task.head * p.group + row % p.group) * p.mask[1] +
                       row / p.group * p.mask[2] + key * p.mask[3];
    if (p.mask_kind == AttentionDecodeMask::kBool) {
      score = mask[at] != 0 ? score : -INFINITY;
    } else if (p.mask_kind == AttentionDecodeMask::kFloat) {
      score += reinterpret_cast<device const float*>(mask)[at];
    } else {
      score += static_cast<float>(reinterpret_cast<device const T*>(mask)[at]);
    }
  }
  const bool hidden = (p.window_right >= 0 && key > position + p.window_right) ||
                      (p.window_left >= 0 && key < position - p.window_left);
  return hidden ? -INFINITY : score;
}

// One lane's part of a team's state. T: dtype of the queries; C: dtype of the cache; PACKS: vectors
// of a key and of a value per lane.
template <typename T, typename C, typename Shape, int ROWS, int LANES, int PACKS>
struct Part {
  static constant constexpr int pack = Shape::pack;
  static constant constexpr int keys = Shape::keys;
  float query[ROWS][PACKS * pack];
  float out[ROWS][PACKS * pack];
  float running_max[ROWS];
  float total[ROWS];
  float slope[ROWS];
  int position[ROWS];  // position of the key on the row's diagonal
  int lane;
  float scores[ROWS][keys];  // of the current keys; they become weights
  int64_t value_at[keys];    // offsets of the current values; negative: no such key

  inline void start(Task task, int lane_of_team, constant AttentionDecodeParameters& p,
                    device const T* queries, device const float* slopes) {
    lane = lane_of_team;
#pragma unroll(Shape::unrolled)
    for (int r = 0; r < ROWS; ++r) {
      const int row = min(task.first_row + r, p.queries * p.group - 1);
      const int token = row / p.group;
      const int head = task.head * p.group + row % p.group;
      device const T* from =
          queries + task.batch * p.query.batch + token * p.query.token + head * p.query.head;
      running_max[r] = -INFINITY;
      total[r] = 0.0f;
      position[r] = token + task.diagonal;
      slope[r] = p.has_slopes ? slopes[task.batch * p.slopes_batch + head] : 0.0f;
#pragma unroll(Shape::unrolled)
      for (int i = 0; i < PACKS; ++i) {
        const int first = (i * LANES + lane) * pack;
        for (int j = 0; j < pack; ++j) {
          query[r][i * pack + j] =
              first + j < p.head_size ? static_cast<float>(from[first + j]) : 0.0f;
          out[r][i * pack + j] = 0.0f;
        }
      }
    }
  }

  // A lane's vectors of the current keys or values.
  struct Packs {
    typename Words<C>::Pack of[keys][PACKS];
  };

  // A batch of loaded keys: the offsets of their values (negative if there is none), and the lane's
  // vectors.
  struct Fetched {
    int64_t value_at[keys];
    Packs keys_of, values_of;
  };

  // Loads the keys first, first + step, ... before `end`, and their values.
  inline void fetch(int first, int step, int end, constant AttentionDecodeParameters& p,
                    Cache<C> cache, thread Fetched& fetched) const {
    int64_t key_at[keys];
#pragma unroll
    for (int k = 0; k < keys; ++k) {
      key_at[k] = -1;
      fetched.value_at[k] = -1;
      if (first + k * step < end) {
        cache.find(first + k * step, p, key_at[k], fetched.value_at[k]);
      }
    }
    load(cache.key, key_at, p.head_size, p.is_aligned, fetched.keys_of);
    load(cache.value, fetched.value_at, p.value_size, p.is_aligned, fetched.values_of);
  }

  // Loads the lane's vectors of the lines at offsets `at` of `from`; all loads are in flight at
  // once.
  inline void load(device const C* from, thread const int64_t* at, int size, bool is_aligned,
                   thread Packs& packs) const {
    typedef typename Words<C>::Pack Pack;
    if (is_aligned) {
#pragma unroll
      for (int k = 0; k < keys; ++k) {
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
          const int feature = (i * LANES + lane) * pack;
          packs.of[k][i] =
              at[k] >= 0 && feature < size ? Words<C>::load(from + at[k] + feature) : Pack(0);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < keys; ++k) {
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
          const int feature = (i * LANES + lane) * pack;
          packs.of[k][i] =
              at[k] >= 0 ? Words<C>::gather(from + at[k] + feature, size - feature) : Pack(0);
        }
      }
    }
  }

  // Computes the lane's part of the products of the queries with the current keys into `scores`.
  inline void multiply(thread const Packs& packs) {
#pragma unroll
    for (int k = 0; k < keys; ++k) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        scores[r][k] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        float values[pack];
        Words<C>::decode(packs.of[k][i], values);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
          for (int j = 0; j < pack; ++j) {
            scores[r][k] += query[r][i * pack + j] * values[j];
          }
        }
      }
    }
  }

  // Turns the current products into softmax weights, and rescales the sums if the running max
  // grows.
  inline void weigh(int first, int step, float scale, bool is_plain, Task task,
                    constant AttentionDecodeParameters& p, device const uchar* mask) {
#pragma unroll(Shape::unrolled)
    for (int r = 0; r < ROWS; ++r) {
      for (int k = 0; k < keys; ++k) {
        scores[r][k] = value_at[k] < 0 ? -INFINITY : scores[r][k] * scale;
      }
      if (!is_plain) {
        for (int k = 0; k < keys; ++k) {
          if (value_at[k] >= 0) {
            scores[r][k] =
                masked<T>(scores[r][k], slope[r], position[r], r, first + k * step, task, p, mask);
          }
        }
      }
      float new_max = running_max[r];
      for (int k = 0; k < keys; ++k) {
        new_max = max(new_max, scores[r][k]);
      }
      const float shift = shift_of(new_max);
      if (new_max > running_max[r]) {
        const float factor = exp(running_max[r] - shift);
        total[r] *= factor;
#pragma unroll(Shape::unrolled)
        for (int i = 0; i < PACKS; ++i) {
          if ((i * LANES + lane) * pack < p.value_size) {
            for (int j = 0; j < pack; ++j) {
              out[r][i * pack + j] *= factor;
            }
          }
        }
        running_max[r] = new_max;
      }
      for (int k = 0; k < keys; ++k) {
        scores[r][k] = exp(scores[r][k] - shift);
      }
      for (int k = 0; k < keys; ++k) {
        total[r] += scores[r][k];
      }
    }
  }

  // Adds the current values, times their weights, to the sums.
  inline void add(thread const Packs& packs) {
#pragma unroll
    for (int k = 0; k < keys; ++k) {
#pragma unroll
      for (int i = 0; i < PACKS; ++i) {
        float values[pack];
        Words<C>::decode(packs.of[k][i], values);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
          for (int j = 0; j < pack; ++j) {
            out[r][i * pack + j] += scores[r][k] * values[j];
          }
        }
      }
    }
  }

  // Computes `scores` for a lane that has whole rows (a CPU thread). The loops over vectors
  // vectorise: partial products are separate, and sums are in local arrays, which cannot alias the
  // cache. Four keys at a time share the loads of a query. Returns the number of keys found.
  inline int multiply_alone(int first, int end, constant AttentionDecodeParameters& p,
                            Cache<C> cache) {
    constexpr int together = 4;
    device const C* rows[keys];
    const int most = min(keys, end - first);
    int count = 0;
    while (count < most) {
      int64_t key_at = 0;
      int64_t found = -1;
      const int run = min(cache.find(first + count, p, key_at, found), most - count);
      if (run == 0) {
        break;  // an invalid page is an error: keys after it are not seen
      }
      for (int k = 0; k < run; ++k) {
        rows[count + k] = cache.key + key_at + k * p.key.token;
        value_at[count + k] = found + k * p.value.token;
      }
      count += run;
    }
    for (int k = count; k < keys; ++k) {
      rows[k] = cache.key;
      value_at[k] = -1;
    }
    const int whole = p.head_size / pack * pack;
    for (int k = 0; k < count; k += together) {
      for (int r = 0; r < ROWS; ++r) {
        float products[together][pack];
        for (int m = 0; m < together; ++m) {
          for (int j = 0; j < pack; ++j) {
            products[m][j] = 0.0f;
          }
        }
        for (int i = 0; i < whole; i += pack) {
          for (int m = 0; m < together; ++m) {
            for (int j = 0; j < pack; ++j) {
              products[m][j] += query[r][i + j] * value_of(rows[k + m][i + j]);
            }
          }
        }
        for (int m = 0; m < together; ++m) {
          for (int j = 0; j < p.head_size - whole; ++j) {
            products[m][j] += query[r][whole + j] * value_of(rows[k + m][whole + j]);
          }
          for (int width = pack / 2; width > 0; width /= 2) {
            for (int j = 0; j < width; ++j) {
              products[m][j] += products[m][j + width];
            }
          }
          scores[r][k + m] = products[m][0];
        }
      }
    }
    return count;
  }

  // Adds `PACKS_TOGETHER` vectors of features, from feature i on, of `count` values.
  template <int PACKS_TOGETHER>
  inline void add_packs(int r, int i, int count, Cache<C> cache) {
    constexpr int features = PACKS_TOGETHER * pack;
    float sums[features];
    for (int j = 0; j < features; ++j) {
      sums[j] = out[r][i + j];
    }
    for (int k = 0; k < count; ++k) {
      device const C* const row = cache.value + value_at[k] + i;
      const float weight = scores[r][k];
      for (int j = 0; j < features; ++j) {
        sums[j] += weight * value_of(row[j]);
      }
    }
    for (int j = 0; j < features; ++j) {
      out[r][i + j] = sums[j];
    }
  }

  inline void add_alone(int count, constant AttentionDecodeParameters& p, Cache<C> cache) {
    for (int r = 0; r < ROWS; ++r) {
      int i = 0;
      for (; i + 4 * pack <= p.value_size; i += 4 * pack) {
        add_packs<4>(r, i, count, cache);
      }
      for (; i + pack <= p.value_size; i += pack) {
        add_packs<1>(r, i, count, cache);
      }
      for (int k = 0; i < p.value_size && k < count; ++k) {
        device const C* const row = cache.value + value_at[k] + i;
        for (int j = 0; j < p.value_size - i; ++j) {
          out[r][i + j] += scores[r][k] * value_of(row[j]);
        }
      }
    }
  }
};

// ---- results ------------------------------------------------------------------------------------

// Where results are stored: the outputs if there is one split, else the partial results.
template <typename T>
struct Results {
  device T* out;
  device float* lse;
  device float* part_outs;   // (rows, splits, features): sums relative to the split's max
  device float2* part_sums;  // (rows, splits): the split's max and denominator
  device const float* sinks;
  device const float* value_scale;

  inline int64_t row_of(int batch, int head, int row, constant AttentionDecodeParameters& p) const {
    return (static_cast<int64_t>(batch) * p.heads + head) * (p.queries * p.group) + row;
  }

  // Returns the factor that normalises a row's sums after all keys were added; stores the row's lse
  // if `is_first`.
  inline float factor_of(int batch, int head, int row, float running_max, float total,
                         bool is_first, constant AttentionDecodeParameters& p) const {
    const int query_head = head * p.group + row % p.group;
    attention::Total all{running_max, total, 1.0f};
    if (p.has_sinks) {
      all = attention::with_sink(running_max, total, sinks[query_head]);
    }
    if (is_first) {
      lse[batch * p.lse.batch + query_head * p.lse.head + row / p.group * p.lse.token] = all.lse();
    }
    return all.factor(p.value_scale * (p.has_value_scale ? value_scale[0] : 1.0f));
  }

  inline device T* out_of(int batch, int head, int row,
                          constant AttentionDecodeParameters& p) const {
    return out + batch * p.out.batch + row / p.group * p.out.token +
           (head * p.group + row % p.group) * p.out.head;
  }

  // Stores features [first, first + count) of row r of a task.
  inline void store(Task task, int r, float running_max, float total, int first, int count,
                    thread const float* sums, constant AttentionDecodeParameters& p) const {
    const int row = task.first_row + r;
    if (p.splits == 1) {
      const float factor = factor_of(task.batch, task.head, row, running_max, total, first == 0, p);
      device T* to = out_of(task.batch, task.head, row, p) + first;
      for (int j = 0; j < count; ++j) {
        to[j] = static_cast<T>(factor == 0.0f ? 0.0f : sums[j] * factor);
      }
      return;
    }
    const int64_t at = row_of(task.batch, task.head, row, p) * p.splits + task.split;
    if (first == 0) {
      part_sums[at] = float2(running_max, total);
    }
    for (int j = 0; j < count; ++j) {
      part_outs[at * p.value_size + first + j] = sums[j];
    }
  }
};

inline float scale_of(constant AttentionDecodeParameters& p, device const float* key_scale) {
  return p.has_key_scale ? p.scale * key_scale[0] : p.scale;
}

inline bool is_plain(constant AttentionDecodeParameters& p) {
  return p.mask_kind == AttentionDecodeMask::kNone && p.softcap == 0.0f && !p.has_slopes &&
         p.window_left < 0 && (p.window_right < 0 || (p.bottom_right && p.queries == 1));
}

template <typename C>
inline Cache<C> cache_of(Task task, constant AttentionDecodeParameters& p, device const C* key,
                         device const C* value, device const int* table,
                         device ErrorMessages* errors) {
  const int64_t batch = p.page_size == 0 ? task.batch : 0;
  return {key + batch * p.key.batch + task.head * p.key.head,
          value + batch * p.value.batch + task.head * p.value.head,
          table + task.batch * p.table_stride, task.start, errors};
}

#define ATTENTION_DECODE_ARGUMENTS                                                             \
  device T *out [[buffer(0)]], device float *lse [[buffer(1)]],                                \
      device float *part_outs [[buffer(2)]], device float2 *part_sums [[buffer(3)]],           \
      device const T *query [[buffer(4)]], device const C *key [[buffer(5)]],                  \
      device const C *value [[buffer(6)]], device const int *table [[buffer(7)]],              \
      device const int *starts [[buffer(8)]], device const int *lengths [[buffer(9)]],         \
      device const uchar *mask [[buffer(10)]], device const float *sinks [[buffer(11)]],       \
      device const float *slopes [[buffer(12)]], device const float *key_scale [[buffer(13)]], \
      device const float *value_scale [[buffer(14)]],                                          \
      constant AttentionDecodeParameters &p [[buffer(15)]],                                    \
      device ErrorMessages *errors [[buffer(16)]]

// Flash decoding with one thread per task, for CPUs.
template <typename T, typename C, int ROWS>
kernel void attention_decode_alone(ATTENTION_DECODE_ARGUMENTS,
                                   uint number [[thread_position_in_grid]]) {
  constexpr int packs = 256 / OfCpu<C>::pack;
  const uint tasks = static_cast<uint>(p.batch * p.heads * p.splits * p.row_blocks);
  if (number >= tasks) {
    return;
  }
  const Task task = task_of(number, ROWS, p, starts, lengths);
  const Cache<C> cache = cache_of(task, p, key, value, table, errors);
  const float scale = scale_of(p, key_scale);
  const bool plain = is_plain(p);
  Part<T, C, OfCpu<C>, ROWS, 1, packs> part;
  part.start(task, 0, p, query, slopes);
  for (int first = task.begin; first < task.end; first += part.keys) {
    const int count = part.multiply_alone(first, task.end, p, cache);
    part.weigh(first, 1, scale, plain, task, p, mask);
    part.add_alone(count, p, cache);
  }
  const Results<T> results{out, lse, part_outs, part_sums, sinks, value_scale};
  for (int r = 0; r < task.rows; ++r) {
    results.store(task, r, part.running_max[r], part.total[r], 0, p.value_size, part.out[r], p);
  }
}

constant constexpr int kSimdgroups = 4;

// Combines the states that the teams of a simdgroup have of a row. A team has LANES lanes, each
// with the sums of some features.
template <int LANES, int FEATURES>
inline void combine_teams(thread float& running_max, thread float& total,
                          thread float (&sums)[FEATURES]) {
  for (ushort offset = LANES; offset < 32; offset *= 2) {
    const float new_max = max(running_max, simd_shuffle_xor(running_max, offset));
    const float factor = precise::exp(running_max - shift_of(new_max));
    total *= factor;
    total += simd_shuffle_xor(total, offset);
    for (int j = 0; j < FEATURES; ++j) {
      sums[j] *= factor;
      sums[j] += simd_shuffle_xor(sums[j], offset);
    }
    running_max = new_max;
  }
}

// Combines the states of row r of a threadgroup's simdgroups, and stores the result.
template <typename T, int FEATURES>
inline void store_row(Results<T> results, Task task, int r,
                      threadgroup const float (&outs)[kSimdgroups][FEATURES],
                      threadgroup const float* maxima, threadgroup const float* totals,
                      constant AttentionDecodeParameters& p, uint index) {
  float running_max = -INFINITY;
  for (int i = 0; i < kSimdgroups; ++i) {
    running_max = max(running_max, maxima[i]);
  }
  const float shift = shift_of(running_max);
  float total = 0.0f;
  for (int i = 0; i < kSimdgroups; ++i) {
    total += totals[i] * precise::exp(maxima[i] - shift);
  }
  // If values have no features, the lse is still stored.
  for (int j = static_cast<int>(index); j < max(p.value_size, 1); j += kSimdgroups * 32) {
    float sum = 0.0f;
    for (int i = 0; i < kSimdgroups; ++i) {
      sum += outs[i][j] * precise::exp(maxima[i] - shift);
    }
    results.store(task, r, running_max, total, j, min(p.value_size, 1), &sum, p);
  }
}

// Flash decoding with a threadgroup of kSimdgroups simdgroups per task.
template <typename T, typename C, int ROWS, int LANES, int PACKS>
kernel void attention_decode(ATTENTION_DECODE_ARGUMENTS,
                             uint number [[threadgroup_position_in_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  constexpr int teams = 32 / LANES * kSimdgroups;
  constexpr int together = OfGpu<C>::keys;
  constexpr int features = PACKS * OfGpu<C>::pack;  // per lane
  threadgroup float outs[kSimdgroups][LANES * features];
  threadgroup float maxima[kSimdgroups];
  threadgroup float totals[kSimdgroups];
  const Task task = task_of(number, ROWS, p, starts, lengths);
  const Cache<C> cache = cache_of(task, p, key, value, table, errors);
  const float scale = scale_of(p, key_scale);
  const bool plain = is_plain(p);
  typedef Part<T, C, OfGpu<C>, ROWS, LANES, PACKS> Team;
  Team part;
  part.start(task, lane % LANES, p, query, slopes);
  const int team = simdgroup * (32 / LANES) + lane / LANES;
  typename Team::Fetched fetched;
  part.fetch(task.begin + team, teams, task.end, p, cache, fetched);
  for (int first = task.begin; first < task.end; first += teams * together) {
    // The next keys and values are loaded meanwhile (double buffering).
    typename Team::Fetched next;
    part.fetch(first + teams * together + team, teams, task.end, p, cache, next);
#pragma unroll
    for (int k = 0; k < together; ++k) {
      part.value_at[k] = fetched.value_at[k];
    }
    part.multiply(fetched.keys_of);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int k = 0; k < together; ++k) {
#pragma unroll
        for (ushort offset = LANES / 2; offset > 0; offset /= 2) {
          part.scores[r][k] += simd_shuffle_xor(part.scores[r][k], offset);
        }
      }
    }
    part.weigh(first + team, teams, scale, plain, task, p, mask);
    part.add(fetched.values_of);
    fetched = next;
  }
  const Results<T> results{out, lse, part_outs, part_sums, sinks, value_scale};
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float running_max = part.running_max[r];
    float total = part.total[r];
    float sums[features];
    for (int j = 0; j < features; ++j) {
      sums[j] = part.out[r][j];
    }
    combine_teams<LANES>(running_max, total, sums);
    if (lane < LANES) {
      for (int j = 0; j < features; ++j) {
        outs[simdgroup][(j / OfGpu<C>::pack * LANES + lane) * OfGpu<C>::pack + j % OfGpu<C>::pack] =
            sums[j];
      }
    }
    if (lane == 0) {
      maxima[simdgroup] = running_max;
      totals[simdgroup] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (r < task.rows) {
      store_row(results, task, r, outs, maxima, totals, p, simdgroup * 32 + lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Combines the splits (split-KV). One thread per feature and row.
template <typename T>
kernel void attention_decode_combine(device T* out [[buffer(0)]], device float* lse [[buffer(1)]],
                                     device float* part_outs [[buffer(2)]],
                                     device float2* part_sums [[buffer(3)]],
                                     device const float* sinks [[buffer(4)]],
                                     device const float* value_scale [[buffer(5)]],
                                     constant AttentionDecodeParameters& p [[buffer(6)]],
                                     uint2 position [[thread_position_in_grid]]) {
  const int feature = position.x;
  const int64_t number = position.y;
  const int rows = p.queries * p.group;
  const int row = static_cast<int>(position.y % static_cast<uint>(rows));
  const uint head_of_batch = position.y / static_cast<uint>(rows);
  const int head = static_cast<int>(head_of_batch % static_cast<uint>(p.heads));
  const int batch = static_cast<int>(head_of_batch / static_cast<uint>(p.heads));
  float running_max = -INFINITY;
  for (int i = 0; i < p.splits; ++i) {
    running_max = max(running_max, part_sums[number * p.splits + i].x);
  }
  const float shift = shift_of(running_max);
  float total = 0.0f;
  float sum = 0.0f;
  for (int i = 0; i < p.splits; ++i) {
    const int64_t at = number * p.splits + i;
    const float2 part = part_sums[at];
    const float factor = precise::exp(part.x - shift);
    total += part.y * factor;
    sum += part_outs[at * p.value_size + feature] * factor;
  }
  const Results<T> results{out, lse, part_outs, part_sums, sinks, value_scale};
  const float factor = results.factor_of(batch, head, row, running_max, total, feature == 0, p);
  results.out_of(batch, head, row, p)[feature] =
      static_cast<T>(factor == 0.0f ? 0.0f : sum * factor);
}

// Combines the splits with one simdgroup per row and 32 of its features; its lanes load the
// statistics of 32 splits at once.
template <typename T>
kernel void attention_decode_combine_simdgroup(
    device T* out [[buffer(0)]], device float* lse [[buffer(1)]],
    device float* part_outs [[buffer(2)]], device float2* part_sums [[buffer(3)]],
    device const float* sinks [[buffer(4)]], device const float* value_scale [[buffer(5)]],
    constant AttentionDecodeParameters& p [[buffer(6)]], uint2 position [[thread_position_in_grid]],
    uint2 grid [[threads_per_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint simdgroup = (position.y * grid.x + position.x) / 32;
  const uint blocks = static_cast<uint>(p.value_size + 31) / 32;
  const uint rows = static_cast<uint>(p.queries * p.group);
  const uint number = simdgroup / blocks;
  if (number >= rows * static_cast<uint>(p.batch * p.heads)) {
    return;
  }
  const int feature = static_cast<int>(simdgroup % blocks * 32 + lane);
  const int row = static_cast<int>(number % rows);
  const int head = static_cast<int>(number / rows % static_cast<uint>(p.heads));
  const int batch = static_cast<int>(number / rows / static_cast<uint>(p.heads));
  const int64_t first_part = static_cast<int64_t>(number) * p.splits;
  float running_max = -INFINITY;
  for (int i = static_cast<int>(lane); i < p.splits; i += 32) {
    running_max = max(running_max, part_sums[first_part + i].x);
  }
  running_max = simd_max(running_max);
  const float shift = shift_of(running_max);
  device const float* const outs =
      part_outs + first_part * p.value_size + min(feature, p.value_size - 1);
  float total = 0.0f;
  float sum = 0.0f;
  for (int first = 0; first < p.splits; first += 32) {
    const int mine = first + static_cast<int>(lane);
    const float2 part = mine < p.splits ? part_sums[first_part + mine] : float2(-INFINITY, 0.0f);
    const float factor = precise::exp(part.x - shift);
    total += part.y * factor;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = min(first + i, p.splits - 1);
      sum += outs[static_cast<int64_t>(at) * p.value_size] *
             simd_shuffle(factor, static_cast<ushort>(i));
    }
  }
  total = simd_sum(total);
  const Results<T> results{out, lse, part_outs, part_sums, sinks, value_scale};
  const float factor = results.factor_of(batch, head, row, running_max, total, feature == 0, p);
  if (feature < p.value_size) {
    results.out_of(batch, head, row, p)[feature] =
        static_cast<T>(factor == 0.0f ? 0.0f : sum * factor);
  }
}

// ---- combining two attention results ------------------------------------------------------------

// Returns the weight of the first of two results in the combined one. Rows that saw no keys have
// weight zero.
inline float share_of(float lse, float other) {
  // Equal infinities have difference 0, not NaN.
  const float difference = other == lse ? 0.0f : other - lse;
  return lse == -INFINITY ? 0.0f : 1.0f / (1.0f + precise::exp(difference));
}

// Combines two attention results over disjoint keys by their lse. One thread per feature and row.
template <typename T>
kernel void attention_decode_merge_pair(
    device T* out [[buffer(0)]], device float* lse [[buffer(1)]],
    device const T* out_a [[buffer(2)]], device const float* lse_a [[buffer(3)]],
    device const T* out_b [[buffer(4)]], device const float* lse_b [[buffer(5)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
  const int64_t row = position.y;
  const int64_t at = row * grid.x + position.x;
  const float a = lse_a[row];
  const float b = lse_b[row];
  const float share_a = share_of(a, b);
  const float share_b = share_of(b, a);
  out[at] = static_cast<T>((share_a == 0.0f ? 0.0f : share_a * static_cast<float>(out_a[at])) +
                           (share_b == 0.0f ? 0.0f : share_b * static_cast<float>(out_b[at])));
  if (position.x == 0) {
    const float difference = a == b ? 0.0f : abs(a - b);
    lse[row] = max(a, b) + precise::log(1.0f + precise::exp(-difference));
  }
}

// The backward pass of merge_attention. One simdgroup per row.
template <typename T>
kernel void attention_decode_merge_pair_backward(
    device T* grad_a [[buffer(0)]], device float* grad_lse_a [[buffer(1)]],
    device T* grad_b [[buffer(2)]], device float* grad_lse_b [[buffer(3)]],
    device const T* grad_out [[buffer(4)]], device const float* grad_lse [[buffer(5)]],
    device const T* out_a [[buffer(6)]], device const float* lse_a [[buffer(7)]],
    device const T* out_b [[buffer(8)]], device const float* lse_b [[buffer(9)]],
    constant int64_t& rows [[buffer(10)]], constant int& features [[buffer(11)]],
    uint2 position [[thread_position_in_grid]], uint2 grid [[threads_per_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int64_t row = (static_cast<int64_t>(position.y) * grid.x + position.x) / 32;
  if (row >= rows) {
    return;
  }
  const float share_a = share_of(lse_a[row], lse_b[row]);
  const float share_b = share_of(lse_b[row], lse_a[row]);
  float difference = 0.0f;
  for (int i = lane; i < features; i += 32) {
    const int64_t at = row * features + i;
    const float grad = static_cast<float>(grad_out[at]);
    grad_a[at] = static_cast<T>(share_a * grad);
    grad_b[at] = static_cast<T>(share_b * grad);
    difference += grad * (static_cast<float>(out_a[at]) - static_cast<float>(out_b[at]));
  }
  difference = simd_sum(difference);
  difference = share_a * share_b == 0.0f ? 0.0f : share_a * share_b * difference;
  if (lane == 0) {
    grad_lse_a[row] = difference + share_a * grad_lse[row];
    grad_lse_b[row] = share_b * grad_lse[row] - difference;
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define INSTANTIATE_ALONE(T, C, ROWS)                                                          \
  REGISTER_KERNEL("attention_decode_alone_" #T "_" #C "_" #ROWS, attention_decode_alone, T, C, \
                  ROWS);

#define INSTANTIATE_SIZE(T, C, ROWS, SIZE, LANES, PACKS)                                           \
  REGISTER_KERNEL("attention_decode_" #T "_" #C "_" #ROWS "_" #SIZE, attention_decode, T, C, ROWS, \
                  LANES, PACKS);

#define INSTANTIATE_ROWS(T, C, ROWS)                         \
  INSTANTIATE_ALONE(T, C, ROWS)                              \
  INSTANTIATE_SIZE(T, C, ROWS, 64, 64 / OfGpu<C>::pack, 1)   \
  INSTANTIATE_SIZE(T, C, ROWS, 128, 128 / OfGpu<C>::pack, 1) \
  INSTANTIATE_SIZE(T, C, ROWS, 256, 32, 8 / OfGpu<C>::pack)

#define INSTANTIATE(T)                                                                          \
  INSTANTIATE_ROWS(T, T, 1)                                                                     \
  INSTANTIATE_ROWS(T, T, 4)                                                                     \
  INSTANTIATE_ROWS(T, T, 8)                                                                     \
  INSTANTIATE_ROWS(T, char, 4)                                                                  \
  INSTANTIATE_ROWS(T, e4m3, 4)                                                                  \
  INSTANTIATE_ROWS(T, e5m2, 4)                                                                  \
  REGISTER_KERNEL("attention_decode_combine_" #T, attention_decode_combine, T);                 \
  REGISTER_KERNEL("attention_decode_combine_simdgroup_" #T, attention_decode_combine_simdgroup, \
                  T);                                                                           \
  REGISTER_KERNEL("attention_decode_merge_pair_" #T, attention_decode_merge_pair, T);           \
  REGISTER_KERNEL("attention_decode_merge_pair_backward_" #T,                                   \
                  attention_decode_merge_pair_backward, T);

INSTANTIATE(float)
INSTANTIATE(half)
INSTANTIATE(bfloat)

// Splits the input projection of an attention layer into queries, keys and values per head (torch's
// transform_bias_rescale_qkv): adds the bias, scales the queries, and makes each head's features
// contiguous. All tensors are contiguous; a row of the grid is one head of one token.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/attention/attention_projection.h>
using namespace metal;
using namespace metalops;

template <typename T>
inline float sum(T a, T b) {
  return static_cast<float>(a) + static_cast<float>(b);
}

// projected: (samples, tokens, 3, heads, head_size); bias: (3, heads, head_size); result: (3,
// samples, heads, tokens, head_size). Rows of the grid are ordered as the result's. A thread
// computes `share` features of a row.
template <typename T>
kernel void attention_projection(device T* result [[buffer(0)]],
                                 constant T* projected [[buffer(1)]],
                                 constant T* bias [[buffer(2)]],
                                 constant AttentionProjectionParameters& parameters [[buffer(3)]],
                                 uint2 position [[thread_position_in_grid]]) {
  const int64_t row = position.y;
  const int64_t token = row % parameters.tokens;
  const int64_t head = row / parameters.tokens % parameters.heads;
  const int64_t sample = row / parameters.tokens / parameters.heads;
  const int64_t width = parameters.heads * parameters.head_size;
  const int64_t first = position.x * parameters.share;
  const int64_t feature = head * parameters.head_size + first;
  constant T* query = projected + (sample * parameters.tokens + token) * 3 * width + feature;
  constant T* key = query + width;
  constant T* value = key + width;
  constant T* query_bias = bias + feature;
  constant T* key_bias = query_bias + width;
  constant T* value_bias = key_bias + width;
  device T* queries = result + row * parameters.head_size + first;
  device T* keys = queries + parameters.elements;
  device T* values = keys + parameters.elements;
  const int64_t count = min(parameters.head_size - first, parameters.share);
  for (int64_t i = 0; i < count; ++i) {
    queries[i] = static_cast<T>(sum(query[i], query_bias[i]) * parameters.scale);
  }
  for (int64_t i = 0; i < count; ++i) {
    keys[i] = static_cast<T>(sum(key[i], key_bias[i]));
  }
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(sum(value[i], value_bias[i]));
  }
}

// The features that a thread loads and stores at once: a vector, for example 16 bytes of eight
// halves.
template <typename T, uint kFeatures>
struct alignas(kFeatures * sizeof(T)) Features {
  T of[kFeatures];
};

template <typename T, uint kFeatures>
inline void store_biased(device T* to, constant T* from, constant T* bias, float scale) {
  using Taken = Features<T, kFeatures>;
  const Taken x = *reinterpret_cast<constant Taken*>(from);
  const Taken b = *reinterpret_cast<constant Taken*>(bias);
  Taken y;
  for (uint i = 0; i < kFeatures; ++i) {
    y.of[i] = static_cast<T>(sum(x.of[i], b.of[i]) * scale);
  }
  *reinterpret_cast<device Taken*>(to) = y;
}

// Vectorised transform_bias_rescale_qkv: each thread takes kFeatures adjacent features. Rows of the
// grid are kTokens tokens of a head, then those of the next head, so that both loads and stores are
// local.
template <typename T, uint kFeatures>
kernel void attention_projection_packs(device T* result [[buffer(0)]],
                                       constant T* projected [[buffer(1)]],
                                       constant T* bias [[buffer(2)]],
                                       constant AttentionProjectionParameters& parameters
                                       [[buffer(3)]],
                                       uint2 position [[thread_position_in_grid]]) {
  const uint tokens = static_cast<uint>(parameters.tokens);
  const uint heads = static_cast<uint>(parameters.heads);
  const uint blocks = (tokens + kTokens - 1) / kTokens;
  const uint block_and_head = position.y / kTokens;
  const uint block = block_and_head / heads;
  const uint head = block_and_head - block * heads;
  const uint sample = block / blocks;
  const uint token = (block - sample * blocks) * kTokens + position.y % kTokens;
  if (token >= tokens) {
    return;
  }
  const int64_t width = parameters.heads * parameters.head_size;
  const int64_t feature = head * parameters.head_size + position.x * kFeatures;
  const int64_t from = (sample * parameters.tokens + token) * 3 * width + feature;
  const int64_t row = (sample * parameters.heads + head) * parameters.tokens + token;
  const int64_t to = row * parameters.head_size + position.x * kFeatures;
  store_biased<T, kFeatures>(result + to, projected + from, bias + feature, parameters.scale);
  store_biased<T, kFeatures>(result + parameters.elements + to, projected + width + from,
                             bias + width + feature, 1.0f);
  store_biased<T, kFeatures>(result + 2 * parameters.elements + to, projected + 2 * width + from,
                             bias + 2 * width + feature, 1.0f);
}

#define REGISTER_PACKS(T, FEATURES)                                                              \
  REGISTER_KERNEL("attention_projection_packs_" #FEATURES "_" #T, attention_projection_packs, T, \
                  FEATURES)

#define REGISTER_ATTENTION_PROJECTION(T)                                \
  REGISTER_KERNEL("attention_projection_" #T, attention_projection, T); \
  REGISTER_PACKS(T, 4)

REGISTER_ATTENTION_PROJECTION(float);
REGISTER_ATTENTION_PROJECTION(half);
REGISTER_ATTENTION_PROJECTION(bfloat);
REGISTER_PACKS(half, 8);
REGISTER_PACKS(bfloat, 8);

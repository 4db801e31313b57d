// KV cache: reshape_and_cache stores keys and values in a (paged) cache, gather reads them back.
// The cache has the dtype of the tokens, or is quantised (int8, float8_e4m3fn, float8_e5m2) with
// one scale; values out of range saturate. Keys may be rotated by RoPE while they are stored (Su et
// al., "RoFormer").
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metal_stdlib>

#include <kernels/attention/attention_cache.h>
#include <kernels/common/number_formats.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::CacheParameters;
using metalops::CachePlaces;

struct e4m3 {
  uchar code;
};
struct e5m2 {
  uchar code;
};

template <typename T, typename C>
struct Codes {
  static inline C encode(float x) { return static_cast<C>(x); }
  static inline float decode(C code) { return static_cast<float>(code); }
};
template <typename T>
struct Codes<T, char> {
  static inline char encode(float x) {
    return isnan(x) ? char(0) : static_cast<char>(clamp(rint(x), -128.0f, 127.0f));
  }
  static inline float decode(char code) { return static_cast<float>(code); }
};
template <typename T>
struct Codes<T, e4m3> {
  static inline e4m3 encode(float x) {
    return {static_cast<uchar>(metalops::formats::e4m3::encode(x))};
  }
  static inline float decode(e4m3 code) { return metalops::formats::e4m3::decode(code.code); }
};
template <typename T>
struct Codes<T, e5m2> {
  static inline e5m2 encode(float x) {
    const uint code = metalops::formats::e5m2::encode(x);
    // Infinity saturates to the largest finite number, whose code precedes it.
    return {static_cast<uchar>((code & 0x7fu) == 0x7cu ? code - 1 : code)};
  }
  static inline float decode(e5m2 code) { return metalops::formats::e5m2::decode(code.code); }
};

// Returns the element at `feature` of a token; features below p.rotated are rotated by the angle of
// `position` (RoPE).
template <typename T>
inline float rotated(device const T* token, int feature, int64_t position,
                     constant CacheParameters& p, device const T* cosines, device const T* sines) {
  const float x = static_cast<float>(token[feature * p.tokens.feature]);
  if (feature >= p.rotated) {
    return x;
  }
  const int half_of = p.rotated / 2;
  const bool is_first = p.interleaved ? feature % 2 == 0 : feature < half_of;
  const int partner =
      p.interleaved ? (feature ^ 1) : (is_first ? feature + half_of : feature - half_of);
  const int64_t angle = position * half_of + (p.interleaved ? feature / 2 : feature % half_of);
  const float other = static_cast<float>(token[partner * p.tokens.feature]);
  const float cosine = static_cast<float>(cosines[angle]);
  const float sine = static_cast<float>(sines[angle]);
  return is_first ? x * cosine - other * sine : x * cosine + other * sine;
}

// Stores the tokens in the cache. One thread per feature, head and token.
template <typename T, typename C>
kernel void attention_cache_store(
    device C* cache [[buffer(0)]], device const T* tokens [[buffer(1)]],
    device const int* slots [[buffer(2)]], device const int* lengths [[buffer(3)]],
    device const int* table [[buffer(4)]], device const T* cosines [[buffer(5)]],
    device const T* sines [[buffer(6)]], device const float* scale [[buffer(7)]],
    constant CacheParameters& p [[buffer(8)]], device ErrorMessages* errors [[buffer(9)]],
    uint3 position [[thread_position_in_grid]]) {
  const int feature = position.x;
  const int head = position.y;
  const int batch = static_cast<int>(position.z / static_cast<uint>(p.length));
  const int token = static_cast<int>(position.z % static_cast<uint>(p.length));
  int64_t place = token;
  int64_t page = batch;
  int64_t slot = token;
  if (p.places == CachePlaces::kSlots) {
    place = p.has_wide_slots ? reinterpret_cast<device const int64_t*>(slots)[position.z]
                             : slots[position.z];
    if (place == -1) {
      return;
    }
    if (place < 0 || place >= p.slots) {
      TORCH_REPORT_ERROR(errors, "reshape_and_cache: slot_mapping has slot ", place,
                         ", but there are ", p.slots, " slots");
      return;
    }
    page = place / p.page_size;
    slot = place % p.page_size;
  } else {
    place = static_cast<int64_t>(lengths[batch]) + (p.advances ? token : 0);
    if (p.places == CachePlaces::kBehind) {
      if (place < 0 || place >= p.slots) {
        TORCH_REPORT_ERROR(errors, "flash_attn_with_kvcache: cache_seqlens puts a key at ", place,
                           ", but there is room for ", p.slots, " keys");
        return;
      }
      const int column = static_cast<int>(place) / p.page_size;
      slot = static_cast<int>(place) % p.page_size;
      page = p.has_table ? table[batch * p.table_stride + column] : batch;
      if (page < 0 || page >= p.pages) {
        TORCH_REPORT_ERROR(errors, "flash_attn_with_kvcache: block_table has page ", page,
                           ", but there are ", p.pages, " pages");
        return;
      }
    }
  }
  if (p.rotated > 0 && (place < 0 || place >= p.angles)) {
    TORCH_REPORT_ERROR(errors, "flash_attn_with_kvcache: cache_seqlens puts a token at ", place,
                       ", but rotary_cos has ", p.angles, " places");
    return;
  }
  device const T* from =
      tokens + batch * p.tokens.batch + token * p.tokens.token + head * p.tokens.head;
  float x = rotated(from, feature, place, p, cosines, sines);
  if (p.has_scale || p.scale != 1.0f) {
    x = x / (p.scale * (p.has_scale ? scale[0] : 1.0f));
  }
  cache[page * p.cache.batch + slot * p.cache.token + head * p.cache.head +
        feature * p.cache.feature] = Codes<T, C>::encode(x);
}

// Gathers the keys or values of each sequence into a contiguous tensor, padded with zeros. One
// thread per feature, head and token.
template <typename T, typename C>
kernel void attention_cache_gather(
    device T* tokens [[buffer(0)]], device const C* cache [[buffer(1)]],
    device const int* lengths [[buffer(2)]], device const int* table [[buffer(3)]],
    device const float* scale [[buffer(4)]], constant CacheParameters& p [[buffer(5)]],
    device ErrorMessages* errors [[buffer(6)]], uint3 position [[thread_position_in_grid]]) {
  const int feature = position.x;
  const int head = position.y;
  const int batch = static_cast<int>(position.z / static_cast<uint>(p.length));
  const int token = static_cast<int>(position.z % static_cast<uint>(p.length));
  float x = 0.0f;
  if (token < lengths[batch]) {
    const int column = token / p.page_size;
    const int64_t page = p.has_table ? table[batch * p.table_stride + column] : batch;
    if (page < 0 || page >= p.pages) {
      TORCH_REPORT_ERROR(errors, "paged_attention: block_table has page ", page, ", but there are ",
                         p.pages, " pages");
    } else {
      x = Codes<T, C>::decode(cache[page * p.cache.batch + token % p.page_size * p.cache.token +
                                    head * p.cache.head + feature * p.cache.feature]) *
          (p.scale * (p.has_scale ? scale[0] : 1.0f));
    }
  }
  tokens[batch * p.tokens.batch + token * p.tokens.token + head * p.tokens.head +
         feature * p.tokens.feature] = static_cast<T>(x);
}

#define INSTANTIATE_CODES(T, C)                                                     \
  REGISTER_KERNEL("attention_cache_store_" #T "_" #C, attention_cache_store, T, C); \
  REGISTER_KERNEL("attention_cache_gather_" #T "_" #C, attention_cache_gather, T, C);

#define INSTANTIATE(T)       \
  INSTANTIATE_CODES(T, T)    \
  INSTANTIATE_CODES(T, char) \
  INSTANTIATE_CODES(T, e4m3) \
  INSTANTIATE_CODES(T, e5m2)

INSTANTIATE(float)
INSTANTIATE(half)
INSTANTIATE(bfloat)

// Random numbers without a state (torch.func._random): Philox-4x32-10 [Salmon] of a key, which is a
// pair of 64-bit integers, seed and offset. Block i of a key is the cipher of the counter offset +
// i under the seed, 128 bits. A new key is one block; samples take 32 bits, those of 8-byte
// integers 64. The bits are the same on all devices of torch.
//
// [Salmon] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, Parallel random numbers: as easy as
//   1, 2, 3, SC 2011.
#include <c10/metal/random.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/common/numerics.h>
#include <kernels/creation/philox.h>
using namespace metal;
using namespace metalops;

// Returns the cipher of the counter. c10::metal::philox4::multiple_rounds() does one round less and
// takes the key's halves in the other order.
inline uint4 philox_4x32_10(ulong seed, ulong counter) {
  constexpr uint2 kWeyl(0x9E3779B9, 0xBB67AE85);
  uint4 block(static_cast<uint>(counter), static_cast<uint>(counter >> 32), 0, 0);
  uint2 key(static_cast<uint>(seed), static_cast<uint>(seed >> 32));
  for (int round = 0; round < 10; ++round) {
    block = c10::metal::philox4::single_round(block, key);
    key += kWeyl;
  }
  return block;
}

// Returns element `index` of keys that lie side by side: seeds and offsets in turn.
inline ulong part_of_key(constant ulong* keys, int64_t index, constant StridedLayout<1>& layout) {
  const auto offsets = offsets_of(index, layout);
  return element_at(keys, offsets[0]);
}

// layout: that of the elements of the given keys.
kernel void philox_derive_keys(device ulong2* derived [[buffer(0)]],
                               constant ulong* given [[buffer(1)]],
                               constant ulong& first [[buffer(2)]],
                               constant PhiloxKeys& keys [[buffer(3)]],
                               constant StridedLayout<1>& layout [[buffer(4)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= keys.derived) {
    return;
  }
  const int64_t number = quotient(index, keys.given, keys.derived);
  const int64_t key = index - number * keys.given;
  const ulong seed = part_of_key(given, 2 * key, layout);
  const ulong offset = part_of_key(given, 2 * key + 1, layout);
  const uint4 block = philox_4x32_10(seed, offset + first + static_cast<ulong>(number));
  derived[index] = ulong2(static_cast<ulong>(block.y) << 32 | block.x,
                          static_cast<ulong>(block.w) << 32 | block.z);
}

// ---- distributions ------------------------------------------------------------------------------

template <typename T, typename Vector>
inline vec<T, 4> converted(Vector x) {
  return vec<T, 4>(static_cast<T>(x.x), static_cast<T>(x.y), static_cast<T>(x.z),
                   static_cast<T>(x.w));
}

// The elements of dtype T that a block fills: of 32 bits each, or of 64.
template <typename T>
struct BlockOf {
  using type = vec<T, 4>;
  static constexpr constant int kElements = 4;

  static type integers(uint4 block, constant PhiloxRandint& distribution) {
    const uint range = static_cast<uint>(distribution.range);
    if (range != 0) {
      block %= range;
    }
    return converted<T>(block + static_cast<uint>(distribution.low));
  }
};

template <>
struct BlockOf<ulong> {
  using type = ulong2;
  static constexpr constant int kElements = 2;

  static type integers(uint4 block, constant PhiloxRandint& distribution) {
    ulong2 bits(static_cast<ulong>(block.x) << 32 | block.y,
                static_cast<ulong>(block.z) << 32 | block.w);
    if (distribution.range != 0) {
      bits %= distribution.range;
    }
    return bits + distribution.low;
  }
};

// Returns uniformly distributed numbers in [low, high), of as many bits as T has.
template <typename T>
inline vec<T, 4> samples(uint4 block, constant PhiloxUniform& distribution) {
  constexpr uint kValues = 1u << numeric_limits<T>::digits;
  const float4 fractions = float4(block & (kValues - 1)) * (1.0f / kValues);
  const float range = distribution.high - distribution.low;
  return converted<T>(fractions * range + distribution.low);
}

// Returns the cosine and the sine of 2 pi turns, for turns from 0 to 1, to 1e-7: polynomials of up
// to an eighth of a turn. precise::sincos() would reduce its argument once more.
inline float2 cos_sin_of_turns(float turns) {
  const float quarters = rint(4.0f * turns);
  const float angle = 2.0f * M_PI_F * fma(quarters, -0.25f, turns);
  const float square = angle * angle;
  const float sine = angle * polynomial(square, 1.0f, -1.66666667e-1f, 8.33333333e-3f,
                                        -1.98412698e-4f, 2.75573192e-6f);
  const float cosine =
      polynomial(square, 1.0f, -0.5f, 4.16666667e-2f, -1.38888889e-3f, 2.48015873e-5f);
  const int quadrant = static_cast<int>(quarters);
  const float2 swapped = (quadrant & 1) != 0 ? float2(-sine, cosine) : float2(cosine, sine);
  return (quadrant & 2) != 0 ? -swapped : swapped;
}

// Returns two normally distributed numbers by the transform of Box and Muller.
inline float2 box_muller(float2 uniform) {
  return precise::sqrt(-2.0f * precise::log(uniform.x)) * cos_sin_of_turns(uniform.y);
}

// The uniform numbers are in (0, 1].
template <typename T>
inline vec<T, 4> samples(uint4 block, constant PhiloxNormal& distribution) {
  constexpr float kStep = 2.32830644e-10f;  // 2^-32
  const float4 uniform = fma(float4(block), kStep, 0.5f * kStep);
  const float4 normal(box_muller(uniform.xy), box_muller(uniform.zw));
  return converted<T>(normal * distribution.standard_deviation + distribution.mean);
}

// Returns integers in [low, low + range), reduced modulo the range.
template <typename T>
inline typename BlockOf<T>::type samples(uint4 block, constant PhiloxRandint& distribution) {
  return BlockOf<T>::integers(block, distribution);
}

// Each thread fills one block's elements. key_layout: that of the two elements of each key.
template <typename T, typename Distribution>
kernel void philox_fill(device T* output [[buffer(0)]], constant ulong* keys [[buffer(1)]],
                        constant Distribution& distribution [[buffer(2)]],
                        constant PhiloxFill& fill [[buffer(3)]],
                        constant StridedLayout<1>& layout [[buffer(4)]],
                        constant StridedLayout<1>& key_layout [[buffer(5)]],
                        uint2 position [[thread_position_in_grid]],
                        uint2 grid [[threads_per_grid]]) {
  using Block = typename BlockOf<T>::type;
  constexpr int kElements = BlockOf<T>::kElements;
  const int64_t index = thread_index(position, grid);
  if (index >= fill.threads) {
    return;
  }
  const int64_t key = quotient(index, fill.blocks, fill.threads);
  const int64_t block = index - key * fill.blocks;
  const ulong seed = part_of_key(keys, 2 * key, key_layout);
  const ulong offset = part_of_key(keys, 2 * key + 1, key_layout);
  const Block drawn =
      samples<T>(philox_4x32_10(seed, offset + static_cast<ulong>(block)), distribution);
  if (fill.vectors) {
    reinterpret_cast<device Block*>(output)[index] = drawn;
    return;
  }
  const int64_t first = key * fill.elements;
  for (int i = 0; i < kElements; ++i) {
    const int64_t element = kElements * block + i;
    if (element < fill.elements) {
      const auto offsets = offsets_of(first + element, layout);
      element_at(output, offsets[0]) = drawn[i];
    }
  }
}

#define REGISTER_PHILOX(name, T, distribution) \
  REGISTER_KERNEL("philox_" #name "_" #T, philox_fill, T, distribution)

REGISTER_PHILOX(uniform, float, PhiloxUniform);
REGISTER_PHILOX(uniform, half, PhiloxUniform);
REGISTER_PHILOX(uniform, bfloat, PhiloxUniform);
REGISTER_PHILOX(normal, float, PhiloxNormal);
REGISTER_PHILOX(normal, half, PhiloxNormal);
REGISTER_PHILOX(normal, bfloat, PhiloxNormal);
REGISTER_PHILOX(randint, uchar, PhiloxRandint);
REGISTER_PHILOX(randint, ushort, PhiloxRandint);
REGISTER_PHILOX(randint, uint, PhiloxRandint);
REGISTER_PHILOX(randint, ulong, PhiloxRandint);

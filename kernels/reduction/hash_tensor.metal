// hash_tensor: the exclusive or (XOR) of the elements of a row, taken as 64-bit integers or, for
// floating-point numbers, as the bits of their values as doubles.
//
// A piece of a row is processed by a threadgroup, with adjacent threads on adjacent elements or, on
// GPUs, on 16-byte vectors. A short piece is processed by a single thread.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/reduction/hash_tensor.h>
using namespace metal;
using namespace metalops;

// ---- elements -----------------------------------------------------------------------------------

// 64 bits as two halves. A uint2 would keep CPU compilers from vectorising over elements.
struct Bits {
  uint low;
  uint high;
};

// Returns the bits of the double of a floating-point number that is zero, denormal, infinite or
// NaN, given by its bits. It uses integers only: Metal has no double, and GPUs may flush denormal
// floats to zero.
inline Bits special_double(uint bits, uint exponent_bits, uint mantissa_bits) {
  const uint largest = (1u << exponent_bits) - 1u;
  const uint bias = largest >> 1;
  const uint exponent = (bits >> mantissa_bits) & largest;
  const uint fraction = bits & ((1u << mantissa_bits) - 1u);
  // A denormal number is its fraction, as an integer, times 2^(1 - bias - mantissa_bits).
  const uint denormal = as_type<uint>(static_cast<float>(fraction));
  const bool is_denormal = exponent == 0 && fraction != 0;

  uint wide_exponent = exponent == 0 ? 0 : 0x7ff;
  wide_exponent = is_denormal ? (denormal >> 23) + 897 - bias - mantissa_bits : wide_exponent;
  uint mantissa = fraction << (23 - mantissa_bits);
  mantissa |=
      exponent != 0 && fraction != 0 ? 1u << 22 : 0;  // a signalling NaN becomes a quiet one
  mantissa = is_denormal ? denormal & 0x7fffff : mantissa;
  return {mantissa << 29, wide_exponent << 20 | mantissa >> 3};
}

// Describes how elements of a type are loaded and hashed. Their own bits are XORed as they are;
// this determines the sign and, except for special numbers, the low half of the doubles. The part
// of the high half that must be computed for each element is XORed separately.
template <uint kExponent, uint kMantissa>
struct FloatingPoint {
  using Own = uint;
  static constexpr constant uint kShift = kMantissa > 20 ? kMantissa - 20 : 0;
  static constexpr constant uint kRise = kMantissa > 20 ? 0 : 20 - kMantissa;
  static constexpr constant uint kSign = 1u << (kExponent + kMantissa);
  static constexpr constant uint kOne = 1u << kMantissa;
  static constexpr constant uint kBias = (1023u - ((1u << (kExponent - 1)) - 1u)) << 20;

  // Returns the part of the double's bits that must be added to the element's own bits.
  static Bits rest(uint bits) {
    Bits result = {0, (((bits & (kSign - 1)) >> kShift) << kRise) + kBias};
    if (((bits + kOne) & (kSign - 2 * kOne)) == 0) {
      result = special_double(bits, kExponent, kMantissa);
      result.low ^= kShift == 0 ? 0 : bits << (32 - kShift);
    }
    return result;
  }
  static Bits whole(uint own, Bits rest) {
    const uint low = kShift == 0 ? 0 : own << (32 - kShift);
    return {low ^ rest.low, ((own & kSign) != 0 ? 1u << 31 : 0) ^ rest.high};
  }
};

template <typename T>
struct Element {
  using Stored = T;
  using Own = conditional_t<sizeof(T) == 8, ulong, uint>;
  static Bits rest(Own) { return {0, 0}; }
  // Sign extension commutes with XOR, so it is applied once, to the result.
  static Bits whole(Own own, Bits) {
    const ulong bits = static_cast<ulong>(static_cast<long>(static_cast<T>(own)));
    return {static_cast<uint>(bits), static_cast<uint>(bits >> 32)};
  }
};

template <>
struct Element<float> : FloatingPoint<8, 23> {
  using Stored = uint;
};

template <>
struct Element<half> : FloatingPoint<5, 10> {
  using Stored = ushort;
};

template <>
struct Element<bfloat> : FloatingPoint<8, 7> {
  using Stored = ushort;
};

template <typename T>
using stored_t = typename Element<T>::Stored;

// ---- rows ---------------------------------------------------------------------------------------

struct Piece {
  int64_t first;
  uint count;

  Piece(int64_t index, constant HashTensorParameters& parameters) {
    const int64_t row = index / parameters.pieces;
    const int64_t begin = (index - row * parameters.pieces) * parameters.piece;
    const int64_t left = parameters.columns - begin;
    first = row * parameters.columns + begin;
    count = static_cast<uint>(left < parameters.piece ? left : parameters.piece);
  }
};

template <typename T>
kernel void hash_tensor_short_rows(device ulong* hashes [[buffer(0)]],
                                   constant stored_t<T>* data [[buffer(1)]],
                                   constant HashTensorParameters& parameters [[buffer(2)]],
                                   uint2 position [[thread_position_in_grid]],
                                   uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.rows * parameters.pieces) {
    return;
  }
  const Piece piece(index, parameters);
  constant stored_t<T>* x = data + piece.first;
  typename Element<T>::Own own = 0;
  Bits rest = {0, 0};
  for (uint i = 0; i < piece.count; ++i) {
    const typename Element<T>::Own element = x[i];
    const Bits other = Element<T>::rest(element);
    own ^= element;
    rest.low ^= other.low;
    rest.high ^= other.high;
  }
  const Bits bits = Element<T>::whole(own, rest);
  hashes[index] = as_type<ulong>(uint2(bits.low, bits.high));
}

template <typename T>
kernel void hash_tensor_rows(device ulong* hashes [[buffer(0)]],
                             constant stored_t<T>* data [[buffer(1)]],
                             constant HashTensorParameters& parameters [[buffer(2)]],
                             uint index [[threadgroup_position_in_grid]],
                             uint lane [[thread_position_in_threadgroup]],
                             uint lanes [[threads_per_threadgroup]]) {
  threadgroup uint2 shared[c10::metal::simdgroup_size];
  const Piece piece(index, parameters);
  constant stored_t<T>* x = data + piece.first;
  typename Element<T>::Own own = 0;
  uint low = 0;
  uint high = 0;
  for (uint i = lane; i < piece.count; i += lanes) {
    const typename Element<T>::Own element = x[i];
    const Bits rest = Element<T>::rest(element);
    own ^= element;
    low ^= rest.low;
    high ^= rest.high;
  }
  const Bits bits = Element<T>::whole(own, {low, high});
  const uint2 all = uint2(simd_xor(bits.low), simd_xor(bits.high));
  if (lane % c10::metal::simdgroup_size == 0) {
    shared[lane / c10::metal::simdgroup_size] = all;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    uint2 hash = shared[0];
    for (uint i = 1; i < lanes / c10::metal::simdgroup_size; ++i) {
      hash ^= shared[i];
    }
    hashes[index] = as_type<ulong>(hash);
  }
}

// A vector of elements that is loaded at once.
template <typename T>
struct alignas(kPackBytes) HashPack {
  stored_t<T> elements[kPackBytes / sizeof(stored_t<T>)];
};

// Hashes pieces that consist of whole vectors.
template <typename T>
kernel void hash_tensor_packs(device ulong* hashes [[buffer(0)]],
                              constant HashPack<T>* data [[buffer(1)]],
                              constant HashTensorParameters& parameters [[buffer(2)]],
                              uint index [[threadgroup_position_in_grid]],
                              uint lane [[thread_position_in_threadgroup]],
                              uint lanes [[threads_per_threadgroup]]) {
  constexpr uint kElements = kPackBytes / sizeof(stored_t<T>);
  threadgroup uint2 shared[c10::metal::simdgroup_size];
  const Piece piece(index, parameters);
  constant HashPack<T>* x = data + piece.first / kElements;
  const uint packs = piece.count / kElements;
  typename Element<T>::Own own = 0;
  uint low = 0;
  uint high = 0;
  for (uint i = lane; i < packs; i += lanes) {
    const HashPack<T> pack = x[i];
    for (uint k = 0; k < kElements; ++k) {
      const typename Element<T>::Own element = pack.elements[k];
      const Bits rest = Element<T>::rest(element);
      own ^= element;
      low ^= rest.low;
      high ^= rest.high;
    }
  }
  const Bits bits = Element<T>::whole(own, {low, high});
  const uint2 all = uint2(simd_xor(bits.low), simd_xor(bits.high));
  if (lane % c10::metal::simdgroup_size == 0) {
    shared[lane / c10::metal::simdgroup_size] = all;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    uint2 hash = shared[0];
    for (uint i = 1; i < lanes / c10::metal::simdgroup_size; ++i) {
      hash ^= shared[i];
    }
    hashes[index] = as_type<ulong>(hash);
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_HASH_TENSOR(T)                                             \
  REGISTER_KERNEL("hash_tensor_short_rows_" #T, hash_tensor_short_rows, T); \
  REGISTER_KERNEL("hash_tensor_rows_" #T, hash_tensor_rows, T);             \
  REGISTER_KERNEL("hash_tensor_packs_" #T, hash_tensor_packs, T)

REGISTER_HASH_TENSOR(float);
REGISTER_HASH_TENSOR(half);
REGISTER_HASH_TENSOR(bfloat);
REGISTER_HASH_TENSOR(long);
REGISTER_HASH_TENSOR(int);
REGISTER_HASH_TENSOR(short);
REGISTER_HASH_TENSOR(char);
REGISTER_HASH_TENSOR(uchar);
REGISTER_HASH_TENSOR(bool);

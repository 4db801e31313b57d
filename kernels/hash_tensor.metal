// hash_tensor: the exclusive or of the elements of a row, as 64-bit integers or, if they are
// floating-point numbers, as the bits of doubles of their values.
//
// A piece of a row is the work of a threadgroup, or of a single thread where it is short.
#include <metalops/strided.h>
#include <metal_stdlib>

#include "blocks.h"
#include "hash_tensor.h"
using namespace metal;
using namespace metalops;

// ---- elements -----------------------------------------------------------------------------------

// In halves, and not in a vector of two, which would keep CPUs from taking many elements at once.
struct Bits {
  uint low;
  uint high;
};

// The double of a floating-point number that is given by its bits. In integers: Metal has no
// double, and GPUs take denormal floats for zero.
inline Bits double_bits(uint bits, uint exponent_bits, uint mantissa_bits) {
  const uint sign = bits >> (exponent_bits + mantissa_bits);
  const uint largest = (1u << exponent_bits) - 1u;
  const uint bias = largest >> 1;
  const uint exponent = (bits >> mantissa_bits) & largest;
  const uint fraction = bits & ((1u << mantissa_bits) - 1u);
  // A denormal number is its fraction, as an integer, times 2^(1 - bias - mantissa_bits).
  const uint denormal = as_type<uint>(static_cast<float>(fraction));
  const bool is_denormal = exponent == 0 && fraction != 0;
  const bool is_nan = exponent == largest && fraction != 0;

  uint wide_exponent = exponent == 0 ? 0 : exponent + 1023 - bias;
  wide_exponent = exponent == largest ? 0x7ff : wide_exponent;
  wide_exponent = is_denormal ? (denormal >> 23) + 897 - bias - mantissa_bits : wide_exponent;
  uint mantissa = fraction << (23 - mantissa_bits);
  mantissa |= is_nan ? 1u << 22 : 0;  // a signalling NaN becomes a quiet one
  mantissa = is_denormal ? denormal & 0x7fffff : mantissa;
  return {mantissa << 29, sign << 31 | wide_exponent << 20 | mantissa >> 3};
}

// How the elements of a type are read, and what is hashed of them.
template <typename T>
struct Element {
  using Stored = T;
  static Bits hashed(T x) {
    const ulong bits = static_cast<ulong>(static_cast<long>(x));
    return {static_cast<uint>(bits), static_cast<uint>(bits >> 32)};
  }
};

template <>
struct Element<float> {
  using Stored = uint;
  static Bits hashed(uint bits) { return double_bits(bits, 8, 23); }
};

template <>
struct Element<half> {
  using Stored = ushort;
  static Bits hashed(ushort bits) { return double_bits(bits, 5, 10); }
};

template <>
struct Element<bfloat> {
  using Stored = ushort;
  static Bits hashed(ushort bits) { return double_bits(bits, 8, 7); }
};

template <typename T>
using stored_t = typename Element<T>::Stored;

// ---- rows ---------------------------------------------------------------------------------------

template <typename T>
struct Hash {
  constant stored_t<T>* data;
  Bits bits;

  void operator()(int64_t place) {
    const Bits x = Element<T>::hashed(data[place]);
    bits.low ^= x.low;
    bits.high ^= x.high;
  }
};

// Of the part of piece `index` that belongs to thread `lane` of `lanes`.
template <typename T>
inline uint2 hash_part(int64_t index, constant stored_t<T>* data,
                       constant HashTensorParameters& parameters, uint lane, uint lanes) {
  const int64_t row = index / parameters.pieces;
  const int64_t first = (index - row * parameters.pieces) * parameters.piece;
  const int64_t count = min(parameters.piece, parameters.columns - first);
  Hash<T> hash{data + row * parameters.columns, {0, 0}};
  for_blocks(first, count, 1, lane, lanes, hash);
  return uint2(hash.bits.low, hash.bits.high);
}

template <typename T>
kernel void hash_tensor_short_rows(device ulong* hashes [[buffer(0)]],
                                   constant stored_t<T>* data [[buffer(1)]],
                                   constant HashTensorParameters& parameters [[buffer(2)]],
                                   uint2 position [[thread_position_in_grid]],
                                   uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index < parameters.rows * parameters.pieces) {
    hashes[index] = as_type<ulong>(hash_part<T>(index, data, parameters, 0, 1));
  }
}

inline uint2 simd_xor_of(uint2 bits) { return uint2(simd_xor(bits.x), simd_xor(bits.y)); }

template <typename T>
kernel void hash_tensor_rows(device ulong* hashes [[buffer(0)]],
                             constant stored_t<T>* data [[buffer(1)]],
                             constant HashTensorParameters& parameters [[buffer(2)]],
                             uint index [[threadgroup_position_in_grid]],
                             uint lane [[thread_position_in_threadgroup]],
                             uint lanes [[threads_per_threadgroup]]) {
  constexpr uint kSimdgroup = c10::metal::simdgroup_size;
  threadgroup uint2 shared[kSimdgroup];
  uint2 bits = simd_xor_of(hash_part<T>(index, data, parameters, lane, lanes));
  if (lane % kSimdgroup == 0) {
    shared[lane / kSimdgroup] = bits;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane >= kSimdgroup) {
    return;
  }
  bits = simd_xor_of(lane < lanes / kSimdgroup ? shared[lane] : uint2(0));
  if (lane == 0) {
    hashes[index] = as_type<ulong>(bits);
  }
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_HASH_TENSOR(T)                                                               \
  template [[host_name("hash_tensor_short_rows_" #T)]] kernel void hash_tensor_short_rows<T>( \
      device ulong*, constant stored_t<T>*, constant HashTensorParameters&, uint2, uint2);    \
  template [[host_name("hash_tensor_rows_" #T)]] kernel void hash_tensor_rows<T>(             \
      device ulong*, constant stored_t<T>*, constant HashTensorParameters&, uint, uint, uint)

REGISTER_HASH_TENSOR(float);
REGISTER_HASH_TENSOR(half);
REGISTER_HASH_TENSOR(bfloat);
REGISTER_HASH_TENSOR(long);
REGISTER_HASH_TENSOR(int);
REGISTER_HASH_TENSOR(short);
REGISTER_HASH_TENSOR(char);
REGISTER_HASH_TENSOR(uchar);
REGISTER_HASH_TENSOR(bool);

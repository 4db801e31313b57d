// 16-byte vectors (float4, "packs") along the columns of a matrix whose columns are 16-byte
// aligned. T is float or float2 (complex, interleaved). (planar_packs.h: vectors of planar complex
// elements, with no alignment but an element's.)
#pragma once
#include <c10/metal/common.h>
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>

namespace metalops {

// Views packs as arrays of their elements.
template <typename T>
inline thread T* elements_of(thread::metal::float4* packs) {
  return reinterpret_cast<thread T*>(packs);
}
template <typename T>
inline threadgroup T* elements_of(threadgroup::metal::float4* packs) {
  return reinterpret_cast<threadgroup T*>(packs);
}
template <typename T>
inline threadgroup const T* elements_of(threadgroup const ::metal::float4* packs) {
  return reinterpret_cast<threadgroup const T*>(packs);
}
template <typename T>
inline device T* elements_of(device::metal::float4* packs) {
  return reinterpret_cast<device T*>(packs);
}
template <typename T>
inline device const T* elements_of(device const ::metal::float4* packs) {
  return reinterpret_cast<device const T*>(packs);
}

// Returns each element of a pack times `factor`.
inline ::metal::float4 times(::metal::float4 pack, float factor) { return pack * factor; }
inline ::metal::float4 times(::metal::float4 pack, ::metal::float2 factor) {
  return pack * factor.x + ::metal::float4(-pack.y, pack.x, -pack.w, pack.z) * factor.y;
}

// Operations on a pack of T. first: the row of its first element.
template <typename T>
struct ColumnPacks;

template <>
struct ColumnPacks<float> {
  static constexpr constant int kRows = 4;

  // Returns the sum of conj(a_i) b_i over the elements.
  static float inner_product(::metal::float4 a, ::metal::float4 b) { return ::metal::dot(a, b); }

  // Returns the pack with zeros in the rows before `from`.
  static ::metal::float4 rows_from(::metal::float4 pack, int first, int from) {
    return ::metal::float4(first < from ? 0.0f : pack.x, first + 1 < from ? 0.0f : pack.y,
                           first + 2 < from ? 0.0f : pack.z, first + 3 < from ? 0.0f : pack.w);
  }

  // Returns the pack of the unit vector that has its 1 in row `one`.
  static ::metal::float4 unit(int first, int one) {
    return ::metal::float4(first == one, first + 1 == one, first + 2 == one, first + 3 == one);
  }
};

template <>
struct ColumnPacks<::metal::float2> {
  static constexpr constant int kRows = 2;

  static ::metal::float2 inner_product(::metal::float4 a, ::metal::float4 b) {
    return ::metal::float2(::metal::dot(a, b),
                           ::metal::dot(::metal::float4(-a.y, a.x, -a.w, a.z), b));
  }

  static ::metal::float4 rows_from(::metal::float4 pack, int first, int from) {
    return ::metal::float4(first < from ? ::metal::float2(0.0f) : pack.xy,
                           first + 1 < from ? ::metal::float2(0.0f) : pack.zw);
  }

  static ::metal::float4 unit(int first, int one) {
    return ::metal::float4(first == one, 0.0f, first + 1 == one, 0.0f);
  }
};

// Returns how many packs n elements take. (Headers of torch before 2.13, with which kernels run on
// CUDA tensors too, have neither ceil_div nor round_up.)
template <typename T>
METAL_FUNC int packs_of(int n) {
  constexpr int kRows = ColumnPacks<T>::kRows;
  return (n + kRows - 1) / kRows;
}

// Returns n rounded up to whole packs.
template <typename T>
METAL_FUNC int with_padding(int n) {
  return packs_of<T>(n) * ColumnPacks<T>::kRows;
}

// Accumulates a linear combination of packs. For complex T, products with real and with imaginary
// parts are accumulated separately, and the latter are multiplied by i once, at the end.
template <typename T>
struct PackSum;

template <>
struct PackSum<float> {
  ::metal::float4 sum;

  void add(::metal::float4 pack, float factor) { sum += pack * factor; }
  ::metal::float4 value() const { return sum; }
};

template <>
struct PackSum<::metal::float2> {
  ::metal::float4 real;
  ::metal::float4 imaginary;

  void add(::metal::float4 pack, ::metal::float2 factor) {
    real += pack * factor.x;
    imaginary += pack * factor.y;
  }
  ::metal::float4 value() const {
    return real + ::metal::float4(-imaginary.y, imaginary.x, -imaginary.w, imaginary.z);
  }
};

// Accumulates an inner product, the sum of conj(a_i) b_i, over packs.
template <typename T>
struct InnerSum;

template <>
struct InnerSum<float> {
  ::metal::float4 sum;

  void add(::metal::float4 a, ::metal::float4 b) { sum += a * b; }
  float value() const { return (sum.x + sum.y) + (sum.z + sum.w); }
};

template <>
struct InnerSum<::metal::float2> {
  ::metal::float4 straight;
  ::metal::float4 crossed;

  void add(::metal::float4 a, ::metal::float4 b) {
    straight += a * b;
    crossed += a * b.yxwz;
  }
  ::metal::float2 value() const {
    return ::metal::float2((straight.x + straight.y) + (straight.z + straight.w),
                           (crossed.x - crossed.y) + (crossed.z - crossed.w));
  }
};

}  // namespace metalops

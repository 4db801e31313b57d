// Sums and products: the types in which dtypes are accumulated, and how two values are combined.
// Integers wrap around; floating-point numbers are accumulated in float.
#pragma once
#include <metal_stdlib>

namespace metalops {

// The type in which a dtype is accumulated.
template <typename T>
struct Accumulated {
  using Type = ulong;
  static inline ulong from(T x) { return static_cast<ulong>(static_cast<long>(x)); }
};

template <>
struct Accumulated<float> {
  using Type = float;
  static inline float from(float x) { return x; }
};

template <>
struct Accumulated<half> {
  using Type = float;
  static inline float from(half x) { return static_cast<float>(x); }
};

template <>
struct Accumulated<bfloat> {
  using Type = float;
  static inline float from(bfloat x) { return static_cast<float>(x); }
};

template <>
struct Accumulated<::metal::float2> {
  using Type = ::metal::float2;
  static inline ::metal::float2 from(::metal::float2 x) { return x; }
};

struct Sum {
  template <typename A>
  static inline A identity() {
    return A(0);
  }
  template <typename A>
  static inline A combine(A a, A b) {
    return a + b;
  }
};

inline ulong one_like(ulong) { return 1; }
inline float one_like(float) { return 1.0f; }
inline ::metal::float2 one_like(::metal::float2) { return ::metal::float2(1.0f, 0.0f); }

struct Product {
  template <typename A>
  static inline A identity() {
    return one_like(A(0));
  }
  static inline ulong combine(ulong a, ulong b) { return a * b; }
  static inline float combine(float a, float b) { return a * b; }
  static inline ::metal::float2 combine(::metal::float2 a, ::metal::float2 b) {
    return ::metal::float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
  }
};

}  // namespace metalops

// Packs of adjacent elements that a thread loads and stores at once, with their values as floats:
// one element (V is float), or four (float4). Stored: as they are in memory.
#pragma once
#include <metal_stdlib>

namespace metalops {

template <typename V>
struct Packs;

template <>
struct Packs<float> {
  static constexpr constant uint kWidth = 1;
  template <typename T>
  using Stored = T;
  template <typename T>
  static float widened(T x) {
    return static_cast<float>(x);
  }
  template <typename T>
  static float load(constant T* from) {
    return static_cast<float>(*from);
  }
  template <typename T>
  static void store(device T* to, float x) {
    *to = static_cast<T>(x);
  }
  static float total(float x) { return x; }
};

template <>
struct Packs<::metal::float4> {
  static constexpr constant uint kWidth = 4;
  template <typename T>
  using Stored = ::metal::vec<T, 4>;
  template <typename T>
  static ::metal::float4 widened(::metal::vec<T, 4> x) {
    return ::metal::float4(static_cast<float>(x.x), static_cast<float>(x.y),
                           static_cast<float>(x.z), static_cast<float>(x.w));
  }
  template <typename T>
  static ::metal::float4 load(constant T* from) {
    return widened<T>(*reinterpret_cast<constant::metal::vec<T, 4>*>(from));
  }
  template <typename T>
  static void store(device T* to, ::metal::float4 x) {
    *reinterpret_cast<device::metal::vec<T, 4>*>(to) = ::metal::vec<T, 4>(
        static_cast<T>(x.x), static_cast<T>(x.y), static_cast<T>(x.z), static_cast<T>(x.w));
  }
  static float total(::metal::float4 x) { return (x.x + x.y) + (x.z + x.w); }
};

}  // namespace metalops

// metal_array and uniform: small containers and wrappers.
#pragma once

#include <msl/config.h>
#if !defined(__CUDACC_RTC__)
#include <initializer_list>
#endif

#include <msl/traits.h>

namespace msl::metal {

using std::initializer_list;

template <class T, size_t N>
struct array {
  using value_type = T;
  using size_type = size_t;
  T elements[N == 0 ? 1 : N];

  MSL_INLINE constexpr T& operator[](size_t i) { return elements[i]; }
  MSL_INLINE constexpr const T& operator[](size_t i) const { return elements[i]; }
  MSL_INLINE constexpr size_t size() const { return N; }
  MSL_INLINE constexpr size_t max_size() const { return N; }
  MSL_INLINE constexpr bool empty() const { return N == 0; }
  MSL_INLINE constexpr T* data() { return elements; }
  MSL_INLINE constexpr const T* data() const { return elements; }
  MSL_INLINE constexpr T& front() { return elements[0]; }
  MSL_INLINE constexpr const T& front() const { return elements[0]; }
  MSL_INLINE constexpr T& back() { return elements[N - 1]; }
  MSL_INLINE constexpr const T& back() const { return elements[N - 1]; }
  MSL_INLINE constexpr T* begin() { return elements; }
  MSL_INLINE constexpr const T* begin() const { return elements; }
  MSL_INLINE constexpr T* end() { return elements + N; }
  MSL_INLINE constexpr const T* end() const { return elements + N; }
  MSL_INLINE constexpr const T* cbegin() const { return elements; }
  MSL_INLINE constexpr const T* cend() const { return elements + N; }
  MSL_INLINE constexpr void fill(const T& value) {
    for (size_t i = 0; i < N; ++i) elements[i] = value;
  }
};

template <class T>
struct array_ref {
  const T* first;
  size_t count;

  constexpr array_ref() : first(nullptr), count(0) {}
  MSL_INLINE constexpr array_ref(const T* data, size_t size) : first(data), count(size) {}
  template <size_t N>
  MSL_INLINE constexpr array_ref(const array<T, N>& a) : first(a.data()), count(N) {}
  template <size_t N>
  MSL_INLINE constexpr array_ref(const T (&a)[N]) : first(a), count(N) {}
  MSL_INLINE constexpr const T& operator[](size_t i) const { return first[i]; }
  MSL_INLINE constexpr size_t size() const { return count; }
  MSL_INLINE constexpr bool empty() const { return count == 0; }
  MSL_INLINE constexpr const T* data() const { return first; }
  MSL_INLINE constexpr const T* begin() const { return first; }
  MSL_INLINE constexpr const T* end() const { return first + count; }
};

// Values known to be uniform (equal in all threads): a promise to Apple's compiler, without effect
// here.
template <class T>
using uniform = T;
template <class T>
MSL_INLINE constexpr T make_uniform(T value) {
  return value;
}

}  // namespace msl::metal

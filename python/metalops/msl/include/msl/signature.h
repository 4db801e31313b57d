// Properties of a kernel's parameter types, for the tables of kernels in emitted code.
#pragma once

#include <msl/config.h>

namespace msl::msl_support {

using abi::u32;

template <u32 I, class... A>
struct type_at;
template <class F, class... R>
struct type_at<0, F, R...> {
  typedef F type;
};
template <u32 I, class F, class... R>
struct type_at<I, F, R...> : type_at<I - 1, R...> {};

template <class F>
struct signature;
template <class R, class... A>
struct signature<R (*)(A...)> {
  template <u32 I>
  using parameter = typename type_at<I, A...>::type;
};

template <class T>
inline constexpr u32 size_or_zero = sizeof(T);
template <>
inline constexpr u32 size_or_zero<void> = 0;
template <>
inline constexpr u32 size_or_zero<const void> = 0;

template <class P>
inline constexpr u32 element_bytes = 0;
template <class T>
inline constexpr u32 element_bytes<T*> = size_or_zero<T>;
template <class T>
inline constexpr u32 element_bytes<T* const> = size_or_zero<T>;
template <class T>
inline constexpr u32 element_bytes<T&> = size_or_zero<T>;

template <class P>
inline constexpr u32 is_writable = 0;
template <class T>
inline constexpr u32 is_writable<T*> = 1;
template <class T>
inline constexpr u32 is_writable<T&> = 1;
template <class T>
inline constexpr u32 is_writable<const T*> = 0;
template <class T>
inline constexpr u32 is_writable<const T&> = 0;
template <class T>
inline constexpr u32 is_writable<T* const> = is_writable<T*>;

}  // namespace msl::msl_support

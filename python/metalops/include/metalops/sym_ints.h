// Kernels that take sizes as int64_t, for schemas that have SymInt.
//
//   m.impl("view", metalops::with_sym_ints<view>);
//
// The dispatcher calls a kernel that takes at::IntArrayRef if the arguments come unboxed. Boxed, as
// torch's stable ABI passes them, a SymInt[] is another kind of list, and such a kernel fails.
#pragma once
#include <ATen/core/ATen_fwd.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace metalops {

namespace detail {

// The type that the dispatcher passes for a kernel's T.
template <class T>
struct SymOf {
  using type = T;
  static T&& plain(T& value) { return std::forward<T>(value); }
};

template <>
struct SymOf<at::IntArrayRef> {
  using type = c10::SymIntArrayRef;
  static at::IntArrayRef plain(type value) { return C10_AS_INTARRAYREF_SLOW(value); }
};

template <>
struct SymOf<int64_t> {
  using type = c10::SymInt;
  static int64_t plain(const type& value) { return value.guard_int(__FILE__, __LINE__); }
};

template <>
struct SymOf<std::optional<int64_t>> {
  using type = std::optional<c10::SymInt>;
  static std::optional<int64_t> plain(const type& value) {
    if (!value) return std::nullopt;
    return value->guard_int(__FILE__, __LINE__);
  }
};

template <auto kFunction, class Type = decltype(kFunction)>
struct WithSymInts;

template <auto kFunction, class Result, class... Arguments>
struct WithSymInts<kFunction, Result (*)(Arguments...)> {
  static Result call(typename SymOf<Arguments>::type... arguments) {
    return kFunction(SymOf<Arguments>::plain(arguments)...);
  }
};

}  // namespace detail

// `kFunction` with a SymInt for each int64_t.
template <auto kFunction>
inline constexpr auto* with_sym_ints = &detail::WithSymInts<kFunction>::call;

}  // namespace metalops

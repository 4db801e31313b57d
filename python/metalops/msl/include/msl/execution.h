// Execution scopes: which threads run an operation on tensors together.
#pragma once

#include <msl/config.h>

namespace msl::metal {

template <int N>
struct execution_threads {
  static_assert(N == 1, "Only execution_thread<1> is supported");
  static MSL_INLINE constexpr int size() { return N; }
};
using execution_thread = execution_threads<1>;

// All simdgroups of the threadgroup, or one.
template <int N>
struct execution_simdgroups {
  static_assert(N > 0, "execution_simgroups<0> is not supported");
  static MSL_INLINE constexpr int size() { return N; }
};
using execution_simdgroup = execution_simdgroups<1>;

}  // namespace msl::metal

namespace msl::msl_impl {

// simdgroups: 0 for one thread. Taken from size(), which triggers the scope's own assertions.
template <class Scope>
struct ScopeOf {
  static constexpr bool exists = false;
};
template <int N>
struct ScopeOf<metal::execution_threads<N>> {
  static constexpr bool exists = metal::execution_threads<N>::size() == 1;
  static constexpr int simdgroups = 0;
};
template <int N>
struct ScopeOf<metal::execution_simdgroups<N>> {
  static constexpr bool exists = true;
  static constexpr int simdgroups = metal::execution_simdgroups<N>::size();
};

}  // namespace msl::msl_impl

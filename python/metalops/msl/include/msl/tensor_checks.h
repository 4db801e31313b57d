// Reports of sanitized kernels to the device about tensors; no code in other kernels. The device
// sees each access to the elements of a cooperative tensor and knows which of them were written.
#pragma once

#include <msl/config.h>

#if MSL_INSTRUMENTED

// The functions record their return address, a position in the kernel, and are not instrumented.
#ifdef __clang__
#define MSL_CHECK_FUNCTION \
  inline __attribute__((noinline, visibility("hidden"), disable_sanitizer_instrumentation))
#else
#define MSL_CHECK_FUNCTION                              \
  inline __attribute__((noinline, visibility("hidden"), \
                        no_sanitize("thread", "address", "undefined")))
#endif

namespace msl::msl_impl {

MSL_CHECK_FUNCTION void report_misuse(abi::Misuse what, const char* operand, abi::i64 a, abi::i64 b,
                                      abi::i64 c, abi::i64 d) {
  const abi::i64 numbers[] = {a, b, c, d};
  msl_runtime->misuse(what, operand, numbers, __builtin_return_address(0));
}
MSL_CHECK_FUNCTION void report_operation(abi::u32 simdgroups, const char* name, abi::u64 kind) {
  msl_runtime->scope_operation(simdgroups, name, kind, __builtin_return_address(0));
}

// The elements of a cooperative tensor that belong to a thread.
template <class E, class Layout>
struct OwnElements {
  E at[Layout::capacity];

  explicit OwnElements(abi::u32 thread) {
    abi::u8 exists[Layout::capacity];
    for (int slot = 0; slot < Layout::capacity; ++slot) {
      exists[slot] = Layout::coordinates(thread, abi::u32(slot)).exists;
    }
    msl_runtime->elements_begin(at, sizeof(E), exists, Layout::capacity);
  }
  // Compilers omit instrumentation for variables whose accesses they see to be valid.
  MSL_INLINE E* address(int slot) {
    E* element = &at[slot];
    __asm__("" : "+r"(element));
    return element;
  }
  MSL_INLINE const E* address(int slot) const {
    return const_cast<OwnElements*>(this)->address(slot);
  }
  OwnElements(const OwnElements& other) { msl_runtime->elements_copied(at, other.at); }
  OwnElements& operator=(const OwnElements& other) {
    if (this != &other) msl_runtime->elements_copied(at, other.at);
    return *this;
  }
};

// A key for the operation of a type, and for the call in the program where that is known.
template <class Operation>
struct OperationKind {
  static inline const char tag = 0;
};
template <class Operation>
MSL_INLINE void check_scope_operation(int simdgroups, const char* name, abi::u32 site = 0) {
  if (simdgroups == 0) return;
  const auto tag = reinterpret_cast<abi::u64>(&OperationKind<Operation>::tag);
  report_operation(abi::u32(simdgroups), name, tag ^ abi::u64(site) << 48);
}

template <class Tensor>
MSL_INLINE void check_stride(const Tensor& of, const char* operand) {
  if (Tensor::get_rank() != 0 && of.get_extent(0) > 1 && of.get_stride(0) != 1) {
    report_misuse(abi::Misuse::kInnermostStride, operand, of.get_stride(0), 0, 0, 0);
  }
}
// needed: for that dimension. A static extent is one that an operation relies on.
template <class Tensor>
MSL_INLINE void check_extent(const Tensor& of, const char* operand, int dimension, int needed,
                             bool is_inner) {
  const long extent = of.get_extent(dimension);
  if (extent >= needed) return;
  const bool is_static = Tensor::get_static_extent(dimension) != __SIZE_MAX__;
  if (is_static) {
    report_misuse(abi::Misuse::kSmallOperand, operand, dimension, extent, needed, 0);
  } else if (is_inner) {
    report_misuse(abi::Misuse::kShortOperand, operand, dimension, extent, needed, 0);
  }
}
// Checks a slice that begins at `origin`; static_extent: of the slice, or -1.
template <class Tensor>
MSL_INLINE void check_slice(const Tensor& of, int dimension, long origin, long static_extent) {
  const long extent = of.get_extent(dimension);
  if (origin < 0 || origin > extent || (static_extent >= 0 && origin + static_extent > extent)) {
    report_misuse(abi::Misuse::kSliceOutside, "slice", dimension, origin, static_extent, extent);
  }
  if constexpr (Tensor::Planes::has_scales) {
    const long block = Tensor::Planes::block[dimension];
    if (origin % block != 0) {
      report_misuse(abi::Misuse::kSliceInBlock, "slice", dimension, origin, block, 0);
    }
  }
}

}  // namespace msl::msl_impl

#undef MSL_CHECK_FUNCTION
#else

namespace msl::msl_impl {

template <class E, class Layout>
struct OwnElements {
  E at[Layout::capacity] = {};
  MSL_INLINE explicit OwnElements(unsigned) {}
  MSL_INLINE E* address(int slot) { return &at[slot]; }
  MSL_INLINE const E* address(int slot) const { return &at[slot]; }
};
template <class Operation>
MSL_INLINE constexpr void check_scope_operation(int, const char*, unsigned = 0) {}
template <class Tensor>
MSL_INLINE constexpr void check_stride(const Tensor&, const char*) {}
template <class Tensor>
MSL_INLINE constexpr void check_extent(const Tensor&, const char*, int, int, bool) {}
template <class Tensor>
MSL_INLINE constexpr void check_slice(const Tensor&, int, long, long) {}

}  // namespace msl::msl_impl
#endif

// metal_visible_function_table: tables of functions, whose entries the host chooses.
#pragma once

#include <msl/host/launch.h>

namespace msl::msl_impl {

template <class F>
struct table_entry;

// An entry of a table: it is called like the function, and calling none is an error.
template <class R, class... A>
struct table_entry<R(A...)> {
  typedef R (*pointer)(A...);
  pointer function;
  R operator()(A... a) const {
    if (function == nullptr) msl_runtime->fail("a visible_function_table has no function there");
    return function(static_cast<A>(a)...);
  }
  operator pointer() const { return function; }
};

}  // namespace msl::msl_impl

namespace msl::metal {

// Refers to the number of functions, which their addresses follow.
template <class F>
class visible_function_table {
 public:
  using value_type = F*;
  visible_function_table() = default;
  MSL_INLINE explicit visible_function_table(const void* table)
      : table_(static_cast<const size_t*>(table)) {}
  MSL_INLINE size_t size() const { return table_ == nullptr ? 0 : table_[0]; }
  MSL_INLINE bool empty() const { return size() == 0; }
  MSL_INLINE msl_impl::table_entry<F> operator[](size_t index) const {
    if (index >= size()) {
      msl_runtime->fail("an index of a visible_function_table is beyond its end");
    }
    return {reinterpret_cast<F*>(table_[1 + index])};
  }
  MSL_INLINE bool is_null() const { return table_ == nullptr; }

 private:
  const size_t* table_ = nullptr;
};

template <class F>
MSL_INLINE bool is_null_visible_function_table(const visible_function_table<F>& table) {
  return table.is_null();
}

}  // namespace msl::metal

namespace msl::msl_support {

// Objects whose addresses stand for types of functions.
template <class F>
inline char function_type = 0;

// The type of the functions of a parameter that is a table of them; null for any other.
template <class P>
inline constexpr const void* table_type = nullptr;
template <class F>
inline constexpr const void* table_type<metal::visible_function_table<F>> = &function_type<F>;
template <class F>
inline constexpr const void* table_type<const metal::visible_function_table<F>> = &function_type<F>;

template <class F>
struct buffer_argument<metal::visible_function_table<F>> {
  metal::visible_function_table<F> table;
  inline __attribute__((always_inline)) buffer_argument(const Launch* launch, u32 index)
      : table(launch->buffers[index]) {}
  inline __attribute__((always_inline)) const metal::visible_function_table<F>& get() const {
    return table;
  }
};
template <class F>
struct buffer_argument<const metal::visible_function_table<F>>
    : buffer_argument<metal::visible_function_table<F>> {
  using buffer_argument<metal::visible_function_table<F>>::buffer_argument;
};
template <class F>
struct placed_argument<metal::visible_function_table<F>>
    : buffer_argument<metal::visible_function_table<F>> {
  using buffer_argument<metal::visible_function_table<F>>::buffer_argument;
};

}  // namespace msl::msl_support

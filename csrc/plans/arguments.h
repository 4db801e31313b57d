// Checks of operators' arguments: those of the operator X are check_X(), in the folder of its
// subject. On mps, operators call them through csrc/ops/common/arguments.h; on all other devices,
// and for fake tensors of known sizes, python/metalops/ops/_define/arguments.py does. Devices are
// not checked here.
#pragma once
#include <csrc/plans/plan.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace metalops::plans {

using Sizes = std::span<const int64_t>;

// A tensor as checks see it. An absent one has no dtype.
struct Operand {
  const int64_t* begin = nullptr;  // of the sizes
  int32_t dims = 0;
  Type type = Type::kNone;

  explicit operator bool() const { return type != Type::kNone; }

  Sizes sizes() const { return {begin, static_cast<size_t>(dims)}; }
  // A negative dimension counts from the last.
  int64_t size(int32_t dim) const { return begin[dim < 0 ? dims + dim : dim]; }
  int64_t numel() const {
    int64_t count = 1;
    for (const auto size : sizes()) {
      count *= size;
    }
    return count;
  }

  bool has_sizes(Sizes expected) const { return std::ranges::equal(sizes(), expected); }
  bool has_sizes(std::initializer_list<int64_t> expected) const {
    return std::ranges::equal(sizes(), expected);
  }
};

// A string of an operator's schema.
struct Text {
  const char* begin = "";
  int64_t length = 0;

  operator std::string_view() const { return {begin, static_cast<size_t>(length)}; }
};

// The exception that a violated condition raises: the names are those of Python.
enum class ErrorKind : int32_t { kRuntimeError, kValueError, kNotImplementedError };

class ArgumentError : public std::runtime_error {
 public:
  ArgumentError(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Returns torch's name of a dtype: "Float".
std::string torch_name_of(Type type);

namespace internal {

template <class Part>
void write(std::ostream& stream, const Part& part) {
  if constexpr (std::is_same_v<Part, Type>) {
    stream << torch_name_of(part);
  } else if constexpr (std::is_convertible_v<const Part&, Sizes>) {
    const char* separator = "";
    stream << '[';
    for (const auto size : Sizes(part)) {
      stream << separator << size;
      separator = ", ";
    }
    stream << ']';
  } else {
    stream << part;
  }
}

template <class... Parts>
void check(ErrorKind kind, bool holds, const Parts&... parts) {
  if (!holds) {
    std::ostringstream stream;
    (write(stream, parts), ...);
    throw ArgumentError(kind, stream.str());
  }
}

}  // namespace internal

// Raise RuntimeError, ValueError or NotImplementedError unless a condition holds. parts: of the
// text; dtypes and sizes are written as torch writes them.
template <class... Parts>
void check(bool holds, const Parts&... parts) {
  internal::check(ErrorKind::kRuntimeError, holds, parts...);
}

template <class... Parts>
void check_value(bool holds, const Parts&... parts) {
  internal::check(ErrorKind::kValueError, holds, parts...);
}

// Raises NotImplementedError for dtypes other than float32, float16 and bfloat16. name: the
// operator's.
void check_metal_float(const char* name, Type type);

}  // namespace metalops::plans

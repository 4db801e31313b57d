// Calls of ATen operators with the C values of torch's c_shim_mps.h. Its functions are defined in a
// source that setup.py generates, since it has the operators' names and types; each is one call of
// `call` here.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace metalops::aoti {

// A C value by the name of its parameter. The schema says its type: a tensor is a handle, an
// optional value a pointer, a list a pointer and its length, a device its type and its index.
class Argument {
 public:
  template <class T>
  Argument(std::string_view name, T value, int64_t second = 0) : name_(name), second_(second) {
    static_assert(sizeof value <= sizeof value_ && std::is_trivially_copyable_v<T>);
    std::memcpy(value_, &value, sizeof value);
  }

  std::string_view name() const { return name_; }
  const void* address() const { return value_; }
  // The length of a list, the index of a device.
  int64_t second() const { return second_; }

 private:
  std::string_view name_;
  int64_t second_;
  alignas(8) char value_[8];
};

// Calls the operator whose name and overload, joined by an underscore, are `name`, and stores its
// results where `results` point, unless those are null. A name may end in the version (`_v2`) of
// the function; parameters that older versions lack have their default values.
AOTITorchError call(const char* name, std::initializer_list<Argument> arguments,
                    std::initializer_list<void*> results);

}  // namespace metalops::aoti

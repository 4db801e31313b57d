// Converts Python arguments of a kernel call to bindings.
#include <metal/python_call.h>

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <metal/encoder.h>
#include <metal/texture_argument.h>

namespace metalops {
namespace py = pybind11;
namespace {

using at::native::mps::MetalKernelFunction;

using Sizes = std::vector<uint64_t>;

std::optional<Sizes> sizes_from(const py::object& value) {
  if (value.is_none()) return std::nullopt;
  if (py::isinstance<py::int_>(value)) return Sizes{value.cast<uint64_t>()};
  auto sizes = value.cast<Sizes>();
  TORCH_CHECK(!sizes.empty() && sizes.size() < 4,
              "threads and group_size take an integer or 1 to 3 integers, got ", sizes.size());
  return sizes;
}

// The element types requested with arg_casts.
class Casts {
 public:
  explicit Casts(const py::object& casts) {
    if (casts.is_none()) return;
    if (py::isinstance<py::str>(casts)) {
      for_all_ = casts.cast<std::string>();
    } else if (py::isinstance<py::dict>(casts)) {
      by_index_ = casts.cast<std::unordered_map<unsigned, std::string>>();
    } else {
      TORCH_CHECK(false, "Unexpected caster arg type ",
                  casts.attr("__class__").attr("__name__").cast<std::string>());
    }
  }

  const std::string& at(unsigned index) const {
    auto found = by_index_.find(index);
    return found == by_index_.end() ? for_all_ : found->second;
  }

 private:
  std::string for_all_;
  std::unordered_map<unsigned, std::string> by_index_;
};

template <typename To, typename From>
void set_converted(MetalKernelFunction& kernel, unsigned index, const std::vector<From>& values) {
  std::vector<To> converted;
  converted.reserve(values.size());
  for (From value : values) converted.push_back(static_cast<To>(value));
  kernel.setArg(index, converted.data(), converted.size() * sizeof(To));
}

template <typename T>
void set_numbers(MetalKernelFunction& kernel, unsigned index, const std::string& cast,
                 const std::vector<T>& values) {
  if (cast.empty()) {
    kernel.setArg(index, values.data(), values.size() * sizeof(T));
  } else if (cast == "fp16") {
    set_converted<c10::Half>(kernel, index, values);
  } else if (cast == "bf16") {
    set_converted<c10::BFloat16>(kernel, index, values);
  } else if (cast == "int32") {
    set_converted<int32_t>(kernel, index, values);
  } else if (cast == "int16") {
    set_converted<int16_t>(kernel, index, values);
  } else if (cast == "int8") {
    set_converted<int8_t>(kernel, index, values);
  } else if (cast == "uint8") {
    set_converted<uint8_t>(kernel, index, values);
  } else {
    TORCH_CHECK(false, "Unsupported cast instruction ", cast);
  }
}

// Whether a sequence holds names of functions; None leaves an entry of the table out.
bool are_names(const py::sequence& values) {
  bool has_name = false;
  for (const py::handle value : values) {
    has_name |= py::isinstance<py::str>(value);
    if (!value.is_none() && !py::isinstance<py::str>(value)) return false;
  }
  return has_name;
}

void set_sequence(MetalKernelFunction& kernel, unsigned index, const std::string& cast,
                  const py::sequence& values) {
  TORCH_CHECK(values.size() > 0, "Empty list/tuple can not be an argument to metal kernel");
  py::object first = values[0];
  if (are_names(values)) {
    std::vector<std::string> names;
    for (const py::handle value : values) {
      names.push_back(value.is_none() ? "" : value.cast<std::string>());
    }
    set_functions(kernel, index, names);
  } else if (py::isinstance<py::int_>(first)) {
    set_numbers(kernel, index, cast, values.cast<std::vector<int64_t>>());
  } else if (py::isinstance<py::float_>(first)) {
    set_numbers(kernel, index, cast, values.cast<std::vector<float>>());
  } else if (THPVariable_Check(first.ptr())) {
    std::vector<void*> addresses;
    for (const at::Tensor& tensor : values.cast<std::vector<at::Tensor>>()) {
      TORCH_CHECK(tensor.device().is_mps(), "Passed CPU tensor to MPS op");
      addresses.push_back(at::native::mps::get_tensor_gpu_address(tensor));
    }
    kernel.setArg(index, addresses.data(), addresses.size() * sizeof(void*));
  } else {
    TORCH_CHECK(false, "Unexpected argument types");
  }
}

void set_argument(MetalKernelFunction& kernel, unsigned index, const std::string& cast,
                  const py::handle& value) {
  if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
    set_sequence(kernel, index, cast, py::reinterpret_borrow<py::sequence>(value));
  } else if (py::isinstance<py::float_>(value)) {
    set_numbers(kernel, index, cast, std::vector<float>{value.cast<float>()});
  } else if (py::isinstance<py::int_>(value)) {
    set_numbers(kernel, index, cast, std::vector<int64_t>{value.cast<int64_t>()});
  } else {
    TORCH_CHECK(false, "Unsupported argument type");
  }
}

// Binds textures and samplers, each to the next index of its table.
class TextureArguments {
 public:
  // Returns false for any other argument.
  bool set(MetalKernelFunction& kernel, const py::handle& value) {
    if (PyNumber_Check(value.ptr()) || PySequence_Check(value.ptr())) return false;
    const py::module_ classes = py::module_::import("metalops._textures");
    if (py::isinstance(value, classes.attr("Texture"))) {
      const py::bytes description = value.attr("description");
      set_texture(kernel, texture_++, static_cast<std::string_view>(description),
                  value.attr("levels").cast<std::vector<at::Tensor>>());
      return true;
    }
    if (py::isinstance(value, classes.attr("Sampler"))) {
      set_sampler(kernel, sampler_++, value.attr("bits").cast<uint64_t>());
      return true;
    }
    return false;
  }

 private:
  unsigned texture_ = 0;
  unsigned sampler_ = 0;
};

void dispatch(MetalKernelFunction& kernel, const Sizes& threads,
              const std::optional<Sizes>& group_size) {
  py::gil_scoped_release launch_without_gil;
  if (threads.size() == 1) {
    kernel.dispatch(threads[0], group_size ? std::optional(group_size->at(0)) : std::nullopt);
  } else if (group_size) {
    kernel.dispatch(c10::ArrayRef<uint64_t>(threads), c10::ArrayRef<uint64_t>(*group_size));
  } else {
    kernel.dispatch(c10::ArrayRef<uint64_t>(threads));
  }
}

}  // namespace

void call_kernel(MetalKernelFunction& kernel, const py::args& args, const py::object& py_threads,
                 const py::object& py_group_size, const py::object& arg_casts,
                 const py::object& error_buf_idx) {
  std::optional<Sizes> threads = sizes_from(py_threads);
  const std::optional<Sizes> group_size = sizes_from(py_group_size);
  const Casts casts(arg_casts);
  kernel.runCommandBlock([&] {
    kernel.startEncoding();
    unsigned index = 0;
    TextureArguments textures;
    for (const py::handle value : args) {
      if (THPVariable_Check(value.ptr())) {
        const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
        kernel.setArg(index++, tensor);
        if (!threads) threads = Sizes{static_cast<uint64_t>(tensor.numel())};
      } else if (!textures.set(kernel, value)) {
        set_argument(kernel, index, casts.at(index), value);
        ++index;
      }
    }
    if (!error_buf_idx.is_none()) kernel.setErrorBufferIndex(error_buf_idx.cast<unsigned>());
    TORCH_CHECK(threads.has_value(), "Number of threads is undefined or has wrong dimension");
    TORCH_CHECK(!group_size || threads->size() == group_size->size(),
                "threads and group_size must have the same number of dimensions, got ",
                threads->size(), " and ", group_size ? group_size->size() : 0);
    dispatch(kernel, *threads, group_size);
  });
}

}  // namespace metalops

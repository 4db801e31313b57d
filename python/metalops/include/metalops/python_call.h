// Python functions that call an operator at the cost of torch's built-in ones. They bypass
// torch.ops, whose argument handling takes several times as long as dispatching a small operator,
// and turn C++ warnings into Python warnings.
#pragma once
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <metalops/library.h>
#include <metalops/torch_internals.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace metalops {

class METALOPS_HIDDEN DirectCall {
 public:
  DirectCall(std::string name, pybind11::object fallback, bool numbers)
      : name_(std::move(name)),
        functional_(c10::Dispatcher::singleton().findSchemaOrThrow(name_.c_str(), "")),
        out_(c10::Dispatcher::singleton().findSchema({name_, "out"})),
        fallback_(std::move(fallback)),
        numbers_(numbers),
        results_(functional_.schema().returns().size()) {
    for (const auto& argument : functional_.schema().arguments()) {
      parameters_.push_back({pybind11::reinterpret_steal<pybind11::object>(
                                 PyUnicode_InternFromString(argument.name().c_str())),
                             argument.type()->kind(),
                             argument.default_value().value_or(c10::IValue())});
      positional_ += !argument.kwarg_only();
    }
    if (positional_ == parameters_.size() && out_) {
      ++positional_;  // `out` comes last
    }
    method_ = {name_.c_str() + name_.rfind(':') + 1,
               reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&DirectCall::call)),
               METH_FASTCALL | METH_KEYWORDS, nullptr};
  }

  // Returns the Python function, which keeps `self` alive.
  static pybind11::object function(std::unique_ptr<DirectCall> self) {
    auto* method = &self->method_;
    const pybind11::capsule owner(self.release(),
                                  [](void* p) { delete static_cast<DirectCall*>(p); });
    return pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(method, owner.ptr()));
  }

 private:
  struct Parameter {
    pybind11::object name;
    c10::TypeKind kind;
    c10::IValue value;  // the default; None if there is none
  };

  static PyObject* call(PyObject* owner, PyObject* const* arguments, Py_ssize_t count,
                        PyObject* keywords) {
    HANDLE_TH_ERRORS
    return static_cast<DirectCall*>(PyCapsule_GetPointer(owner, nullptr))
        ->dispatch(arguments, static_cast<size_t>(count), keywords);
    END_HANDLE_TH_ERRORS
  }

  PyObject* dispatch(PyObject* const* arguments, size_t count, PyObject* keywords) const {
    torch::jit::Stack stack;
    bool writes = false;
    if (internals::torch_function_mode_enabled() ||
        !push_all(stack, arguments, count, keywords, writes)) {
      return PyObject_Vectorcall(fallback_.ptr(), arguments, count, keywords);
    }
    {
      pybind11::gil_scoped_release release;
      (writes ? *out_ : functional_).callBoxed(stack);
    }
    if (results_ == 1) {
      return THPVariable_Wrap(std::move(stack.back()).toTensor());
    }
    auto results = pybind11::reinterpret_steal<pybind11::object>(
        PyTuple_New(static_cast<Py_ssize_t>(results_)));
    for (size_t i = 0; i < results_; ++i) {
      PyTuple_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i),
                       THPVariable_Wrap(std::move(stack[i]).toTensor()));
    }
    return results.release().ptr();
  }

  // Pushes the arguments. Returns false if one is wrong or needs the fallback.
  bool push_all(torch::jit::Stack& stack, PyObject* const* arguments, size_t count,
                PyObject* keywords, bool& writes) const {
    const auto expected = parameters_.size();
    std::array<PyObject*, 24> given = {};  // followed by `out`
    if (count > positional_ || expected >= given.size()) {
      return false;
    }
    std::copy(arguments, arguments + count, given.begin());
    const auto keyword_count = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < keyword_count; ++i) {
      const auto position = position_of(PyTuple_GET_ITEM(keywords, i));
      if (position > expected || given[position] != nullptr) {
        return false;
      }
      given[position] = arguments[count + static_cast<size_t>(i)];
    }
    stack.reserve(expected + results_);
    bool any_tensor = false;
    for (size_t i = 0; i < expected; ++i) {
      if (!push(stack, given[i], parameters_[i], any_tensor)) {
        return false;
      }
    }
    auto* out = given[expected];
    writes = out != nullptr && out != Py_None;
    return any_tensor && (!writes || push_out(stack, out));
  }

  // Returns the index of a parameter in `given`; a number past its end if there is no such
  // parameter.
  size_t position_of(PyObject* keyword) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].name.ptr() == keyword ||
          PyUnicode_Compare(parameters_[i].name.ptr(), keyword) == 0) {
        return i;
      }
    }
    const bool is_out = out_ && PyUnicode_CompareWithASCIIString(keyword, "out") == 0;
    return parameters_.size() + (is_out ? 0 : 1);
  }

  bool push(torch::jit::Stack& stack, PyObject* argument, const Parameter& parameter,
            bool& any_tensor) const {
    if (argument == nullptr) {
      if (parameter.value.isNone()) {
        return false;
      }
      stack.push_back(parameter.value);
      return true;
    }
    switch (parameter.kind) {
      case c10::TypeKind::TensorType:
        if (THPVariable_CheckExact(argument)) {
          any_tensor = true;
          stack.emplace_back(THPVariable_Unpack(argument));
          return true;
        }
        return numbers_ && push_number(stack, argument);
      case c10::TypeKind::FloatType:
        if (PyFloat_CheckExact(argument)) {
          stack.emplace_back(PyFloat_AS_DOUBLE(argument));
          return true;
        }
        if (const auto number = as_integer(argument)) {
          stack.emplace_back(static_cast<double>(*number));
          return true;
        }
        return false;
      case c10::TypeKind::IntType:
        if (const auto number = as_integer(argument)) {
          stack.emplace_back(*number);
          return true;
        }
        return false;
      case c10::TypeKind::BoolType:
        if (PyBool_Check(argument)) {
          stack.emplace_back(argument == Py_True);
          return true;
        }
        return false;
      default:  // other types are left to the fallback
        return false;
    }
  }

  static std::optional<int64_t> as_integer(PyObject* argument) {
    int overflow = 1;
    const auto value =
        PyLong_CheckExact(argument) ? PyLong_AsLongLongAndOverflow(argument, &overflow) : 0;
    return overflow == 0 ? std::make_optional<int64_t>(value) : std::nullopt;
  }

  // Pushes a Python number where a tensor is expected, as a wrapped number, whose dtype has lower
  // priority in type promotion. Returns false if it is not a number.
  static bool push_number(torch::jit::Stack& stack, PyObject* argument) {
    c10::Scalar number;
    if (PyFloat_CheckExact(argument)) {
      number = PyFloat_AS_DOUBLE(argument);
    } else if (PyBool_Check(argument)) {
      number = argument == Py_True;
    } else if (const auto integer = as_integer(argument)) {
      number = *integer;
    } else {
      return false;
    }
    stack.emplace_back(at::native::wrapped_scalar_tensor(number));
    return true;
  }

  bool push_out(torch::jit::Stack& stack, PyObject* out) const {
    if (results_ == 1) {
      if (!THPVariable_CheckExact(out)) {
        return false;
      }
      stack.emplace_back(THPVariable_Unpack(out));
      return true;
    }
    if (!PyTuple_CheckExact(out) || PyTuple_GET_SIZE(out) != static_cast<Py_ssize_t>(results_)) {
      return false;
    }
    for (size_t i = 0; i < results_; ++i) {
      auto* one = PyTuple_GET_ITEM(out, static_cast<Py_ssize_t>(i));
      if (!THPVariable_CheckExact(one)) {
        return false;
      }
      stack.emplace_back(THPVariable_Unpack(one));
    }
    return true;
  }

  const std::string name_;
  const c10::OperatorHandle functional_;
  const std::optional<c10::OperatorHandle> out_;
  const pybind11::object fallback_;
  const bool numbers_;
  const size_t results_;
  std::vector<Parameter> parameters_;
  size_t positional_ = 0;
  PyMethodDef method_;
};

// Returns a Python function of the operator `name` ("namespace::name"), whose arguments are tensors
// and numbers. It takes the operator's arguments and, if there is an overload "out", `out`: a
// tensor, a tuple of tensors for an operator with several results, or None. `out` is passed by
// keyword, or after the other arguments if none of them is keyword-only. Calls with anything else
// go to `fallback` with the same arguments: subclasses of Tensor, torch function modes, arguments
// of other types, wrong arguments. numbers: true if Python numbers may take the place of tensors.
METALOPS_HIDDEN inline pybind11::object direct_call(std::string name, pybind11::object fallback,
                                                    bool numbers = false) {
  return DirectCall::function(
      std::make_unique<DirectCall>(std::move(name), std::move(fallback), numbers));
}

}  // namespace metalops

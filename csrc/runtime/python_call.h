// Python functions that call an operator at the cost of torch's own: without torch.ops, whose
// argument handling takes several times as long as dispatching a small operator, and with C++
// warnings as Python warnings.
#pragma once
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <metalops/library.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace metalops {

class METALOPS_HIDDEN DirectCall {
 public:
  DirectCall(std::string name, pybind11::object fallback)
      : name_(std::move(name)),
        functional_(c10::Dispatcher::singleton().findSchemaOrThrow(name_.c_str(), "")),
        out_(c10::Dispatcher::singleton().findSchema({name_, "out"})),
        fallback_(std::move(fallback)) {
    for (const auto& argument : functional_.schema().arguments()) {
      is_tensor_.push_back(argument.type()->kind() == c10::TypeKind::TensorType);
    }
    method_ = {name_.c_str() + name_.rfind(':') + 1,
               reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&DirectCall::call)),
               METH_FASTCALL, nullptr};
  }

  // The Python function, which keeps `self` alive.
  static pybind11::object function(std::unique_ptr<DirectCall> self) {
    auto* method = &self->method_;
    const pybind11::capsule owner(self.release(),
                                  [](void* p) { delete static_cast<DirectCall*>(p); });
    return pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(method, owner.ptr()));
  }

 private:
  static PyObject* call(PyObject* owner, PyObject* const* arguments, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    return static_cast<DirectCall*>(PyCapsule_GetPointer(owner, nullptr))
        ->dispatch(arguments, static_cast<size_t>(count));
    END_HANDLE_TH_ERRORS
  }

  PyObject* dispatch(PyObject* const* arguments, size_t count) const {
    const auto expected = is_tensor_.size();
    const bool takes_out = out_.has_value();
    PyObject* out = takes_out && count == expected + 1 ? arguments[expected] : Py_None;
    torch::jit::Stack stack;
    stack.reserve(count);
    bool simple = count == expected + takes_out && !at::impl::torch_function_mode_enabled() &&
                  (out == Py_None || THPVariable_CheckExact(out));
    for (size_t i = 0; simple && i < expected; ++i) {
      simple = push(stack, arguments[i], is_tensor_[i]);
    }
    if (!simple) {
      return PyObject_Vectorcall(fallback_.ptr(), arguments, count, nullptr);
    }
    const auto& op = out == Py_None ? functional_ : *out_;
    if (out != Py_None) {
      stack.emplace_back(THPVariable_Unpack(out));
    }
    {
      pybind11::gil_scoped_release release;
      op.callBoxed(stack);
    }
    return THPVariable_Wrap(std::move(stack.back()).toTensor());
  }

  static bool push(torch::jit::Stack& stack, PyObject* argument, bool is_tensor) {
    if (is_tensor) {
      if (!THPVariable_CheckExact(argument)) {
        return false;
      }
      stack.emplace_back(THPVariable_Unpack(argument));
    } else if (PyFloat_CheckExact(argument)) {
      stack.emplace_back(PyFloat_AS_DOUBLE(argument));
    } else {
      return false;
    }
    return true;
  }

  const std::string name_;
  const c10::OperatorHandle functional_;
  const std::optional<c10::OperatorHandle> out_;
  const pybind11::object fallback_;
  std::vector<bool> is_tensor_;
  PyMethodDef method_;
};

// A Python function of an operator with one result, all of whose arguments are tensors and floats:
// name is "namespace::name". It takes them by position, and after them the `out` tensor or None if
// there is an overload of that name. Whatever is not plain goes to `fallback`, with the same
// arguments: subclasses of Tensor, torch function modes, arguments of other types.
METALOPS_HIDDEN inline pybind11::object direct_call(std::string name, pybind11::object fallback) {
  return DirectCall::function(std::make_unique<DirectCall>(std::move(name), std::move(fallback)));
}

}  // namespace metalops

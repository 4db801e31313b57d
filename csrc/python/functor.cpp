// Operators of metalops.functor: registered as those of <metalops/pointwise.h> are, with kernels
// that Python writes.
#include <csrc/python/functor.h>

#include <ATen/TensorIterator.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <metalops/boxed.h>
#include <metalops/elementwise_launch.h>
#include <metalops/metal_type.h>
#include <metalops/pointwise.h>
#include <metalops/torch_internals.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace metalops {
namespace {

namespace py = pybind11;
using at::native::mps::MetalKernelFunction;
using at::native::mps::MetalShaderLibrary;
using c10::ScalarType;
using pointwise::Integers;
using pointwise::Result;
using Scalars = c10::ArrayRef<c10::Scalar>;

constexpr auto kTypes = static_cast<size_t>(ScalarType::NumOptions);

// Rethrows a Python exception as torch's own, which may cross threads that do not hold the GIL.
[[noreturn]] void raise_as_torch(py::error_already_set& error) {
  error.restore();
  python_error raised;
  raised.persist();
  throw raised;
}

// The kernels of a functor: one library per dtype of the inputs, compiled on first use. Lives as
// long as the process, as operators do.
class Kernels {
 public:
  // `compile`: a Python function from the Metal name of a dtype to a ShaderLibrary; it returns the
  // same object for the same dtype.
  explicit Kernels(const py::object& compile) : compile_(compile.inc_ref().ptr()) {}

  MetalShaderLibrary& operator[](ScalarType type) {
    auto& slot = libraries_[static_cast<size_t>(type)];
    if (auto* library = slot.load(std::memory_order_acquire)) {
      return *library;
    }
    auto* library = compiled(metal_type(type));
    slot.store(library, std::memory_order_release);
    return *library;
  }

 private:
  MetalShaderLibrary* compiled(const char* type) const {
    py::gil_scoped_acquire gil;
    try {
      const py::object library = py::reinterpret_borrow<py::object>(compile_)(type);
      library.inc_ref();
      return &library.cast<ShaderLibrary&>().library;
    } catch (py::error_already_set& error) {
      raise_as_torch(error);
    }
  }

  PyObject* const compile_;
  std::array<std::atomic<MetalShaderLibrary*>, kTypes> libraries_{};
};

// Returns the dtype in which kernels take a scalar argument.
ScalarType scalar_type(const c10::Scalar& scalar) {
  if (scalar.isComplex()) {
    return at::kComplexFloat;
  }
  return scalar.isBoolean() ? at::kBool : scalar.isIntegral(false) ? at::kLong : at::kFloat;
}

unsigned set_scalars(MetalKernelFunction& kernel, unsigned index, Scalars scalars) {
  for (const auto& scalar : scalars) {
    switch (scalar_type(scalar)) {
      case at::kComplexFloat: {
        const auto value = scalar.toComplexFloat();
        kernel.setArg(index++, &value, sizeof(value));
        break;
      }
      case at::kBool:
        kernel.setArg(index++, scalar.toBool());
        break;
      case at::kLong:
        kernel.setArg(index++, scalar.toLong());
        break;
      default:
        kernel.setArg(index++, scalar.toFloat());
    }
  }
  return index;
}

// Launches a kernel through torch's MetalShaderLibrary if that has a suitable variant: one output,
// and at most two inputs with a scalar or three without. The kernels that Python writes follow the
// same rule, see python/metalops/kernel/functor/metal_text.py.
class Launcher {
 public:
  // `name`: the operator's. Kernel names have a prefix, so that the user's text may use `name`.
  Launcher(std::shared_ptr<Kernels> kernels, const std::string& name)
      : kernels_(std::move(kernels)), name_(*new std::string("metalops_" + name)) {}

  void operator()(at::TensorIteratorBase& iter, Scalars scalars) const {
    if (iter.numel() == 0) {
      return;
    }
    // Inputs of different dtypes are read in the dtype of the computation, the output's.
    const int outputs = iter.noutputs();
    const int inputs = iter.ninputs();
    auto type = iter.dtype(outputs);
    for (int i = outputs + 1; i < iter.ntensors(); ++i) {
      if (iter.dtype(i) != type) {
        type = iter.dtype(0);
        break;
      }
    }
    auto& library = (*kernels_)[type];
    if (outputs > 1 || inputs > 3 || scalars.size() > (inputs < 3 ? 1 : 0)) {
      launch_elementwise(library, iter, name_.c_str(), metal_type(type),
                         [&](MetalKernelFunction& kernel, unsigned index) {
                           return set_scalars(kernel, index, scalars);
                         });
      return;
    }
    std::optional<c10::Scalar> alpha;
    std::optional<ScalarType> alpha_type;
    if (!scalars.empty()) {
      alpha = scalars[0];
      alpha_type = scalar_type(scalars[0]);
    }
    if (inputs == 1) {
      library.exec_unary_kernel(iter, name_, alpha, alpha_type);
    } else if (inputs == 2) {
      library.exec_binary_kernel(iter, name_, alpha, alpha_type,
                                 /*natural_output_dtype=*/iter.dtype(0));
    } else {
      library.exec_ternary_kernel(iter, name_);
    }
  }

 private:
  const std::shared_ptr<Kernels> kernels_;
  const std::string name_;
};

// Casts floating-point tensors as torch's autocast lists do: to float32 or to the lower precision.
class AutocastKernel final : public c10::OperatorKernel {
 public:
  explicit AutocastKernel(bool lower_precision) : lower_precision_(lower_precision) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const internals::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastMPS);
    const auto type =
        lower_precision_ ? internals::get_autocast_dtype(at::kMPS) : ScalarType::Float;
    for (auto argument = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
         argument != stack->end(); ++argument) {
      if (argument->isTensor()) {
        *argument = internals::cached_cast(type, argument->toTensor(), at::kMPS);
      }
    }
    op.callBoxed(stack);
  }

 private:
  const bool lower_precision_;
};

template <class T>
T choice(const std::string& name, std::initializer_list<std::pair<const char*, T>> choices) {
  for (const auto& [known, value] : choices) {
    if (name == known) {
      return value;
    }
  }
  TORCH_CHECK_VALUE(false, "unknown choice ", name);
}

// Returns the formula of a backward operator: calls a Python function with the tensors and scalars.
// It lives as long as the process, as the operator does.
auto formula_of(const py::object& function) {
  return
      [function = py::object(function).release().ptr()](at::TensorList operands, Scalars scalars) {
        py::gil_scoped_acquire gil;
        try {
          py::list numbers;
          for (const auto& scalar : scalars) {
            numbers.append(py::cast(scalar));
          }
          return py::reinterpret_borrow<py::object>(function)(operands.vec(), numbers)
              .cast<std::vector<at::Tensor>>();
        } catch (py::error_already_set& error) {
          raise_as_torch(error);
        }
      };
}

// Defines an operator. `schema`: of the functional overload. `backward`: schema of the operator
// that differentiates it, or empty. `dtypes`: of the inputs. `compile`: see Kernels. `formula`: of
// the backward operator, or the reason why there is none.
void define_functor(const std::string& schema, const std::string& backward,
                    const std::vector<ScalarType>& dtypes, const std::string& integers,
                    const std::string& result, const std::string& autocast,
                    const py::object& compile, const py::object& formula) {
  const auto name = schema.substr(0, schema.find('('));
  const auto ns = name.substr(0, name.find(':'));
  const auto base = name.substr(ns.size() + 2);
  const auto backward_base =
      backward.empty() ? "" : backward.substr(0, backward.find('(')).substr(ns.size() + 2);
  auto kernels = std::make_shared<Kernels>(compile);

  pointwise::Operator op{
      .launch = Launcher(kernels, base),
      .integers = choice<Integers>(
          integers,
          {{"float", Integers::kToFloat}, {"stay", Integers::kStay}, {"refuse", Integers::kStay}}),
      .backward = backward_base,
      .result = choice<Result>(
          result,
          {{"promote", Result::kPromoted}, {"bool", Result::kBool}, {"real", Result::kReal}}),
  };
  for (const auto dtype : dtypes) {
    op.dtypes.set(static_cast<size_t>(dtype));
  }

  // Leaked: operators are never removed, because compiled graphs may hold them.
  auto& library = *new torch::Library(torch::Library::FRAGMENT, ns, std::nullopt, __FILE__,
                                      static_cast<uint32_t>(__LINE__));
  if (!backward.empty()) {
    pointwise::Operator backward_op{.launch = Launcher(kernels, backward_base),
                                    .integers = Integers::kStay};
    backward_op.dtypes.set();
    std::string without_formula;
    if (py::isinstance<py::str>(formula)) {
      without_formula = formula.cast<std::string>();
    } else {
      backward_op.formula = formula_of(formula);
    }
    pointwise::define_backward(library, backward, backward_op, without_formula);
  }
  const auto parsed = torch::jit::parseSchema(schema);
  const auto operands = static_cast<size_t>(std::count_if(
      parsed.arguments().begin(), parsed.arguments().end(), [](const c10::Argument& argument) {
        return argument.type()->kind() == c10::TypeKind::TensorType;
      }));
  const auto scalars = parsed.arguments().size() - operands;
  op.uniform = op.result != Result::kPromoted || parsed.returns().size() > 1 || operands > 3 ||
               scalars > (operands < 3 ? 1 : 0);
  pointwise::define(library, schema, op);
  if (autocast != "promote") {
    const bool lower = choice<bool>(autocast, {{"lower_precision", true}, {"float32", false}});
    implement_boxed<AutocastKernel>(library, name, c10::DispatchKey::AutocastMPS, lower);
  }
}

}  // namespace

void bind_functor(py::module_& m) {
  py::class_<ShaderLibrary>(m, "ShaderLibrary")
      .def(py::init(torch::wrap_pybind_function([](const std::string& source) {
             py::gil_scoped_release release;
             return std::make_unique<ShaderLibrary>(source);
           })),
           py::arg("source"),
           "Compiles Metal source without includes of other than Metal's own headers. Wrong source "
           "is a SyntaxError.");
  m.def("define_functor", torch::wrap_pybind_function(&define_functor), py::arg("schema"),
        py::arg("backward"), py::arg("dtypes"), py::arg("integers"), py::arg("result"),
        py::arg("autocast"), py::arg("compile"), py::arg("formula"),
        "Defines the operator of a metalops.functor with all its overloads; see "
        "csrc/python/functor.cpp.");
}

}  // namespace metalops

// Pointwise operators of a namespace of our own. One call of define() makes the functional, the
// out= and the in-place overload, with broadcasting, type promotion and checks as torch's pointwise
// operators have them (TensorIterator) and with autograd; what remains for the operator file is the
// launch of its kernel:
//
//   TORCH_LIBRARY_FRAGMENT(mylib, m) {
//     metalops::pointwise::define(m, "mylib::cube(Tensor self) -> Tensor",
//                                 {.launch = [](auto& iter, auto) {
//                                   metalops::library("cube").exec_unary_kernel(iter, "cube");
//                                 }});
//   }
//
// Without .backward the operator cannot be differentiated and says so. An operator may have several
// results, "-> (Tensor, Tensor)"; it then has no in-place overload, and its out= overload takes
// out0, out1 and so on. Fake kernels, which torch.compile needs, are written in Python: see
// metalops.ops.fake.
#pragma once
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <metalops/autograd.h>
#include <metalops/checks.h>
#include <metalops/functionalize.h>
#include <metalops/library.h>
#include <metalops/views.h>
#include <torch/library.h>

#include <algorithm>
#include <bitset>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace metalops::pointwise {

// Runs the kernel of an operator. The iterator has the outputs first, then the inputs in the
// schema's order; scalars are the arguments that are not tensors, in the schema's order. Inputs may
// be of different dtypes and any of them a broadcast one; the outputs have the dtype that the
// kernels naturally give: see Result.
using Launch =
    std::function<void(at::TensorIteratorBase& iter, c10::ArrayRef<c10::Scalar> scalars)>;

enum class Integers {
  kToFloat,  // integer results become floating point, as with torch.sigmoid; bool is an integer
  kStay,     // as with torch.square; bool is not supported
};

// The dtype in which the kernels deliver.
enum class Result {
  kPromoted,  // the common dtype of the inputs, or float32 if all are integers and become floating
              // point
  kBool,      // as with torch.eq
  kReal,      // as kPromoted, but real where that is complex, as with torch.abs
};

// A set of at::ScalarType.
using Dtypes = std::bitset<static_cast<size_t>(at::ScalarType::NumOptions)>;

// Operators on the two halves of the last dimension of their argument `self`, a = self[..., :d] and
// b = self[..., d:]. The launch finds two inputs in its place, or, if `self`'s gradient is the
// output, two outputs.
enum class Halves { kNone, kFirstSecond, kSecondFirst };

struct METALOPS_HIDDEN Operator {
  Launch launch;
  Integers integers = Integers::kToFloat;
  Halves halves = Halves::kNone;
  // The operator that differentiates this one, defined before; see autograd.h.
  std::string backward;
  Result result = Result::kPromoted;
  Dtypes dtypes;         // of the inputs; none stands for the floats and, as `integers` says, those
  bool uniform = false;  // the kernels exist for inputs of equal dtypes only
};

namespace detail {

METALOPS_HIDDEN inline bool supports(const Operator& op, at::ScalarType type) {
  if (op.dtypes.any()) {
    return op.dtypes[static_cast<size_t>(type)];
  }
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kLong ||
         type == at::kInt || type == at::kShort || type == at::kChar || type == at::kByte ||
         (type == at::kBool && op.integers == Integers::kToFloat);
}

using Tensors = c10::SmallVector<at::Tensor, 4>;

// Tensors of a CPU with no dimensions may stand among device tensors, as everywhere in torch.
METALOPS_HIDDEN inline void move_cpu_scalars(at::TensorList outputs, Tensors& inputs) {
  const auto is_cpu_scalar = [](const at::Tensor& t) { return t.is_cpu() && t.dim() == 0; };
  if (std::none_of(inputs.begin(), inputs.end(), is_cpu_scalar)) {
    return;
  }
  std::optional<at::Device> device;
  for (const auto& output : outputs) {
    if (!output.is_cpu()) {
      device = output.device();
    }
  }
  for (const auto& input : inputs) {
    if (!input.is_cpu()) {
      device = input.device();
    }
  }
  for (auto& input : inputs) {
    if (device && is_cpu_scalar(input)) {
      // The device has no float64; a tensor without dimensions does not make its result one either.
      const auto type = input.scalar_type();
      const bool is_number = input.unsafeGetTensorImpl()->is_wrapped_number();
      input = input.to(*device, type == at::kDouble          ? at::kFloat
                                : type == at::kComplexDouble ? at::kComplexFloat
                                                             : type);
      input.unsafeGetTensorImpl()->set_wrapped_number(is_number);
    }
  }
}

// natural: the outputs' dtype where they are not defined, if it is not the common one.
METALOPS_HIDDEN inline at::TensorIterator build_iterator(at::TensorList outputs,
                                                         at::TensorList inputs, const Operator& op,
                                                         at::ScalarType natural) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true)
      .allow_cpu_scalars(true)
      .promote_inputs_to_common_dtype(true)
      .promote_integer_inputs_to_float(op.integers == Integers::kToFloat);
  if (op.result == Result::kPromoted) {
    config.cast_common_dtype_to_outputs(true).enforce_safe_casting_to_output(true);
  } else if (!outputs[0].defined()) {
    config.declare_static_dtype(natural);
  }
  for (const auto& output : outputs) {
    config.add_output(output);
  }
  for (const auto& input : inputs) {
    config.add_const_input(input);
  }
  return config.build();
}

METALOPS_HIDDEN inline bool have_one_dtype(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
    return t.scalar_type() == tensors[0].scalar_type();
  });
}

// The dtype in which TensorIterator has the inputs computed.
METALOPS_HIDDEN inline at::ScalarType common_dtype(at::TensorList inputs, Integers integers) {
  const auto common = at::native::result_type(inputs);
  return integers == Integers::kToFloat && at::isIntegralType(common, /*includeBool=*/true)
             ? c10::typeMetaToScalarType(c10::get_default_dtype())
             : common;
}

// The dtype in which the kernels deliver, whatever the outputs' are. common: a function that gives
// the common dtype.
template <class Common>
METALOPS_HIDDEN inline at::ScalarType natural_dtype(const Operator& op, at::TensorList inputs,
                                                    const Common& common) {
  if (op.result == Result::kBool) {
    return at::kBool;
  }
  const bool all_integers = std::all_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) {
    return at::isIntegralType(t.scalar_type(), /*includeBool=*/true);
  });
  const auto promoted = all_integers && op.integers == Integers::kToFloat ? at::kFloat : common();
  return op.result == Result::kReal ? c10::toRealValueType(promoted) : promoted;
}

METALOPS_HIDDEN inline void check_halves(const std::string& name, const at::Tensor& self) {
  TORCH_CHECK(self.dim() > 0, unqualified(name), " does not support 0-dimensional tensors");
  TORCH_CHECK(self.size(-1) % 2 == 0, "Halving dimension must be even, but dimension ",
              self.dim() - 1, " is size ", self.size(-1));
}

template <class Tensors>
METALOPS_HIDDEN inline void push_halves(Tensors& tensors, const at::Tensor& whole, Halves halves) {
  const int first = halves == Halves::kFirstSecond ? 0 : 1;
  tensors.push_back(half_of_last_dimension(whole, first));
  tensors.push_back(half_of_last_dimension(whole, 1 - first));
}

// The kernel of every overload for device tensors.
class METALOPS_HIDDEN Kernel final : public c10::OperatorKernel {
 public:
  enum class Form { kFunctional, kOut, kInplace, kBackward };

  Kernel(const Operator& op, Form form) : op_(op), form_(form) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    const auto& schema = handle.schema();
    const auto arguments = torch::jit::last(*stack, schema.arguments().size());
    Tensors inputs;
    c10::SmallVector<c10::Scalar, 2> scalars;
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        inputs.push_back(argument.toTensor());
      } else {
        scalars.push_back(argument.toScalar());
      }
    }
    Tensors outputs;
    if (form_ == Form::kOut) {
      const auto first = inputs.end() - static_cast<int64_t>(schema.returns().size());
      outputs.append(std::make_move_iterator(first), std::make_move_iterator(inputs.end()));
      inputs.erase(first, inputs.end());
    } else if (form_ == Form::kInplace) {
      outputs.push_back(inputs[0]);
    }
    move_cpu_scalars(outputs, inputs);
    for (const auto& input : inputs) {
      check_dtype(supports(op_, input.scalar_type()), schema.name(), input.scalar_type());
    }
    if (form_ == Form::kBackward) {
      outputs = run_backward(schema, std::move(inputs), scalars);
    } else {
      if (op_.halves != Halves::kNone) {
        check_halves(schema.name(), inputs[0]);
        if (!outputs.empty()) {
          // The iterator compares it with the halves, of which it cannot tell in general.
          at::assert_no_overlap(outputs[0], inputs[0]);
        }
        const auto self = inputs.pop_back_val();
        push_halves(inputs, self, op_.halves);
      }
      outputs.resize(schema.returns().size());
      run(outputs, std::move(inputs), scalars);
    }
    torch::jit::drop(*stack, arguments.size());
    for (auto& output : outputs) {
      stack->emplace_back(std::move(output));
    }
  }

 private:
  // Undefined outputs are allocated.
  void run(Tensors& outputs, Tensors inputs, c10::ArrayRef<c10::Scalar> scalars) const {
    if (op_.uniform && !have_one_dtype(inputs)) {
      const auto common = common_dtype(inputs, op_.integers);
      for (auto& input : inputs) {
        input = input.to(common);
      }
    }
    auto natural = at::kFloat;
    if (op_.result != Result::kPromoted) {
      natural = natural_dtype(op_, inputs, [&] { return common_dtype(inputs, op_.integers); });
      for (const auto& output : outputs) {
        TORCH_CHECK(!output.defined() || c10::canCast(natural, output.scalar_type()),
                    "result type ", natural, " can't be cast to the desired output type ",
                    output.scalar_type());
      }
    }
    for (size_t i = 1; i < outputs.size() && outputs[0].defined(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        at::assert_no_overlap(outputs[i], outputs[j]);
      }
    }
    auto iter = build_iterator(outputs, inputs, op_, natural);
    if (op_.result == Result::kPromoted) {
      natural = natural_dtype(op_, inputs, [&] { return iter.common_dtype(); });
    }
    bool converts = false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto& output = iter.output(static_cast<int64_t>(i));
      converts |= output.scalar_type() != natural;
      if (!outputs[i].defined()) {
        outputs[i] = output;
      }
    }
    if (!converts) {
      op_.launch(iter, scalars);
      return;
    }
    Tensors computed;
    for (const auto& output : outputs) {
      computed.push_back(at::empty(output.sizes(), output.options().dtype(natural)));
    }
    auto natural_iter = build_iterator(computed, inputs, op_, natural);
    op_.launch(natural_iter, scalars);
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].copy_(computed[i]);
    }
  }

  // All operands of a backward kernel have the same dtype.
  Tensors run_backward(const c10::FunctionSchema& schema, Tensors inputs,
                       c10::ArrayRef<c10::Scalar> scalars) const {
    auto common = inputs[0].scalar_type();
    for (const auto& input : inputs) {
      common = c10::promoteTypes(common, input.scalar_type());
    }
    for (auto& input : inputs) {
      input = input.to(common);
    }
    Tensors results;
    if (op_.halves == Halves::kNone) {
      const Tensors outputs(schema.returns().size());
      auto iter = build_iterator(outputs, inputs, op_, common);
      op_.launch(iter, scalars);
      for (size_t i = 0; i < outputs.size(); ++i) {
        results.push_back(iter.output(static_cast<int64_t>(i)));
      }
    } else {
      check_halves(schema.name(), inputs[1]);
      results.push_back(at::empty_like(inputs[1]));
      const auto self = inputs.pop_back_val();
      Tensors outputs;
      push_halves(outputs, results[0], op_.halves);
      push_halves(inputs, self, op_.halves);
      auto iter = build_iterator(outputs, inputs, op_, common);
      op_.launch(iter, scalars);
    }
    return results;
  }

  const Operator op_;
  const Form form_;
};

template <class Functor, class... Arguments>
METALOPS_HIDDEN inline void implement(torch::Library& m, const std::string& name,
                                      c10::DispatchKey key, Arguments&&... arguments) {
  m.impl(name.c_str(),
         torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Functor>(
                                  std::forward<Arguments>(arguments)...))));
}

METALOPS_HIDDEN inline void define_overload(torch::Library& m, const std::string& schema,
                                            bool pointwise) {
  using at::Tag;
  const auto tags = pointwise ? std::vector<Tag>{Tag::pt2_compliant_tag, Tag::pointwise}
                              : std::vector<Tag>{Tag::pt2_compliant_tag};
  m.def(schema.c_str(), tags);
}

// arguments: of the functional overload, without their parentheses.
METALOPS_HIDDEN inline std::string out_schema(const std::string& name, const std::string& arguments,
                                              size_t results) {
  std::string outputs;
  std::string returns;
  for (size_t i = 0; i < results; ++i) {
    const std::string type = std::string("Tensor(") + static_cast<char>('a' + i) + "!)";
    outputs += ", " + type + " out" + (results > 1 ? std::to_string(i) : "");
    returns += (i > 0 ? ", " : "") + type;
  }
  const bool keywords = arguments.find("*, ") != std::string::npos;
  return name + ".out(" + arguments + (keywords ? "" : ", *") + outputs + ") -> " +
         (results > 1 ? "(" + returns + ")" : returns);
}

}  // namespace detail

// Defines an operator that only autograd calls: "ns::name(Tensor grad_output, ...) -> Tensor" or
// "-> (Tensor, ...)". With more than one result all operands have the same dtype (see
// elementwise_launch.h). Differentiating it in turn raises an error that names it.
METALOPS_HIDDEN inline void define_backward(torch::Library& m, const std::string& schema,
                                            const Operator& op) {
  detail::define_overload(m, schema, op.halves == Halves::kNone);
  const auto name = schema.substr(0, schema.find('('));
  detail::implement<detail::Kernel>(m, name, c10::DispatchKey::MPS, op,
                                    detail::Kernel::Form::kBackward);
  detail::implement<autograd::NotDifferentiableKernel>(
      m, name, c10::DispatchKey::Autograd, "derivative for " + name + " is not implemented",
      /*inplace=*/false);
}

// schema: of the functional overload, with the namespace: "ns::name(Tensor self, ...) -> Tensor".
// All its tensors are operands; the other arguments are numbers. Operators on halves have no
// in-place overload, as the shape changes; nor have those with several results or with results of
// another kind of dtype.
METALOPS_HIDDEN inline void define(torch::Library& m, const std::string& schema,
                                   const Operator& op) {
  using c10::DispatchKey;
  using detail::Kernel;
  const auto open = schema.find('(');
  const auto name = schema.substr(0, open);
  const auto arguments = schema.substr(open + 1, schema.rfind(") ->") - open - 1);
  const bool pointwise = op.halves == Halves::kNone;
  detail::define_overload(m, schema, pointwise);
  const auto functional = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  const auto results = functional.schema().returns().size();
  const auto count = functional.schema().arguments().size();
  const bool inplace = pointwise && results == 1 && op.result == Result::kPromoted;

  detail::define_overload(m, detail::out_schema(name, arguments, results), pointwise);
  if (inplace) {
    const auto first = arguments.substr(arguments.find(' '));  // without its type, Tensor
    detail::define_overload(m, name + "_(Tensor(a!)" + first + ") -> Tensor(a!)", pointwise);
  }

  const auto in_place_or_view = [&](const std::string& overload) {
    m.impl(overload.c_str(),
           torch::dispatch(DispatchKey::ADInplaceOrView,
                           torch::autograd::autogradNotImplementedInplaceOrViewFallback()));
  };
  detail::implement<Kernel>(m, name, DispatchKey::MPS, op, Kernel::Form::kFunctional);
  detail::implement<Kernel>(m, name + ".out", DispatchKey::MPS, op, Kernel::Form::kOut);
  detail::implement<autograd::OutKernel>(m, name + ".out", DispatchKey::Autograd);
  in_place_or_view(name + ".out");
  detail::implement<FunctionalizeKernel>(m, name + ".out", DispatchKey::Functionalize, functional,
                                         /*written=*/count, /*resizes=*/true);
  if (inplace) {
    detail::implement<Kernel>(m, name + "_", DispatchKey::MPS, op, Kernel::Form::kInplace);
    in_place_or_view(name + "_");
    detail::implement<FunctionalizeKernel>(m, name + "_", DispatchKey::Functionalize, functional,
                                           /*written=*/size_t{0}, /*resizes=*/false);
  }

  if (op.result == Result::kBool) {
    m.impl(name.c_str(),
           torch::dispatch(DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
    return;
  }
  if (op.backward.empty()) {
    const auto not_differentiable = [&](const std::string& overload, bool is_inplace) {
      detail::implement<autograd::NotDifferentiableKernel>(
          m, overload, DispatchKey::Autograd,
          "derivative for " + name + " is not implemented: it was defined without a gradient",
          is_inplace);
    };
    not_differentiable(name, /*is_inplace=*/false);
    if (inplace) {
      not_differentiable(name + "_", /*is_inplace=*/true);
    }
    return;
  }
  const auto ns = name.substr(0, name.find(':'));
  const auto backward =
      c10::Dispatcher::singleton().findSchemaOrThrow((ns + "::" + op.backward).c_str(), "");
  const auto call = std::make_shared<const autograd::BackwardCall>(functional.schema(), backward);
  detail::implement<autograd::DifferentiableKernel>(m, name, DispatchKey::Autograd, call,
                                                    /*inplace=*/false);
  if (inplace) {
    detail::implement<autograd::DifferentiableKernel>(m, name + "_", DispatchKey::Autograd, call,
                                                      /*inplace=*/true);
  }
}

}  // namespace metalops::pointwise
